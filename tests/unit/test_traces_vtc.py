"""Reader vtc-arena: clients kept, ids unique, and a note that its rates mean nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads.schedule import Trace
from workloads.traces.vtc import parse

HEADER = b"req_id,client,req_time_s,prompt_len,output_len\n"
ROWS = b"0,13,0.0,13,199\n1,2,0.20793754160099873,36,137\n2,13,0.44189318386898047,456,156\n"


def outcome(raw: bytes) -> Trace | UsageError:
    try:
        return parse(raw, "v.csv")
    except UsageError as error:
        return error


def codes(raw: bytes) -> list[tuple[str, str]]:
    with pytest.raises(UsageError) as caught:
        parse(raw, "v.csv")
    return [(problem.code, problem.where) for problem in caught.value.problems]


def test_rows_keep_their_client_and_time() -> None:
    trace = parse(HEADER + ROWS, "v.csv")
    assert trace.client is not None
    assert trace.client.values() == ["13", "2", "13"]
    assert trace.arrival_ns.tolist() == [0, 207_937_541, 441_893_183]
    assert trace.output_tokens.tolist() == [199, 137, 156]
    assert trace.clock == "relative"


def test_that_rates_mean_nothing_is_said() -> None:
    assert any("absolute rates mean nothing" in note for note in parse(HEADER + ROWS, "v.csv").notes)


def test_a_request_without_a_client_or_with_anothers_id_is_refused_with_its_line() -> None:
    assert codes(HEADER + b"0,,1,1,1\n0,1,2,1,1\n") == [("trace.blank", "v.csv:2"), ("trace.duplicate", "v.csv:3")]
    assert codes(HEADER + b",1,1,1,1\n,1,2,1,1\n") == [("trace.blank", "v.csv:2"), ("trace.blank", "v.csv:3")]


def test_every_missing_column_is_named() -> None:
    with pytest.raises(UsageError, match="client, req_time_s"):
        parse(b"req_id,prompt_len,output_len\n0,1,1\n", "v.csv")


@given(st.lists(st.sampled_from([b"0", b"1", b"2.5", b",", b"\n", b"-1", b"x", b"\xff", b"\0"]), max_size=30).map(b"".join))
def test_any_bytes_end_in_a_trace_or_in_located_problems(rows: bytes) -> None:
    trace = outcome(HEADER + rows)
    if isinstance(trace, UsageError):
        assert all(problem.code.startswith("trace.") and problem.where.startswith("v.csv") for problem in trace.problems)
        return
    assert trace.client is not None
    assert trace.arrival_ns.min() == 0
    assert (trace.client.codes >= 0).all()
