"""Reader ``azure-2023``: one row a request, absolute wall time in 100 ns ticks, input and output tokens.

The published files have seven fractional digits, CRLF and no newline after the last row; LF and a last newline are read as well. Time is
parsed with integers only: ``strptime`` refuses the seventh digit and ``fromisoformat`` drops it without a word. The format carries no ids,
sessions, tenants or failures. A row cut inside its last number cannot be told from a whole one; the pinned sha256 is what catches that.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from workloads.schedule import Int64, Trace, frozen
from workloads.traces.contract import FormatInfo, NoOptions
from workloads.traces.find import read_bytes
from workloads.traces.problems import TOKEN_LIMIT, ProblemList

FORMAT = "azure-2023"
HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"
_ROW = re.compile(rb"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?,(\d{1,18}),(\d{1,18})")
_STAMP = re.compile(rb"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_BOM = b"\xef\xbb\xbf"
_REPIN = "take the published file again and pin its sha256"


def parse(raw: bytes, name: str) -> tuple[Int64, Int64, Int64]:
    """Return (arrival_ns relative to the first row, input_tokens, output_tokens), each (n,) int64.

    Raises UsageError with line numbers: header, byte-order mark, torn or blank rows, NUL or non-UTF-8 bytes, unreadable or descending
    timestamps, negative, fractional or huge counts. Equal neighbouring timestamps are allowed.
    """
    problems = ProblemList(name)
    lines = _lines(raw, problems)
    problems.raise_if_any()
    rows = [_row(line, number, problems) for number, line in enumerate(lines, 2)]
    good = [(number, row) for number, row in enumerate(rows, 2) if row is not None]
    _check_order(good, problems)
    problems.raise_if_any()
    columns = np.array([row for _, row in good], dtype=np.int64).reshape(-1, 3)
    return columns[:, 0] - columns[0, 0], columns[:, 1].copy(), columns[:, 2].copy()


def _lines(raw: bytes, problems: ProblemList) -> list[bytes]:
    """Split into data lines without their ends; the header is checked and dropped."""
    if not raw.strip():
        problems.add("trace.empty", f"bytes={len(raw)}: the file holds no header and no rows", _REPIN)
        return []
    if raw.startswith(_BOM):
        # Not stripped: the published files have none, so a tool rewrote this one, and spreadsheets also round timestamps.
        what = "the file starts with a UTF-8 byte-order mark, which the published files do not have: an editor or spreadsheet rewrote it"
        problems.add("trace.bom", what, f"{_REPIN}; or drop its first three bytes and pin the sha256 of the result", 1)
        raw = raw[len(_BOM) :]
    lines = [line.removesuffix(b"\r") for line in raw.removesuffix(b"\n").split(b"\n")]
    if lines[0] != HEADER:
        what = f"header={_show(lines[0])}: format {FORMAT} needs {HEADER.decode()}"
        problems.add("trace.header", what, "name the right format, or restore the header as the first line", 1)
    elif len(lines) == 1:
        problems.add("trace.no_rows", "rows=0: the file holds a header and nothing else", _REPIN, 1)
    return lines[1:]


def _row(line: bytes, number: int, problems: ProblemList) -> tuple[int, int, int] | None:
    """Return (ns since 1970, input, output), or None after recording what is wrong."""
    match = _ROW.fullmatch(line)
    if match is not None:
        groups = match.groups()
        tick, tokens_in, tokens_out = _nanoseconds(groups[:7]), int(groups[7]), int(groups[8])
        if tick is not None and tokens_in <= TOKEN_LIMIT and tokens_out <= TOKEN_LIMIT:
            return tick, tokens_in, tokens_out
    _explain(line, number, problems)
    return None


def _nanoseconds(parts: tuple[bytes | None, ...]) -> int | None:
    """Exact nanoseconds since 1970; None when the parts name no instant."""
    year, month, day, hour, minute, second = (int(part or 0) for part in parts[:6])
    days = _ordinal(year, month, day)
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    whole = ((days * 24 + hour) * 60 + minute) * 60 + second
    return whole * 1_000_000_000 + int((parts[6] or b"0").ljust(9, b"0"))


@lru_cache(maxsize=64)  # a trace spans few days; the cache makes the date cost nothing
def _ordinal(year: int, month: int, day: int) -> int | None:
    # Nanoseconds since 1970 fit int64 until 2262; no server was traced before 1970.
    try:
        return date(year, month, day).toordinal() - date(1970, 1, 1).toordinal() if 1970 <= year < 2262 else None
    except ValueError:
        return None


def _explain(line: bytes, number: int, problems: ProblemList) -> None:
    """Record every problem of a row that did not parse."""
    if b"\0" in line:
        problems.add("trace.nul", f"row={_show(line)}: NUL bytes, as a cut or preallocated file has them", _REPIN, number)
        return
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        problems.add("trace.encoding", f"row={_show(line)}: byte {error.start} of the row is not UTF-8", _REPIN, number)
        return
    fields = line.split(b",")
    if len(fields) != 3:
        what = f"row={_show(line)}: {len(fields) if line else 0} fields where the header has 3; the row is torn"
        problems.add("trace.torn_row", what, f"remove or restore the row; or {_REPIN}", number)
        return
    _explain_stamp(fields[0], number, problems)
    _explain_count("ContextTokens", fields[1], number, problems)
    _explain_count("GeneratedTokens", fields[2], number, problems)


def _explain_stamp(field: bytes, number: int, problems: ProblemList) -> None:
    match = _STAMP.fullmatch(field)
    if match is None or _nanoseconds(match.groups()) is None:
        what = f"TIMESTAMP={_show(field)}: not an instant of the form YYYY-MM-DD HH:MM:SS.fffffff (at most 9 digits, no zone)"
        problems.add("trace.timestamp", what, "restore the published form; a time that cannot be read cannot be replayed", number)


def _explain_count(column: str, field: bytes, number: int, problems: ProblemList) -> None:
    if re.fullmatch(rb"\d+", field):
        if len(field) > 18 or int(field) > TOKEN_LIMIT:
            what = f"{column}={_show(field)}: above {TOKEN_LIMIT}, which no served model can hold in one request"
            problems.add("trace.huge_count", what, "check the column and its unit", number)
    elif re.fullmatch(rb"-\d+", field):
        what = f"{column}={_show(field)}: a token count is at least 0"
        problems.add("trace.negative_count", what, "remove the row on purpose, and pin the sha256 of the result", number)
    else:
        what = f"{column}={_show(field)}: not a whole number of tokens"
        problems.add("trace.count", what, "write counts as digits only", number)


def _check_order(rows: list[tuple[int, tuple[int, int, int]]], problems: ProblemList) -> None:
    """Descending times are refused, not sorted: sorting would change a file whose digest was pinned, and hides a splice."""
    for (_, before), (number, row) in pairwise(rows):
        if row[0] < before[0]:
            what = f"TIMESTAMP goes back by {before[0] - row[0]} ns against the row before: arrivals must not descend"
            problems.add("trace.descending", what, "sort the data rows by TIMESTAMP (stable) and pin the sha256 of the result", number)


def _show(text: bytes) -> str:
    """Printable, bounded form of file content for a message."""
    return repr(text[:60].decode("utf-8", "backslashreplace")) + ("..." if len(text) > 60 else "")


class _Azure2023:
    """``azure-2023`` (Splitwise): two services, an hour each."""

    info = FormatInfo(
        format=FORMAT,
        summary="Azure LLM inference traces 2023 (Splitwise): arrivals and token counts of two services",
        clock="absolute",
        time_unit="100 ns ticks, wall time without a zone",
        lengths="input and output tokens as the service counted them",
        prefix=None,
        tested="full file",
    )
    options = NoOptions

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the header tells
        """Whether the file begins with this release's header."""
        return head.startswith(HEADER)

    def read(self, path: Path, options: NoOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing to choose or to draw
        """Read the whole file."""
        arrival, tokens_in, tokens_out = parse(read_bytes(path), path.name)
        rows = frozen(np.arange(len(arrival), dtype=np.int64))
        return Trace(FORMAT, path.name, frozen(arrival), frozen(tokens_in), frozen(tokens_out), rows, clock="absolute", grid_ns=100)


READERS = (_Azure2023(),)
