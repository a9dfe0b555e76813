"""Deadline order for first tokens, a guard on admissions for token gaps, shaped like SCORPIO (seed 0x07)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from harness.reference.contract import IterationPlan, SchedulerState, WorkloadManifest
from harness.reference.passes import SUSPENDED, WAITING, Candidate, Draft, admit_known
from harness.reference.policies.slack import deadlines
from harness.reference.policy import Card, MethodContract, Parameter, Policy
from harness.reference.table import Phase

_DECODE = int(Phase.DECODE)


class ScorpioLike(Policy):
    """First tokens by earliest deadline, hopeless ones last; nobody comes in while the predicted iteration would break a gap limit."""

    card: ClassVar[Card] = Card(
        "scorpio-like-deadline", "1", "SCORPIO: deadline order with rejection, credit-based batching", "mechanisms named by the seed",
        ("queue_position",),
        MethodContract(
            "admission of a request, token rows of running ones", "request", "arrivals, declared limits, frontiers, a linear cost model",
            "order and number of admissions", "output lengths, arrivals", "meet TTFT by order and TPOT by a guard",
            "attainment of TTFT and TPOT limits", ("iteration time is linear in rows", "limits are declared"),
            ("latency prediction", "KV rows", "model execution"),
        ),
        (
            "a hopeless request waits behind the others; the paper rejects it, and a scheduler here declines nobody",
            "the guard is on admissions: a prompt once let in goes on within the token budget",
            "no length prediction: the paper's guards and guarantees rest on one", "the cost model is declared, not calibrated",
        ),
        {
            "base_ns": Parameter(4_000_000, "ns", "predicted iteration without rows"),
            "prefill_row_ns": Parameter(20_000, "ns", "predicted for each prompt row"),
            "decode_row_ns": Parameter(100_000, "ns", "predicted for each decode row"),
            "ttft_ns": Parameter(2_000_000_000, "ns", "TTFT limit of requests that declare none"),
            "tbt_ns": Parameter(100_000_000, "ns", "TBT limit of requests that declare none"),
        },
    )  # fmt: skip

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve who runs; let in by deadline as many prompt rows as the tightest token-gap limit of those who decode leaves room for."""
        draft = Draft(self, workload, state)
        draft.serve_running()
        room = self._room(state)
        if not draft.preempted and room > 0:
            draft.tokens_left = min(draft.tokens_left, room)
            admit_known(draft, self._by_deadline(state))
        return draft.finish()

    def _room(self, state: SchedulerState) -> int:
        """Prompt rows that fit beside the running queue before the predicted iteration passes the tightest limit."""
        ours, running = self.parameters, state.running
        decodes = int(np.count_nonzero(running.phase == _DECODE))
        prompt = int((running.limit - running.resident).sum()) - decodes
        if not decodes:
            return 2**62
        limits = np.where(running.tbt_ns < 0, ours["tbt_ns"], running.tbt_ns)
        spent = ours["base_ns"] + prompt * ours["prefill_row_ns"] + decodes * ours["decode_row_ns"]
        return (int(limits.min()) - spent) // ours["prefill_row_ns"]

    def _by_deadline(self, state: SchedulerState) -> Iterator[Candidate]:
        yield from ((SUSPENDED, at) for at in range(len(state.suspended)))
        ours, waiting = self.parameters, state.waiting
        due = deadlines(waiting, ours["ttft_ns"], ours["tbt_ns"])
        earliest = state.now_ns + ours["base_ns"] + (waiting.limit - waiting.resident) * ours["prefill_row_ns"]
        yield from ((WAITING, at) for at in np.lexsort((waiting.order, due, due < earliest)).tolist())
