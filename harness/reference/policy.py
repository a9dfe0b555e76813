"""The seam for scheduling policies: a pure function from declared workload and state to a plan, under a named and versioned identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from harness.errors import UsageError
from harness.reference.contract import IterationPlan, SchedulerState, WorkloadManifest
from harness.reference.vllm_shaped import VllmShapedFcfs


class Policy(Protocol):
    """Decides one iteration. Equal inputs must give equal plans; nothing about the future is in the inputs."""

    policy_id: str
    policy_version: str
    tie_break: tuple[str, ...]

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Return the plan for ``state``; a plan without work when nothing can run."""
        ...


POLICIES: dict[str, Callable[[], Policy]] = {VllmShapedFcfs.policy_id: VllmShapedFcfs}
"""Every policy by its id. A policy is named after what it is shaped like; none is called exact."""


def make_policy(policy_id: str) -> Policy:
    """Build a policy by id. Raises UsageError ``policy_unknown``."""
    if policy_id not in POLICIES:
        known = ", ".join(sorted(POLICIES))
        raise UsageError.single("policy_unknown", f"policy={policy_id!r}: no such policy", f"use one of: {known}")
    return POLICIES[policy_id]()
