"""Rules for a load that rises or falls over the run."""

from __future__ import annotations

from harness.manifest.findings import Finding, Findings
from harness.manifest.schema import Load, Window
from harness.manifest.units import format_duration
from harness.manifest.workload import Workload

SLACK = 1e-9
"""How far the two multiples may be from 2 together: what adding decimals in binary can lose."""


WINDOW_SLACK = 0.01
"""How far the mean rate in the measured window may be from the load's: half of the usual margin of a ranking, 2%."""


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


def check_ramp_window(window: Window, workload: Workload) -> Findings:
    """The load is a mean over the run, and what is measured is said to be of it: the line has to pass through it amid the window."""
    ramp = workload.arrivals.ramp
    if ramp is None or abs(ramp.from_ + ramp.to - 2) > SLACK:
        return
    run = window.warm_up + window.measured + window.drain
    mean = ramp.from_ + (ramp.to - ramp.from_) * (window.warm_up + window.measured / 2) / run
    if abs(mean - 1) > WINDOW_SLACK:
        what = f": the measured window would see {mean:.3g} times the load, for the line runs from the warm-up to the drain's end"
        longer = format_duration(max(window.warm_up, window.drain))
        yield Finding("bad_ramp", ("workload", "arrivals", "ramp"), what, f"make warm-up and drain equally long, e.g. {longer} each")


def check_ramp_search(load: Load, workload: Workload) -> Findings:
    """A capacity is of one rate."""
    if load.capacity is not None and workload.arrivals.ramp is not None:
        what = ": a search asks whether one rate can be served, and a ramp has none"
        yield Finding("bad_ramp", ("workload", "arrivals", "ramp"), what, "delete it, or give load: {rate: [...]}")
