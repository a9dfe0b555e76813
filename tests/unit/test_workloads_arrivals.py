"""Arrival processes: the promised gaps, absolute times, and no fitting to a count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads.arrivals import CV_RANGE, NS_PER_S, Synthetic, draw, weibull_shape
from workloads.plan import ConstantArrivals, GammaArrivals, PoissonArrivals, WeibullArrivals

PROCESSES = st.one_of(
    st.builds(ConstantArrivals, rate=st.floats(0.1, 1000)),
    st.builds(PoissonArrivals, rate=st.floats(0.1, 1000)),
    st.builds(GammaArrivals, rate=st.floats(0.1, 1000), cv=st.floats(0.05, 5)),
    st.builds(WeibullArrivals, rate=st.floats(0.1, 1000), cv=st.floats(0.05, 5)),
)


def test_constant_gaps_start_at_half_a_gap() -> None:
    assert draw(ConstantArrivals(rate=4), NS_PER_S, 1).tolist() == [125_000_000, 375_000_000, 625_000_000, 875_000_000]


@given(st.floats(0.1, 1000), st.integers(1, 20 * NS_PER_S))
def test_constant_arrivals_never_drift(rate: float, horizon: int) -> None:
    times = draw(ConstantArrivals(rate=rate), horizon, 1)
    exact = (np.arange(len(times)) + 0.5) * NS_PER_S / rate
    assert (np.abs(times - exact) <= 1).all()
    assert (len(times) + 0.5) * NS_PER_S / rate >= horizon - 1


@given(PROCESSES, st.integers(0, 5 * NS_PER_S), st.integers(0, 5 * NS_PER_S), st.integers(0, 2**63))
def test_a_longer_horizon_only_adds_arrivals(process: Synthetic, one: int, two: int, seed: int) -> None:
    short, long = draw(process, min(one, two), seed), draw(process, max(one, two), seed)
    assert long[: len(short)].tolist() == short.tolist()
    assert (long[len(short) :] >= min(one, two)).all()
    assert (np.diff(long) >= 0).all()
    assert long.dtype == np.int64
    assert not len(long) or (long[0] >= 0 and long[-1] < max(one, two))


@pytest.mark.parametrize(
    ("process", "cv"),
    [
        (PoissonArrivals(rate=100), 1.0),
        (GammaArrivals(rate=100, cv=0.5), 0.5),
        (GammaArrivals(rate=100, cv=3), 3.0),
        (WeibullArrivals(rate=100, cv=0.5), 0.5),
        (WeibullArrivals(rate=100, cv=2), 2.0),
    ],
)
def test_gaps_have_the_declared_mean_and_cv(process: Synthetic, cv: float) -> None:
    gaps = np.diff(draw(process, 500 * NS_PER_S, 7))
    # Five standard errors of the mean; the CV's own error is a few per cent at this n.
    assert gaps.mean() == pytest.approx(NS_PER_S / 100, rel=5 * cv / math.sqrt(len(gaps)))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_gamma_with_cv_one_is_exponential() -> None:
    gaps = np.diff(draw(GammaArrivals(rate=100, cv=1), 200 * NS_PER_S, 5))
    assert (gaps > NS_PER_S / 100).mean() == pytest.approx(math.exp(-1), abs=0.02)


def test_counts_vary_with_the_seed_as_poisson_counts_do() -> None:
    counts = np.array([len(draw(PoissonArrivals(rate=50), 2 * NS_PER_S, seed)) for seed in range(200)])
    assert counts.mean() == pytest.approx(100, abs=5 * 10 / math.sqrt(200))
    # A process rescaled to its expected count would have no variance at all. chi-square of 199 degrees stays within [0.65, 1.4].
    assert 65 < counts.var(ddof=1) < 140


def test_the_seed_decides_and_nothing_else() -> None:
    one, again, other = (draw(PoissonArrivals(rate=20), 10 * NS_PER_S, seed).tolist() for seed in (4, 4, 5))
    assert one == again != other


def test_a_rate_too_low_for_the_horizon_gives_nothing() -> None:
    assert draw(PoissonArrivals(rate=1e-300), NS_PER_S, 1).tolist() == []
    assert draw(ConstantArrivals(rate=0.1), NS_PER_S, 1).tolist() == []


@pytest.mark.parametrize("process", [ConstantArrivals(rate=1e9), PoissonArrivals(rate=math.inf), GammaArrivals(rate=1e9, cv=2)])
def test_a_rate_that_cannot_be_meant_is_refused(process: Synthetic) -> None:
    with pytest.raises(UsageError, match=r"more than 5000000 requests.*workload\.too_many_requests"):
        draw(process, 10 * NS_PER_S, 1)


@pytest.mark.parametrize("cv", [1e-9, 1e9, math.inf])
@pytest.mark.parametrize("process", [GammaArrivals, WeibullArrivals])
def test_a_cv_that_means_nothing_is_refused(process: type[GammaArrivals | WeibullArrivals], cv: float) -> None:
    with pytest.raises(UsageError, match=r"workload\.cv"):
        draw(process(rate=1, cv=cv), NS_PER_S, 1)


@given(st.floats(*CV_RANGE))
def test_the_weibull_shape_gives_the_cv_back(cv: float) -> None:
    shape = weibull_shape(cv)
    back = math.sqrt(math.expm1(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)))
    # Below cv = 0.01 the two logarithms agree in all but their last digits, and the difference has few left.
    assert back == pytest.approx(cv, rel=1e-6 if cv > 0.01 else 1e-3)


def test_weibull_gaps_of_cv_one_are_exponential() -> None:
    assert weibull_shape(1.0) == pytest.approx(1.0)
