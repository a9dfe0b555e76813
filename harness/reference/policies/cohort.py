"""Fixed request batches and their one correction: membership that is refilled at every iteration (seed 0x02, F08-F11)."""

from __future__ import annotations

from typing import ClassVar

from harness.reference.contract import IterationPlan, SchedulerState, WorkloadManifest
from harness.reference.passes import Draft, admit_reserving
from harness.reference.policy import BLOCKS, Card, MethodContract, Policy

_SEEN = "queues in arrival order, frontiers, declared maxima, terminal events as they come"
_BASIS = "the seed's A/B/C replay; a teaching policy, no paper's algorithm"
_LIMITS = (
    "slot occupancy is a count of slots and says nothing of the utilisation of a device",
    "rows are reserved by declared maxima, so nobody is preempted; other memory rules give other admissions",
)


class FixedBatch(Policy):
    """A cohort of at most ``sequences`` requests keeps its slots until its last member has ended; only then the next cohort forms."""

    engine_rules = BLOCKS
    card: ClassVar[Card] = Card(
        "fixed-batch", "1", "request-level static batching", _BASIS, ("queue_position",),
        MethodContract(
            "request cohort", "request", _SEEN, "members of the next cohort, when there is none", "output lengths, arrivals",
            "none: the baseline whose barrier is to be seen", "slot occupancy (F11), queue delay",
            ("slots are interchangeable", "a slot whose request has ended stays idle"), ("model execution",),
        ),
        (*_LIMITS, "not a padded rectangle: an idle slot costs no rows here, only its place"),
    )  # fmt: skip

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Run the cohort; form one when nothing runs."""
        draft = Draft(self, workload, state)
        draft.serve_running(victim=None)
        if not len(state.running):
            admit_reserving(draft, draft.queue(), slots=workload.budgets.sequences, seats=True)
        return draft.finish()


class IterationRefill(Policy):
    """Slots of requests that ended are given to the next in arrival order at once."""

    engine_rules = BLOCKS
    card: ClassVar[Card] = Card(
        "iteration-refill", "1", "iteration-level membership, nothing else", _BASIS, ("queue_position",),
        MethodContract(
            "iteration", "request", _SEEN, "members that enter free slots", "output lengths, arrivals",
            "no idle slot while somebody waits", "slot occupancy (F11), queue delay",
            ("slots are interchangeable",), ("model execution",),
        ),
        (*_LIMITS, "the membership rule alone: chunking, fairness and deadlines are other policies' matter"),
    )  # fmt: skip

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Run everybody, then refill."""
        draft = Draft(self, workload, state)
        draft.serve_running(victim=None)
        admit_reserving(draft, draft.queue(), slots=workload.budgets.sequences)
        return draft.finish()
