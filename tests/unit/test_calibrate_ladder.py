"""What a calibration offers, stage by stage, and how both sides' records are held together."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.calibrate.joined import Exchange, backlog_of, join, lags_of, lateness_by_time, token_stamps
from harness.calibrate.ladder import FULL, QUICK, QUICK_NS, SETTLE_NS, TOKENS, Stage, fitting, load_of, of_rates, spans
from harness.calibrate.measure import exchange, open_at_sends
from harness.calibrate.rig import request_body
from harness.calibrate.watch import Track
from harness.clock import NS_PER_S
from harness.record.schema import REQUESTS, SAMPLES
from harness.runtimes.truth_log import TRUTH_LOG
from harness.runtimes.truth_plan import read_ask
from harness.vocabulary import EndKind, EventKind

MS = 1_000_000


def test_each_stage_is_offered_in_full_and_ends_before_the_next() -> None:
    load, of = load_of(QUICK)
    assert np.bincount(of).tolist() == [100, 200, 400, 200, 600]
    assert (np.diff(load.arrivals) >= 0).all()
    for index, (begin, end) in enumerate(spans(QUICK)):
        own = load.arrivals[of == index]
        assert begin <= own.min()
        assert own.max() + QUICK[index].life_ns + SETTLE_NS <= end
    assert load_of(QUICK)[0].arrivals.tolist() == load.arrivals.tolist()


def test_only_live_stages_stop_early_and_every_body_says_what_it_wants() -> None:
    ladder = (*of_rates((100.0,), 1.0), Stage("live", 100, 1), Stage("streams", 100, 1, tokens=5, gap_ms=300))
    load, of = load_of(ladder, workers=2)
    assert load.stop_after is not None
    assert [set(load.stop_after[of == i].tolist()) for i in range(3)] == [{-1}, {TOKENS}, {-1}]
    asked = [read_ask(load.bodies[at]) for at in (0, 299)]
    assert [(a.name, a.tokens, a.gap_ns) for a in asked] == [("c0", TOKENS, 10 * MS), ("c299", 5, 300 * MS)]
    assert load.workers == 2


def test_the_ladders_reach_what_they_are_for_and_the_quick_one_is_quick() -> None:
    assert (
        sum(stage.length_ns for stage in QUICK) < 17.5 * NS_PER_S
    )  # with a start of 3 s on a quiet host, time for a second attempt at two of them
    assert len(fitting(QUICK, QUICK_NS - 23 * NS_PER_S)) == 2
    assert all(stage.count >= 100 for stage in QUICK + FULL)
    assert max(stage.rate * stage.tokens for stage in FULL) == 50_000
    widest = [stage for stage in FULL if stage.axis == "streams"][-1]
    assert widest.rate * widest.life_ns / NS_PER_S >= 5000
    for stage in (*QUICK, *FULL):
        if stage.axis == "streams":
            assert 2 * stage.life_ns <= 1.01 * stage.seconds * NS_PER_S  # half of the sends meet as many as there will be
    assert 300 < sum(stage.length_ns for stage in FULL) / NS_PER_S < 430
    assert "250 req/s" in widest.words()


@given(st.integers(-10, 40))
def test_as_many_stages_as_fit_are_repeated_from_the_first_on(seconds: int) -> None:
    kept = fitting(QUICK, seconds * NS_PER_S)
    assert kept == QUICK[: len(kept)]
    assert sum(stage.length_ns for stage in kept) <= max(0, seconds) * NS_PER_S
    assert kept == QUICK or sum(stage.length_ns for stage in QUICK[: len(kept) + 1]) > seconds * NS_PER_S


def test_a_body_is_the_same_each_time_and_as_long_as_asked() -> None:
    assert request_body(7, 3) == request_body(7, 3) != request_body(8, 3)
    assert len(orjson.loads(request_body(0, 3, prompt=1000, alphabet=32_000))["prompt"]) == 1000


# -- both sides together

row = st.fixed_dictionaries(
    {
        "events": st.lists(st.tuples(st.integers(0, 2), st.sampled_from([EventKind.ROLE, EventKind.TOKEN, EventKind.USAGE])), max_size=6),
        "end": st.sampled_from([EndKind.COMPLETE, EndKind.CLIENT_STOP, EndKind.RESET]),
        "send": st.none() | st.integers(0, 50),
        "written": st.integers(0, 6),
    }
)


def requests(rows: list[dict[str, Any]]) -> pa.Table:
    made = [
        {
            "request_id": i, "arrival_ns": 10, "send_ns": one["send"], "end_ns": 99, "end_kind": one["end"].value,
            "event_ns": [20 + k for k in range(len(one["events"]))], "event_tokens": [n for n, _ in one["events"]],
            "event_bytes": [1] * len(one["events"]), "event_kind": [int(k) for _, k in one["events"]],
        }
        for i, one in enumerate(rows)
    ]  # fmt: skip
    return pa.Table.from_pylist(made, REQUESTS)


def log(rows: list[dict[str, Any]]) -> pa.Table:
    made = [
        {
            "request": f"c{i}",
            "received_ns": 0,
            "scheduled_ns": list(range(one["written"])),
            "actual_ns": [5 + 2 * k for k in range(one["written"])],
        }
        for i, one in enumerate(rows)
    ]
    return pa.Table.from_pylist(made, TRUTH_LOG)


@given(st.lists(row, min_size=1, max_size=5))
def test_columns_joined_at_once_say_what_a_row_at_a_time_says(rows: list[dict[str, Any]]) -> None:
    table = requests(rows)
    found = join([table.slice(1), table.slice(0, 1)], log(rows), np.full(len(rows), 4), epoch_ns=3)
    for i, one in enumerate(table.to_pylist()):
        alone = exchange(one, np.array([2 + 2 * k for k in range(rows[i]["written"])], dtype=np.int64), 4)
        joined = found[i]
        assert joined is not None
        assert (joined.slip_ns, joined.whole, joined.delivered) == (alone.slip_ns, alone.whole, alone.delivered)
        assert joined.client.tolist() == alone.client.tolist()
        assert joined.truth.tolist() == alone.truth.tolist()


def test_a_request_without_a_row_is_none_and_empty_tables_are_fine() -> None:
    assert token_stamps(REQUESTS.empty_table()) == []
    assert join([REQUESTS.empty_table()], TRUTH_LOG.empty_table(), np.array([4]), 0) == [None]


def test_lateness_and_lags_come_in_the_order_of_time() -> None:
    at, late = lateness_by_time(log([{"written": 2}, {"written": 1}]))
    assert at.tolist() == [0, 0, 1]
    assert late.tolist() == [5, 5, 6]
    rows = [
        {"t_ns": t, "source": "client", "metric": m, "labels": None, "value": 0.001}
        for t, m in ((5, "loop_lag_s"), (1, "loop_lag_s"), (2, "in_flight"))
    ]
    lags = lags_of([pa.Table.from_pylist(rows, SAMPLES)], 100)
    assert (lags.at.tolist(), lags.lag.tolist()) == ([101, 105], [MS, MS])


def test_the_backlog_is_the_most_that_waited_in_any_worker() -> None:
    def samples(*values: float) -> pa.Table:
        rows = [{"t_ns": i, "source": "client", "metric": "spool_backlog_bytes", "labels": None, "value": v} for i, v in enumerate(values)]
        return pa.Table.from_pylist([*rows, {**rows[0], "metric": "in_flight", "value": 10.0**9}], SAMPLES)

    assert backlog_of([samples(0.0, 40.0), samples(7.0)]) == 40
    assert backlog_of([]) == backlog_of([SAMPLES.empty_table()]) == 0


def test_streams_are_counted_as_each_send_met_them() -> None:
    def stream(start: int, end: int) -> Exchange:
        return Exchange(0, np.array([end]), np.array([end]), True, start)

    assert open_at_sends([stream(0, 10), stream(5, 20), stream(10, 30), stream(40, 50)]).tolist() == [1, 2, 2, 1]
    assert open_at_sends([]).tolist() == []


def test_a_track_answers_between_readings_and_not_beyond_them() -> None:
    track = Track(array("q", [0, 100, 200]), array("q", [0, 10, 40]), array("q", [0, 0, 7]), array("q", [0, 200]), array("q", [1000, 3000]))
    assert track.cpu_between(100, 200) == pytest.approx(30e-9)
    assert track.cpu_between(50, 150) == pytest.approx(40e-9)
    assert track.delay_between(120, 130) == pytest.approx(7e-9)
    assert track.cpu_between(-1, 100) is None
    assert track.cpu_between(0, 2 * NS_PER_S) is None
    assert (track.memory_peak(), track.memory_most(0, 100), track.memory_around(190, 20)) == (3000, 1000, 3000.0)
    assert (Track().memory_peak(), Track().memory_around(0, 10), Track().cpu_between(0, 1)) == (None, None, None)
