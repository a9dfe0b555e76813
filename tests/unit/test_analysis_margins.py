"""Fluidity and headroom: the closed forms equal the rule written as a loop over tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.clocks import derive_clocks
from analysis.margins import UNJUDGED, fluidity, headroom
from analysis.outcomes import meets_own_slo
from analysis.run import measure_run
from harness.record.schema import EventKind
from harness.record.spec import Slo
from tests.builders import MS, S, make_record, make_request, make_spec, make_workload

NATURAL = make_workload(output_length="natural")


def request(i: int, ttft: int, events: list[tuple[int, int]]) -> dict[str, Any]:
    """A request at 3 s with its first token ``ttft`` ms later; then (gap in ms, tokens) by event."""
    at = 3 * S + i
    stamps = [at + ttft * MS]
    for gap, _ in events:
        stamps.append(stamps[-1] + gap * MS)
    carried = [1, *(n for _, n in events)]
    k = len(stamps)
    lists = {"event_ns": stamps, "event_tokens": carried, "event_bytes": [1] * k, "event_kind": [int(EventKind.TOKEN)] * k}
    counts = {"client_tokens": sum(carried), "usage_completion_tokens": sum(carried)}
    return make_request(i, at) | lists | counts | {"end_ns": stamps[-1]}


def run(rows: list[dict[str, Any]], slo: Slo) -> Any:
    return make_record(rows, spec=make_spec(slo=slo, workload=NATURAL))


def late_by_loop(row: dict[str, Any], first: int | None, pace: int) -> int:
    """The rule as it is told, token by token."""
    stamps = [t - row["arrival_ns"] for t, n in zip(row["event_ns"], row["event_tokens"], strict=True) for _ in range(n)]
    due = stamps[0] if first is None else first
    late = 0
    for t in stamps:
        late += t > due
        due = max(due, t) + pace
    return late


shapes = st.lists(
    st.tuples(st.integers(0, 400), st.lists(st.tuples(st.integers(0, 300), st.integers(1, 4)), max_size=15)), min_size=1, max_size=8
)


@given(shapes, st.one_of(st.none(), st.integers(0, 400)), st.integers(1, 150))
def test_late_tokens_are_those_of_the_plain_rule(requests: list[Any], first: int | None, pace: int) -> None:
    rows = [request(i, ttft, events) for i, (ttft, events) in enumerate(requests)]
    limit = None if first is None else first * MS
    clocks = derive_clocks(run(rows, Slo(ttft_ns=limit, tbt_ns=pace * MS)))
    assert clocks.marks.late.tolist() == [late_by_loop(row, limit, pace * MS) for row in rows]


def test_slack_is_carried_over_and_a_stall_counts_once() -> None:
    slo = Slo(ttft_ns=200 * MS, tbt_ns=100 * MS)
    early = request(0, 50, [(10, 1)] * 9 + [(900, 1)])  # ten tokens ahead by 1.06 s in all, so the pause breaks no deadline
    stalled = request(1, 50, [(100, 1), (1000, 1), *[(100, 1)] * 8])
    clocks = derive_clocks(run([early, stalled], slo))
    assert clocks.marks.late.tolist() == [0, 1]
    in_time, tokens = fluidity(clocks, np.array([True, True]))
    assert (in_time.tolist(), tokens.tolist()) == ([11, 10], [11, 11])
    assert measure_run(run([early, stalled], slo)).figures["fluidity"].value == 21 / 22


def test_without_a_pace_or_a_count_there_is_no_fluidity() -> None:
    none = measure_run(run([request(0, 50, [(10, 1)])], Slo(ttft_ns=S)))
    assert (none.clocks.marks.late.tolist(), none.figures["fluidity"].status) == ([-1], "undefined")
    uncounted = make_request(0, 3 * S, event_tokens=[-1] * 5 + [0, 0])
    assert measure_run(run([uncounted], Slo(tbt_ns=S))).figures["fluidity"].status == "unknown"


@given(shapes, st.sampled_from(["every", "mean", "p99", "top10"]), st.integers(1, 300))
def test_headroom_is_negative_exactly_where_the_slo_is_broken(requests: list[Any], rule: Any, limit: int) -> None:
    rows = [request(i, ttft, events) for i, (ttft, events) in enumerate(requests)]
    record = run(rows, Slo(ttft_ns=200 * MS, tbt_ns=limit * MS, tbt_rule=rule, e2e_ns=2 * S))
    clocks = derive_clocks(record)
    found, reason = headroom(record, clocks)
    assert reason == ""
    assert ((found >= 0) == meets_own_slo(record, clocks)).all()


def test_headroom_is_the_least_share_left_of_any_limit() -> None:
    rows = [request(0, 50, [(80, 1)])]
    found = headroom(run(rows, Slo(ttft_ns=200 * MS, tbt_ns=100 * MS, e2e_ns=S)), derive_clocks(run(rows, Slo(tbt_ns=100 * MS))))
    assert found[0].tolist() == [pytest.approx(0.2)]
    assert np.isnan(headroom(run(rows, Slo()), derive_clocks(run(rows, Slo())))[0]).all()
    uncounted = run([make_request(0, 3 * S, event_tokens=[-1] * 5 + [0, 0])], Slo(tbt_ns=S, tbt_rule="top10"))
    assert headroom(uncounted, derive_clocks(uncounted))[1] == UNJUDGED
    assert measure_run(uncounted).figures["headroom_p50"].status == "unknown"


def test_latency_a_token_is_from_arrival_to_end_over_all_tokens() -> None:
    figures = measure_run(run([request(i, 50, [(20, 1)] * 4) for i in range(2)], Slo())).figures
    assert figures["norm_e2e_p50"].value == pytest.approx(0.13 / 5)
    assert figures["norm_e2e_p95"].status == "withheld"
