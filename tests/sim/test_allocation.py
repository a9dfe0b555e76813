"""Does a planned number of replicates keep its promise? Pilots and the studies they plan, simulated with known truth (seeded)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from analysis.allocation import replicates_for_power, replicates_for_width, replicates_to_resolve
from analysis.effects import paired_effect
from analysis.intervals import ratio_interval, replicate_interval

STUDIES = 400
"""Monte Carlo error of a power of 80%: two points."""


def pair(rng: np.random.Generator, n: int, effect: float) -> tuple[list[float], list[float]]:
    """Logs of two arms over ``n`` shared traces: traces differ by 30%, the arms' ratio from trace to trace by 4%."""
    trace = rng.normal(0.0, 0.3, n)
    return trace.tolist(), (trace + math.log1p(effect) + rng.normal(0.0, 0.04, n)).tolist()


@pytest.mark.parametrize("pilot", [3, 5, 8])
def test_a_planned_study_finds_the_effect_it_was_planned_for(pilot: int) -> None:
    rng, found, planned = np.random.default_rng(pilot), 0, []
    for _ in range(STUDIES):
        advice = replicates_for_power(*pair(rng, pilot, 0.0), effect=0.05, power=0.8, level=0.95)
        n = advice.replicates or 1000  # unknown only beyond the most that is planned for
        planned.append(n)
        a, b = pair(rng, n, 0.05)
        interval = ratio_interval(np.exp(a).tolist(), np.exp(b).tolist())
        found += interval is not None and interval.low > 1.0
    print(pilot, found / STUDIES, np.median(planned), np.quantile(planned, 0.9))
    assert found / STUDIES >= 0.78  # 80% less one Monte Carlo error


def test_the_plan_is_no_larger_than_it_must_be() -> None:
    """From a pilot of twenty the spread is known, and then 80% must not turn into 95%."""
    rng, found = np.random.default_rng(20), 0
    for _ in range(STUDIES):
        n = replicates_for_power(*pair(rng, 20, 0.0), effect=0.05, power=0.8, level=0.95).replicates
        assert n is not None
        a, b = pair(rng, n, 0.05)
        interval = ratio_interval(np.exp(a).tolist(), np.exp(b).tolist())
        found += interval is not None and interval.low > 1.0
    print(found / STUDIES)
    assert 0.78 <= found / STUDIES <= 0.90


def verdict(a: Sequence[float], b: Sequence[float]) -> str:
    values = (dict(enumerate(np.exp(a).tolist())), dict(enumerate(np.exp(b).tolist())))
    effect = paired_effect("e2e_p50", ("a", "b"), values, margin=0.02, confidence=0.95, family=1)
    assert effect is not None
    return effect.verdict


@pytest.mark.parametrize(("effect", "wanted"), [(0.0, "equivalent"), (0.06, "worse"), (-0.06, "better")])
def test_a_pair_is_resolved_when_its_effect_is_the_one_the_pilot_saw(effect: float, wanted: str) -> None:
    """The pilot's mean is set to the truth: what is tested is the plan for that effect, not the luck of a pilot's mean."""
    rng, found, ends = np.random.default_rng(3), 0, (-math.log1p(0.02), math.log1p(0.02))
    for _ in range(STUDIES):
        a, b = pair(rng, 8, effect)
        d = np.subtract(b, a)
        n = replicates_to_resolve((d - d.mean() + math.log1p(effect)).tolist(), *ends, level=0.95).replicates
        found += n is not None and verdict(*pair(rng, n, effect)) == wanted
    print(effect, found / STUDIES)
    assert found / STUDIES >= 0.78


@pytest.mark.parametrize("shared", [False, True])
def test_a_planned_interval_is_as_narrow_as_planned(shared: bool) -> None:
    """Starts differ by 3%, runs of one start by 2%; pilots of nine runs on three starts, or of six on six."""
    rng, halves, per_start = np.random.default_rng(4), [], []
    starts = [0, 0, 0, 1, 1, 1, 2, 2, 2] if shared else [0, 1, 2, 3, 4, 5]

    def values(of: Sequence[int]) -> list[float]:
        level = rng.normal(0.0, 0.03, max(of) + 1)
        return (level[list(of)] + rng.normal(0.0, 0.02, len(of))).tolist()

    for _ in range(STUDIES):
        advice = replicates_for_width(values(starts), starts, 0.03, start_cost=4.0)
        assert advice.replicates is not None
        assert advice.server_starts is not None
        on = sorted(list(range(advice.server_starts)) * (advice.replicates // advice.server_starts))
        interval = replicate_interval(values(on), on)
        assert interval is not None
        halves.append((interval.high - interval.low) / 2)
        per_start.append(advice.replicates / advice.server_starts)
    print(shared, np.mean(halves), np.median(halves), np.mean(per_start))
    assert np.median(halves) <= 0.03
    assert (np.mean(per_start) > 1) == shared
