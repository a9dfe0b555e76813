from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.backlog import unfinished
from analysis.run import measure_run
from analysis.tails import POINTS
from harness.record.reader import RunRecord
from harness.record.schema import EndKind
from harness.record.spec import Metric, Rank
from tests.builders import MS, S, make_record, make_request, make_spec


def growing(n: int = 140) -> RunRecord:
    """Arrivals every 100 ms at a server that finishes one every 200 ms: the backlog grows by 5 a second."""
    return make_record([make_request(i, i * 100 * MS, ttft_ns=i * 100 * MS + 50 * MS) for i in range(n)])


def test_a_healthy_run_has_every_metric_that_can_be_declared() -> None:
    rows = [make_request(i, i * 100 * MS, ttft_ns=150 * MS) for i in range(140)]  # longer than a gap, so that clients meet
    figures = measure_run(make_record(rows, plan={i: {"client": "ab"[i % 2]} for i in range(140)})).figures
    for name in get_args(Metric):
        assert figures[name].status == "ok", name
    beside = {"slip_p99", "slip_max", "ttft_send_p50", "event_gap_p99", "tokens_per_event_mean", "events_per_read_mean", "offered_rate"}
    assert beside <= figures.keys()


def test_every_figure_is_filed_under_its_own_name_with_population_and_unit() -> None:
    for name, figure in measure_run(make_record()).figures.items():
        assert figure.metric == name
        assert figure.population
        assert figure.unit in ("s", "req/s", "tok/s", "ratio")


def test_the_numbers_of_a_healthy_run() -> None:
    f = measure_run(make_record()).figures
    assert f["ttft_p99"].value == 0.05
    assert f["ttft_send_p99"].value == pytest.approx(0.0499)
    assert f["ttft_send_p99"].diagnostic
    assert f["tbt_p99"].value == f["tpot_p50"].value == 0.02
    assert f["e2e_p99"].value == pytest.approx(0.130001)
    assert f["slip_p99"].value == f["slip_max"].value == pytest.approx(0.0001)
    assert f["goodput"].value == 10.0
    assert f["token_throughput"].value == 50.0
    assert f["shared_stamp_share"].value == 0.0


def test_a_growing_backlog_withholds_latency_and_keeps_goodput_and_slip() -> None:
    measures = measure_run(growing())
    assert measures.load.flag
    # arrival at t ends at 2t + 0.13: in flight at t is t/2, so the backlog grows by half of 10 requests a second
    assert measures.load.slope == pytest.approx(5.0, rel=0.1)
    for name in ("ttft_p50", "tbt_p99", "e2e_p50", "tpot_p50", "ttft_send_p50", "event_gap_p50", "ttft_p50_offered"):
        figure = measures.figures[name]
        assert (figure.status, figure.value, figure.interval) == ("withheld", None, None), name
        assert "overloaded: backlog +" in figure.reason
    assert measures.figures["slip_p99"].status == "ok"
    assert measures.figures["attainment"].status == "ok"
    assert measures.figures["attainment"].value == 0.0


def test_a_single_burst_at_the_end_is_not_overload() -> None:
    burst = [make_request(200 + i, 12 * S - 1, ttft_ns=50 * MS) for i in range(30)]
    measures = measure_run(make_record([*(make_request(i, i * 100 * MS) for i in range(140)), *burst]))
    assert measures.load.slope > 0
    assert not measures.load.flag


def test_a_sure_but_small_growth_is_not_overload() -> None:
    rows = [make_request(i, i * 10 * MS, tokens=1, ttft_ns=MS, **({"end_ns": None} if i % 100 < 3 else {})) for i in range(1400)]
    load = measure_run(make_record(rows)).load
    assert load.low > 0
    assert load.slope == pytest.approx(3.0)  # 3% of the arrivals
    assert not load.flag


def test_equal_stamps_of_different_requests_are_different_reads() -> None:
    rows = [make_request(i, 3 * S, tokens=1) for i in range(2)]
    assert measure_run(make_record(rows)).figures["events_per_read_mean"].value == 1.0


def test_requests_without_an_end_count_as_unfinished_until_the_drain_ends() -> None:
    rows = [make_request(i, i * 100 * MS, end_kind="drain_end", end_ns=None) for i in range(140)]
    load = measure_run(make_record(rows)).load
    assert load.slope == pytest.approx(10.0)
    assert load.flag


def test_an_empty_record_gives_reasons_and_no_numbers() -> None:
    measures = measure_run(make_record([]))
    for name, figure in measures.figures.items():
        if name in ("offered_rate", "request_throughput", "token_throughput"):  # truly 0 in the window
            assert figure.value == 0.0
        else:
            assert figure.value is None, name
            assert figure.reason, name
    assert all(len(x) == len(y) for x, y in measures.series.values())


def test_measuring_twice_gives_the_same_numbers() -> None:
    a, b = measure_run(growing()), measure_run(growing())
    assert a.figures == b.figures
    assert a.series == b.series


def test_the_linear_rule_is_followed_when_declared_and_never_ranked() -> None:
    spec = make_spec(rank=Rank(metric="ttft_p50", margin=0.02, percentile_rule="linear"))
    rows = [make_request(i, 3 * S + i, ttft_ns=(i + 1) * 10 * MS) for i in range(2)]
    figure = measure_run(make_record(rows, spec=spec)).figures["ttft_p50"]
    assert (figure.value, figure.percentile_rule, figure.diagnostic) == (pytest.approx(0.015), "linear", True)


def test_the_offered_view_holds_infinity_for_what_did_not_complete() -> None:
    rows = [make_request(i, 3 * S + i, end_kind="complete" if i < 2 else "reset") for i in range(5)]
    f = measure_run(make_record(rows)).figures
    assert f["ttft_p50"].value == 0.05
    assert f["ttft_p50_offered"].value == float("inf")
    assert (f["ttft_p50"].n, f["ttft_p50_offered"].n) == (2, 5)


def test_series_are_short_and_ascending() -> None:
    series = measure_run(make_record()).series
    cdfs = {"ttft_cdf", "ttft_offered_cdf", "tbt_cdf", "e2e_cdf", "slip_cdf"}
    assert set(series) == cdfs | {"ttft_histogram", "in_flight"}
    for name, (x, y) in series.items():
        assert len(x) == len(y) <= POINTS + 1
        assert list(x) == sorted(x)
        if name in cdfs:
            assert list(y) == sorted(y)
            assert y[-1] == 0.99  # of a hundred requests the largest value is one request's luck
    assert sum(series["ttft_histogram"][1]) == 99


def test_no_distribution_of_latency_is_shown_while_the_backlog_grows() -> None:
    series = measure_run(growing()).series
    assert [name for name, (x, _) in series.items() if x] == ["slip_cdf", "in_flight"]


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=20)


@given(spans, st.lists(st.integers(0, 110), min_size=1, max_size=5))
def test_unfinished_counts_half_open_intervals(parts: list[tuple[int, int]], at: list[int]) -> None:
    start, stop = np.array([a for a, _ in parts], dtype=np.int64), np.array([a + b for a, b in parts], dtype=np.int64)
    found = unfinished(start, stop, np.array(at, dtype=np.int64))
    assert found.tolist() == [sum(a <= t < a + b for a, b in parts) for t in at]


@given(st.lists(st.tuples(st.sampled_from(list(EndKind)), st.integers(0, 13)), max_size=12))
def test_no_record_breaks_the_measurement(ends: list[tuple[EndKind, int]]) -> None:
    measures = measure_run(make_record([make_request(i, at * S, end_kind=kind.value) for i, (kind, at) in enumerate(ends)]))
    for figure in measures.figures.values():
        assert (figure.value is None) == (figure.status != "ok")
        assert figure.status == "ok" or figure.reason


def test_the_confidence_of_the_claim_is_used_for_intervals() -> None:
    rows = [make_request(i, 3 * S + i) for i in range(100)]
    levels: list[Any] = []
    for confidence in (0.9, 0.99):
        spec = make_spec(rank=Rank(metric="goodput", margin=0.02, confidence=confidence))
        figure = measure_run(make_record(rows, spec=spec)).figures["ttft_p50"]
        levels.append(figure.interval.level if figure.interval else None)
    assert levels == [0.9, 0.99]
