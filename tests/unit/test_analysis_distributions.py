"""What may be shown of a distribution: nothing that a percentile would have to withhold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.distributions import Histogram, add_histograms, column_of, ecdf, edge_of, histogram, largest_reportable, reportable_ranks
from analysis.tails import POINTS, Sample, minimum_requests

VALUES = st.lists(st.floats(0, 1e3), min_size=2, max_size=900)


def test_the_largest_reportable_percentile_is_the_one_the_floor_lets_through() -> None:
    for n in range(2, 1500):
        p = largest_reportable(n)
        assert minimum_requests(p) <= n
        assert minimum_requests(p + (1 - p) / 1000) > n
    assert (largest_reportable(0), largest_reportable(1)) == (0, 0)


@given(VALUES)
def test_every_shown_point_is_true_and_the_luckiest_request_is_withheld(values: list[float]) -> None:
    found, ordered = ecdf(Sample.of(values, "all")), sorted(values)
    assert len(found.values) <= POINTS + 1
    assert (found.withheld, found.absent, found.plateau) == (1, 0, 1.0)
    assert found.shares[-1] == pytest.approx(1 - 1 / len(values))
    for value, share in zip(found.values, found.shares, strict=True):
        assert value == ordered[round(share * len(values)) - 1]


def test_a_p99_that_is_withheld_cannot_be_read_off_the_curve() -> None:
    assert ecdf(Sample.of(np.arange(86.0), "all")).shares[-1] < 0.99
    assert ecdf(Sample.of(np.arange(100.0), "all")).shares[-1] == 0.99


def test_one_request_shows_nothing() -> None:
    for sample in (Sample.of([1.0], "one"), Sample.of([0.1] * 500, "gaps of one", requests=1)):
        found = ecdf(sample)
        assert (len(found.values), found.withheld) == (0, sample.size)
        assert histogram(sample).withheld == sample.size
    assert math.isnan(ecdf(Sample.of([], "none")).plateau)


def test_the_floor_counts_requests_also_where_gaps_are_pooled() -> None:
    sample = Sample.of(np.arange(1000.0), "gaps", requests=10)
    assert reportable_ranks(sample) == 900
    assert ecdf(sample).withheld == 100


@given(VALUES, st.integers(1, 300))
def test_requests_that_did_not_complete_leave_the_curve_below_one(values: list[float], open_: int) -> None:
    found = ecdf(Sample.of([*values, *[math.inf] * open_], "offered"))
    n = len(values) + open_
    assert np.isfinite(found.values).all()
    assert found.plateau == len(values) / n
    assert found.shares[-1] == pytest.approx(found.plateau)
    assert (found.withheld, found.absent) == (0, open_)


def test_an_overload_that_completes_nothing_shows_nothing() -> None:
    found = ecdf(Sample.of([math.inf] * 50, "offered"))
    assert (len(found.values), found.absent, found.plateau) == (0, 50, 0.0)


@given(VALUES)
def test_columns_hold_what_is_shown_and_each_value_is_in_its_own(values: list[float]) -> None:
    found = histogram(Sample.of(values, "all"))
    assert int(found.counts.sum()) + found.withheld + found.absent == len(values)
    shown = sorted(values)[:-1]
    for low, count in zip(found.edges, found.counts, strict=True):
        inside = [v for v in shown if edge_of(column_of(np.array([v])))[0] == pytest.approx(low)]
        assert len(inside) == count


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_columns_add_up_over_replicates(runs: list[list[float]]) -> None:
    parts = [histogram(Sample.of(values, "all")) for values in runs]
    whole = add_histograms(parts)
    assert int(whole.counts.sum()) == sum(int(p.counts.sum()) for p in parts)
    assert whole.withheld == len(runs)
    expected: dict[int, int] = {}
    for values in runs:
        for column in column_of(np.sort(values)[:-1]).tolist():
            expected[column] = expected.get(column, 0) + 1
    kept = {int(c): int(k) for c, k in zip(column_of(whole.edges * 1.0001), whole.counts, strict=True) if k}
    assert kept == expected


def test_adding_nothing_is_nothing() -> None:
    empty = Histogram(np.empty(0), np.empty(0, dtype=np.int64), 2, 3)
    found = add_histograms([empty, empty])
    assert (len(found.counts), found.withheld, found.absent) == (0, 4, 6)
