from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.tails import (
    LEVELS,
    Sample,
    exact,
    linear,
    minimum_requests,
    nearest_rank,
    order_statistic_interval,
    order_statistic_ranks,
    percentile_figure,
    rank_of,
)


@pytest.mark.parametrize(
    ("p", "n", "rank"), [(0.95, 20, 19), (0.99, 100, 99), (0.999, 1000, 999), (0.5, 2, 1), (0.5, 3, 2), (0.07, 100, 7), (0.29, 100, 29)]
)
def test_ranks_are_exact_where_float_ceilings_are_not(p: float, n: int, rank: int) -> None:
    assert rank_of(p, n) == rank


def test_float_arithmetic_would_have_been_wrong() -> None:
    assert math.ceil(0.07 * 100) == 8  # the bug that exact fractions avoid; 7 is right


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(1, 999))
def test_nearest_rank_is_the_least_value_that_covers_p_of_the_sample(values: list[float], thousandths: int) -> None:
    p = Fraction(thousandths, 1000)
    x = nearest_rank(np.sort(values), p)
    covering = [v for v in values if Fraction(sum(u <= v for u in values), len(values)) >= p]
    assert x == min(covering)


@pytest.mark.parametrize(("name", "n"), [("p50", 2), ("p95", 20), ("p99", 100), ("p999", 1000)])
def test_the_floor_of_each_percentile(name: str, n: int) -> None:
    assert minimum_requests(LEVELS[name]) == n
    values = np.arange(1, n + 1)
    assert percentile_figure("x", Sample.of(values, "all"), LEVELS[name]).status == "ok"
    short = percentile_figure("x", Sample.of(values[1:], "all"), LEVELS[name])
    assert (short.status, short.value, short.interval) == ("withheld", None, None)
    assert short.reason.startswith(f"insufficient_sample: n={n - 1} requests, at least {n}")


def test_the_floor_counts_requests_even_where_a_thousand_gaps_are_pooled() -> None:
    sample = Sample.of(np.ones(1000), "gaps", requests=99)
    assert percentile_figure("tbt_p99", sample, LEVELS["p99"]).status == "withheld"
    enough = percentile_figure("tbt_p99", Sample.of(np.ones(1000), "gaps", requests=100), LEVELS["p99"])
    assert (enough.value, enough.n, enough.interval) == (1.0, 100, None)


@pytest.mark.parametrize(("p", "n"), [("0.9", 36), ("0.95", 72), ("0.99", 368), ("0.999", 3688)])
def test_the_smallest_sample_with_a_finite_interval(p: str, n: int) -> None:
    assert None not in order_statistic_ranks(n, exact(p))
    assert order_statistic_ranks(n - 1, exact(p))[1] is None


def test_the_ranks_of_a_p99_from_a_thousand_requests() -> None:
    assert order_statistic_ranks(1000, 0.99) == (983, 997)


def test_the_interval_is_infinite_where_no_rank_exists() -> None:
    interval = order_statistic_interval(Sample.of(np.arange(2), "all"), 0.5)
    assert interval is not None
    assert (interval.low, interval.high) == (-math.inf, math.inf)


@given(st.integers(1, 400), st.integers(1, 99))
def test_the_interval_holds_the_estimate(n: int, percent: int) -> None:
    p = Fraction(percent, 100)
    sample = Sample.of(np.arange(n), "all")
    interval = order_statistic_interval(sample, p)
    assert interval is not None
    assert interval.low <= nearest_rank(sample.values, p) <= interval.high


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(1, 99))
def test_the_linear_rule_is_the_one_numpy_calls_linear(values: list[float], percent: int) -> None:
    assert linear(np.sort(values), Fraction(percent, 100)) == pytest.approx(np.percentile(values, percent), rel=1e-9, abs=1e-6)


def test_the_linear_rule_is_labelled_and_diagnostic() -> None:
    figure = percentile_figure("x", Sample.of([0.0, 1.0], "all"), LEVELS["p50"], rule="linear")
    assert (figure.value, figure.percentile_rule, figure.diagnostic, figure.interval) == (0.5, "linear", True, None)


def test_infinities_rank_last_and_interpolate_to_infinity() -> None:
    values = np.array([1.0, 2.0, math.inf, math.inf])
    assert nearest_rank(values, 0.5) == 2.0
    assert nearest_rank(values, 0.51) == math.inf
    assert linear(values, 0.5) == math.inf
    assert linear(values, 0.99) == math.inf


def test_an_infinite_percentile_says_why() -> None:
    figure = percentile_figure("x", Sample.of([1.0, math.inf, math.inf], "all"), LEVELS["p50"])
    assert figure.value == math.inf
    assert "did not complete" in figure.reason


@pytest.mark.parametrize("p", [0, 1, 99, "99", -0.5])
def test_a_percent_where_a_fraction_is_expected_is_refused(p: float | str) -> None:
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        exact(p)


def test_nan_is_never_ranked() -> None:
    with pytest.raises(ValueError, match="NaN"):
        Sample.of([1.0, math.nan], "all")
