"""Exact tests of no difference, and Holm's adjustment: what stands beside an interval, never instead of it (rigor 12)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from analysis.effect_model import ExactTest
from analysis.intervals import Floats

MOST_SIGNS = 16
"""Signs enumerated at most: 2^16 sums take a millisecond, and a front has hundreds of pairs. With more units the t test says the same."""

MOST_SPLITS = 20_000
"""Splits enumerated at most, for the same reason: eight against eight are 12,870."""

ROUNDING = 1e-9
"""Sums closer than this share of the largest are ties: they differ by the order of addition alone."""


def sign_flip(differences: Sequence[float] | Floats, alpha: float) -> ExactTest | None:
    """Flip the sign of every paired difference (R,) in all 2^R ways: p is the share of sums at least as far from 0 as the one seen.

    Exact when each difference is as likely to have come out with the other sign. Its least p is 2/2^R. None beyond MOST_SIGNS units.
    """
    d = np.asarray(differences, dtype=np.float64)
    if not 1 <= len(d) <= MOST_SIGNS:
        return None
    sums = np.zeros(1)
    for x in d:
        sums = np.concatenate([sums + x, sums - x])
    return _exact("sign flip", sums, float(d.sum()), 2 / 2 ** len(d), alpha)


def permutation(a: Sequence[float] | Floats, b: Sequence[float] | Floats, alpha: float) -> ExactTest | None:
    """Deal the pooled values to two sides of the same sizes in all ways: p is the share of mean differences at least as large.

    Its least p is 2 in all ways for equal sizes, 1 otherwise. None beyond MOST_SPLITS ways.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    ways = math.comb(len(x) + len(y), len(x))
    if not (len(x) and len(y)) or ways > MOST_SPLITS:
        return None
    pooled = np.concatenate([x, y])
    chosen = np.array(list(combinations(range(len(pooled)), len(x))))
    sums = pooled[chosen].sum(axis=1)
    centre = float(pooled.sum()) * len(x) / len(pooled)
    return _exact("permutation", sums - centre, float(x.sum()) - centre, (2 if len(x) == len(y) else 1) / ways, alpha)


def _exact(name: str, sums: Floats, seen: float, least: float, alpha: float) -> ExactTest:
    tie = ROUNDING * float(np.abs(sums).max())
    p = float((np.abs(sums) >= abs(seen) - tie).mean())
    return ExactTest("sign flip" if name == "sign flip" else "permutation", p, least, alpha, least <= alpha)


def holm(ps: Sequence[float]) -> tuple[float, ...]:
    """Holm's adjusted p-values, in the order given: the smallest times m, the next times m - 1, never falling, at most 1."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted, most = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        most = max(most, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = most
    return tuple(adjusted)
