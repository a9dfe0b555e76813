"""How many replicates, on how many server starts, next time? Advice from a pilot's spread; it decides nothing (rigor 8).

A pilot of a few replicates knows its own spread badly: with three, the true one may well be twice as large. Every number here is therefore
planned for the power averaged over what the pilot leaves open about the spread (sigma^2 = nu s^2/chi^2_nu), not for the spread it happened
to show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from analysis.model import Advice

Floats = npt.NDArray[np.float64]

MIN_PILOT: Final = 3
"""Two values have a spread with one degree of freedom, which can be ten times too small or too large."""

MIN_REPLICATES: Final = 5
"""Fewer carry no claim (gate ``replicates``), however quiet the pilot was."""

MOST: Final = 1000
"""Where a plan needs more, the difference lies on the margin for every practical purpose."""

POWER: Final = 0.8
"""Cohen's customary power; also what this project's own self-tests ask of a 5% slowdown (rigor 15.2)."""

_GRID: Final = 64
"""Midpoints of equal probability over each chi-square: the power is then good to half a percent, far below what a pilot knows."""


@dataclass(frozen=True, slots=True)
class Components:
    """Variance of a replicate's value: ``between`` server starts (s2^2) and ``within`` a start (s1^2), in the values' unit squared.

    ``separable`` is False when every replicate had a start of its own: then only the sum is known, and it is held in ``between``.
    """

    between: float
    within: float
    starts: int
    replicates: int
    separable: bool


def replicates_for_power(
    logs_a: Sequence[float], logs_b: Sequence[float], effect: float, power: float = POWER, level: float = 0.95, *, margin: float = 0.0
) -> Advice:
    """Plan how many paired replicates find b different from a by a relative ``effect``, from a pilot's logarithms.

    ``logs_a``, ``logs_b``: (R,) natural logarithms of the two arms' figures, paired by trace. ``effect``: 0.05 stands for a ratio of 1.05,
    -0.05 for 0.95; found means that the two-sided interval of the ratio at ``level`` lies beyond ``margin`` on the effect's side. ``power``
    is averaged over the pilot's uncertainty of the spread. UNKNOWN with a reason below three finite pairs, without spread, and beyond MOST.
    Raises ValueError when the arms are not paired or the effect is not beyond the margin (rigor 8 and 12).
    """
    if len(logs_a) != len(logs_b):
        raise ValueError(f"len(logs_a)={len(logs_a)}, len(logs_b)={len(logs_b)}: a plan for pairs needs pairs")
    _in_unit(power=power, level=level)
    if not effect > -1 or not abs(math.log1p(effect)) > math.log1p(margin) or margin < 0:
        raise ValueError(f"effect={effect:g}, margin={margin:g}: the effect must lie beyond the margin, and a ratio above 0")
    distance = abs(math.log1p(effect)) - math.log1p(margin)
    differences = np.asarray(logs_b, dtype=np.float64) - np.asarray(logs_a, dtype=np.float64)
    return _planned(f"find {effect:+.3g} at power {power:g}", differences, lambda n, s: detection_power(distance, s, n, level), power)


def replicates_to_resolve(differences: Sequence[float], floor: float, ceiling: float, *, level: float, power: float = POWER) -> Advice:
    """Plan how many pairs resolve a comparison whose true effect is the one the pilot shows.

    ``differences``: (R,) of pairs on the verdict's scale (log ratio, or difference); ``floor``, ``ceiling``: the margin on it.
    Outside the margin the plan is for better or worse, inside it for equivalent (both ends must be cleared).
    """
    _in_unit(power=power, level=level)
    x = np.asarray(differences, dtype=np.float64)
    seen = float(x.mean()) if len(x) else math.nan
    if floor < seen < ceiling:
        ends = (seen - floor, ceiling - seen)
        return _planned("show equivalence", x, lambda n, s: sum(detection_power(d, s, n, level) for d in ends) - 1, power)
    distance = seen - ceiling if seen > 0 else floor - seen
    return _planned("show a difference", x, lambda n, s: detection_power(distance, s, n, level), power)


def replicates_for_width(
    values: Sequence[float],
    server_starts: Sequence[int],
    half_width: float,
    *,
    level: float = 0.95,
    start_cost: float = 1.0,
    run_cost: float = 1.0,
) -> Advice:
    """Plan replicates and server starts for an interval of the mean of +-``half_width``, in the values' unit (a share on the log scale).

    ``values``: (R,), ``server_starts``: (R,) which start each ran on. Where starts were shared, replicates a start are the optimum
    r1* = sqrt((c2/c1)(s1^2/s2^2)) of Kalibera and Jones (rigor 8), with ``start_cost`` c2 and ``run_cost`` c1 in any one unit, at
    most MIN_REPLICATES; else one. The spread planned for is the mean of what the
    pilot leaves open. Raises ValueError for a width or cost that is not above 0.
    """
    _in_unit(level=level)
    if not (half_width > 0 and start_cost > 0 and run_cost > 0):
        raise ValueError(f"half_width={half_width:g}, start_cost={start_cost:g}, run_cost={run_cost:g}: all must be above 0")
    found = variance_components(values, server_starts)
    if isinstance(found, str):
        return Advice(f"reach +-{half_width:.3g}", None, None, len(values), found)
    per_start = runs_per_start(found, start_cost, run_cost)
    doubt = float(plausible_factors(found.starts - 1).mean())
    variance = doubt**2 * (found.between + found.within / per_start)
    least = max(MIN_PILOT, math.ceil(MIN_REPLICATES / per_start))
    starts = next((k for k in range(least, MOST + 1) if _half_width(variance, k, level) <= half_width), None)
    if starts is None:
        return Advice(f"reach +-{half_width:.3g}", None, None, len(values), _beyond())
    return Advice(f"reach +-{half_width:.3g}", starts * per_start, starts, len(values), "")


def variance_components(values: Sequence[float], server_starts: Sequence[int]) -> Components | str:
    """Split the variance of ``values`` (R,) into between and within ``server_starts`` (R,) by one-way analysis of variance.

    Unequal starts are weighed by n0 = (R - sum n_i^2/R)/(k - 1); a negative between is 0, as usual. A string says why there is no answer.
    Raises ValueError when the lengths differ.
    """
    if len(values) != len(server_starts):
        raise ValueError(f"len(values)={len(values)}, len(server_starts)={len(server_starts)}: one server start a replicate is needed")
    x, starts = np.asarray(values, dtype=np.float64), np.asarray(server_starts)
    why = _unusable(x)
    if why:
        return why
    names, which, counts = np.unique(starts, return_inverse=True, return_counts=True)
    k, total = len(names), len(x)
    if k < 2:
        return f"server starts={k}: one start knows nothing of how starts differ"
    if k == total:
        return Components(float(x.var(ddof=1)), 0.0, k, total, separable=False)
    means = np.bincount(which, weights=x) / counts
    within = float(((x - means[which]) ** 2).sum()) / (total - k)
    spread = float((counts * (means - x.mean()) ** 2).sum()) / (k - 1)
    n0 = (total - float((counts**2).sum()) / total) / (k - 1)
    return Components(max(0.0, (spread - within) / n0), within, k, total, separable=True)


def runs_per_start(found: Components, start_cost: float, run_cost: float) -> int:
    """Return r1* = sqrt((c2/c1)(s1^2/s2^2)), rounded, at least 1 and at most MIN_REPLICATES.

    The cap stands for an estimate of s2 that is 0 by luck: a plan of one start would know nothing of starts.
    """
    if not found.separable or found.within == 0:
        return 1
    if found.between == 0:
        return MIN_REPLICATES
    best = math.sqrt(start_cost / run_cost * found.within / found.between)
    return int(min(max(round(best), 1), MIN_REPLICATES))


def detection_power(distance: float, spread: Floats, n: int, level: float) -> float:
    """Power of the paired t interval at ``level`` to clear a bound ``distance`` away, averaged over ``spread`` (m,): sd of one difference.

    P(T > t_{n-1}) of the noncentral t as a mean of normal tails over the chi-square of the study's own variance: exact but for the grid,
    and finite where library tails of the noncentral t are not.
    """
    own = np.sqrt(stats.chi2.ppf(_midpoints(), n - 1) / (n - 1))
    quantile = float(stats.t.ppf((1 + level) / 2, n - 1))
    return float(special.ndtr(distance * math.sqrt(n) / spread[:, None] - quantile * own[None, :]).mean())


def plausible_spread(x: Floats) -> Floats:
    """Spreads (64,) that a pilot ``x`` (R,) leaves open: s sqrt(nu/chi^2_nu) at equally likely quantiles, nu = R - 1."""
    return np.asarray(float(x.std(ddof=1)) * plausible_factors(len(x) - 1), dtype=np.float64)


def plausible_factors(nu: int) -> Floats:
    """Ratios sigma/s (64,) that an estimate with ``nu`` degrees of freedom leaves open."""
    return np.asarray(np.sqrt(nu / stats.chi2.ppf(_midpoints(), nu)), dtype=np.float64)


def _midpoints() -> Floats:
    return (np.arange(_GRID) + 0.5) / _GRID


def _planned(aim: str, x: Floats, power_at: Callable[[int, Floats], float], power: float) -> Advice:
    why = _unusable(x)
    if why:
        return Advice(aim, None, None, len(x), why)
    spread = plausible_spread(x)
    if power_at(MOST, spread) < power:
        return Advice(aim, None, None, len(x), _beyond())
    low, high = MIN_REPLICATES - 1, MOST  # power rises with n, so bisection finds the least n that reaches it
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_at(middle, spread) >= power else (middle, high)
    return Advice(aim, high, high, len(x), "")


def _unusable(x: Floats) -> str:
    if len(x) < MIN_PILOT:
        return f"pilot={len(x)} replicates: at least {MIN_PILOT} are needed to plan from their spread"
    if not np.isfinite(x).all():
        return "a replicate of the pilot has no finite value"
    # Equal values leave rounding behind: a spread of a few units in the last place is none.
    if float(np.ptp(x)) <= 1e-12 * max(1.0, float(np.abs(x).max())):
        return "the pilot's replicates do not differ at all: there is no spread to plan from"
    return ""


def _half_width(variance: float, n: int, level: float) -> float:
    return float(stats.t.ppf((1 + level) / 2, n - 1)) * math.sqrt(variance / n)


def _beyond() -> str:
    return f"more than {MOST} would be needed: what was seen lies too near the limit for its spread"


def _in_unit(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 < share < 1:
            raise ValueError(f"{name}={share:g}: a share strictly between 0 and 1 is needed")
