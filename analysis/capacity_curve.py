"""Where one replicate's attainment crosses the target: isotonic or logit, on the log-rate axis (F38, rigor 13.3). Rates in any one unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.record.search import Method

Side = Literal["inside", "above", "below", "flat"]

CLIFF = 0.35
"""A fall by more than this from one rate to the next says nothing of the way between them. On logit lines that fall more gently over steps
of 5% the interpolated capacity was off by 0.2%; on a step it lies anywhere in the gap. Simulated: ``tests/sim/test_capacity.py``."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where a curve falls through the target. ``rate`` is None unless it does so ``inside`` the rates measured.

    ``above``: it still passes at the highest of them; ``below``: it fails at the lowest already; ``flat``: the logit line does not fall,
    so it crosses nowhere.
    """

    side: Side
    rate: float | None = None


def smoothed(valid: int, offered: int) -> float:
    """(k + .5)/(n + 1): the share of valid requests, kept off 0 and 1 so that it has a logit (DESIGN 7)."""
    return (valid + 0.5) / (offered + 1)


def crossing(rates: Sequence[float], valid: Sequence[int], offered: Sequence[int], alpha: float, method: Method) -> Crossing:
    """Find the largest rate at which the share of valid requests is still ``alpha``; columns (g,), rates ascending, g >= 1."""
    shares = [smoothed(k, n) for k, n in zip(valid, offered, strict=True)]
    weights = [n + 1.0 for n in offered]
    return isotonic(rates, shares, weights, alpha) if method == "isotonic" else logit_line(rates, shares, weights, alpha)


def cliff(rates: Sequence[float], valid: Sequence[int], offered: Sequence[int], alpha: float) -> tuple[float, float] | None:
    """The neighbouring rates between which the share falls through ``alpha`` by more than ``CLIFF``; None where it crosses gently, or not.

    The crossing is then known to lie between the two and no closer.
    """
    fit = decreasing([smoothed(k, n) for k, n in zip(valid, offered, strict=True)], [n + 1.0 for n in offered])
    last = sum(share >= alpha for share in fit) - 1
    if not 0 <= last < len(fit) - 1 or fit[last] - fit[last + 1] <= CLIFF:
        return None
    return rates[last], rates[last + 1]


def isotonic(rates: Sequence[float], shares: Sequence[float], weights: Sequence[float], alpha: float) -> Crossing:
    """Cross the best non-increasing fit, interpolated between neighbouring rates on (ln rate, logit share).

    Straight lines on these axes bend least: a share that saturates at 1 is a curve on plain axes and nearly a line on them.
    """
    fit = decreasing(shares, weights)
    if fit[-1] >= alpha:
        return Crossing("above")
    if fit[0] < alpha:
        return Crossing("below")
    last = max(i for i, share in enumerate(fit) if share >= alpha)
    x0, x1, y0, y1 = math.log(rates[last]), math.log(rates[last + 1]), logit(fit[last]), logit(fit[last + 1])
    return Crossing("inside", math.exp(x0 + (x1 - x0) * (y0 - logit(alpha)) / (y0 - y1)))


def logit_line(rates: Sequence[float], shares: Sequence[float], weights: Sequence[float], alpha: float) -> Crossing:
    """Cross the line logit p = b0 + b1 ln rate, each point weighted by n p (1 - p), the inverse variance of its logit.

    A line is an assumption about the whole grid: it borrows strength from far points and is biased by them when the curve bends.
    """
    w = [n * p * (1 - p) for n, p in zip(weights, shares, strict=True)]
    x, y = [math.log(rate) for rate in rates], [logit(p) for p in shares]
    mean_x, mean_y = _mean(x, w), _mean(y, w)
    spread = sum(a * (b - mean_x) ** 2 for a, b in zip(w, x, strict=True))
    slope = sum(a * (b - mean_x) * (c - mean_y) for a, b, c in zip(w, x, y, strict=True)) / spread if spread else 0.0
    if slope >= 0:
        return Crossing("flat")
    at = mean_x + (logit(alpha) - mean_y) / slope
    if at > x[-1]:
        return Crossing("above")
    return Crossing("below") if at < x[0] else Crossing("inside", math.exp(at))


def decreasing(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Weighted least-squares non-increasing fit, by pooling adjacent violators (PAV); same length as ``values``."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, members
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            (m1, w1, n1), (m0, w0, n0) = blocks.pop(), blocks.pop()
            blocks.append(((m0 * w0 + m1 * w1) / (w0 + w1), w0 + w1, n0 + n1))
    return [mean for mean, _, members in blocks for _ in range(members)]


def logit(p: float) -> float:
    """ln(p / (1 - p)), p in (0, 1)."""
    return math.log(p / (1 - p))


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
