"""Percentiles by one definition, with a sample-size floor and an order-statistic interval (F39, DESIGN 7).

A percentile is never an average of percentiles: every function here takes raw values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import stats

from analysis.model import Figure, Interval
from harness.record.spec import PercentileRule

Floats = npt.NDArray[np.float64]

LEVELS: Final[Mapping[str, Fraction]] = {
    "p50": Fraction(50, 100),
    "p95": Fraction(95, 100),
    "p99": Fraction(99, 100),
    "p999": Fraction(999, 1000),
}
"""Exact fractions: 0.95 * 20 is 19.000000000000004 on some paths of float arithmetic, and its ceiling would be the wrong rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Raw values of one quantity in ascending order, s, +inf allowed; ``requests``: how many requests they came from.

    ``independent`` is False for gaps pooled over requests: those of one request move together, so no request-level interval is made.
    """

    values: Floats
    requests: int
    population: str
    independent: bool = True

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
    """Return the fewest requests at which a percentile is reported: max(2, ceil(1/(1-p))), so that at least one lies at or above it."""
    return max(2, math.ceil(1 / (1 - exact(p))))


def nearest_rank(ordered: Floats, p: Fraction | float) -> float:
    """x_(ceil(p n)) of ascending values (n,), n >= 1 (F39)."""
    return float(ordered[rank_of(p, len(ordered)) - 1])


def linear(ordered: Floats, p: Fraction | float) -> float:
    """Interpolated percentile at position p (n - 1), as numpy and most client tools have it; for looking at their numbers only."""
    position = exact(p) * (len(ordered) - 1)
    below = math.floor(position)
    share = float(position - below)
    low = float(ordered[below])
    if share == 0.0 or low == ordered[below + 1]:  # also keeps inf - inf from becoming NaN
        return low
    return low + share * (float(ordered[below + 1]) - low)


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


def order_statistic_interval(sample: Sample, p: Fraction | float, level: float = 0.95) -> Interval | None:
    """Return the request-level interval of a percentile, infinite where no rank exists; None for pooled gaps, which are not independent.

    Requests of one run share a queue, so this says what n independent requests would know; it never carries a verdict (rigor 8).
    """
    if not sample.independent or not len(sample.values):
        return None
    low, high = order_statistic_ranks(len(sample.values), p, level)
    return Interval(
        low=-math.inf if low is None else float(sample.values[low - 1]),
        high=math.inf if high is None else float(sample.values[high - 1]),
        level=level,
        method="order statistics",
        n=len(sample.values),
        unit_of_inference="request",
    )


def percentile_figure(
    metric: str,
    sample: Sample,
    p: Fraction,
    *,
    rule: PercentileRule = "nearest_rank",
    level: float = 0.95,
    diagnostic: bool = False,
) -> Figure:
    """Report one percentile in seconds, or withhold it (``insufficient_sample``) below ``minimum_requests(p)`` requests.

    The floor counts requests even where gaps are pooled: a thousand gaps of one request are one request's luck. The linear rule makes the
    figure diagnostic, because it names other numbers than the nearest rank does.
    """
    floor = minimum_requests(p)
    if sample.requests < floor:
        reason = f"insufficient_sample: n={sample.requests} requests, at least {floor} are needed for this percentile"
        return _figure(metric, sample, None, reason=reason, rule=rule, diagnostic=diagnostic)
    if rule == "linear":
        return _figure(metric, sample, linear(sample.values, p), rule=rule, diagnostic=True)
    value = nearest_rank(sample.values, p)
    reason = "more than the tail did not complete" if math.isinf(value) else ""
    interval = order_statistic_interval(sample, p, level)
    return _figure(metric, sample, value, reason=reason, rule=rule, diagnostic=diagnostic, interval=interval)


def _figure(
    metric: str,
    sample: Sample,
    value: float | None,
    *,
    rule: PercentileRule,
    diagnostic: bool,
    reason: str = "",
    interval: Interval | None = None,
) -> Figure:
    return Figure(
        metric=metric,
        unit="s",
        value=value,
        status="withheld" if value is None else "ok",
        n=sample.requests,
        population=sample.population,
        reason=reason,
        percentile_rule=rule,
        interval=interval,
        diagnostic=diagnostic,
    )
