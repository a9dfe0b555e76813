"""Which part of the trace each replicate plays: exact arithmetic, in ns of trace time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil

from harness.manifest.workload import LoopStep, RetimeStep, Step, TimeCompressStep, WindowStep

S = 10**9

RETIME_MARGIN = Fraction(3, 2)
"""Trace time taken for each second of re-timed load. The draw of n gaps ends at n/rate give or take cv/sqrt(n) of it and is never stretched
to fit: with 300 rows and cv 2, a half more is three standard deviations."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Half-open part of the trace, ns of trace time since its first row."""

    start_ns: int
    stop_ns: int

    @property
    def seconds(self) -> tuple[float, float]:
        """The same in seconds."""
        return self.start_ns / S, self.stop_ns / S


def needed_ns(horizon_ns: int, steps: Sequence[Step], compression: float) -> int | None:
    """Return the trace time that fills ``horizon_ns`` after the chain and the load's compression; None: a window step leaves too little.

    Works backwards: a compression by f needs f times as much, a window all of what it names and what lies before, however much less the
    run needs of it, a loop gives its trace several times.
    """
    need = Fraction(horizon_ns) * Fraction(str(compression))
    for step in reversed(steps):
        if isinstance(step, TimeCompressStep):
            need *= Fraction(str(step.factor))
        elif isinstance(step, WindowStep):
            if need > step.to - step.from_:
                return None
            need = Fraction(step.to)
        elif isinstance(step, LoopStep):
            need /= step.times
        elif isinstance(step, RetimeStep):
            need *= RETIME_MARGIN
    return ceil(need)


def consecutive(window: tuple[int, int], length_ns: int, count: int) -> list[Slice] | None:
    """Return ``count`` disjoint slices of one length from the window's start on, None when it is too short.

    Consecutive, so that raising ``count`` later adds slices and moves none.
    """
    start, stop = window
    if start + length_ns * count > stop:
        return None
    return [Slice(start + r * length_ns, start + (r + 1) * length_ns) for r in range(count)]


def equal_parts(window: tuple[int, int], count: int) -> list[Slice]:
    """Return the window in ``count`` equal parts, for runs that take lengths from the trace and times from elsewhere."""
    start, stop = window
    edges = [start + (stop - start) * r // count for r in range(count + 1)]
    return [Slice(a, b) for a, b in pairwise(edges)]
