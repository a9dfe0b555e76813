"""A server that slows down and recovers: what a line through the window cannot say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.campaign import analyze_cell
from analysis.gates.steady import BENDS, DRIFT, Series, bend, trend
from analysis.model import Verdict
from analysis.samples import AbsentError
from harness.record.reader import RunRecord
from tests.builders import MS, make_request
from tests.gates.cases import healthy, piling
from tests.gates.test_thresholds import QUICK


def series(seed: int, *, drift: float = 0.0, hump: float = 0.0, noise: float = 0.1) -> Series:
    rng = np.random.default_rng(seed)
    t, company = np.sort(rng.uniform(0, 100, 600)), rng.normal(size=(600, 2))
    y = company @ [0.5, -0.2] + drift * (t - 50) / 100 + hump * np.sin(np.pi * t / 100) + noise * rng.normal(size=600)
    return t, y, company, np.ones(600)


@QUICK
@given(st.floats(0.4, 2), st.booleans(), st.integers(0, 2**32 - 1))
def test_a_hump_is_found_at_its_height_where_the_line_sees_nothing(height: float, down: bool, seed: int) -> None:
    made = series(seed, hump=-height if down else height)
    for name, degree in BENDS.items():
        found = bend(name, made, 100.0, degree)
        assert found.bends
        assert found.height == pytest.approx(height, rel=0.25)
    assert abs(trend("TBT", made, 100.0, 0.999).drift) < 0.5 * height


@QUICK
@given(st.floats(-1, 1), st.integers(0, 10_000))
def test_a_straight_drift_is_no_bend(drift: float, seed: int) -> None:
    assert not bend("TBT", series(seed, drift=drift), 100.0, 3).bends


def test_a_small_bend_changes_no_reading() -> None:
    found = bend("TBT", series(1, hump=0.5 * math.log1p(DRIFT), noise=0.01), 100.0, 3)
    assert 0 < found.height < math.log1p(DRIFT)
    assert not found.bends


def test_what_is_not_there_has_no_height() -> None:
    assert bend("TBT", series(2, noise=1.0), 100.0, 3).height == 0.0


def test_a_bend_needs_requests_and_stamps_that_can_be_fitted() -> None:
    t, _, company, _ = series(3)
    with pytest.raises(AbsentError, match="at least 60"):
        bend("TBT", (t[:59], t[:59], company[:59], np.ones(59)), 100.0, 3)
    with pytest.raises(AbsentError, match="cannot be fitted"):
        bend("TBT", (t, np.full(600, np.nan), company, np.ones(600)), 100.0, 3)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (healthy([make_request(i, i * 100 * MS, tokens=1) for i in range(140)]), "TBT not judged: fewer than 60 requests tell of it"),
        (piling(0.5)(), "TTFT not judged: the backlog grows"),
        (healthy(), ""),
    ],
)
def test_a_series_that_could_not_be_judged_is_named(record: RunRecord, words: str) -> None:
    (run,) = analyze_cell([record], "goodput").runs
    (found,) = (check for check in run.checks if check.code == "steady_state")
    assert found.verdict is Verdict.PASS
    assert words in found.reason
    assert ("not judged" in found.reason) == bool(words)
