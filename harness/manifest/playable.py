"""What the workload's own rules say of a manifest, with its lines: known before a trace is read or a server is asked."""

from __future__ import annotations

from dataclasses import replace

from harness.errors import Problem, UsageError
from harness.manifest.document import Path
from harness.manifest.load import LoadedManifest
from workloads.check import check_plan
from workloads.plan import WorkloadPlan

_PLACES: dict[str, Path] = {
    "workload.chat_ids": ("workload", "prompts"),
    "workload.closed_arrivals": ("workload", "arrivals"),
    "workload.dataset_sharing": ("workload", "prompts"),
    "workload.no_sessions": ("workload", "loop"),
    "workload.pause_unused": ("workload", "sessions"),
}
"""Where a reader looks for the cause; what is not named here is about the section as a whole."""


def unplayable(loaded: LoadedManifest, plan: WorkloadPlan) -> list[Problem]:
    """Every reason why ``plan``, made of this manifest, could not be played whatever the trace; empty: none known yet."""
    try:
        check_plan(plan, 0)
    except UsageError as refused:
        return [replace(p, where=loaded.where(_PLACES.get(p.code, ("workload",)))) for p in refused.problems]
    return []
