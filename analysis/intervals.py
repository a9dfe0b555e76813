"""Intervals over replicates (DESIGN 7, rigor 8): the replicate with its own server start is the unit of inference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from analysis.model import Interval

Floats = npt.NDArray[np.float64]

LOGIT_ABOVE = 0.95
"""Above this mean a symmetric interval of a proportion runs past 1 at the replicate counts in use (rigor 8)."""


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """Return mean +- t_{R-1} s/sqrt(R) over replicate values.

    None for R < 2, because a single run has no known spread, and when a value is not finite.
    """
    x = _finite(values)
    if x is None:
        return None
    centre, half = _mean_and_half(x, level)
    return Interval(centre - half, centre + half, level, "t over replicates", len(x), "replicate")


def log_interval(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """Interval of the geometric mean: t on ln x, transformed back. None for R < 2 or when a value has no logarithm."""
    x = _finite(values)
    if x is None or (x <= 0).any():
        return None
    centre, half = _mean_and_half(np.log(x), level)
    return Interval(math.exp(centre - half), math.exp(centre + half), level, "t over replicates, log scale", len(x), "replicate")


def ratio_interval(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Interval | None:
    """Interval of b/a over replicates paired by trace: t on ln b - ln a (rigor 12). ValueError when the pairs do not match up."""
    if len(a) != len(b):
        raise ValueError(f"len(a)={len(a)}, len(b)={len(b)}: a ratio is taken over pairs")
    if any(not x > 0 for x in (*a, *b)):
        return None
    return log_interval([y / x for x, y in zip(a, b, strict=True)], level)


def logit_interval(successes: Sequence[int], trials: Sequence[int], level: float = 0.95) -> Interval | None:
    """Interval of a proportion near 1: logit of the mean over replicates +- t s/sqrt(R), with s carried to the logit scale; inside [0, 1].

    The mean of the replicates' logits is not used: replicates differ so much near saturation that it estimates another number (simulated
    coverage 66% at R = 10, against 92% for this form). s is not taken below the binomial spread, so replicates without a single miss do
    not claim certainty. None for R < 2 or a replicate without trials.
    """
    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    if len(k) < 2 or (n < 1).any():
        return None
    mean = float((k / n).mean())
    edge = 0.5 / (float(n.sum()) + 1)  # half a miss (or a hit) where none was seen keeps the logit finite
    centre = min(max(mean, edge), 1 - edge)
    variance = max(float((k / n).var(ddof=1)), centre * (1 - centre) * float((1 / n).mean()))
    half = stats.t.ppf(0.5 + level / 2, len(k) - 1) * math.sqrt(variance / len(k)) / (centre * (1 - centre))
    low, high = (float(special.expit(special.logit(centre) + side * half)) for side in (-1, 1))
    return Interval(min(low, mean), max(high, mean), level, "t over replicates, logit scale", len(k), "replicate")


def replicate_interval(values: Sequence[float], server_starts: Sequence[int], level: float = 0.95, *, log: bool = False) -> Interval | None:
    """Interval of the mean over replicates, honest about shared servers; ``log``: of the geometric mean, for latencies, which are skewed.

    With a server start for each replicate it is ``t_interval`` or ``log_interval``. With fewer, replicates of one start share its luck: t
    over the means of the starts, labelled hierarchical; None when there is only one start. Values that have no logarithm (a slip of 0) fall
    back to the plain scale, and the method says which scale it was.
    """
    if len(values) != len(server_starts):
        raise ValueError(f"len(values)={len(values)}, len(server_starts)={len(server_starts)}: one server start a replicate is needed")
    scaled = log and all(v > 0 for v in values)
    if len(set(server_starts)) == len(values):
        return log_interval(values, level) if scaled else t_interval(values, level)
    x, starts = np.asarray(values, dtype=np.float64), np.asarray(server_starts)
    x = np.log(x) if scaled else x
    means = _finite([float(x[starts == s].mean()) for s in sorted(set(server_starts))])
    if means is None:
        return None
    centre, half = _mean_and_half(means, level)
    low, high = (math.exp(c) if scaled else c for c in (centre - half, centre + half))
    method = f"t over means of server starts{', log scale' if scaled else ''}"
    return Interval(low, high, level, method, len(means), "hierarchical")


def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> Interval:
    """Exact binomial interval within one run. Diagnostic only: it covers 10-18% instead of 95% on a shared queue (rigor 8)."""
    if not 0 <= successes <= trials:
        raise ValueError(f"successes={successes}, trials={trials}: 0 <= successes <= trials is needed")
    tail = (1 - level) / 2
    low = float(stats.beta.ppf(tail, successes, trials - successes + 1)) if successes else 0.0
    high = float(stats.beta.ppf(1 - tail, successes + 1, trials - successes)) if successes < trials else 1.0
    return Interval(low, high, level, "Clopper-Pearson, diagnostic: requests of one run are not independent", trials, "request")


def design_effect(successes: Sequence[int], trials: Sequence[int]) -> float | None:
    """D = s^2 between replicates over p(1-p)/n: how many times more the proportion varies than independent requests would.

    n is the harmonic mean of the trials, so that p(1-p)/n is the mean binomial variance of a replicate. None when it cannot be known:
    fewer than two replicates, one without trials, or p of 0 or 1 (no binomial variance to compare with).
    """
    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    if len(k) < 2 or (n < 1).any():
        return None
    p = float(k.sum() / n.sum())
    binomial = p * (1 - p) * float((1 / n).mean())
    return None if binomial == 0 else float((k / n).var(ddof=1)) / binomial


def _finite(values: Sequence[float]) -> Floats | None:
    x = np.asarray(values, dtype=np.float64)
    return x if len(x) >= 2 and bool(np.isfinite(x).all()) else None


def _mean_and_half(x: Floats, level: float) -> tuple[float, float]:
    half = stats.t.ppf(0.5 + level / 2, len(x) - 1) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return float(x.mean()), float(half)
