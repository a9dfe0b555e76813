from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.clocks import derive_clocks
from analysis.model import Outcome
from analysis.outcomes import classify, count_outcomes, meets_slo, tbt_value, unjudged
from analysis.tails import exact, rank_of
from harness.record.reader import RunRecord
from harness.record.schema import TRUTH, EndKind, EventKind
from harness.record.spec import Slo
from tests.builders import MS, S, make_record, make_request, make_spec, make_workload

NO_OUTPUT: dict[str, Any] = {
    "client_tokens": 0,
    "usage_completion_tokens": None,
    "event_ns": [],
    "event_tokens": [],
    "event_bytes": [],
    "event_kind": [],
}

TABLE = [
    ("complete", {}, Outcome.VALID),
    ("complete", {"ttft_ns": 501 * MS}, Outcome.MISS),
    ("complete", {"tokens": 4}, Outcome.FAILED),
    ("complete", {"client_tokens": None, "usage_completion_tokens": None}, Outcome.FAILED),
    ("complete", NO_OUTPUT, Outcome.FAILED),
    ("client_stop", {}, Outcome.VALID),
    ("client_stop", {"gap_ns": 101 * MS}, Outcome.MISS),
    ("client_stop", {"tokens": 6}, Outcome.FAILED),
    ("cancelled", {}, Outcome.CANCELLED),
    ("http_error", {"http_status": 429, **NO_OUTPUT}, Outcome.REJECTED),
    ("http_error", {"http_status": 503, **NO_OUTPUT}, Outcome.REJECTED),
    ("http_error", {"http_status": 400, **NO_OUTPUT}, Outcome.FAILED),
    ("http_error", {"http_status": 422, **NO_OUTPUT}, Outcome.FAILED),
    ("http_error", {"http_status": 500, **NO_OUTPUT}, Outcome.FAILED),
    ("error_event", {"error_status": 503, **NO_OUTPUT}, Outcome.REJECTED),
    ("error_event", {"error_status": 429, **NO_OUTPUT}, Outcome.REJECTED),
    ("error_event", {"error_status": 503}, Outcome.FAILED),
    ("error_event", {"error_status": None, **NO_OUTPUT}, Outcome.FAILED),
    ("error_event", {"error_status": 500, **NO_OUTPUT}, Outcome.FAILED),
    ("connect_refused", NO_OUTPUT, Outcome.FAILED),
    ("connect_failed", NO_OUTPUT, Outcome.FAILED),
    ("reset", {}, Outcome.FAILED),
    ("timeout", {}, Outcome.FAILED),
    ("malformed", {}, Outcome.FAILED),
    ("drain_end", {}, Outcome.OPEN),
    ("never_sent", {"send_ns": None, "end_ns": None, **NO_OUTPUT}, Outcome.FAILED),
    ("client_fault", {}, Outcome.FAILED),
    ("never_due", {"send_ns": None, "end_ns": None, **NO_OUTPUT}, Outcome.FAILED),
    ("an end kind of a later version", {}, Outcome.FAILED),
]


def outcomes_of(record: RunRecord) -> list[Outcome]:
    return list(classify(record, derive_clocks(record)))


@pytest.mark.parametrize(("end_kind", "changes", "expected"), TABLE)
def test_every_end_has_its_class(end_kind: str, changes: dict[str, Any], expected: Outcome) -> None:
    assert outcomes_of(make_record([make_request(0, 3 * S, end_kind=end_kind, **changes)])) == [expected]


def test_the_table_covers_every_end_kind() -> None:
    assert {kind.value for kind in EndKind} <= {kind for kind, _, _ in TABLE}


any_end = st.tuples(st.sampled_from([*EndKind, "later"]), st.integers(0, 13), st.sampled_from([None, 200, 429, 503, 404]))


@given(st.lists(any_end, max_size=20))
def test_the_partition_closes_whatever_happened(ends: list[tuple[str, int, int | None]]) -> None:
    rows = [make_request(i, at * S, end_kind=str(kind), http_status=status) for i, (kind, at, status) in enumerate(ends)]
    record = make_record(rows)
    clocks = derive_clocks(record)
    counted = count_outcomes(record, clocks, classify(record, clocks))
    assert counted.closes()
    assert counted.offered == sum(2 <= at < 12 for _, at, _ in ends)


@pytest.mark.parametrize("rows", [[make_request(0, 3 * S)], [make_request(0, 3 * S), make_request(1, 4 * S), make_request(1, 4 * S)]])
def test_a_lost_or_doubled_row_breaks_the_partition(rows: list[dict[str, Any]]) -> None:
    schedule = make_record([make_request(0, 3 * S), make_request(1, 4 * S)]).schedule
    record = make_record(rows, schedule=schedule)
    clocks = derive_clocks(record)
    counted = count_outcomes(record, clocks, classify(record, clocks))
    assert counted.offered == 2
    assert not counted.closes()


@pytest.mark.parametrize("control", ["natural", "capped"])
def test_no_length_is_promised_by_natural_and_capped(control: str) -> None:
    spec = make_spec(workload=make_workload(output_length=control, max_tokens=9))
    assert outcomes_of(make_record([make_request(0, 3 * S, tokens=3)], spec=spec)) == [Outcome.VALID]


def test_an_answer_without_a_token_is_a_miss_where_no_length_is_promised() -> None:
    spec = make_spec(workload=make_workload(output_length="natural"), slo=Slo(e2e_ns=S))
    assert outcomes_of(make_record([make_request(0, 3 * S, **NO_OUTPUT)], spec=spec)) == [Outcome.MISS]


def client_stop_record(events: list[int]) -> RunRecord:
    """A client stop after 3 tokens of a trace row of 5; ``events``: tokens an event, 10 ms apart."""
    stamps = [3 * S + (k + 1) * 10 * MS for k in range(len(events))]
    row = make_request(0, 3 * S, end_kind="client_stop", client_tokens=sum(events), event_ns=stamps, event_tokens=events,
                       event_bytes=[9] * len(events), event_kind=[int(EventKind.TOKEN)] * len(events))  # fmt: skip
    truth = pa.Table.from_pylist([{"request_id": 0, "output_tokens": 5, "stop_after": 3}], TRUTH)
    return make_record([row], spec=make_spec(workload=make_workload(output_length="client_stop", max_tokens=9)), truth=truth)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([1, 1, 1], Outcome.VALID),
        ([2, 3], Outcome.VALID),  # overshoot of 2 inside the read that brought the third token
        ([1, 1], Outcome.FAILED),
        ([1, 1, 1, 1], Outcome.FAILED),  # the client should have closed one read earlier
    ],
)
def test_a_client_stop_may_overshoot_only_inside_its_last_read(events: list[int], expected: Outcome) -> None:
    assert outcomes_of(client_stop_record(events)) == [expected]


def test_a_request_missing_from_truth_has_no_right_length() -> None:
    other = pa.Table.from_pylist([{"request_id": 7, "output_tokens": 5, "stop_after": None}], TRUTH)
    assert outcomes_of(make_record([make_request(0, 3 * S)], truth=other)) == [Outcome.FAILED]


def judge(slo: Slo, **request: Any) -> bool:
    return bool(meets_slo(slo, derive_clocks(make_record([make_request(0, 3 * S, **request)])))[0])


def test_every_limit_is_inclusive_to_the_nanosecond() -> None:
    slo = Slo(ttft_ns=50 * MS, tbt_ns=20 * MS, e2e_ns=130 * MS + 1000)
    assert judge(slo)
    assert not judge(slo, ttft_ns=50 * MS + 1)
    assert not judge(slo.model_copy(update={"tbt_ns": 20 * MS - 1}))
    assert not judge(slo.model_copy(update={"e2e_ns": 130 * MS + 999}))


def test_the_ttft_clock_starts_at_the_intended_arrival_not_at_the_send() -> None:
    late_client = make_request(0, 3 * S, ttft_ns=600 * MS, send_ns=3 * S + 590 * MS)
    assert outcomes_of(make_record([late_client])) == [Outcome.MISS]


def test_limits_are_joint_on_one_request() -> None:
    slo = Slo(ttft_ns=60 * MS, tbt_ns=30 * MS)
    assert not judge(slo, ttft_ns=70 * MS, gap_ns=20 * MS)
    assert not judge(slo, ttft_ns=50 * MS, gap_ns=40 * MS)


@pytest.mark.parametrize("rule", ["every", "mean", "p99"])
def test_a_one_output_request_is_judged_on_completion_and_ttft(rule: Any) -> None:
    slo = Slo(ttft_ns=60 * MS, tbt_ns=1, tbt_rule=rule)
    assert judge(slo, tokens=1)
    assert not judge(slo, tokens=1, ttft_ns=61 * MS)


def test_the_mean_rule_forgives_one_long_gap_and_the_every_rule_does_not() -> None:
    stamps = [3 * S + 50 * MS, 3 * S + 60 * MS, 3 * S + 160 * MS]
    request = {"tokens": 3, "event_ns": [*stamps, stamps[-1], stamps[-1]]}
    assert judge(Slo(tbt_ns=55 * MS, tbt_rule="mean"), **request)
    assert not judge(Slo(tbt_ns=55 * MS - 1, tbt_rule="mean"), **request)
    assert not judge(Slo(tbt_ns=55 * MS, tbt_rule="every"), **request)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=250), st.integers(0, 30))
def test_the_p99_rule_equals_the_nearest_rank_within_the_request(gaps: list[int], limit: int) -> None:
    stamps = [3 * S]
    for gap in gaps:
        stamps.append(stamps[-1] + gap)
    n = len(stamps)
    lists = {"event_ns": stamps, "event_tokens": [1] * n, "event_bytes": [1] * n, "event_kind": [int(EventKind.TOKEN)] * n}
    expected = sorted(gaps)[rank_of(exact("0.99"), len(gaps)) - 1] <= limit
    assert judge(Slo(tbt_ns=limit, tbt_rule="p99"), **lists) is expected


def test_with_uncounted_events_only_the_p99_rule_is_undecided() -> None:
    clocks = derive_clocks(make_record([make_request(0, 3 * S, client_tokens=None, event_tokens=[-1] * 5 + [0, 0])]))
    assert not unjudged(Slo(tbt_ns=1, tbt_rule="every"), clocks).any()
    assert not unjudged(Slo(tbt_ns=1, tbt_rule="mean"), clocks).any()
    assert unjudged(Slo(tbt_ns=1, tbt_rule="p99"), clocks).any()
    assert not unjudged(Slo(tbt_rule="p99"), clocks).any()


def test_the_mean_rule_is_undecided_without_a_token_count() -> None:
    row = make_request(0, 3 * S, client_tokens=None, usage_completion_tokens=None, event_tokens=[-1] * 5 + [0, 0])
    assert unjudged(Slo(tbt_ns=1, tbt_rule="mean"), derive_clocks(make_record([row]))).any()


def test_each_tbt_rule_reads_its_own_number_off_the_gaps() -> None:
    gaps = [*range(1, 21), 300]  # ms; of 21 gaps the longest tenth is three, the 99th percentile the longest
    stamps = [3 * S + MS * sum(gaps[:k]) for k in range(22)]
    n = len(stamps)
    lists = {"event_ns": stamps, "event_tokens": [1] * n, "event_bytes": [1] * n, "event_kind": [int(EventKind.TOKEN)] * n}
    clocks = derive_clocks(make_record([make_request(0, 3 * S, client_tokens=n, **lists), make_request(1, 4 * S, tokens=1)]))
    found = {rule: [column.tolist() for column in tbt_value(rule, clocks)] for rule in ("every", "mean", "p99", "top10")}
    assert found == {
        "every": [[300 * MS, 0], [1, 0]],
        "mean": [[510 * MS, 0], [21, 0]],
        "p99": [[300 * MS, 0], [1, 0]],
        "top10": [[339 * MS, 0], [3, 0]],
    }


def test_the_folded_form_puts_failed_into_open() -> None:
    rows = [make_request(i, 3 * S + i, end_kind=kind, **changes) for i, (kind, changes, _) in enumerate(TABLE)]
    record = make_record(rows)
    clocks = derive_clocks(record)
    counted = count_outcomes(record, clocks, classify(record, clocks))
    folded = counted.folded()
    assert folded["open"] == counted.counts[Outcome.OPEN] + counted.counts[Outcome.FAILED]
    assert sum(folded.values()) == counted.offered - counted.counts[Outcome.CANCELLED]
