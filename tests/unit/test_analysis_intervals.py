from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.intervals import (
    clopper_pearson,
    design_effect,
    independent_misses,
    log_interval,
    logit_interval,
    ratio_interval,
    replicate_interval,
    share_interval,
    t_interval,
)


def test_the_t_interval_by_hand() -> None:
    # mean 2, s 1, t_{2, .975} = 4.302653
    interval = t_interval([1.0, 2.0, 3.0])
    assert interval is not None
    assert interval.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert interval.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)
    assert (interval.n, interval.unit_of_inference) == (3, "replicate")


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.inf], [1.0, math.nan]])
def test_no_spread_no_interval(values: list[float]) -> None:
    assert t_interval(values) is None
    assert log_interval(values) is None


def test_the_log_interval_is_the_t_interval_of_the_logarithm() -> None:
    plain, log = t_interval([0.0, 1.0, 2.0]), log_interval([1.0, math.e, math.e**2])
    assert plain is not None
    assert log is not None
    assert (math.log(log.low), math.log(log.high)) == pytest.approx((plain.low, plain.high))


def test_a_value_without_a_logarithm_has_no_log_interval() -> None:
    assert log_interval([0.0, 1.0]) is None
    assert ratio_interval([0.0, 1.0], [1.0, 1.0]) is None


def test_a_ratio_over_pairs_cancels_what_the_traces_share() -> None:
    interval = ratio_interval([1.0, 10.0, 100.0], [2.0, 20.0, 200.0])
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((2.0, 2.0))


def test_pairs_must_match_up() -> None:
    with pytest.raises(ValueError, match="pairs"):
        ratio_interval([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="one server start a replicate"):
        replicate_interval([1.0], [1, 2])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=8))
def test_the_logit_interval_stays_inside_the_unit_and_holds_the_mean(parts: list[tuple[int, int]]) -> None:
    k, n = [a for a, _ in parts], [a + b for a, b in parts]
    interval = logit_interval(k, n)
    if min(n) == 0:
        assert interval is None
        return
    assert interval is not None
    mean = sum(a / b for a, b in zip(k, n, strict=True)) / len(k)
    assert 0 <= interval.low <= mean + 1e-12
    assert mean - 1e-12 <= interval.high <= 1


def test_own_server_starts_give_the_plain_interval() -> None:
    assert replicate_interval([1.0, 2.0, 4.0], [0, 1, 2]) == t_interval([1.0, 2.0, 4.0])


def test_shared_server_starts_give_a_labelled_interval_over_their_means() -> None:
    interval, means = replicate_interval([1.0, 3.0, 10.0, 14.0], [0, 0, 1, 1]), t_interval([2.0, 12.0])
    assert interval is not None
    assert means is not None
    assert (interval.low, interval.high) == (means.low, means.high)
    assert (interval.n, interval.unit_of_inference) == (2, "hierarchical")


def test_the_log_scale_is_used_where_it_exists_and_named() -> None:
    assert replicate_interval([1.0, 2.0, 4.0], [0, 1, 2], log=True) == log_interval([1.0, 2.0, 4.0])
    assert replicate_interval([0.0, 2.0, 4.0], [0, 1, 2], log=True) == t_interval([0.0, 2.0, 4.0])
    shared, means = replicate_interval([1.0, 4.0, 9.0, 4.0], [0, 0, 1, 1], log=True), log_interval([2.0, 6.0])
    assert shared is not None
    assert means is not None
    assert (shared.low, shared.high) == pytest.approx((means.low, means.high))
    assert shared.method == "t over means of server starts, log scale"


def test_replicates_without_a_miss_do_not_claim_certainty() -> None:
    interval = logit_interval([100] * 5, [100] * 5)
    assert interval is not None
    assert interval.low < clopper_pearson(500, 500).low < interval.high == 1.0


def test_one_server_start_knows_nothing_of_server_starts() -> None:
    assert replicate_interval([1.0, 2.0, 3.0], [0, 0, 0]) is None


def test_clopper_pearson_against_a_table() -> None:
    interval = clopper_pearson(8, 10)  # exact 95% limits as tabled for 8 of 10
    assert (interval.low, interval.high) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert interval.unit_of_inference == "request"
    assert (clopper_pearson(0, 10).low, clopper_pearson(10, 10).high) == (0.0, 1.0)


@pytest.mark.parametrize(("k", "n"), [(-1, 3), (4, 3)])
def test_impossible_counts_are_refused(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="0 <= successes <= trials"):
        clopper_pearson(k, n)


def test_the_design_effect_by_hand() -> None:
    # p = .5, n = 100: binomial variance .0025; between replicates .02
    assert design_effect([40, 60], [100, 100]) == pytest.approx(0.02 / 0.0025)


@pytest.mark.parametrize(("k", "n"), [([5], [10]), ([10, 10], [10, 10]), ([0, 0], [10, 10]), ([0, 1], [0, 10])])
def test_the_design_effect_is_unknown_where_nothing_can_be_compared(k: list[int], n: list[int]) -> None:
    assert design_effect(k, n) is None


def test_misses_are_counted_by_what_they_are_worth() -> None:
    assert independent_misses([90, 90], [100, 100]) == 20  # runs alike: every miss counts
    assert independent_misses([40, 60], [100, 100]) == pytest.approx(100 / 8)  # the design effect by hand is 8
    assert independent_misses([100, 100], [100, 100]) == 0
    assert independent_misses([10, 10], [100, 100]) == 20  # near 0 the hits are the few


def test_a_share_that_rests_on_few_misses_says_what_it_may_really_cover() -> None:
    many, few, none = (logit_interval(k, [100] * 3) for k in ([70, 75, 72], [98, 99, 99], [100] * 3))
    assert many is not None
    assert few is not None
    assert none is not None
    assert many.method == "t over replicates, logit scale"
    assert few.method.endswith("misses worth 4 independent ones, real coverage anything from 60 to 99 %")
    assert "misses worth 0 independent ones" in none.method


def test_shared_starts_are_the_unit_of_a_share_too() -> None:
    shared, sums = share_interval([9, 8, 5, 6], [10, 10, 10, 10], [0, 0, 1, 1]), logit_interval([17, 11], [20, 20])
    assert shared is not None
    assert sums is not None
    assert (shared.low, shared.high, shared.n) == (sums.low, sums.high, 2)
    assert shared.unit_of_inference == "hierarchical"
    assert shared.method.startswith("t over sums of server starts, logit scale")
    assert share_interval([9, 8], [10, 10], [3, 4]) == logit_interval([9, 8], [10, 10])
    assert share_interval([9, 8], [10, 10], [3, 3]) is None
    with pytest.raises(ValueError, match="one of each a replicate"):
        share_interval([9], [10, 10], [0, 1])
