"""Reader azure-2023: exact time, every kind of bad input with its line, and no other way to end than a trace or a UsageError."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads.traces import formats, read_trace
from workloads.traces.azure import HEADER, TOKEN_LIMIT, parse

FIRST = b"2023-11-16 18:15:46.6805900,374,44"
SECOND = b"2023-11-16 18:15:50.9951690,396,109"
CRLF = b"\r\n".join([HEADER, FIRST, SECOND])


def fault(raw: bytes) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse(raw, "t.csv")
    return caught.value


def check_outcome(raw: bytes) -> None:
    """The reader ends with a sound trace or with located problems; anything else is a bug."""
    try:
        arrival, tokens_in, tokens_out = parse(raw, "t.csv")
    except UsageError:
        assert all(problem.code.startswith("trace.") and problem.where for problem in fault(raw).problems)
        return
    assert arrival[0] == 0
    assert (np.diff(arrival) >= 0).all()
    assert 0 <= min(tokens_in.min(), tokens_out.min()) <= max(tokens_in.max(), tokens_out.max()) <= TOKEN_LIMIT


def codes(raw: bytes) -> list[str]:
    return [problem.code for problem in fault(raw).problems]


@pytest.mark.parametrize(
    "raw", [CRLF, CRLF + b"\r\n", CRLF.replace(b"\r", b""), CRLF.replace(b"\r", b"") + b"\n"], ids=["crlf", "crlf-end", "lf", "lf-end"]
)
def test_line_ends_do_not_change_the_rows(raw: bytes) -> None:
    arrival, tokens_in, tokens_out = parse(raw, "t.csv")
    assert arrival.tolist() == [0, 4_314_579_000]
    assert tokens_in.tolist() == [374, 396]
    assert tokens_out.tolist() == [44, 109]


def test_the_seventh_digit_counts() -> None:
    raw = HEADER + b"\n2023-11-16 18:15:46.9999999,1,1\n2023-11-16 18:15:47.0000001,1,1"
    assert parse(raw, "t.csv")[0].tolist() == [0, 200]


def test_midnight_and_leap_day_are_crossed() -> None:
    raw = HEADER + b"\n2024-02-28 23:59:59.0000000,1,1\n2024-02-29 00:00:00.0000000,1,1\n2024-03-01 00:00:00,1,1"
    assert parse(raw, "t.csv")[0].tolist() == [0, 10**9, 10**9 + 86_400 * 10**9]


def test_equal_timestamps_are_kept() -> None:
    assert parse(b"\n".join([HEADER, FIRST, FIRST]), "t.csv")[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("raw", "code", "place"),
    [
        (b"", "trace.empty", "t.csv"),
        (b"\r\n\r\n", "trace.empty", "t.csv"),
        (HEADER, "trace.no_rows", "t.csv:1"),
        (HEADER + b"\r\n", "trace.no_rows", "t.csv:1"),
        (b"\xef\xbb\xbf" + CRLF, "trace.bom", "t.csv:1"),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,1,1", "trace.header", "t.csv:1"),
        (FIRST + b"\n" + SECOND, "trace.header", "t.csv:1"),
        (CRLF + b"\r\n2023-11-16 18:15", "trace.torn_row", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:51.0000000,5", "trace.torn_row", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:51.0000000,5,6,7", "trace.torn_row", "t.csv:4"),
        (CRLF + b"\r\n\r\n" + SECOND, "trace.torn_row", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:51.0000000,5,", "trace.count", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:51.0000000,-5,6", "trace.negative_count", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:51.0000000,5.5,6", "trace.count", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:51.0000000,5, 6", "trace.count", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:51.0000000,nan,6", "trace.count", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:51.0000000,5,16777217", "trace.huge_count", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:51.0000000," + b"9" * 400 + b",6", "trace.huge_count", "t.csv:4"),
        (CRLF + b"\r\n2023-11-31 18:15:51.0000000,5,6", "trace.timestamp", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 24:15:51.0000000,5,6", "trace.timestamp", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:60:51.0000000,5,6", "trace.timestamp", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:60.0000000,5,6", "trace.timestamp", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:51.0000000000,5,6", "trace.timestamp", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:51.0000000+00:00,5,6", "trace.timestamp", "t.csv:4"),
        (CRLF + b"\r\n9999-11-16 18:15:51.0000000,5,6", "trace.timestamp", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:50.9951689,5,6", "trace.descending", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:51.00\x0000000,5,6", "trace.nul", "t.csv:4"),
        (CRLF + b"\r\n2023-11-16 18:15:51.0000000,\xff,6", "trace.encoding", "t.csv:4"),
        (CRLF + "\r\n2023-11-16 18:15:51,\N{ARABIC-INDIC DIGIT TWO},6".encode(), "trace.count", "t.csv:4"),
    ],
)
def test_bad_input_is_named_with_its_line(raw: bytes, code: str, place: str) -> None:
    problem = fault(raw).problems[0]
    assert (problem.code, problem.where) == (code, place)
    assert problem.remedy
    assert problem.what.isprintable()


def test_a_byte_order_mark_does_not_hide_a_wrong_header() -> None:
    assert codes(b"\xef\xbb\xbfa,b,c\n" + FIRST) == ["trace.bom", "trace.header"]


def test_one_row_may_have_several_problems() -> None:
    assert codes(HEADER + b"\nyesterday,-1,1e3") == ["trace.timestamp", "trace.negative_count", "trace.count"]


def test_an_early_outlier_is_one_problem_not_one_a_row() -> None:
    late = b"2024-01-01 00:00:00.0000000,1,1"
    assert codes(b"\n".join([HEADER, late, FIRST, SECOND, SECOND])) == ["trace.descending"]


def test_the_limit_itself_is_accepted() -> None:
    assert parse(HEADER + b"\n2023-11-16 18:15:51,%d,0" % TOKEN_LIMIT, "t.csv")[1].tolist() == [TOKEN_LIMIT]


def test_twenty_problems_are_listed_and_the_rest_counted() -> None:
    error = fault(HEADER + b"\n" + b"\n".join([b"torn"] * 50))
    assert len(error.problems) == 21
    assert [p.where for p in error.problems[:20]] == [f"t.csv:{n}" for n in range(2, 22)]
    assert "problems_not_listed=30" in error.problems[20].what


def test_reading_a_file_keeps_its_identity_and_freezes_columns(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(CRLF)
    trace = read_trace("azure-2023", path)
    assert (trace.format, trace.name, trace.source_row.tolist()) == ("azure-2023", "mine.csv", [0, 1])
    assert (trace.licence, trace.attribution[:7]) == ("unknown", "unknown")
    with pytest.raises(ValueError, match="read-only"):
        trace.arrival_ns[0] = 5


def test_unknown_formats_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"format='azure-1999'.*\n.*azure-2023"):
        read_trace("azure-1999", tmp_path / "x")
    with pytest.raises(UsageError, match=r"trace\.unreadable"):
        read_trace("azure-2023", tmp_path / "absent.csv")
    with pytest.raises(UsageError, match=r"trace\.unreadable"):
        read_trace("azure-2023", tmp_path)
    assert formats() == ("azure-2023",)


ROWS = st.lists(
    st.tuples(st.integers(0, 10**13), st.integers(0, TOKEN_LIMIT), st.integers(0, TOKEN_LIMIT)),
    min_size=1,
    max_size=20,
).map(lambda rows: sorted(rows, key=lambda row: row[0]))


def written(rows: list[tuple[int, int, int]], newline: str) -> bytes:
    """The rows as the published files have them; times in 100 ns ticks from the start of 2023."""
    lines = [HEADER.decode()]
    for tick, tokens_in, tokens_out in rows:
        second = datetime(2023, 1, 1) + timedelta(seconds=tick // 10**7)  # noqa: DTZ001 - the format has no zone
        lines.append(f"{second:%Y-%m-%d %H:%M:%S}.{tick % 10**7:07d},{tokens_in},{tokens_out}")
    return newline.join(lines).encode()


@given(ROWS, st.sampled_from(["\n", "\r\n"]))
def test_what_is_written_is_read_to_the_tick(rows: list[tuple[int, int, int]], newline: str) -> None:
    arrival, tokens_in, tokens_out = parse(written(rows, newline), "t.csv")
    assert arrival.tolist() == [(tick - rows[0][0]) * 100 for tick, _, _ in rows]
    assert list(zip(tokens_in.tolist(), tokens_out.tolist(), strict=True)) == [row[1:] for row in rows]


@given(ROWS, st.data())
def test_a_damaged_file_gives_a_trace_or_a_usage_error(rows: list[tuple[int, int, int]], data: st.DataObject) -> None:
    raw = bytearray(written(rows, "\r\n"))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=3))
    check_outcome(bytes(raw))


@given(st.binary(max_size=300))
def test_any_bytes_give_a_trace_or_a_usage_error(raw: bytes) -> None:
    check_outcome(raw)
    check_outcome(HEADER + b"\n" + raw)
