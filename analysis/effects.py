"""Arm against arm, paired by trace: effect sizes with simultaneous intervals and verdicts against a margin declared before the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from analysis.intervals import ratio_interval, t_interval
from analysis.model import Effect

HIGHER_IS_BETTER = frozenset({"goodput", "attainment", "request_throughput", "token_throughput"})
DIFFERENCE_METRICS = frozenset({"goodput", "attainment"})
"""Metrics bounded by the offered load, where a ratio near a zero would explode; all others are compared as ratios on the log scale."""


def paired_effect(
    metric: str,
    names: tuple[str, str],
    values: tuple[Mapping[int, float], Mapping[int, float]],
    *,
    margin: float,
    confidence: float,
    family: int,
) -> Effect | None:
    """Compare arm b with arm a over the replicates both have; None when fewer than two pairs or a value has no logarithm.

    ``values`` map replicate index to the replicate's figure. ``family``: number of pairs in the declared family; the interval of each is at
    level 1 - (1 - confidence)/family (Bonferroni), so that all hold together. t interval over replicates (rigor: the run is the unit). The
    margin is relative; for goodput it is taken of arm a's mean, for attainment it is absolute.
    """
    shared = sorted(values[0].keys() & values[1].keys())
    a = np.array([values[0][i] for i in shared], dtype=np.float64)
    b = np.array([values[1][i] for i in shared], dtype=np.float64)
    if len(shared) < 2 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    level = 1.0 - (1.0 - confidence) / max(family, 1)
    if metric in DIFFERENCE_METRICS:
        bound = margin if metric == "attainment" else margin * float(np.abs(a).mean())
        found, estimate, floor, ceiling = t_interval((b - a).tolist(), level), float((b - a).mean()), -bound, bound
    else:
        # Floor and ceiling mirror each other on the log scale, so that swapping the arms swaps the verdict.
        found, floor, ceiling, bound = ratio_interval(a.tolist(), b.tolist(), level), 1 / (1 + margin), 1 + margin, margin
        estimate = math.exp(float(np.log(b / a).mean())) if found else math.nan
    if found is None:
        return None
    verdict = _verdict(found.low, found.high, floor, ceiling, metric in HIGHER_IS_BETTER)
    scale: Literal["ratio", "difference"] = "difference" if metric in DIFFERENCE_METRICS else "ratio"
    return Effect(*names, scale, estimate, found.low, found.high, level, bound, verdict, len(shared))


def _verdict(
    low: float, high: float, floor: float, ceiling: float, higher_is_better: bool
) -> Literal["better", "worse", "equivalent", "unresolved"]:
    if low > ceiling:
        return "better" if higher_is_better else "worse"
    if high < floor:
        return "worse" if higher_is_better else "better"
    if floor < low and high < ceiling:
        return "equivalent"
    return "unresolved"
