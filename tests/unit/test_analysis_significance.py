"""Exact tests and Holm's adjustment against cases worked by hand, and against SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.significance import MOST_SIGNS, holm, permutation, sign_flip


@pytest.mark.parametrize(("replicates", "least", "speaks"), [(2, 0.5, False), (5, 0.0625, False), (6, 0.03125, True), (10, 2**-9, True)])
def test_the_least_p_of_a_sign_flip_is_two_in_two_to_the_r(replicates: int, least: float, speaks: bool) -> None:
    found = sign_flip([1.0 + 0.1 * i for i in range(replicates)], 0.05)
    assert found is not None
    assert (found.p, found.least, found.speaks) == (least, least, speaks)


def test_sign_flips_worked_by_hand() -> None:
    # Sums of +-1 +-2 +-4 are all odd numbers from -7 to 7; 1 + 2 - 4 = -1, and all eight are at least 1 away from 0.
    found = sign_flip([1, 2, -4], 0.05)
    assert found is not None
    assert found.p == 1.0
    found = sign_flip([-1, 2, 4], 0.05)  # 5: of -7, -5, 5, 7 and the four between
    assert found is not None
    assert found.p == 0.5


def test_sums_that_differ_by_the_order_of_addition_are_ties() -> None:
    found = sign_flip([0.1, 0.2, -0.3, 0.7], 0.05)
    turned = sign_flip([0.7, -0.3, 0.2, 0.1], 0.05)
    assert found == turned


@pytest.mark.parametrize(("n", "least"), [(3, 0.1), (4, 2 / 70), (5, 2 / 252)])
def test_the_least_p_of_equal_sides_is_two_in_all_ways_to_deal(n: int, least: float) -> None:
    found = permutation(range(n), range(10, 10 + n), 0.05)
    assert found is not None
    assert (found.p, found.least) == (pytest.approx(least), pytest.approx(least))
    assert found.speaks == (n > 3)


def test_unequal_sides_agree_with_scipy() -> None:
    a, b = [1.0, 2.5, 2.0, 7.0], [3.0, 4.0, 8.0]
    found = permutation(a, b, 0.05)

    def distance(x: np.ndarray, y: np.ndarray) -> float:
        return abs(float(np.mean(x) - np.mean(y)))

    reference = stats.permutation_test((a, b), distance, alternative="greater", n_resamples=10_000)
    assert found is not None
    assert found.p == pytest.approx(reference.pvalue)


def test_what_is_too_much_to_enumerate_has_no_exact_test() -> None:
    assert sign_flip(np.ones(MOST_SIGNS + 1), 0.05) is None
    assert permutation(np.ones(30), np.ones(30), 0.05) is None
    assert sign_flip([], 0.05) is None


def test_holm_worked_by_hand() -> None:
    # Sorted .01 .02 .03 .04: times 4, 3, 2, 1 = .04 .06 .06 .04, and never falling.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx((0.06, 0.04, 0.06, 0.06))
    assert holm([]) == ()
    assert holm([0.7, 0.6]) == (1.0, 1.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_keeps_order_and_does_not_care_for_the_order_given(ps: list[float]) -> None:
    found = holm(ps)
    assert all(p <= q <= 1 for p, q in zip(ps, found, strict=True))
    assert all(q <= min(1.0, len(ps) * p) + 1e-12 for p, q in zip(ps, found, strict=True))
    order = sorted(range(len(ps)), key=lambda i: math.sin(i * 7 + 1))
    turned = holm([ps[i] for i in order])
    assert [turned[k] for k in range(len(ps))] == pytest.approx([found[i] for i in order])
