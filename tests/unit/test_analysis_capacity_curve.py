from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.capacity_curve import Method, crossing, decreasing, isotonic, logit, smoothed

METHODS: tuple[Method, ...] = ("isotonic", "logit")

shares = st.lists(st.tuples(st.floats(0.01, 0.99), st.integers(1, 50)), min_size=1, max_size=8)
counts = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda p: (p[0], p[0] + p[1] + 1)), min_size=1, max_size=7)


def test_the_share_is_kept_off_the_ends() -> None:
    assert (smoothed(0, 9), smoothed(9, 9), smoothed(0, 0)) == (0.05, 0.95, 0.5)


def test_pooling_by_hand() -> None:
    assert decreasing([0.9, 0.5, 0.7, 0.2], [1, 1, 3, 1]) == pytest.approx([0.9, 0.65, 0.65, 0.2])
    assert decreasing([0.1, 0.2, 0.6], [1, 1, 1]) == pytest.approx([0.3, 0.3, 0.3])


@given(shares)
def test_the_fit_falls_keeps_the_mean_and_is_the_closest(parts: list[tuple[float, int]]) -> None:
    values, weights = np.array([v for v, _ in parts]), np.array([float(w) for _, w in parts])
    fit = np.array(decreasing(values.tolist(), weights.tolist()))
    assert (np.diff(fit) <= 1e-12).all()
    assert float(fit @ weights) == pytest.approx(float(values @ weights))
    # Projection onto a cone: the residual is orthogonal to the fit, and makes no acute angle with any falling step.
    residual = (values - fit) * weights
    assert float(residual @ fit) == pytest.approx(0.0, abs=1e-9)
    assert all(float(residual[: i + 1].sum()) <= 1e-9 for i in range(len(fit)))


def test_a_crossing_by_hand() -> None:
    # logit .8 = 1.386294, logit .5 = 0, target logit .6 = .405465: .707519 of the way from ln 10 to ln 20
    found = isotonic([10.0, 20.0], [0.8, 0.5], [1, 1], 0.6)
    assert found.rate == pytest.approx(10 * 2**0.7075187, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_points_on_a_logit_line_cross_where_it_does(method: Method) -> None:
    rates = [8.0, 9.0, 10.0, 11.0, 12.0]
    n = 10**9  # so many that rounding to whole requests does not show
    valid = [round(n / (1 + math.exp(-(math.log(9) - 12 * math.log(r / 10.3))))) for r in rates]
    assert crossing(rates, valid, [n] * 5, 0.9, method).rate == pytest.approx(10.3, rel=1e-6)


def test_a_target_met_exactly_is_met() -> None:
    assert isotonic([1.0, 2.0], [0.9, 0.5], [1, 1], 0.9).rate == pytest.approx(1.0)
    assert isotonic([1.0, 2.0], [0.95, 0.9], [1, 1], 0.9).side == "above"


@pytest.mark.parametrize("method", METHODS)
def test_curves_that_do_not_cross_say_on_which_side(method: Method) -> None:
    assert crossing([1.0, 2.0], [99, 95], [100, 100], 0.5, method).side == "above"
    assert crossing([1.0, 2.0], [40, 20], [100, 100], 0.5, method).side == "below"


def test_a_line_that_does_not_fall_crosses_nowhere() -> None:
    assert crossing([1.0, 2.0], [40, 60], [100, 100], 0.5, "logit").side == "flat"
    assert crossing([1.0], [40], [100], 0.5, "logit").side == "flat"


@given(counts, st.floats(0.05, 0.95), st.floats(1e-3, 1e3), st.sampled_from(METHODS))
def test_scaling_the_rates_scales_the_crossing(parts: list[tuple[int, int]], alpha: float, factor: float, method: Method) -> None:
    rates = [1.1**i for i in range(len(parts))]
    valid, offered = [k for k, _ in parts], [n for _, n in parts]
    found = crossing(rates, valid, offered, alpha, method)
    scaled = crossing([r * factor for r in rates], valid, offered, alpha, method)
    if found.rate is None or scaled.rate is None:
        # A line through almost equal points may tip over on the last bit; the isotonic fit reads no rates before it interpolates.
        assert found.side == scaled.side or method == "logit"
        return
    assert scaled.rate == pytest.approx(found.rate * factor, rel=1e-6)


@given(counts, st.floats(0.01, 1.0))
def test_an_inside_crossing_lies_between_its_neighbours(parts: list[tuple[int, int]], part: float) -> None:
    rates = [1.1**i for i in range(len(parts))]
    fit = decreasing([smoothed(k, n) for k, n in parts], [n + 1.0 for _, n in parts])
    alpha = fit[-1] + part * (fit[0] - fit[-1])
    found = crossing(rates, [k for k, _ in parts], [n for _, n in parts], alpha, "isotonic")
    if not fit[-1] < alpha <= fit[0]:  # flat, or rounding
        assert found.side in ("above", "below")
        return
    last = max(i for i, share in enumerate(fit) if share >= alpha)
    assert found.rate is not None
    assert rates[last] * (1 - 1e-12) <= found.rate <= rates[last + 1] * (1 + 1e-12)


@given(counts, st.floats(0.05, 0.9), st.floats(0.001, 0.05))
def test_a_stricter_target_gives_no_larger_capacity(parts: list[tuple[int, int]], alpha: float, more: float) -> None:
    rates = [1.1**i for i in range(len(parts))]
    valid, offered = [k for k, _ in parts], [n for _, n in parts]
    lax, strict = (crossing(rates, valid, offered, a, "isotonic") for a in (alpha, alpha + more))
    place = {"below": 0, "inside": 1, "above": 2}
    assert place[strict.side] <= place[lax.side]
    if strict.rate is not None and lax.rate is not None:
        assert strict.rate <= lax.rate * (1 + 1e-9)


def test_logit_by_hand() -> None:
    assert logit(0.9) == pytest.approx(math.log(9))
