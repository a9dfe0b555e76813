"""Growth of counters: known from two snapshots, from the first appearance on a page that was read before, and never negative."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.samples import AbsentError, RestartedError, counter_delta, growth
from harness.record.reader import RunRecord
from tests.builders import S, make_sample
from tests.gates.cases import healthy


def sampled(metric: str, *points: tuple[int, float], page: bool = True) -> RunRecord:
    """A record whose server showed ``metric`` at some seconds; ``page``: it was read before the load, whatever it showed."""
    others = [make_sample(-S, "server", "requests_running", 0.0)] if page else []
    return healthy(server_metrics=[*others, *(make_sample(t * S, "server", metric, v) for t, v in points)])


def test_growth_lies_between_the_last_snapshot_before_and_the_last_one() -> None:
    assert counter_delta(sampled("a_total", (-2, 3), (-1, 5), (4, 9), (20, 12)), "a_total", 10 * S) == 7.0


def test_a_counter_that_appears_later_began_at_nothing() -> None:
    assert counter_delta(sampled("a_total", (4, 2), (20, 5)), "a_total", 10 * S) == 5.0


def test_without_a_page_before_the_load_its_beginning_is_unknown() -> None:
    with pytest.raises(AbsentError, match="no snapshot of a_total from before"):
        counter_delta(sampled("a_total", (4, 2), (20, 5), page=False), "a_total", 10 * S)


def test_a_counter_no_page_ever_showed_is_unknown() -> None:
    with pytest.raises(AbsentError, match="never sampled"):
        counter_delta(sampled("a_total"), "a_total", 10 * S)


def test_a_restart_is_seen_even_when_the_counter_climbs_past_where_it_was() -> None:
    with pytest.raises(RestartedError, match="fell by 4"):
        counter_delta(sampled("a_total", (-1, 5), (4, 1), (20, 9)), "a_total", 10 * S)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_growth_is_never_negative(values: list[float]) -> None:
    column = np.array(values)
    if values == sorted(values):
        assert growth("a", column) == values[-1] - values[0]
    else:
        with pytest.raises(RestartedError):
            growth("a", column)
