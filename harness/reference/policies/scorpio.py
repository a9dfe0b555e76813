"""Deadline order with rejection for first tokens, a guard and credits for token gaps, shaped like SCORPIO (seed 0x07)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from harness.reference.contract import COMPLETED_END, IterationPlan, SchedulerState, WorkloadManifest, moves
from harness.reference.deployment import HOPELESS
from harness.reference.passes import SUSPENDED, WAITING, Candidate, Draft, admit_known
from harness.reference.policies.slack import deadlines
from harness.reference.policy import ANY_RULE, Card, Completed, MethodContract, Parameter, Policy
from harness.reference.table import HANDLE, RESIDENT, Bools, Int64, Phase, Table

_DECODE = int(Phase.DECODE)
_NOTHING = np.zeros((2, 0), np.int64)
_NOTHING.flags.writeable = False
CREDIT = 1000
"""Credit of one decode row. Gains are whole thousandths of it, so that sums are the same on every machine."""


def gains(running: Table, tbt_ns: int) -> Int64:
    """Credit each decoding member earns an iteration (n,): the tightest gap limit of them over its own; 0 for prompts and rebuilds.

    Who has the tightest limit decodes in every iteration, who may wait twice as long in every second one.
    """
    decodes = (running.phase == _DECODE) & (running.ready == 1)
    if not np.count_nonzero(decodes):
        return np.zeros(len(running), np.int64)
    limits = _limits(running, tbt_ns)
    tightest = int(limits.compress(decodes).min())
    return np.where(decodes, np.minimum(np.maximum(CREDIT * tightest // limits, 1), CREDIT), 0)


def _limits(members: Table, tbt_ns: int) -> Int64:
    return np.maximum(np.where(members.tbt_ns < 0, tbt_ns, members.tbt_ns), 1)


class ScorpioLike(Policy):
    """First tokens by earliest deadline; who cannot make it is declined. Nobody comes in while the predicted gap would break a limit, and
    who has a loose gap limit decodes less often.
    """

    engine_rules = ANY_RULE
    card: ClassVar[Card] = Card(
        "scorpio-like-deadline", "2", "SCORPIO: deadline order with rejection, virtual batch size, credit-based batching",
        "mechanisms named by the seed and by the paper's contract as read; its predictor is not taken over", ("queue_position",),
        MethodContract(
            "admission or rejection of a request, membership of running ones in one iteration", "request with its own TTFT and TPOT limit",
            "arrivals, declared limits, frontiers, credits, a linear cost model", "order, rejections, admissions, who decodes now",
            "output lengths, arrivals", "meet TTFT by order and rejection, TPOT by a guard and by credits",
            "goodput and attainment over all offered requests; a rejected one is a miss",
            ("iteration time is linear in rows", "limits are declared", "rejection is allowed"),
            ("latency prediction", "KV rows", "model execution"),
        ),
        (
            "declined is who could not make it even alone, a lower bound; the paper's estimate counts the queue, so it declines sooner",
            "no length prediction: the paper's guards and guarantees rest on one", "the cost model is declared, not calibrated",
            "credits are the tightest gap limit over one's own; the paper's own rule was not at hand to compare with",
            "where all limits are equal, everybody decodes in every iteration and credits do nothing",
            "the guard is on admissions: a prompt once let in goes on within the token budget",
            "attainment among completed requests says nothing where many were declined",
        ),
        {
            "base_ns": Parameter(4_000_000, "ns", "predicted iteration without rows"),
            "prefill_row_ns": Parameter(20_000, "ns", "predicted for each prompt row"),
            "decode_row_ns": Parameter(100_000, "ns", "predicted for each decode row"),
            "ttft_ns": Parameter(2_000_000_000, "ns", "TTFT limit of requests that declare none"),
            "tbt_ns": Parameter(100_000_000, "ns", "TBT limit of requests that declare none"),
        },
    )  # fmt: skip
    declines: ClassVar[bool] = True
    reads_limits: ClassVar[bool] = True

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve prompts and whoever has the credit; decline the hopeless; let the others in by deadline as far as gaps allow."""
        draft = Draft(self, workload, state)
        draft.serve_running(self._who_goes(state))
        if not draft.others:
            return draft.finish()
        hopeless = self._hopeless(state)
        room = self._room(state)
        if not draft.preempted and room > 0:
            draft.tokens_left = min(draft.tokens_left, room)
            admit_known(draft, self._within_gaps(state, self._by_deadline(state, hopeless)))
        plan = draft.finish()
        declined = moves(state.waiting, hopeless.nonzero()[0])
        return plan._replace(decline=declined, reasons=np.full(len(declined.at), HOPELESS)) if len(declined.at) else plan

    def initial_memory(self) -> Int64:
        """Nobody has credit (2, 0): number, credit left over."""
        return _NOTHING

    def learn(self, workload: WorkloadManifest, state: SchedulerState, done: Completed) -> Int64:  # noqa: ARG002 - the seam
        """Keep what each running member earned and did not spend on a completed decode row; never more than one row's worth."""
        running, rows = state.running, done.result.rows
        if _all_alike(running):
            return _NOTHING
        spent = rows[HANDLE].compress(rows[COMPLETED_END] > rows[RESIDENT])
        left = self._credit(state) - CREDIT * np.isin(running.handle, spent)
        sort = running.handle.argsort()
        kept = np.array((running.handle.take(sort), np.clip(left, 0, CREDIT).take(sort)))
        kept.flags.writeable = False
        return kept

    def _who_goes(self, state: SchedulerState) -> Int64 | None:
        """Positions of the running members that are served now, prompts always; None for everybody."""
        running = state.running
        if _all_alike(running):
            return None  # each earns a whole row an iteration
        goes: Int64 = ((running.phase != _DECODE) | (self._credit(state) >= CREDIT)).nonzero()[0]
        return goes

    def _credit(self, state: SchedulerState) -> Int64:
        """Credit of each running member at this cut (n,): what it kept, and what this iteration adds."""
        kept, running = _kept(state.memory), state.running
        credit = gains(running, self.parameters["tbt_ns"])
        if kept.shape[1] and len(running):
            at = np.minimum(np.searchsorted(kept[0], running.handle), kept.shape[1] - 1)
            credit = credit + kept[1].take(at) * (kept[0].take(at) == running.handle)
        return credit

    def _room(self, state: SchedulerState) -> int:
        """Prompt rows that fit beside the running queue before the predicted iteration passes the tightest limit."""
        ours, running = self.parameters, state.running
        decodes = running.phase == _DECODE
        if not np.count_nonzero(decodes):
            return 2**62
        prompt = int((running.limit - running.resident).sum()) - int(np.count_nonzero(decodes))
        virtual = int(gains(running, ours["tbt_ns"]).sum())
        spent = ours["base_ns"] + prompt * ours["prefill_row_ns"] + virtual * ours["decode_row_ns"] // CREDIT
        return (int(_limits(running, ours["tbt_ns"]).min()) - spent) // ours["prefill_row_ns"]

    def _hopeless(self, state: SchedulerState) -> Bools:
        """Who of the waiting would miss the first-token deadline (F30) if it ran alone from now on (n,)."""
        ours, waiting = self.parameters, state.waiting
        alone = ours["base_ns"] + (waiting.limit - waiting.resident) * ours["prefill_row_ns"]
        late: Bools = deadlines(waiting, ours["ttft_ns"], ours["tbt_ns"]) < state.now_ns + alone
        return late

    def _by_deadline(self, state: SchedulerState, hopeless: Bools) -> Iterator[Candidate]:
        yield from ((SUSPENDED, at) for at in range(len(state.suspended)))
        waiting = state.waiting
        due = deadlines(waiting, self.parameters["ttft_ns"], self.parameters["tbt_ns"])
        yield from ((WAITING, at) for at in np.lexsort((waiting.order, due)).tolist() if not hopeless[at])

    def _within_gaps(self, state: SchedulerState, candidates: Iterator[Candidate]) -> Iterator[Candidate]:
        """Pass candidates on while the predicted iteration of all who would then decode stays within the tightest of their limits.

        The virtual batch size is the sum of gains: members that decode every second iteration count half. An empty engine lets one in
        whatever the prediction says, for it would wait for ever.
        """
        ours, closed = self.parameters, False
        limits = _limits(state.running, ours["tbt_ns"]).tolist()
        for queue, at in candidates:
            table = state.waiting if queue == WAITING else state.suspended
            back = queue == SUSPENDED and table.resident[at] > 0  # it holds its room already, and others may be waiting for that
            if closed and queue == WAITING:
                return
            if not table.ready[at] or (closed and not back):
                continue  # it does not come in, so it is in nobody's batch
            own = int(table.tbt_ns[at])
            limits.append(max(ours["tbt_ns"] if own < 0 else own, 1))
            tightest = min(limits)
            virtual = sum(CREDIT * tightest // limit for limit in limits)
            closed = closed or (len(limits) > 1 and ours["base_ns"] + virtual * ours["decode_row_ns"] // CREDIT > tightest)
            if back or not closed:
                yield queue, at


def _all_alike(running: Table) -> bool:
    """Whether all members declare the same gap limit."""
    limits = running.tbt_ns
    return len(limits) == 0 or int(limits.min()) == int(limits.max())


def _kept(memory: object) -> Int64:
    if not isinstance(memory, np.ndarray):
        raise TypeError(f"memory={type(memory).__name__}: not what this policy published")
    return memory
