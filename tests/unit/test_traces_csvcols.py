"""CSV columns by name: exact numbers, and every fault with the line an editor would show."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import Problem, UsageError
from workloads.schedule import Int64, Labels
from workloads.traces.csvcols import counts, grid, labels, read_table, seconds
from workloads.traces.problems import TOKEN_LIMIT, ProblemList


def outcome(raw: bytes) -> tuple[Int64, Int64, Labels] | UsageError:
    problems = ProblemList("t.csv")
    try:
        table = read_table(raw, ("t", "n", "who"), (), problems)
        columns = seconds(table, "t", problems), counts(table, "n", problems), labels(table, "who", problems)
        problems.raise_if_any()
    except UsageError as error:
        return error
    return columns


def faults(raw: bytes) -> tuple[Problem, ...]:
    result = outcome(raw)
    assert isinstance(result, UsageError)
    return result.problems


def seen(raw: bytes) -> list[tuple[str, str]]:
    return [(problem.code, problem.where) for problem in faults(raw)]


def test_columns_are_found_by_name_and_extra_ones_are_told() -> None:
    problems = ProblemList("t.csv")
    table = read_table(b"x,n,t\r\n9,1,2.5\r\n9,3,4\r\n", ("t", "n"), ("opt",), problems)
    assert table.extra == ("x",)
    assert seconds(table, "t", problems).tolist() == [2_500_000_000, 4_000_000_000]
    assert counts(table, "n", problems).tolist() == [1, 3]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_last_line_end_makes_no_row(end: bytes) -> None:
    assert len(read_table(b"t,n\n1,2" + end, ("t", "n"), (), ProblemList("t.csv")).columns["t"]) == 1


def test_every_fault_is_told_with_its_own_line() -> None:
    raw = b"t,n,who\n1,2,a\n1,2\n1,-2,a\nx,2,a\n1,2,a,b\n1,1.5,a\n1,99999999,a\n,2,a\n1,2,\xff\n"
    assert seen(raw) == [
        ("trace.torn_row", "t.csv:3"),
        ("trace.torn_row", "t.csv:6"),
        ("trace.timestamp", "t.csv:5"),
        ("trace.timestamp", "t.csv:9"),
        ("trace.negative_count", "t.csv:4"),
        ("trace.count", "t.csv:7"),
        ("trace.encoding", "t.csv:10"),
    ]


def test_a_count_no_model_can_hold_is_told_with_its_line() -> None:
    assert seen(b"t,n,who\n1,2,a\n1,16777217,a\n1,99999999999999999999,b\n")[0] == ("trace.huge_count", "t.csv:4")
    assert seen(b"t,n,who\n1,2,a\n1,16777217,a\n") == [("trace.huge_count", "t.csv:3")]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "trace.empty"),
        (b"\n\n", "trace.empty"),
        (b"t,n,who", "trace.no_rows"),
        (b"t,n,who\r\n", "trace.no_rows"),
        (b"\xef\xbb\xbft,n,who\n1,2,a\n", "trace.bom"),
        (b"t,n,t,who\n1,2,3,a\n", "trace.columns"),
        (b"t,who\n1,a\n", "trace.columns"),
        (b"t,n,who,\x00\n1,2,a,b\n", "trace.header"),
        (b"t,n,who,\x01\n1,2,a,b\n", "trace.header"),
    ],
)
def test_what_leaves_no_columns_is_refused_whole(raw: bytes, code: str) -> None:
    assert [problem.code for problem in faults(raw)] == [code]


def test_blank_rows_are_told_once_each() -> None:
    assert seen(b"t,n,who\n\n1,2,a\n\r\n1,2,a\n\n") == [("trace.torn_row", f"t.csv:{line}") for line in (2, 4, 6)]


def test_a_file_without_any_usable_row_keeps_its_torn_rows_reason() -> None:
    assert seen(b"t,n,who\n1\n2\n") == [("trace.torn_row", "t.csv:2"), ("trace.torn_row", "t.csv:3")]


@given(st.lists(st.decimals(0, 999_999_999, places=9), min_size=1, max_size=8))
def test_seconds_are_exact_to_the_nanosecond(times: list[Decimal]) -> None:
    problems = ProblemList("t.csv")
    raw = "t,n\n" + "".join(f"{time:f},1\n" for time in times)
    assert seconds(read_table(raw.encode(), ("t", "n"), (), problems), "t", problems).tolist() == [int(time * 10**9) for time in times]


def test_a_blank_time_is_what_the_caller_says_and_only_then() -> None:
    problems = ProblemList("t.csv")
    table = read_table(b"t,n\n,1\n7,1\n", ("t", "n"), (), problems)
    assert seconds(table, "t", problems, empty=-1).tolist() == [-1, 7_000_000_000]
    seconds(table, "t", problems)
    assert len(problems) == 1


def test_names_are_coded_in_sorted_order_and_blank_is_none() -> None:
    problems = ProblemList("t.csv")
    column = labels(read_table(b"who,n\nz,1\n,1\na,1\n", ("who", "n"), (), problems), "who", problems)
    assert column.names == ("a", "z")
    assert column.values() == ["z", None, "a"]


@pytest.mark.parametrize(("times", "step"), [([0, 2 * 10**9], 10**9), ([0, 5 * 10**8], 10**8), ([3], 1), ([0], 10**9), ([70_000], 10_000)])
def test_the_grid_is_the_coarsest_step_all_stamps_lie_on(times: list[int], step: int) -> None:
    assert grid(np.array(times)) == step


@given(
    st.binary(max_size=80)
    | st.lists(st.sampled_from([b"1", b"-1", b"a", b",", b"\n", b"\r\n", b'"', b"1.5", b"\xff", b"\0"])).map(b"".join)
)
def test_any_bytes_end_in_sound_columns_or_in_problems_with_places(rows: bytes) -> None:
    result = outcome(b"t,n,who\n" + rows)
    if isinstance(result, UsageError):
        assert all(problem.code.startswith("trace.") and problem.where.startswith("t.csv") for problem in result.problems)
        return
    time, count, who = result
    assert len(time) == len(count) == len(who.codes) == len(rows.splitlines())
    assert time.min() >= 0
    assert 0 <= count.min() <= count.max() <= TOKEN_LIMIT
