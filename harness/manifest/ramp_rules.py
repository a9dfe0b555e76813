"""Rules for a load that rises or falls over the run."""

from __future__ import annotations

from harness.manifest.findings import Finding, Findings
from harness.manifest.schema import Load
from harness.manifest.workload import Workload

SLACK = 1e-9
"""How far the two multiples may be from 2 together: what adding decimals in binary can lose."""


def check_ramp(workload: Workload) -> Findings:
    """A ramp moves the load within the run and adds none, and it is of arrivals that the clock decides."""
    ramp, path = workload.arrivals.ramp, ("workload", "arrivals", "ramp")
    if ramp is None:
        return
    if abs(ramp.from_ + ramp.to - 2) > SLACK:
        what = f": from={ramp.from_:g} and to={ramp.to:g} add up to {ramp.from_ + ramp.to:g}, so the mean would not be the load's"
        yield Finding("bad_ramp", path, what, f"write to: {max(0.0, 2 - ramp.from_):g}; the load itself sets the mean")
    if workload.loop == "closed":
        yield Finding(
            "bad_ramp", path, ": users of a closed loop send when they have an answer, at no rate", "delete it, or use loop: open"
        )


def check_ramp_search(load: Load, workload: Workload) -> Findings:
    """A capacity is of one rate."""
    if load.capacity is not None and workload.arrivals.ramp is not None:
        what = ": a search asks whether one rate can be served, and a ramp has none"
        yield Finding("bad_ramp", ("workload", "arrivals", "ramp"), what, "delete it, or give load: {rate: [...]}")
