"""Rules between the interface that requests use and the systems that answer them."""

from __future__ import annotations

from harness.manifest.findings import Finding, Findings
from harness.manifest.schema import Arm
from harness.manifest.workload import Workload

SPEAKERS = {"generate": ("sglang", "endpoint")}
"""Interfaces that not every runtime has. An endpoint may be anything; one that lacks the route answers 404, which fails the run's gates."""


def check_api(arms: dict[str, Arm], workload: Workload) -> Findings:
    """Every arm serves the interface: an arm that cannot would fail each request, after a whole run."""
    speakers = SPEAKERS.get(workload.api)
    silent = [name for name, arm in arms.items() if speakers is not None and arm.runtime not in speakers]
    if silent:
        what = f"={workload.api}: only {' and '.join(speakers or ())} serve it, and not arm(s) {', '.join(silent)}"
        yield Finding("unknown_api", ("workload", "api"), what, "use api: completions, which all of them serve, or drop those arms")
