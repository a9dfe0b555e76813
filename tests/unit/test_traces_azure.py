"""Azure readers: exact time, every bad input with its line, the right release named, and no other end than a trace or a UsageError."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads.traces import azure, formats, get_reader, guess_format, read_trace
from workloads.traces.azure import HEADER, TOKEN_LIMIT, parse
from workloads.traces.azure_rows import AZURE_2023, AZURE_2024, AZURE_LMM_2025, RELEASES, Release, parse_lines
from workloads.traces.problems import ProblemList
from workloads.traces.streams import in_order, whole_lines

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
    assert {"azure-2023", "azure-2024", "azure-lmm-2025"} <= set(formats())


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


FIRST_ROWS = {
    AZURE_2023: b"2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109",
    AZURE_2024: b"2024-05-11 23:59:59.999999+00:00,1452,3\n2024-05-12 00:00:00+00:00,584,3\n",
    AZURE_LMM_2025: b"2024-10-15T12:00:00.269Z,0,770,491\n2024-10-15T12:00:05.819Z,16,949,126\n",
}
EVERY_RELEASE = pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.format)


def text(release: Release) -> bytes:
    return release.header + b"\n" + FIRST_ROWS[release]


def read_all(release: Release, tmp_path: Path, raw: bytes) -> UsageError:
    path = tmp_path / "t.csv"
    path.write_bytes(raw)
    with pytest.raises(UsageError) as caught:
        read_trace(release.format, path)
    return caught.value


@EVERY_RELEASE
def test_the_published_form_takes_the_fast_way(release: Release) -> None:
    assert azure._parse_block(FIRST_ROWS[release], release) is not None


def test_whole_seconds_of_2024_have_no_fraction(tmp_path: Path) -> None:
    path = tmp_path / "conv.csv"
    path.write_bytes(text(AZURE_2024))
    trace = read_trace("azure-2024", path)
    assert trace.arrival_ns.tolist() == [0, 1_000]
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([1452, 584], [3, 3])
    assert (trace.clock, trace.grid_ns, trace.kind) == ("absolute", 1_000, None)
    assert "cache hits" in trace.notes[0]


def test_rows_with_images_are_a_kind_and_the_note_says_what_is_not_sent(tmp_path: Path) -> None:
    path = tmp_path / "multimodal.csv"
    path.write_bytes(text(AZURE_LMM_2025))
    trace = read_trace("azure-lmm-2025", path)
    assert trace.arrival_ns.tolist() == [0, 5_550_000_000]
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([770, 949], [491, 126])
    assert trace.kind is not None
    assert trace.kind.values() == ["text", "image"]
    assert "1 of 2 rows carried images (16 in all); images are not sent" in trace.notes[-1]


@pytest.mark.parametrize(("named", "meant"), [(a, b) for a in RELEASES for b in RELEASES if a is not b], ids=str)
def test_another_release_is_refused_with_its_name(named: Release, meant: Release, tmp_path: Path) -> None:
    error = read_all(named, tmp_path, text(meant))
    assert len(error.problems) == 1
    assert error.problems[0].code in {"trace.release", "trace.header"}
    assert error.problems[0].remedy.endswith(f": {meant.format}")


@EVERY_RELEASE
def test_an_index_column_in_front_is_not_accepted(release: Release, tmp_path: Path) -> None:
    rows = FIRST_ROWS[release].split(b"\n")
    raw = b"\n".join([b"row_index," + release.header, *(b"%d," % i + row for i, row in enumerate(rows) if row)])
    assert [p.code for p in read_all(release, tmp_path, raw).problems] == ["trace.header"]


@pytest.mark.parametrize(
    "stamp", ["2024-05-12 00:00:00", "2024-05-12 00:00:00+02:00", "2024-05-12 00:00:00.5+0000", "2024-05-12 00:00+00:00"]
)
def test_only_the_published_offset_is_read_in_2024(stamp: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text(AZURE_2024) + f"{stamp},1,1\n".encode(), "t.csv", AZURE_2024)
    assert [(p.code, p.where) for p in caught.value.problems] == [("trace.timestamp", "t.csv:4")]


@pytest.mark.parametrize("release", [AZURE_2024, AZURE_LMM_2025], ids=lambda release: release.format)
def test_files_that_were_never_seen_whole_may_go_back_in_time_and_say_so(release: Release, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(release.header + b"\n" + b"\n".join(FIRST_ROWS[release].split(b"\n")[1::-1]))
    trace = read_trace(release.format, path)
    assert trace.arrival_ns[1] == 0
    assert trace.arrival_ns[0] > 0
    assert any("1 rows arrive before the row above" in note for note in trace.notes)


@EVERY_RELEASE
def test_gzip_reads_like_the_plain_file(release: Release, tmp_path: Path) -> None:
    for name, raw in (("t.csv", text(release)), ("t.csv.gz", gzip.compress(text(release)))):
        (tmp_path / name).write_bytes(raw)
    plain, packed = (read_trace(release.format, tmp_path / name) for name in ("t.csv", "t.csv.gz"))
    assert plain.arrival_ns.tolist() == packed.arrival_ns.tolist()
    assert plain.input_tokens.tolist() == packed.input_tokens.tolist()
    assert guess_format(tmp_path / "t.csv.gz") == release.format


def test_a_torn_gzip_file_is_unreadable_not_shorter(tmp_path: Path) -> None:
    raw = gzip.compress(text(AZURE_2023) * 100)
    assert [p.code for p in read_all(AZURE_2023, tmp_path, raw[:-9]).problems] == ["trace.unreadable"]


@EVERY_RELEASE
def test_one_reader_claims_a_file(release: Release) -> None:
    head = text(release)
    assert [r.format for r in RELEASES if get_reader(r.format).sniff("t.csv", head)] == [release.format]
    assert not any(get_reader(r.format).sniff("t.csv", b"row_index," + head) for r in RELEASES)


def test_a_header_without_stamps_of_a_release_is_nobodys() -> None:
    for rows in (b"\n1,5,7\n", b"\nyesterday,1,1", b"\n", b""):
        assert not any(get_reader(release.format).sniff("t.csv", release.header + rows) for release in RELEASES)


@given(st.integers(1, 200), ROWS.filter(lambda rows: len(rows) > 3), st.data())
def test_blocks_change_neither_rows_nor_line_numbers(size: int, rows: list[tuple[int, int, int]], data: st.DataObject) -> None:
    raw = written(rows, "\r\n")
    whole = parse(raw, "t.csv")
    for a, b in zip(whole, azure._read(whole_lines(io.BytesIO(raw), size), "t.csv", AZURE_2023), strict=True):
        assert a.tolist() == b.tolist()
    lines = raw.split(b"\r\n")
    lines[data.draw(st.integers(1, len(lines) - 1))] = b"torn"
    raw = b"\r\n".join(lines)
    with pytest.raises(UsageError) as caught:
        azure._read(whole_lines(io.BytesIO(raw), size), "t.csv", AZURE_2023)
    assert [str(p) for p in caught.value.problems] == [str(p) for p in fault(raw).problems]


PIECES = st.lists(
    st.sampled_from(
        [*'0123456789-:., +TZxe\r\n"', "\r\n", "2024-05-12 ", "00:00:00", "+00:00", "-08", ".5", ".", "0x1f", "+5", "-0", "2262-01-02"]
    ),
    max_size=4,
).map(lambda parts: "".join(parts).encode())


@given(st.sampled_from(RELEASES), PIECES, st.data())
def test_what_the_fast_way_takes_the_careful_way_takes_alike(release: Release, piece: bytes, data: st.DataObject) -> None:
    block = bytearray(FIRST_ROWS[release] + b"\n" + FIRST_ROWS[release] if data.draw(st.booleans()) else FIRST_ROWS[release])
    at = data.draw(st.integers(0, len(block)))
    block[at : at + data.draw(st.integers(0, 12))] = piece
    check_agreement(bytes(block), release)


def check_agreement(block: bytes, release: Release) -> None:
    fast = azure._parse_block(block, release)
    if fast is None:
        return
    problems = ProblemList("t.csv")
    _, careful = parse_lines(block, 2, release, problems)
    problems.raise_if_any()
    assert [column.tolist() for column in fast] == [column.tolist() for column in careful]


@pytest.mark.parametrize(
    "row",
    [
        b"2023-11-16 18:15,1,1",
        b"2023-11-16 18,1,1",
        b"2023-11-16,1,1",
        b"2023-11-16T18:15:46,1,1",
        b" 2023-11-16 18:15:46,1,1",
        b"1969-12-31 23:59:59,1,1",
        b"2262-01-01 00:00:00,1,1",
        b"2023-11-16 18:15:46,0x1f,1",
        b"2023-11-16 18:15:46, 1,1",
        b"2023-11-16 18:15:46,-0,1",
        b'2023-11-16 18:15:46,"1",1',
        b"2023-11-16 18:15:46,16777217,1",
        b"2023-11-16 18:15:46,1,1\r\r",
    ],
)
def test_what_arrow_would_read_and_the_format_does_not_have_is_left_to_the_careful_way(row: bytes) -> None:
    assert azure._parse_block(b"2023-11-16 18:15:46,1,1\n" + row, AZURE_2023) is None


@given(st.binary(max_size=200).map(lambda raw: raw.replace(b"x", b"\n")), st.integers(1, 50))
def test_whole_lines_end_with_a_line_end_and_lose_nothing(raw: bytes, size: int) -> None:
    blocks = list(whole_lines(io.BytesIO(raw), size))
    assert b"".join(blocks) == raw
    assert all(block.endswith(b"\n") and len(block) >= size for block in blocks[:-1])
    assert all(blocks)


def test_blocks_come_back_in_order_and_little_is_read_ahead() -> None:
    taken: list[int] = []

    def blocks() -> Iterator[bytes]:
        for number in range(20):
            taken.append(number)
            yield b"%d" % number

    for done, number in enumerate(in_order(int, blocks())):
        assert number == done
        assert len(taken) <= done + 4
    assert len(taken) == 20
