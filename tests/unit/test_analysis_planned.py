from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.clocks import derive_clocks
from analysis.groups import group_cell
from analysis.model import Outcome, Outcomes
from analysis.outcomes import classify, count_outcomes
from analysis.planned import MISSING, due_ns, offered_rows, planned, rows_of, waits
from analysis.run import measure_run
from harness.record.canonical import canonical_json, plain
from harness.record.reader import RunRecord
from harness.record.schema import SCHEDULE
from tests.builders import MS, S, make_never_due, make_record, make_request, make_spec, make_workload
from tests.mixtures import mixtures, record_of

QUICK = settings(deadline=None, max_examples=60)
"""No time limit: what a shared core does is not what is tested."""


def counted(record: RunRecord) -> Outcomes:
    clocks = derive_clocks(record)
    return count_outcomes(record, clocks, classify(record, clocks))


def turn(arrival: int | None, *, planned_ns: int = 5 * S, think_ns: int = S, **changes: Any) -> RunRecord:
    """Request 0 at 3 s ends at 3.130001 s; request 1 waits for it."""
    second = make_never_due(1, **changes) if arrival is None else make_request(1, arrival, **changes)
    plan = {1: {"arrival_ns": planned_ns, "after": [0], "think_ns": think_ns}}
    return make_record([make_request(0, 3 * S), second], plan=plan)


def test_a_waiting_turn_belongs_to_the_cohort_by_its_recorded_arrival() -> None:
    assert counted(turn(6 * S)).offered == 2
    late = counted(turn(13 * S))  # planned in the window, arrived in the drain
    assert (late.offered, late.closes()) == (1, True)
    early = counted(turn(6 * S, planned_ns=0))  # planned in the warm-up, arrived in the window
    assert (early.offered, early.closes()) == (2, True)


def test_a_turn_that_never_came_due_is_in_no_cohort_and_counted_apart() -> None:
    found = counted(turn(None))
    assert (found.offered, found.counts[Outcome.VALID], found.not_due, found.closes()) == (1, 1, {"never_due": 1}, True)
    assert len(derive_clocks(turn(None))) == 1
    assert counted(turn(None, end_kind="never_sent")).not_due == {"never_sent": 1}


def test_a_clocked_request_without_an_arrival_breaks_the_partition() -> None:
    record = make_record([make_request(0, 3 * S), make_never_due(1)], plan={1: {"arrival_ns": 5 * S}})
    found = counted(record)
    assert (found.offered, found.closes()) == (2, False)


@pytest.mark.parametrize("rows", [[0], [0, 1, 1]])
def test_a_lost_or_doubled_waiting_row_breaks_the_partition(rows: list[int]) -> None:
    whole = turn(6 * S)
    found = counted(replace(whole, requests=whole.requests.take(rows)))
    assert (found.offered, found.closes()) == (2, False)


def test_a_turn_comes_due_its_think_time_after_the_last_end_it_waits_for() -> None:
    assert due_ns(turn(6 * S)).tolist() == [3 * S, 4 * S + 130 * MS + 1000]
    rows = [make_request(0, 3 * S), make_request(1, 4 * S), make_request(2, 9 * S)]
    two = make_record(rows, plan={2: {"after": [1, 0], "think_ns": None}})
    assert due_ns(two).tolist()[2] == 4 * S + 130 * MS + 1000


@pytest.mark.parametrize("end", ["reset", "cancelled", "drain_end", "never_sent"])
def test_a_turn_never_comes_due_after_an_end_that_was_not_planned(end: str) -> None:
    rows = [make_request(0, 3 * S, end_kind=end), make_request(1, 4 * S), make_request(2, 9 * S), make_request(3, 9 * S)]
    record = make_record(rows, plan={2: {"after": [1, 0]}, 3: {"after": [2, 77]}})
    assert due_ns(record).tolist() == [3 * S, 4 * S, MISSING, MISSING]


def test_an_empty_list_waits_for_nobody() -> None:
    record = make_record([make_request(0, 3 * S), make_request(1, 4 * S)], plan={1: {"after": []}})
    assert waits(record.schedule).tolist() == [False, False]
    assert due_ns(record).tolist() == [3 * S, 4 * S]


def test_a_record_of_an_older_format_has_requests_by_the_clock_only() -> None:
    old = SCHEDULE.names[:7]
    record = make_record()
    columns = [record.schedule[n] if n in old else pa.nulls(140, SCHEDULE.field(n).type) for n in SCHEDULE.names]
    aged = replace(record, schedule=pa.table(columns, schema=SCHEDULE))
    assert canonical_json(plain(measure_run(aged).figures)) == canonical_json(plain(measure_run(record).figures))
    assert int(offered_rows(aged).sum()) == 100


@given(st.lists(st.integers(0, 30), max_size=20), st.lists(st.integers(-2, 32), max_size=20))
def test_look_ups_agree_with_a_dictionary(ids: list[int], wanted: list[int]) -> None:
    table = pa.table({"request_id": pa.array(ids, pa.int64()), "x": pa.array([10 * i for i in ids], pa.int64())})
    asked = np.array(wanted, dtype=np.int64)
    first = {i: ids.index(i) for i in ids}
    assert rows_of(table, asked).tolist() == [first.get(i, MISSING) for i in wanted]
    assert planned(table, "x", asked).tolist() == [10 * i if i in first else MISSING for i in wanted]


turns = st.tuples(st.integers(0, 900), st.integers(1, 900), st.sampled_from(["complete", "client_stop", "complete", "reset", "cancelled"]))


@QUICK
@given(st.lists(st.lists(turns, min_size=1, max_size=4), max_size=5), st.sampled_from([None, 0, 500]))
def test_what_came_due_follows_from_plan_and_ends_in_any_sessions(sessions: list[list[tuple[int, int, str]]], pause: int | None) -> None:
    rows: list[dict[str, Any]] = []
    plan: dict[int, dict[str, Any]] = {}
    expected: list[int] = []
    for k, session in enumerate(sessions):
        due: int | None = k * S
        least = 0
        for n, (think, served, kind) in enumerate(session):
            i = len(rows)
            if n:
                plan[i] = {"after": [i - 1], "think_ns": think * MS, "arrival_ns": 0}
                due = None if due is None else due + max(think, least) * MS
            expected.append(MISSING if due is None else due)
            if due is None:
                rows.append(make_never_due(i))
            else:
                rows.append(make_request(i, due, end_kind=kind, end_ns=due + served * MS))
                planned_end = kind in ("complete", "client_stop")
                due = due + served * MS if planned_end or pause is not None else None
                least = 0 if planned_end else pause or 0
    record = make_record(rows, plan=plan, spec=make_spec(workload=make_workload(failed_pause_ns=None if pause is None else pause * MS)))
    assert due_ns(record).tolist() == expected
    assert counted(record).not_due == ({"never_due": expected.count(MISSING)} if MISSING in expected else {})


@QUICK
@given(mixtures)
def test_the_partition_closes_for_any_mixture(mixture: list[dict[str, Any]]) -> None:
    found = counted(record_of(mixture))
    assert found.closes()
    assert found.offered == sum(2 <= one["at"] < 12 for one in mixture if "at" in one)
    assert sum(found.not_due.values()) == sum("never" in one for one in mixture)


@QUICK
@given(mixtures.filter(bool), st.data())
def test_a_row_lost_from_the_window_always_breaks_it(mixture: list[dict[str, Any]], data: st.DataObject) -> None:
    inside = [i for i, one in enumerate(mixture) if 2 <= one.get("at", -1) < 12]
    if not inside:
        return
    gone = data.draw(st.sampled_from(inside))
    record = record_of(mixture)
    rest = [i for i in range(len(mixture)) if i != gone]
    assert not counted(replace(record, requests=record.requests.take(pa.array(rest, pa.int64())))).closes()


@QUICK
@given(mixtures, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(mixture: list[dict[str, Any]], random: Random) -> None:
    def said(record: RunRecord) -> bytes:
        measures = measure_run(record)
        runs = [(record, measures)]
        parts = (measures.figures, measures.outcomes, measures.sent, group_cell(runs, "client"), group_cell(runs, "request_class"))
        return canonical_json([plain(part) for part in parts])

    record = record_of(mixture)
    orders = [random.sample(range(len(mixture)), len(mixture)) for _ in range(3)]
    tables = {
        name: getattr(record, name).take(pa.array(order, pa.int64()))
        for name, order in zip(("requests", "schedule", "truth"), orders, strict=True)
    }
    assert said(replace(record, **tables)) == said(record)
