"""Growth of counters: known from two snapshots, from the first appearance on a page that was read before, and never negative."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.gates.tables import mean_ratio, risen
from analysis.samples import AbsentError, RestartedError, counter_delta, growth, need_half, need_seen
from harness.record.reader import RunRecord
from harness.record.spec import Window
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


WINDOW = Window(warm_up_ns=2 * S, measured_ns=10 * S, drain_ns=3 * S)  # [2, 12) s


def at(*seconds: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([round(second * S) for second in seconds], dtype=np.int64)


@pytest.mark.parametrize("seconds", [(), (7.0,), (2.0, 6.9), (7.1, 11.9)])
def test_samples_that_span_less_than_half_of_the_window_are_absent(seconds: tuple[float, ...]) -> None:
    for enough in (need_half, need_seen):
        with pytest.raises(AbsentError, match=r"a samples span .* s, less than half"):
            enough(at(*seconds), WINDOW, "a samples")


def test_a_hole_between_samples_counts_against_a_level_and_not_against_a_counter() -> None:
    samples = at(2, 2.5, 3, 3.5, 9, 9.5, 10)
    need_half(samples, WINDOW, "a samples")
    with pytest.raises(AbsentError, match=r"a samples leave 5\.5 s of the measured window unseen, more than half"):
        need_seen(samples, WINDOW, "a samples")
    need_seen(at(2, 2.5, 3, 3.5, 6, 6.5, 7, 9.5, 10, 10.5, 11, 11.5), WINDOW, "a samples")  # two holes, 5 s unseen: half


@given(st.floats(0.01, 1.0), st.lists(st.floats(0.5, 1.5), min_size=20, max_size=400))
def test_instants_spread_as_they_are_have_no_holes(period: float, draws: list[float]) -> None:
    t = WINDOW.start_ns + np.cumsum(np.array(draws) * period * S).astype(np.int64)
    window = Window(warm_up_ns=2 * S, measured_ns=int(t[-1] - WINDOW.start_ns) + 1, drain_ns=0)
    need_seen(t, window, "a samples")


def host(metric: str, *points: tuple[float, float]) -> RunRecord:
    return healthy(host=[make_sample(round(t * S), "host", metric, v) for t, v in points])


def test_a_ratio_counts_for_the_time_it_was_taken_over() -> None:
    record = host("r", (1, 9.0), (2, 0.0), (3, 0.1), (4, 0.1), (7, 0.5), (10, 0.3), (11, 0.2), (12, 9.0))
    value, n = mean_ratio(record, "r")
    assert value == pytest.approx((0.0 + 0.1 + 0.1 + 3 * 0.5 + 3 * 0.3 + 0.2) / 10)
    assert n == 6


def test_a_rise_is_seen_at_the_edges_of_the_window_and_when_it_goes_back() -> None:
    still = {float(t): 5.0 for t in range(15)}
    assert risen(host("b", *still.items()), "b") == 0.0
    for seen in ({7.0: 8.0}, {12.0: 8.0}, {2.0: 2.0}):
        assert risen(host("b", *(still | seen).items()), "b") == 3.0
    for outside in ({1.0: 2.0}, {13.0: 8.0}):
        assert risen(host("b", *(still | outside).items()), "b") == 0.0
