"""Fair queueing by client: Virtual Token Counter shaped like Algorithm 2 of the paper, and a variant charged by completion (seed 0x09A).

The paper charges a prompt when it enters the running batch, this contract credits service only when it completed. The two are two policies
with two names; the theorem belongs to the first one's paper, under its premises (F56-F60).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from harness.reference.contract import EMITTED_AFTER, EMITTED_BEFORE, PHASE, IterationPlan, Moves, SchedulerState, WorkloadManifest
from harness.reference.passes import WAITING, Candidate, Draft, admit_reserving
from harness.reference.policy import BLOCKS, Card, Completed, MethodContract, Parameter, Policy
from harness.reference.results import service_of
from harness.reference.table import CLIENT, Int64, Phase, Table

_WEIGHTS = {
    "input_weight": Parameter(1, "weight", "w_p of one prompt row"),
    "output_weight": Parameter(2, "weight", "w_q of one output; 1:2 is the seed's synthetic choice"),
}
_CONTRACT = MethodContract(
    "admission of a request, token rows of running ones", "client", "client of each request, counters, frontiers, declared maxima",
    "the next request of the least served client", "output lengths, arrivals", "equal weighted service of backlogged clients",
    "service difference over intervals in which both clients are backlogged (F52)",
    ("weights are declared", "clients compared stay backlogged", "no preemption", "work-conserving under the memory rule"),
    ("KV slots", "model execution"),
)  # fmt: skip
_PREFILL, _DECODE = int(Phase.PREFILL), int(Phase.DECODE)
_TIE_BREAK = ("queue_rank", "counter", "client_rank", "arrival_order")


class Counters(NamedTuple):
    """``charged`` (clients,): charges or completed service so far. ``lift`` (clients,): what coming back from idleness added.

    ``queued`` (clients,): who had a waiting request at the last cut; ``last``: counter of the client that left the queue last.
    """

    charged: Int64
    lift: Int64
    queued: Int64
    last: int = 0

    @property
    def counter(self) -> Int64:
        """What clients are compared by."""
        return self.charged + self.lift


class _Fair(Policy):
    """Common to both: running requests go on; the least counter's earliest request comes in next."""

    engine_rules = BLOCKS

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve everybody who runs; let in by counter while declared maxima fit."""
        draft = Draft(self, workload, state)
        draft.serve_running(victim=None)
        admit_reserving(draft, self._turns(state), slots=workload.budgets.sequences)
        return draft.finish()

    def fields(self, workload: WorkloadManifest, state: SchedulerState, members: Table) -> Mapping[str, Int64]:  # noqa: ARG002 - the seam
        """``counter`` and ``client_rank`` at the moment a member was let in; 0 for those that ran already."""
        counter, client = np.zeros(len(members), np.int64), np.zeros(len(members), np.int64)
        if members is not state.running:  # somebody is let in
            new = (~np.isin(members.handle, state.running.handle)).nonzero()[0]
            now = _counters(state.memory).counter.copy()
            for at, who, rows in zip(new.tolist(), members.client.take(new).tolist(), members.prompt.take(new).tolist(), strict=True):
                counter[at], client[at] = now[who], who
                now[who] += self.parameters["input_weight"] * rows
        return {"counter": counter, "client_rank": client}

    def initial_memory(self) -> Counters:
        """Nobody was served."""
        return Counters(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))

    def observe(self, workload: WorkloadManifest, state: SchedulerState) -> Counters:  # noqa: ARG002 - the seam
        """Lift the counters of clients that enter the queue, so that idle time earns no credit (F56)."""
        memory = _grown(_counters(state.memory), state.service.shape[1])
        lift, queued = memory.lift.copy(), memory.queued.copy()
        now = _queued(state.waiting, len(lift))
        came = ((now > 0) & (queued == 0)).nonzero()[0].tolist()
        for client in sorted(came, key=lambda who: int((state.waiting.client == who).argmax())):  # in the order in which they came
            others = queued.nonzero()[0]
            floor = int((memory.charged + lift).take(others).min()) if len(others) else memory.last
            lift[client] += max(0, floor - int(memory.charged[client] + lift[client]))
            queued[client] = 1
        return Counters(memory.charged, lift, now, memory.last)

    def learn(self, workload: WorkloadManifest, state: SchedulerState, done: Completed) -> Counters:  # noqa: ARG002 - the seam
        """Charge, and note who left the queue."""
        memory = _counters(state.memory)
        charged = memory.charged + self.charge(state, done)
        if not len(done.authorized.plan.admit.at):
            return memory._replace(charged=charged)
        after = _queued(state.waiting.without(done.authorized.plan.admit.at), len(charged))
        clients = state.waiting.client.take(done.authorized.plan.admit.at).tolist()
        left = [client for client in clients if not after[client]]
        last = int((charged + memory.lift)[left[-1]]) if left else memory.last
        return Counters(charged, memory.lift, after, last)

    def charge(self, state: SchedulerState, done: Completed) -> Int64:
        """What this iteration adds to each client (clients,)."""
        raise NotImplementedError

    def _turns(self, state: SchedulerState) -> Iterator[Candidate]:
        """Candidates by least counter, each charged before the next is chosen."""
        counter, waiting = _counters(state.memory).counter.copy(), state.waiting
        queues = {int(client): iter((waiting.client == client).nonzero()[0].tolist()) for client in np.unique(waiting.client)}
        while queues:
            client = min(queues, key=lambda who: (counter[who], who))
            at = next(queues[client], None)
            if at is None:
                del queues[client]
                continue
            yield WAITING, at
            counter[client] += self.parameters["input_weight"] * int(waiting.prompt[at])


class VtcShaped(_Fair):
    """Charges a prompt when it enters the running batch, and each generated output."""

    card: ClassVar[Card] = Card(
        "vtc-shaped", "1", "VTC (OSDI 2024), Algorithm 2", "paper, Algorithm 2 as reconstructed by the seed", _TIE_BREAK, _CONTRACT,
        (
            "the 2U bound is the paper's and holds under its five premises only; this engine proves none of them",
            "prompts and decodes share iterations here; memory is reserved by declared maxima",
        ),
        _WEIGHTS,
    )  # fmt: skip

    def charge(self, state: SchedulerState, done: Completed) -> Int64:
        """w_p for each prompt row of those who were let in, w_q for each output generated."""
        clients, rows = state.service.shape[1], done.result.rows
        outputs = np.bincount(done.authorized.picked[CLIENT], rows[EMITTED_AFTER] - rows[EMITTED_BEFORE], clients)
        return self.parameters["output_weight"] * outputs.astype(np.int64) + self._let_in(state, done.authorized.plan.admit, clients)

    def _let_in(self, state: SchedulerState, admit: Moves, clients: int) -> Int64:
        new = state.waiting.take(admit.at)
        return self.parameters["input_weight"] * np.bincount(new.client, new.prompt, clients).astype(np.int64)


class CompletionReconciledVtc(_Fair):
    """Charges completed rows only; what is planned is provisional and rolled back when it does not complete."""

    card: ClassVar[Card] = Card(
        "completion_reconciled_vtc_teaching_v1", "1", "VTC's selection over completed service", "teaching adaptation of the seed",
        _TIE_BREAK, _CONTRACT,
        ("not VTC Algorithm 2: the charging event differs, so no theorem and no bound transfers", "weights are synthetic"), _WEIGHTS,
    )  # fmt: skip

    def charge(self, state: SchedulerState, done: Completed) -> Int64:
        """Weighted completed rows (F53); equals the provisional charge where everything completed."""
        return self._weigh(service_of(state, done.authorized, done.result.rows)[0])

    def provisional(self, state: SchedulerState, plan: IterationPlan, members: Table) -> Int64:
        """Predicted service of a plan by client (clients,): what ``C_select`` holds over ``W_done`` while the plan runs."""
        phase, client = plan.work.cells[PHASE], members.cells[CLIENT].take(plan.work.at)
        rows = [np.bincount(client, plan.work.widths * (phase == kind), state.service.shape[1]) for kind in (_PREFILL, _DECODE)]
        return self._weigh(np.array(rows).astype(np.int64))

    def _weigh(self, service: Int64) -> Int64:
        weighed: Int64 = self.parameters["input_weight"] * service[0] + self.parameters["output_weight"] * service[1]
        return weighed


def _counters(memory: object) -> Counters:
    if not isinstance(memory, Counters):
        raise TypeError(f"memory={type(memory).__name__}: not what this policy published")
    return memory


def _grown(memory: Counters, clients: int) -> Counters:
    more = clients - len(memory.lift)
    if more <= 0:
        return memory
    none = np.zeros(more, np.int64)
    charged, lift, queued = (np.concatenate((column, none)) for column in (memory.charged, memory.lift, memory.queued))
    return Counters(charged, lift, queued, memory.last)


def _queued(waiting: Table, clients: int) -> Int64:
    return np.minimum(np.bincount(waiting.client, minlength=clients), 1)
