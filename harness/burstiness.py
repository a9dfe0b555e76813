"""How arrivals lie in time: gaps, counts and what follows from them. Floor 0: workloads, analysis and the command line describe alike.

Conventions: gaps after sorting; CV = population standard deviation / mean of the gaps; mean rate = (rows - 1) / span; counts in bins that
start at the first arrival, the last bin whole even where no arrival fills its end; index of dispersion = population variance / mean of
these counts (1 for a Poisson process at any width). What is undefined is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

NS_PER_S = 1_000_000_000

WIDTHS_S = (1, 10, 60)
"""Bin widths of the index of dispersion, s: about a prefill, an answer, and what an autoscaler would see. Multiples of the first, whose
counts the wider ones add up."""

MAX_BINS = 10_000_000
"""Most bins that are laid out one by one, 80 MB: four months at one second. The indexes of dispersion need no such table."""


def in_order(arrival_ns: Int64) -> Int64:
    """Return the arrivals ascending; the same array when they are already."""
    return arrival_ns if is_ascending(arrival_ns) else np.sort(arrival_ns, kind="stable")


def is_ascending(arrival_ns: Int64) -> bool:
    """Whether no arrival lies before the one in front of it."""
    return bool((arrival_ns[1:] >= arrival_ns[:-1]).all())


def mean_rate_rps(ascending: Int64) -> float | None:
    """Arrivals per second between the first and the last; None when they span no time."""
    span = int(ascending[-1] - ascending[0]) if len(ascending) else 0
    return (len(ascending) - 1) * NS_PER_S / span if span else None


def gap_cv(ascending: Int64) -> float | None:
    """Coefficient of variation of the gaps; None with fewer than two gaps, or when all are zero."""
    if len(ascending) < 3 or ascending[-1] == ascending[0]:
        return None
    mean = float(ascending[-1] - ascending[0]) / (len(ascending) - 1)
    gaps = np.diff(ascending).astype(np.float64)
    gaps -= mean  # in place: a column of this length is the largest thing here
    return float(np.sqrt(np.dot(gaps, gaps) / len(gaps))) / mean


def dispersion(ascending: Int64, widths_s: Sequence[int] = WIDTHS_S) -> dict[int, float | None]:
    """Index of dispersion of counts by bin width; None when all arrivals lie in one bin.

    Only bins that hold an arrival are ever counted: with n arrivals in B bins, variance / mean = sum(count^2) / n - n / B. Widths are
    whole multiples of the first one.
    """
    if not len(ascending):
        return dict.fromkeys(widths_s)
    found: dict[int, float | None] = {}
    bins = (ascending - ascending[0]) // (widths_s[0] * NS_PER_S)
    starts = _run_starts(bins)
    bins, counts = bins[starts], np.diff(np.append(starts, len(ascending)))
    for width in widths_s:
        factor, rest = divmod(width, widths_s[0])
        if rest:
            raise ValueError(f"width {width} s is no multiple of the first, {widths_s[0]} s")
        coarse = bins // factor
        grouped = np.add.reduceat(counts, _run_starts(coarse))
        total = int(coarse[-1]) + 1
        squares = float(np.dot(grouped.astype(np.float64), grouped))
        found[width] = squares / len(ascending) - len(ascending) / total if total > 1 else None
    return found


def counts_per_bin(arrival_ns: Int64, width_ns: int) -> Int64:
    """Arrivals in each bin of ``width_ns`` from the first arrival on. Divide by the width for a rate; the last bin is the only part one.

    Raises ValueError beyond ``MAX_BINS``.
    """
    if not len(arrival_ns):
        return np.empty(0, np.int64)
    bins = (arrival_ns - arrival_ns.min()) // width_ns
    if bins.max() >= MAX_BINS:
        raise ValueError(f"{bins.max() + 1} bins of {width_ns} ns: more than {MAX_BINS}; choose a wider one")
    return np.bincount(bins).astype(np.int64)


def arrival_facts(arrival_ns: Int64) -> dict[str, float | int | None]:
    """Everything a page says about arrivals in any order (n,) int64 ns, under the names that ``trigpoint traces inspect`` prints."""
    ascending = in_order(arrival_ns)
    gaps, starts = np.diff(ascending), _run_starts(ascending)
    together = np.diff(np.append(starts, len(ascending)))
    return {
        "span_s": float(ascending[-1] - ascending[0]) / NS_PER_S if len(ascending) else None,
        "mean_rate_rps": mean_rate_rps(ascending),
        "cv_interarrival": gap_cv(ascending),
        "file_order_inversions": int((arrival_ns[1:] < arrival_ns[:-1]).sum()),
        "distinct_timestamps": len(starts),
        "max_requests_at_one_timestamp": int(together.max()) if len(together) else None,
        "share_zero_gaps": float((gaps == 0).mean()) if len(gaps) else None,
        "max_gap_s": float(gaps.max()) / NS_PER_S if len(gaps) else None,
        **{f"index_of_dispersion_{width}s": value for width, value in dispersion(ascending).items()},
    }


def nearest_rank(values: Int64, share: float) -> int | None:
    """x_(ceil(share * n)), the percentile rule of this project; None of nothing."""
    if not len(values):
        return None
    # 1e-9 undoes the binary excess of shares such as 0.07 * 100, which would round up to the next rank.
    rank = max(1, math.ceil(share * len(values) - 1e-9))
    if values.min() >= 0 and values.max() <= len(values):  # counting is an order of magnitude faster where it needs no more room
        return int(np.searchsorted(np.cumsum(np.bincount(values)), rank))
    return int(np.partition(values, rank - 1)[rank - 1])


def _run_starts(ascending: Int64) -> Int64:
    """Index of the first of each run of equal values."""
    if not len(ascending):
        return np.empty(0, np.int64)
    return np.concatenate((np.zeros(1, np.int64), np.flatnonzero(ascending[1:] != ascending[:-1]) + 1))
