"""Every policy by its id. A policy is named after what it is shaped like; none is called exact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from harness.errors import UsageError
from harness.reference.policies.cohort import FixedBatch, IterationRefill
from harness.reference.policies.distserve import DistServeLike
from harness.reference.policies.fastserve import FastServeShaped
from harness.reference.policies.layerkv import LayerKvLike
from harness.reference.policies.orca import OrcaShaped
from harness.reference.policies.priority import AgingPriority, StaticPriority
from harness.reference.policies.reuse import PrebleLikeQuota, ReuseGreedy
from harness.reference.policies.sarathi import SarathiServeShaped, SarathiShaped
from harness.reference.policies.scorpio import ScorpioLike
from harness.reference.policies.slack import LeastSlack
from harness.reference.policies.vllm import VllmShapedFcfs, VllmShapedPriority
from harness.reference.policies.vtc import CompletionReconciledVtc, VtcShaped
from harness.reference.policy import Policy

_KNOWN: Final[tuple[type[Policy], ...]] = (
    FixedBatch, IterationRefill, OrcaShaped, SarathiShaped, SarathiServeShaped, VllmShapedFcfs, VllmShapedPriority, FastServeShaped,
    VtcShaped, CompletionReconciledVtc, StaticPriority, AgingPriority, LeastSlack, PrebleLikeQuota, ReuseGreedy, ScorpioLike,
    LayerKvLike, DistServeLike,
)  # fmt: skip

POLICIES: Final[Mapping[str, type[Policy]]] = {policy.card.policy_id: policy for policy in _KNOWN}
"""Classes by id; each carries its ``card``."""


def make_policy(policy_id: str, parameters: Mapping[str, int] | None = None) -> Policy:
    """Build a policy by id. Raises UsageError ``policy_unknown`` or ``policy_parameter``."""
    if policy_id not in POLICIES:
        known = ", ".join(sorted(POLICIES))
        raise UsageError.single("policy_unknown", f"policy={policy_id!r}: no such policy", f"use one of: {known}")
    return POLICIES[policy_id](**(parameters or {}))
