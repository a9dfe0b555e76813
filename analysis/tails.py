"""Percentiles by one definition, with a sample-size floor and an order-statistic interval (F39, DESIGN 7).

A percentile is never an average of percentiles: every function here takes raw values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from scipy import stats

from analysis.model import Figure, Interval
from harness.record.spec import PercentileRule

Floats = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

POINTS = 400
"""Points of a plotted distribution: enough for every pixel column of a small plot; more would only grow the report."""

LEVELS: Final[Mapping[str, Fraction]] = {
    "p01": Fraction(1, 100),
    "p05": Fraction(5, 100),
    "p50": Fraction(50, 100),
    "p95": Fraction(95, 100),
    "p99": Fraction(99, 100),
    "p999": Fraction(999, 1000),
}
"""Exact fractions: 0.95 * 20 is 19.000000000000004 on some paths of float arithmetic, and its ceiling would be the wrong rank."""


class Ordered(Protocol):
    """Values of one quantity that can be asked for by rank: a ``Sample`` of requests, or ``analysis.gaps.Pool`` of their gaps."""

    @property
    def size(self) -> int:
        """How many values."""

    @property
    def requests(self) -> int:
        """How many requests they came from."""

    @property
    def population(self) -> str:
        """Which requests, in words."""

    @property
    def independent(self) -> bool:
        """Whether every value is a request of its own."""

    def at(self, ranks: Int64) -> Floats:
        """Values at 1-based ranks of the ascending sample (k,)."""

    def joined(self, others: Sequence[Any]) -> Ordered:
        """This sample and others of its kind as one."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Raw values of one quantity in ascending order, s, +inf allowed; ``requests``: how many requests they came from.

    ``independent`` is False for gaps pooled over requests: those of one request move together, so no request-level interval is made.
    """

    values: Floats
    requests: int
    population: str
    independent: bool = True

    @property
    def size(self) -> int:
        """How many values."""
        return len(self.values)

    def at(self, ranks: Int64) -> Floats:
        """Values at 1-based ranks (k,)."""
        return self.values[ranks - 1]

    def joined(self, others: Sequence[Sample]) -> Sample:
        """This sample and others as one."""
        if not others:
            return self
        requests = None if self.independent else self.requests + sum(o.requests for o in others)
        return Sample.of(np.concatenate([self.values, *(o.values for o in others)]), self.population, requests=requests)

    @classmethod
    def of(cls, values: npt.ArrayLike, population: str, *, requests: int | None = None) -> Sample:
        """Sort ``values`` (m,); without ``requests`` every value is a request of its own. A NaN is a caller's error: ValueError."""
        ordered = np.sort(np.asarray(values, dtype=np.float64))
        if len(ordered) and np.isnan(ordered[-1]):
            raise ValueError("values contain NaN: mask what did not happen before taking a percentile")
        return cls(ordered, len(ordered) if requests is None else requests, population, requests is None)


def exact(p: Fraction | float | str) -> Fraction:
    """Turn a level in (0, 1) into the fraction its shortest decimal form names: 0.95 is 19/20. ValueError outside."""
    level = p if isinstance(p, Fraction) else Fraction(str(p))
    if not 0 < level < 1:
        raise ValueError(f"p={p}: a percentile level lies strictly between 0 and 1 (0.99, not 99)")
    return level


def rank_of(p: Fraction | float, n: int) -> int:
    """Nearest rank ceil(p n), 1-based, in integers (F39)."""
    level = exact(p)
    return -(-level.numerator * n // level.denominator)


def minimum_requests(p: Fraction | float) -> int:
    """Return the fewest requests at which a percentile is reported: max(2, ceil(1/(1-p))), so that at least one lies at or above it.

    Below the median the tail is the lower one: as many as for 1 - p.
    """
    level = exact(p)
    return max(2, math.ceil(1 / min(level, 1 - level)))


def nearest_rank(ordered: Floats, p: Fraction | float) -> float:
    """x_(ceil(p n)) of ascending values (n,), n >= 1 (F39)."""
    return value_at(Sample(ordered, len(ordered), ""), p)


def linear(ordered: Floats, p: Fraction | float) -> float:
    """Interpolated percentile at position p (n - 1), as numpy and most client tools have it; for looking at their numbers only."""
    return interpolated(Sample(ordered, len(ordered), ""), p)


def value_at(sample: Ordered, p: Fraction | float) -> float:
    """Nearest rank of a sample of at least one value."""
    return float(sample.at(np.array([rank_of(p, sample.size)]))[0])


def interpolated(sample: Ordered, p: Fraction | float) -> float:
    """Percentile of a sample of at least one value by the linear rule, see ``linear``."""
    low, high = sample.at(linear_ranks(sample.size, p)).tolist()
    return between(low, high, sample.size, p)


def between(low: float, high: float, n: int, p: Fraction | float) -> float:
    """The linear rule of n values, given those at its two ranks (``linear_ranks``)."""
    position = exact(p) * (n - 1)
    share = float(position - math.floor(position))
    if share == 0.0 or low == high:  # also keeps inf - inf from becoming NaN
        return float(low)
    return float(low + share * (high - low))


def linear_ranks(n: int, p: Fraction | float) -> Int64:
    """The two ranks of n values that the linear rule reads (2,); the same one twice at the end."""
    below = math.floor(exact(p) * (n - 1))
    return np.minimum([below + 1, below + 2], n).astype(np.int64)


def plotted_ranks(n: int) -> Int64:
    """Evenly spaced ranks of n values, first and last included, at most POINTS."""
    return np.unique(np.linspace(1, n, min(n, POINTS)).round().astype(np.int64))


def usual_ranks(n: int, requests: int) -> Int64:
    """Every rank that a figure or a plot asks for of n >= 1 values from so many requests."""
    near = [rank_of(p, n) for p in LEVELS.values()]
    last = math.ceil(n - Fraction(n, max(requests, 1)))  # of the largest percentile that so many requests report
    linearly = [linear_ranks(n, p) for p in LEVELS.values()]
    return np.unique(np.concatenate((near, *linearly, [max(last, 1)], plotted_ranks(n)))).astype(np.int64)


@lru_cache(maxsize=4096)
def order_statistic_ranks(n: int, p: Fraction | float, level: float = 0.95) -> tuple[int | None, int | None]:
    """Return ranks (l, u) whose values enclose the p-quantile of n independent draws with at least ``level``; None: no such rank.

    l = max{r: P(B(n,p) <= r-1) <= a/2}, u = min{s: P(B(n,p) <= s-1) >= 1-a/2} (Le Boudec; Hoefler and Belli 3.1.3).
    """
    tail, q = (1 - level) / 2, float(exact(p))
    below = int(stats.binom.ppf(tail, n, q))
    if stats.binom.cdf(below, n, q) > tail:
        below -= 1
    above = int(stats.binom.ppf(1 - tail, n, q))
    low, high = below + 1, above + 1
    return (low if low >= 1 else None), (high if high <= n else None)


def order_statistic_interval(sample: Ordered, p: Fraction | float, level: float = 0.95) -> Interval | None:
    """Return the request-level interval of a percentile, infinite where no rank exists; None for pooled gaps, which are not independent.

    Requests of one run share a queue, so this says what n independent requests would know; it never carries a verdict (rigor 8).
    """
    if not sample.independent or not sample.size:
        return None
    low, high = order_statistic_ranks(sample.size, p, level)
    return Interval(
        low=-math.inf if low is None else float(sample.at(np.array([low]))[0]),
        high=math.inf if high is None else float(sample.at(np.array([high]))[0]),
        level=level,
        method="order statistics",
        n=sample.size,
        unit_of_inference="request",
    )


def percentile_figure(
    metric: str,
    sample: Ordered,
    p: Fraction,
    *,
    rule: PercentileRule = "nearest_rank",
    level: float = 0.95,
    diagnostic: bool = False,
    unit: str = "s",
) -> Figure:
    """Report one percentile in the sample's unit, or withhold it (``insufficient_sample``) below ``minimum_requests(p)`` requests.

    The floor counts requests even where gaps are pooled: a thousand gaps of one request are one request's luck. The linear rule makes the
    figure diagnostic, because it names other numbers than the nearest rank does.
    """
    bare = Figure(metric, unit, None, "withheld", sample.requests, sample.population, percentile_rule=rule, diagnostic=diagnostic)
    floor = minimum_requests(p)
    if sample.requests < floor:
        return replace(bare, reason=f"insufficient_sample: n={sample.requests} requests, at least {floor} are needed for this percentile")
    if rule == "linear":
        return replace(bare, value=interpolated(sample, p), status="ok", diagnostic=True)
    value = value_at(sample, p)
    reason = "more than the tail did not complete" if math.isinf(value) else ""
    return replace(bare, value=value, status="ok", reason=reason, interval=order_statistic_interval(sample, p, level))
