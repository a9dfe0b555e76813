"""Transforms of when rows arrive. Think times are a person's or a tool's and stay as they are, whatever is done to arrivals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from harness.burstiness import NS_PER_S
from harness.errors import UsageError
from workloads.arrivals import renewal_gaps
from workloads.plan import Jitter, Retime, Sort, TimeCompress, WindowTransform
from workloads.schedule import Trace, frozen
from workloads.transforms.contract import (
    LATEST_NS,
    State,
    cut,
    cut_references,
    in_order,
    need_clock,
    need_time,
    sessions_of,
    starts_of,
    to_ns,
)

GRID_SHARE, GRID_FIT = 0.01, 0.9
"""Stamps lie on a grid of width g when at most 1% of the gaps between distinct ones are below 0.9 g: a gap of rounded stamps is a multiple
of g, but for stamps that were rounded twice and lie a unit beside it."""


def window(step: WindowTransform, state: State) -> State:
    """Rows in [start, stop), shifted so that start is 0.

    A turn whose predecessor lies before the window arrives by the clock (counted in the log).
    """
    need_time(state.trace, step.transform)
    start, stop = to_ns(step.start_s), to_ns(step.stop_s)
    if start >= stop or stop > state.extent_ns:
        span = f"{state.extent_ns / NS_PER_S:.9g} s"
        why = "holds no time" if start >= stop else f"reaches outside the trace, which covers [0 s, {span}) at this step"
        what = f"window=[{step.start_s:.9g} s, {step.stop_s:.9g} s): {why} ({len(state.trace)} rows of {state.trace.name})"
        raise UsageError.single("workload.window", what, f"choose 0 s <= start < stop <= {span}")
    first, last = (int(at) for at in np.searchsorted(state.trace.arrival_ns, (start, stop)))
    kept = cut(state.trace, first, last)
    said = cut_references(state.trace, slice(first, last), kept)
    if start:
        kept = replace(kept, arrival_ns=frozen(kept.arrival_ns - start))
    return State(kept, stop - start, said)


def time_compress(step: TimeCompress, state: State) -> State:
    """Arrivals divided by the factor, turns' recorded times too; think times are left alone."""
    need_time(state.trace, step.transform)
    longest = state.extent_ns / step.factor
    if not (math.isfinite(step.factor) and longest <= LATEST_NS):
        what = f"factor={step.factor}: {state.extent_ns / NS_PER_S:.9g} s of trace would become {longest / NS_PER_S:.3g} s"
        raise UsageError.single("workload.time_compress", what, "choose a factor near the load wanted (2 doubles the request rate)")
    if step.factor == 1:
        return State(state.trace, state.extent_ns)
    # Float division is exact to half a nanosecond: arrivals of 100 days stay below 2**53 ns.
    scaled = state.trace.arrival_ns / step.factor
    arrival = np.rint(scaled, out=scaled).astype(np.int64)
    return State(replace(state.trace, arrival_ns=frozen(arrival)), round(longest))


def sort(step: Sort, state: State) -> State:
    """Rows by arrival, stably; the first arrival moves to 0."""
    need_clock(state.trace, step.transform)
    kept = in_order(state.trace)
    first = int(kept.arrival_ns[0]) if len(kept) else 0
    said: dict[str, object] = {"inversions": int((state.trace.arrival_ns[1:] < state.trace.arrival_ns[:-1]).sum())}
    if first:
        kept = replace(kept, arrival_ns=frozen(kept.arrival_ns - first))
    return State(kept, state.extent_ns - first, said)


def jitter(step: Jitter, state: State, rng: np.random.Generator) -> State:
    """Arrivals plus a uniform draw from [0, grid). Rows of one session share a draw, so that no turn overtakes the one before it.

    A grid that the stamps do not lie on is refused: it would smooth what was recorded, not undo a rounding.
    """
    need_time(state.trace, step.transform)
    grid = to_ns(step.grid_s)
    _check_grid(grid, state.trace)
    session = sessions_of(state.trace)
    draws = rng.integers(0, max(grid, 1), size=int(session.max()) + 1 if len(session) else 0, dtype=np.int64)
    moved = replace(state.trace, arrival_ns=frozen(state.trace.arrival_ns + draws[session]))
    return State(in_order(moved), state.extent_ns)


def _check_grid(grid: int, trace: Trace) -> None:
    if grid <= trace.grid_ns:
        return
    gaps = trace.arrival_ns[1:] - trace.arrival_ns[:-1]
    gaps = gaps[gaps > 0]
    short = float((gaps < GRID_FIT * grid).mean()) if len(gaps) else 0.0
    if short > GRID_SHARE:
        what = f"grid_s={grid / NS_PER_S:.9g}: {short:.1%} of the gaps between distinct stamps of {trace.name} are shorter, so they lie"
        what += f" on no such grid (the format's own is {trace.grid_ns / NS_PER_S:.9g} s)"
        raise UsageError.single("workload.grid", what, "use the grid that `trigpoint traces inspect` finds, or leave the step out")


def retime(step: Retime, state: State, rng: np.random.Generator) -> State:
    """New arrivals from a renewal process at the rows' own mean rate, (rows - 1) / span; what it draws is what is used.

    With sessions, their starts are drawn and every turn keeps its distance from its session's start. Rows then cover the time until the
    start that there is no row for, which differs from what they covered before: a window that must fill a run needs some room.
    """
    need_time(state.trace, step.transform)
    session = sessions_of(state.trace)
    starts = starts_of(state.trace.arrival_ns, session)
    order = np.argsort(starts, kind="stable")
    span = int(starts[order[-1]] - starts[order[0]]) if len(starts) else 0
    if span == 0:
        what = f"transform=retime: {len(starts)} arrival(s) of {state.trace.name} span no time, so they have no rate"
        raise UsageError.single("workload.retime", what, "keep more of the trace, or give a rate with an arrival process")
    gaps = renewal_gaps(step.process, step.cv, span / (len(starts) - 1), len(starts) + 1, rng)
    if not gaps.sum() <= LATEST_NS:
        what = f"cv={step.cv}: the gaps drawn add up to {gaps.sum() / NS_PER_S:.3g} s"
        raise UsageError.single("workload.retime", what, "use a smaller cv")
    times = np.cumsum(np.rint(gaps).astype(np.int64))
    drawn = np.empty(len(starts), dtype=np.int64)
    drawn[order] = times[:-1]
    arrival = state.trace.arrival_ns + (drawn - starts)[session]
    return State(in_order(replace(state.trace, arrival_ns=frozen(arrival))), int(times[-1]))
