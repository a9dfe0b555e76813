"""Rank by priority: static, and with age that lowers the number (seed 0x09A, F61)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from harness.reference.contract import IterationPlan, SchedulerState, WorkloadManifest
from harness.reference.policy import Card, MethodContract, Parameter, Policy
from harness.reference.ranking import ranked_plan
from harness.reference.table import Int64, Table

_BASIS = "teaching policy of the seed; no paper's algorithm"


def _contract(objective: str, *assumptions: str) -> MethodContract:
    return MethodContract(
        "token rows of one request in one iteration", "request", "declared priority, arrival, frontiers, budgets",
        "the best ranked requests of all queues; the worst ranked give way", "output lengths, arrivals", objective, "none is optimised",
        assumptions, ("KV rows", "model execution"),
    )  # fmt: skip


class StaticPriority(Policy):
    """The lowest declared number runs first, for ever."""

    card: ClassVar[Card] = Card(
        "static-priority", "1", "static priority", _BASIS,
        ("priority_rank", "arrival_order", "request_id", "request_generation"),
        _contract("serve important requests first", "finite priorities"),
        ("a steady stream of favoured requests starves the others: a priority number is no liveness rule",),
    )  # fmt: skip

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve from the top of the ranking."""
        return ranked_plan(self, workload, state, newcomers_evict=True)


class AgingPriority(Policy):
    """The number falls by one with each ``aging_ns`` of age: p_eff = p - floor((t - a) / q_age) (F61)."""

    card: ClassVar[Card] = Card(
        "aging-priority", "1", "priority with aging", _BASIS, ("effective_priority", "arrival_order", "request_id", "request_generation"),
        _contract("serve important requests first, and old ones in the end", "finite priorities", "continued readiness"),
        ("when an old request wins depends on the other requests; no universal bound on waiting follows",),
        {"aging_ns": Parameter(1_000_000_000, "ns", "age that is worth one step of priority")},
    )  # fmt: skip

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve from the top of the ranking."""
        return ranked_plan(self, workload, state)

    def fields(self, workload: WorkloadManifest, state: SchedulerState, members: Table) -> Mapping[str, Int64]:  # noqa: ARG002 - the seam
        """``effective_priority`` at the cut (F61)."""
        return {"effective_priority": members.priority - (state.now_ns - members.arrival_ns) // self.parameters["aging_ns"]}
