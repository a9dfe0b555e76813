from __future__ import annotations

from typing import Any

import pytest

from analysis.clocks import derive_clocks
from analysis.model import Tally
from analysis.proof import add_reuse, add_tallies, prove
from harness.record.reader import RunRecord
from tests.builders import MS, S, make_never_due, make_record, make_request, make_sample, make_server_samples, make_spec, make_workload


def proof(record: RunRecord) -> Any:
    return prove(record, derive_clocks(record))


def test_planned_due_and_sent_are_told_apart() -> None:
    rows = [make_request(0, S), make_request(1, 3 * S), make_request(2, 4 * S, send_ns=None, end_kind="never_sent"), make_never_due(3)]
    plan = {1: {"arrival_ns": 2 * S, "after": [0]}, 3: {"arrival_ns": 5 * S, "after": [2]}}
    clock, waiting = proof(make_record(rows, plan=plan)).arrivals
    assert (clock.kind, clock.scheduled, clock.due, clock.sent, clock.not_due) == ("clock", 2, 2, 1, {})
    assert (waiting.kind, waiting.scheduled, waiting.due, waiting.sent, waiting.not_due) == ("waiting", 2, 1, 1, {"never_due": 1})
    assert clock.planned_stream.rate == pytest.approx(2 / 14)
    # The plan's wish for a turn that waits is in no stream: only what came due is.
    assert [s.count for a in (clock, waiting) for s in (a.planned_stream, a.sent_stream)] == [2, 1, 1, 1]


def test_bursts_of_the_plan_and_of_the_sends_are_measured_alike() -> None:
    (even,) = proof(make_record()).arrivals
    assert (even.planned_stream.cv_gaps, even.sent_stream.cv_gaps) == (0.0, 0.0)
    assert even.planned_stream.dispersion["1s"] == even.sent_stream.dispersion["1s"] == 0.0
    assert even.planned_stream.dispersion["60s"] is None  # one bin says nothing of a spread
    held = [make_request(i, i * 100 * MS, send_ns=(i // 10 + 1) * S) for i in range(140)]
    (late,) = proof(make_record(held)).arrivals
    assert (late.planned_stream.cv_gaps, late.sent_stream.cv_gaps) == (0.0, pytest.approx((139 / 13 - 1) ** 0.5))  # 13 gaps of 1 s in 139


def test_tokens_of_three_witnesses_and_how_many_requests_each_speaks_of() -> None:
    rows = [
        make_request(0, 3 * S),
        make_request(1, 4 * S, usage_prompt_tokens=None, client_tokens=None),
        make_request(2, 5 * S, send_ns=None),
    ]
    found = proof(make_record(rows)).tokens
    assert found.input_planned == Tally(48, 3)
    assert found.input_sent == Tally(32, 2)
    assert found.input_counted == Tally(16, 1, "stated by the server for 1 of 2 requests")
    assert found.output_planned == Tally(15, 3)
    assert found.output_received == Tally(5, 1, "counted by the client for 1 of 2 requests")
    assert found.output_counted == Tally(10, 2)


def test_what_nobody_counted_is_unknown_and_never_nought() -> None:
    rows = [make_request(0, 3 * S, usage_prompt_tokens=None, usage_completion_tokens=None)]
    found = proof(make_record(rows))
    assert found.tokens.input_counted == Tally(None, 0, "not stated by the server for any of 1 requests")
    assert found.server["input"] == Tally(None, 1, "server.prompt_tokens_total was never sampled")
    assert proof(make_record([])).tokens.input_sent == Tally(0, 0)  # of no request the sum is known


def test_the_servers_own_counters_stand_beside() -> None:
    rows = [make_request(i, i * 100 * MS) for i in range(140)]
    found = proof(make_record(rows, server_metrics=make_server_samples(rows))).server
    assert {side: t.value for side, t in found.items()} == {"input": 16 * 140, "output": 5 * 140}
    early = [make_sample(-1, "server", "prompt_tokens_total", 0), make_sample(S, "server", "prompt_tokens_total", 9)]
    assert "after the last request ended" in proof(make_record(rows, server_metrics=early)).server["input"].reason


def test_the_transform_chain_comes_along_as_logged() -> None:
    chain = ({"name": "thin", "keep": 0.5, "rows_before": 4, "rows_after": 2},)
    assert proof(make_record(spec=make_spec(workload=make_workload(transforms=chain)))).transforms == chain


def test_a_sum_with_a_hole_is_no_sum() -> None:
    assert add_tallies([Tally(1, 2), Tally(3, 4, "half")]) == Tally(4, 6, "half")
    assert add_tallies([Tally(1, 2, "half"), Tally(None, 4, "lost"), Tally(None, 4, "lost")]) == Tally(None, 10, "lost")
    assert add_tallies([]) == Tally(0, 0)


def test_a_block_size_that_not_every_run_states_is_left_out() -> None:
    one, other = (proof(make_record(rows)).reuse for rows in ([make_request(0, S)], [make_request(0, S)]))
    extra = type(one)({**one.possible, "4": Tally(1, 1)}, one.realised, one.source)
    assert set(add_reuse([extra, other]).possible) == {"1", "16"}
