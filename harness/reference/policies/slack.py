"""Least predicted slack: deadline, less the time the work ahead is predicted to take (seed 0x07, F30-F34)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from harness.reference.contract import IterationPlan, SchedulerState, WorkloadManifest
from harness.reference.policy import Card, MethodContract, Parameter, Policy
from harness.reference.ranking import ranked_plan
from harness.reference.table import Int64, Table


def deadlines(members: Table, ttft_ns: int, tbt_ns: int) -> Int64:
    """Next deadline of each member: original arrival + TTFT limit before the first token (F30), last emission + TBT limit after it (F31).

    Admission, retry or preemption never restart a clock. ``ttft_ns``, ``tbt_ns`` stand in for limits that were not declared.
    """
    first = members.arrival_ns + np.where(members.ttft_ns < 0, ttft_ns, members.ttft_ns)
    later = members.last_ns + np.where(members.tbt_ns < 0, tbt_ns, members.tbt_ns)
    return np.where(members.emitted == 0, first, later)


class LeastSlack(Policy):
    """Serve first what is nearest to missing its deadline under a declared, optimistic cost model: exclusive service, one tick a step."""

    reads_limits: ClassVar[bool] = True
    card: ClassVar[Card] = Card(
        "least-slack", "1", "least slack first under exclusive_endpoint_lower_bound_v1", "teaching selector of the seed",
        ("slack", "first_token", "arrival_order", "request_id"),
        MethodContract(
            "token rows of one request in one iteration", "request", "arrivals, emissions, declared limits, frontiers, a cost model",
            "the requests of least predicted slack", "output lengths, arrivals, the cost of company", "meet the next deadlines",
            "attainment of TTFT and TBT limits", ("predicted cost is a lower bound: the request alone, one tick a step",),
            ("latency prediction", "KV rows", "model execution"),
        ),
        (
            "positive slack promises nothing: company, cache and preemption spend it",
            "no fairness: clients with loose limits can starve", "the model is not calibrated on any hardware",
        ),
        {
            "tick_ns": Parameter(10_000_000, "ns", "predicted duration of an iteration"),
            "rows_per_tick": Parameter(512, "rows", "prompt or rebuild rows predicted to fit one iteration"),
            "ttft_ns": Parameter(2_000_000_000, "ns", "TTFT limit of requests that declare none"),
            "tbt_ns": Parameter(100_000_000, "ns", "TBT limit of requests that declare none"),
        },
    )  # fmt: skip

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve from the top of the ranking."""
        return ranked_plan(self, workload, state)

    def fields(self, workload: WorkloadManifest, state: SchedulerState, members: Table) -> Mapping[str, Int64]:  # noqa: ARG002 - the seam
        """``slack`` (F34) in ns, ``first_token``: 1 while the first token is owed (a token gap goes before it)."""
        ours = self.parameters
        headroom = deadlines(members, ours["ttft_ns"], ours["tbt_ns"]) - state.now_ns  # F32
        ticks = -((members.resident - members.limit) // ours["rows_per_tick"])
        return {"slack": headroom - ticks * ours["tick_ns"], "first_token": (members.emitted == 0).astype(np.int64)}
