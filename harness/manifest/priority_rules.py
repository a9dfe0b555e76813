"""A priority that an engine would take and not read: the arm must say which policy it has, or the load is not what it looks like."""

from __future__ import annotations

from harness.manifest.findings import Finding, Findings
from harness.manifest.schema import Arm
from harness.manifest.workload import Workload

_POLICY = {
    "vllm": ("scheduling-policy", "scheduling-policy: priority, or scheduling-policy: fcfs for a control that ignores them"),
    "sglang": (
        "enable-priority-scheduling",
        "enable-priority-scheduling: true, or enable-priority-scheduling: false for a control that ignores them",
    ),
}
"""Argument that decides whether priorities are read, by runtime: neither reads them by default, and neither refuses them (vLLM 0.32.0 says
it would, and does not)."""

_SMALLER_FIRST = "schedule-low-priority-values-first"


def check_priorities(arms: dict[str, Arm], workload: Workload) -> Findings:
    """Where tenants send priorities, an arm of an engine that may ignore them states its policy, and one arm at least reads them."""
    sent = {tenant.priority or 0 for tenant in workload.tenants.values()}
    if len(sent) < 2:
        return  # an engine takes a request without one as 0: one level orders nothing
    for name, arm in arms.items():
        argument, remedy = _POLICY.get(arm.runtime, ("", ""))
        if argument and argument not in arm.args:
            what = f": tenants send priorities, and {arm.runtime} takes them and ignores them unless it is told to read them"
            yield Finding("priority_unread", ("arms", name, "args"), what, f"state {remedy}")
        if arm.args.get("enable-priority-scheduling") is True and arm.args.get(_SMALLER_FIRST) is not True:
            what = ": sglang serves larger numbers first, where every other engine and the fairness figures take smaller ones as first"
            yield Finding("priority_direction", ("arms", name, "args"), what, f"add {_SMALLER_FIRST}: true")
    if arms and all(_ignores(arm) for arm in arms.values()):
        what = ".tenants: they send priorities, and no arm reads them"
        yield Finding("priority_unread", ("workload",), what, "let one arm read them, or leave priority out")


def _ignores(arm: Arm) -> bool:
    """Whether the arm says that it does not read priorities."""
    argument, _ = _POLICY.get(arm.runtime, ("", ""))
    return bool(argument) and arm.args.get(argument) in ("fcfs", False)
