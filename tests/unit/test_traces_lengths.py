"""Reader lengths: counts without times, told from the traces whose header they borrow."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads.schedule import Trace
from workloads.traces import get_reader, guess_format
from workloads.traces.lengths import parse

BLANKED = b"TIMESTAMP,ContextTokens,GeneratedTokens\nXXX,42,285\nXXX,19,82\n"
COUNTED = b"num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85185185185185\n1,2,3,.5\n"


def outcome(raw: bytes) -> Trace | UsageError:
    try:
        return parse(raw, "l.csv")
    except UsageError as error:
        return error


def codes(raw: bytes) -> list[tuple[str, str]]:
    with pytest.raises(UsageError) as caught:
        parse(raw, "l.csv")
    return [(problem.code, problem.where) for problem in caught.value.problems]


@pytest.mark.parametrize(("raw", "sums"), [(BLANKED, (61, 367)), (COUNTED, (3773, 56))])
def test_both_shapes_have_lengths_and_no_clock(raw: bytes, sums: tuple[int, int]) -> None:
    trace = parse(raw, "l.csv")
    assert (trace.input_tokens.sum(), trace.output_tokens.sum()) == sums
    assert trace.clock == "none"
    assert trace.arrival_ns.tolist() == [0, 0]
    assert trace.notes == ("no row has a time: arrivals come from a process",)


def test_the_borrowed_header_is_told_from_a_trace_with_times(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_bytes(BLANKED)
    assert guess_format(path) == "lengths"
    path.write_bytes(BLANKED.replace(b"XXX", b"2023-11-16 18:15:46.6805900"))
    assert guess_format(path) == "azure-2023"


def test_a_real_time_is_refused_and_never_dropped() -> None:
    assert codes(BLANKED + b"2023-11-16 18:15:46.6805900,1,1\n") == [("trace.timestamp", "l.csv:4")]
    assert codes(b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,1,1\n") == [("trace.timestamp", "l.csv:1")]


def test_a_file_with_times_is_not_taken_for_lengths() -> None:
    assert not get_reader("lengths").sniff("l.csv", b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,1,1\n")
    assert not get_reader("lengths").sniff("l.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens")


def test_a_total_that_does_not_add_up_is_refused_with_its_line() -> None:
    assert codes(COUNTED + b"1,2,4,1\n") == [("trace.total", "l.csv:4")]


def test_all_faults_are_told_at_once() -> None:
    assert codes(BLANKED + b"XXX,-1,2\nXXX,1\n") == [("trace.torn_row", "l.csv:5"), ("trace.negative_count", "l.csv:4")]


@given(
    st.sampled_from([BLANKED, COUNTED, b""]),
    st.lists(st.sampled_from([b"XXX", b"1", b",", b"\n", b"-1", b"2.5", b"\xff", b"\0"]), max_size=30).map(b"".join),
)
def test_any_bytes_end_in_a_trace_or_in_located_problems(head: bytes, rows: bytes) -> None:
    trace = outcome(head + rows)
    if isinstance(trace, UsageError):
        assert all(problem.code.startswith("trace.") and problem.where.startswith("l.csv") for problem in trace.problems)
        return
    assert trace.input_tokens.min() >= 0
