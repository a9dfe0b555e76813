"""Distributions that respect the gates: what may be shown of an empirical distribution, and what is withheld (F39, DESIGN 7).

A percentile p is reported from max(2, ceil(1/(1-p))) requests on, so n requests report up to p = 1 - 1/n: the distribution beyond it is the
luck of one request, and is withheld as that percentile is. While the backlog grows every latency is withheld, so is its distribution.
Distributions of replicates are drawn beside each other and never averaged; columns of a histogram are counts, and counts may be added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from analysis.tails import Floats, Int64, Ordered, Sample, plotted_ranks

COLUMNS_PER_DECADE: Final = 10
"""Each column is a quarter wider than the one before, on one grid for every run, so that columns of replicates can be added."""

LEAST_S: Final = 1e-6
"""Everything below a microsecond falls into the first column: no clock here is read finer."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """What may be shown: ``values`` (k,) ascending, s, and ``shares`` (k,) of the sample at or below each.

    ``withheld``: values beyond the largest reportable percentile; ``absent``: +inf, requests that did not complete. ``n``: size of the
    sample, so shares end at (n - withheld - absent)/n.
    """

    values: Floats
    shares: Floats
    n: int
    withheld: int
    absent: int

    @property
    def plateau(self) -> float:
        """Share of the sample that has a finite value: where the curve would end if nothing were withheld. NaN of an empty sample."""
        return (self.n - self.absent) / self.n if self.n else math.nan


@dataclass(frozen=True, slots=True)
class Histogram:
    """Columns: ``edges`` (k,) their lower ends, s, and ``counts`` (k,) of values from one to the next; ``withheld`` and ``absent`` as in
    ``Distribution``, counted in no column.
    """

    edges: Floats
    counts: Int64
    withheld: int
    absent: int


def largest_reportable(requests: int) -> Fraction:
    """Return the largest p that ``requests`` report: 1 - 1/n; 0 for fewer than two, which report none."""
    return 1 - Fraction(1, requests) if requests >= 2 else Fraction(0)


def reportable_ranks(sample: Ordered) -> int:
    """Ranks of the ascending sample up to and with that of the largest reportable percentile; the floor counts requests, not gaps."""
    level = largest_reportable(sample.requests)
    return math.ceil(level * sample.size) if level else 0


def ecdf(sample: Ordered) -> Distribution:
    """Empirical distribution at no more than ``tails.POINTS`` true points, first and last that may be shown included."""
    n = sample.size
    if not n:
        return Distribution(np.empty(0), np.empty(0), 0, 0, 0)
    last, finite = reportable_ranks(sample), _finite(sample)
    ranks = plotted_ranks(n)
    ranks = np.unique(np.append(ranks[ranks <= min(last, finite)], min(last, finite))).astype(np.int64)
    ranks = ranks[ranks > 0]
    values = sample.at(ranks) if len(ranks) else np.empty(0)
    return Distribution(values, ranks / n, n, max(0, finite - last), n - finite)


def histogram(sample: Sample) -> Histogram:
    """Count what may be shown of a sample of requests in columns of equal width on the log scale, empty ones between included."""
    last, finite = reportable_ranks(sample), _finite(sample)
    shown = sample.values[: min(last, finite)]
    absent, withheld = sample.size - finite, max(0, finite - last)
    if not len(shown):
        return Histogram(np.empty(0), np.empty(0, dtype=np.int64), withheld, absent)
    column = column_of(shown)
    first = int(column.min())
    counts = np.bincount(column - first)
    return Histogram(edge_of(np.arange(first, first + len(counts))), counts.astype(np.int64), withheld, absent)


def add_histograms(parts: Sequence[Histogram]) -> Histogram:
    """Add the columns of several runs: counts on one grid."""
    columns = [column_of(p.edges * (1 + 1e-9)) for p in parts if len(p.edges)]  # an edge belongs to the column it opens
    withheld, absent = sum(p.withheld for p in parts), sum(p.absent for p in parts)
    if not columns:
        return Histogram(np.empty(0), np.empty(0, dtype=np.int64), withheld, absent)
    first, last = min(int(c.min()) for c in columns), max(int(c.max()) for c in columns)
    counts = np.zeros(last - first + 1, dtype=np.int64)
    for column, part in zip(columns, (p for p in parts if len(p.edges)), strict=True):
        counts[column - first] += part.counts
    return Histogram(edge_of(np.arange(first, last + 1)), counts, withheld, absent)


def column_of(values: Floats) -> Int64:
    """Column of each value (n,); below LEAST_S the first one, 0."""
    return np.asarray(np.floor(np.log10(np.maximum(values, LEAST_S) / LEAST_S) * COLUMNS_PER_DECADE), dtype=np.int64)


def edge_of(columns: Int64) -> Floats:
    """Lower end of each column (n,), s."""
    return np.asarray(LEAST_S * 10 ** (columns / COLUMNS_PER_DECADE), dtype=np.float64)


def _finite(sample: Ordered) -> int:
    """How many values are finite. Only samples of requests hold +inf: gaps exist between tokens that came."""
    return int(np.isfinite(sample.values).sum()) if isinstance(sample, Sample) else sample.size
