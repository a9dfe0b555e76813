"""The measured window in equal bins of time: what was offered, became valid, ended and streamed in each (F36, F37 over time)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.clocks import Clocks
from analysis.model import Outcome
from analysis.outcomes import OutcomeArray
from analysis.planned import MISSING, Bools, Int64
from analysis.rates import completed
from harness.clock import NS_PER_S
from harness.record.reader import RunRecord


@dataclass(frozen=True, slots=True)
class TimeBins:
    """Counts by bin of the measured window; bin i begins ``start_s[i]`` after the epoch, all are ``width_s`` long. Divide by it for rates.

    ``offered`` and ``valid``: requests of the cohort by their arrival, so that valid / offered is a bin's attainment; ``completed``:
    answers that ended in the bin, whenever they arrived; ``tokens``: output tokens stamped in it, None where events did not count theirs.
    ``undecided``: open requests by arrival that could still have become valid, for which ``valid`` is a lower bound.
    """

    start_s: tuple[float, ...]
    width_s: float
    offered: tuple[int, ...]
    valid: tuple[int, ...]
    completed: tuple[int, ...]
    tokens: tuple[int, ...] | None
    undecided: tuple[int, ...]
    estimand: str

    @property
    def denominator(self) -> str:
        """What a rate over a bin is divided by."""
        return f"bin of {self.width_s:g} s"


def time_bins(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, undecided: Bools) -> TimeBins:
    """Count a run by bin of its window; ``undecided`` (n,): requests nobody knows the outcome of."""
    edges = clocks.bin_edges
    tokens = np.diff(clocks.tokens_before) if clocks.gaps_defined else None
    counts = (
        _count(clocks.arrival_ns[clocks.in_cohort & mask], edges)
        for mask in (np.ones(len(clocks), bool), outcome == Outcome.VALID, undecided)
    )
    offered, valid, open_ = counts
    return TimeBins(
        start_s=tuple((edges[:-1] / NS_PER_S).tolist()),
        width_s=record.spec.window.measured_ns / NS_PER_S / (len(edges) - 1),
        offered=offered,
        valid=valid,
        completed=_count(clocks.end_ns[completed(outcome) & (clocks.end_ns != MISSING)], edges),
        tokens=None if tokens is None else tuple(tokens.tolist()),
        undecided=open_,
        estimand=record.spec.estimand,
    )


def _count(ns: Int64, edges: Int64) -> tuple[int, ...]:
    """How many instants lie in each half-open bin."""
    bins = np.searchsorted(edges, ns, side="right") - 1
    inside = bins[(bins >= 0) & (bins < len(edges) - 1)]
    return tuple(np.bincount(inside, minlength=len(edges) - 1).tolist())
