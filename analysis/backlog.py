"""Does unfinished work pile up over the window? (F40, F41, rigor 9 "Unstable queue")."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.clocks import Clocks
from analysis.planned import MISSING, Int64
from harness.clock import NS_PER_S
from harness.record.reader import RunRecord

BLOCKS = 10
"""Increments over ten parts of the window: t with 9 degrees of freedom, and blocks still long against a request when the window is
10 x p99 E2E."""

FALSE_ALARM = 0.01
"""One-sided; the most a statistical gate may cost a run on an uncontended server (DESIGN 8)."""

GROWTH = 0.05
"""Growth as a share of arrivals below which latencies of a finite window hardly depend on its length (rigor 9)."""


@dataclass(frozen=True, slots=True)
class Overload:
    """Backlog growth over the measured window: ``slope`` and its standard error ``se`` in requests/s, one-sided 99% lower bound ``low``.

    ``arrivals`` in the window; ``flag``: low > 0 and slope x W exceeds 5% of the arrivals.
    """

    slope: float
    se: float
    low: float
    arrivals: int
    flag: bool

    @property
    def reason(self) -> str:
        """Why latency percentiles are withheld, with the number."""
        return f"overloaded: backlog {self.slope:+.3g} requests/s (99% lower bound {self.low:+.3g}); latency depends on the run's length"


def overload(record: RunRecord, clocks: Clocks) -> Overload:
    """Regress the backlog (arrived minus ended) on time by blocks of the measured window.

    The error comes from the spread of block increments, not from residuals of points that follow each other. Under overload increments are
    nearly independent and the error is honest; in a stable queue they undo each other and it is too large, so the flag is conservative.
    """
    window = record.spec.window
    # The instant before each edge, as the window is half-open: without a drain, what is open at its end would else count as served there.
    edges = np.linspace(window.start_ns, window.stop_ns, BLOCKS + 1).astype(np.int64) - 1
    steps = np.diff(unfinished(clocks.arrival_ns, departures(record, clocks), edges))
    width_s = window.measured_ns / NS_PER_S
    slope = float(steps.sum()) / width_s
    se = float(steps.std(ddof=1)) * math.sqrt(BLOCKS) / width_s
    low = slope - float(stats.t.ppf(1 - FALSE_ALARM, BLOCKS - 1)) * se
    arrivals = int(clocks.in_cohort.sum())
    return Overload(slope, se, low, arrivals, low > 0 and slope * width_s > GROWTH * arrivals)


def departures(record: RunRecord, clocks: Clocks) -> Int64:
    """When each request stopped being unfinished (n,), ns: its end, or the drain's end when it has none; never before its arrival."""
    end = np.where(clocks.end_ns == MISSING, record.spec.window.end_ns, clocks.end_ns)
    return np.maximum(end, clocks.arrival_ns)


def unfinished(start_ns: Int64, stop_ns: Int64, at_ns: Int64) -> Int64:
    """Count intervals [start, stop) that contain each instant of ``at_ns`` (m,)."""
    begun = np.searchsorted(np.sort(start_ns), at_ns, side="right")
    ended = np.searchsorted(np.sort(stop_ns), at_ns, side="right")
    return np.asarray(begun - ended, dtype=np.int64)
