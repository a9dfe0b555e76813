from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.allocation import (
    MIN_REPLICATES,
    Components,
    detection_power,
    plausible_spread,
    replicates_for_power,
    replicates_for_width,
    replicates_to_resolve,
    runs_per_start,
    variance_components,
)

A = [0.0, 0.1, -0.1, 0.2, 0.05]
B = [0.02, 0.09, -0.06, 0.18, 0.07]


def test_the_power_is_that_of_the_noncentral_t() -> None:
    known = np.full(1, 0.04)
    for n, distance in ((5, 0.05), (8, 0.05), (12, 0.03)):
        exact = stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, distance * math.sqrt(n) / 0.04)
        assert detection_power(distance, known, n, 0.95) == pytest.approx(exact, abs=0.005)


def test_a_small_pilot_leaves_a_wide_range_of_spreads_open() -> None:
    few, many = plausible_spread(np.array([0.0, 1.0, 2.0])), plausible_spread(np.arange(30.0))
    assert few.max() / few.min() > 10
    assert many.max() / many.min() < 3


def test_the_optimum_by_hand() -> None:
    # c2/c1 = 4, s1^2/s2^2 = 4: r1* = sqrt(16) = 4
    assert runs_per_start(Components(1.0, 4.0, 3, 9, separable=True), start_cost=4.0, run_cost=1.0) == 4
    assert runs_per_start(Components(4.0, 1.0, 3, 9, separable=True), start_cost=1.0, run_cost=1.0) == 1
    assert runs_per_start(Components(0.0, 1.0, 3, 9, separable=True), start_cost=1.0, run_cost=1.0) == MIN_REPLICATES
    assert runs_per_start(Components(1.0, 0.0, 5, 5, separable=False), start_cost=9.0, run_cost=1.0) == 1


def test_components_by_hand() -> None:
    # starts {1, 3} and {5, 7}: within 2, mean squares between 16, n0 = 2 -> (16 - 2)/2 = 7
    found = variance_components([1.0, 3.0, 5.0, 7.0], [0, 0, 1, 1])
    assert found == Components(7.0, 2.0, 2, 4, separable=True)
    assert variance_components([1.0, 2.0, 3.0], [0, 1, 2]) == Components(1.0, 0.0, 3, 3, separable=False)


@pytest.mark.parametrize(
    ("values", "starts", "words"),
    [
        ([1.0, 2.0], [0, 1], "at least 3"),
        ([1.0, 2.0, 3.0], [0, 0, 0], "one start knows nothing"),
        ([1.0, 1.0, 1.0], [0, 1, 2], "do not differ"),
        ([1.0, math.inf, 3.0], [0, 1, 2], "no finite value"),
    ],
)
def test_what_cannot_be_planned_is_unknown_with_a_reason(values: list[float], starts: list[int], words: str) -> None:
    advice = replicates_for_width(values, starts, 0.1)
    assert advice.replicates is None
    assert advice.more is None
    assert words in advice.reason


def test_a_pilot_of_two_plans_nothing() -> None:
    for advice in (replicates_for_power(A[:2], B[:2], 0.05), replicates_to_resolve([0.1, 0.2], -0.02, 0.02, level=0.95)):
        assert advice.replicates is None
        assert "pilot=2" in advice.reason


def test_an_effect_on_the_margin_cannot_be_resolved() -> None:
    advice = replicates_to_resolve([0.01, 0.02, 0.03], -0.02, 0.02, level=0.95)
    assert advice.replicates is None
    assert "near the limit" in advice.reason


def test_no_plan_is_smaller_than_what_carries_a_claim() -> None:
    quiet = [0.0, 1e-6, -1e-6, 2e-6]
    assert replicates_for_power(quiet, [x + 1e-7 * i for i, x in enumerate(quiet)], 0.5).replicates == MIN_REPLICATES


@pytest.mark.parametrize(
    "broken",
    [
        {"logs_b": B[:4]},
        {"power": 1.0},
        {"level": 0.0},
        {"effect": 0.0},
        {"effect": -1.0},
        {"effect": 0.05, "margin": 0.05},
        {"margin": -0.1},
    ],
)
def test_nonsense_is_refused(broken: dict[str, object]) -> None:
    arguments: dict[str, object] = {"logs_a": A, "logs_b": B, "effect": 0.05}
    with pytest.raises(ValueError, match="="):
        replicates_for_power(**(arguments | broken))  # type: ignore[arg-type]


def test_costs_and_widths_must_be_positive() -> None:
    with pytest.raises(ValueError, match="above 0"):
        replicates_for_width(A, [0, 1, 2, 3, 4], 0.0)
    with pytest.raises(ValueError, match="one server start a replicate"):
        variance_components([1.0], [1, 2])


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=6), st.floats(0.02, 0.5))
def test_more_spread_or_more_power_never_needs_fewer(differences: list[float], effect: float) -> None:
    zeros = [0.0] * len(differences)
    base, wider, surer = (
        replicates_for_power(zeros, [scale * d for d in differences], effect, power).replicates
        for scale, power in ((1, 0.8), (2, 0.8), (1, 0.9))
    )
    if base is None:
        assert wider is None or max(map(abs, differences)) < 1e-9
        assert surer is None
    else:
        assert wider is None or wider >= base
        assert surer is None or surer >= base
