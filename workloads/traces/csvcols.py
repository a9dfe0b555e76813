"""Columns of a CSV trace by name, read at once with exact integers, and every fault with its line.

For formats without quoting: a field ends at a comma, a row at a line end (LF or CRLF). Columns are found by name wherever they stand, extra
columns are named to the caller and otherwise left alone.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from workloads.schedule import Int64, Labels, frozen
from workloads.traces.problems import CAP, TOKEN_LIMIT, ProblemList

NS = 1_000_000_000
_LOOK = 4096
"""Bytes looked at before the whole file is: a file of gigabytes need not be copied to see that it is not empty."""

_BOM = b"\xef\xbb\xbf"
_REPIN = "take the published file again and pin its sha256"
_BLANK = (b"\n\n", b"\n\r", b"\r\r")
_SECONDS = r"^\d{1,9}(\.\d*)?$"
"""Up to 9 whole digits: 31 years of seconds, so that nanoseconds fit int64 whatever follows."""


@dataclass(frozen=True, slots=True)
class Table:
    """Wanted columns as raw bytes (n,), the names of the columns nobody asked for, and what maps a row to its line."""

    columns: dict[str, pa.ChunkedArray]
    extra: tuple[str, ...]
    torn: tuple[int, ...] = ()

    def line(self, row: int) -> int:
        """One-based line of data row ``row``; rows that were torn are lines but no rows."""
        return row + 2 + bisect_right([line - i for i, line in enumerate(self.torn)], row + 2)


def show(value: object) -> str:
    """Printable, bounded form of file content for a message."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return repr(text[:60]) + ("..." if len(text) > 60 else "")


def header_of(head: bytes) -> list[str]:
    """Column names of a file's first line, as far as it has one."""
    end = head.find(b"\n")
    return head[: end if end >= 0 else len(head)].removesuffix(b"\r").decode("utf-8", "backslashreplace").split(",")


def read_table(raw: bytes, required: Sequence[str], optional: Sequence[str], problems: ProblemList) -> Table:
    """Split ``raw`` into columns. Blank rows, and rows with too few or too many fields, are recorded and left out.

    Raises UsageError at once for what leaves no columns: a missing or doubled column, a byte-order mark, a file without rows.
    """
    names = _checked_header(raw, required, problems)
    wanted = [name for name in (*required, *optional) if name in names]
    torn: list[int] = []
    try:
        if any(blank in raw for blank in _BLANK):
            raise pa.ArrowInvalid("blank rows")
        table = _read(raw, names, wanted)
    except pa.ArrowInvalid:
        # The parser names no lines: find the torn rows here, and read the others.
        table = _read_whole(_whole_rows(raw, len(names), torn, problems), names, wanted, problems)
    columns = {name: table.column(name) for name in wanted}
    return Table(columns, tuple(sorted(set(names) - set(wanted))), tuple(torn))


def _checked_header(raw: bytes, required: Sequence[str], problems: ProblemList) -> list[str]:
    if raw.startswith(_BOM):
        what = "the file starts with a UTF-8 byte-order mark, which the published files do not have: an editor or spreadsheet rewrote it"
        problems.add("trace.bom", what, f"{_REPIN}; or drop its first three bytes and pin the sha256 of the result", 1)
        raw = raw[len(_BOM) :]
    names = header_of(raw)
    missing = [name for name in required if name not in names]
    if not raw[:_LOOK].strip() and not raw.strip():
        problems.add("trace.empty", f"bytes={len(raw)}: the file holds no header and no rows", _REPIN)
    elif missing:
        what = f"header={show(','.join(names))}: without column {', '.join(missing)}, so not one row could be replayed as it was"
        problems.add("trace.columns", what, "name the right format, or restore the columns under their published names", 1)
    elif len(raw) < _LOOK and b"\n" not in raw.rstrip(b"\r\n"):
        problems.add("trace.no_rows", "rows=0: the file holds a header and nothing else", _REPIN, 1)
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        what = f"header={show(','.join(names))}: column {', '.join(map(show, doubled))} stands there more than once"
        problems.add("trace.columns", what, "leave each column once", 1)
    if re.search(r"[\x00-\x1f]", "".join(names)):
        problems.add("trace.header", f"header={show(','.join(names))}: control characters in column names", _REPIN, 1)
    problems.raise_if_any()
    return names


def _whole_rows(raw: bytes, width: int, torn: list[int], problems: ProblemList) -> bytes:
    """Header and rows of ``width`` fields; the lines of the others go to ``torn``."""
    lines = raw.splitlines()
    for number, line in enumerate(lines[1:], 2):
        fields = line.count(b",") + 1 if line else 0
        if fields != width:
            torn.append(number)
            what = f"row={show(line)}: {fields} fields where the header has {width}; the row is torn or blank"
            problems.add("trace.torn_row", what, f"remove or restore the row; or {_REPIN}", number)
    left_out = set(torn)
    return b"\n".join(line for number, line in enumerate(lines, 1) if number not in left_out) + b"\n"


def _read_whole(raw: bytes, names: list[str], wanted: list[str], problems: ProblemList) -> pa.Table:
    try:
        table = _read(raw, names, wanted)
    except pa.ArrowInvalid as error:
        problems.add("trace.csv", f"the rows cannot be split into fields ({str(error)[:120]})", _REPIN)
        problems.raise_if_any()
        raise  # never reached: a problem was just added
    if not len(table):
        problems.raise_if_any()
    return table


def _read(raw: bytes, names: list[str], wanted: list[str]) -> pa.Table:
    return pacsv.read_csv(
        pa.BufferReader(raw),
        pacsv.ReadOptions(column_names=names, skip_rows=1),
        pacsv.ParseOptions(quote_char=False, ignore_empty_lines=False),
        pacsv.ConvertOptions(
            column_types=dict.fromkeys(wanted, pa.binary()), include_columns=wanted, null_values=[], strings_can_be_null=False
        ),
    )


def counts(table: Table, column: str, problems: ProblemList) -> Int64:
    """Token counts (n,) of a column; what is no whole number in [0, TOKEN_LIMIT] is recorded."""
    values = table.columns[column]
    bad = _failing(values, r"^\d{1,18}$")
    for row in bad:
        field = values[row].as_py()
        code, rule = _count_rule(field)
        problems.add(code, f"{column}={show(field)}: {rule}", "write counts as digits only, or remove the row on purpose", table.line(row))
    if len(bad):
        return np.zeros(len(values), np.int64)
    numbers = _integers(values)
    for row in np.flatnonzero(numbers > TOKEN_LIMIT).tolist():
        what = f"{column}={numbers[row]}: above {TOKEN_LIMIT}, which no served model can hold in one request"
        problems.add("trace.huge_count", what, "check the column and its unit", table.line(row))
    return numbers


def _count_rule(field: bytes) -> tuple[str, str]:
    if re.fullmatch(rb"-\d+", field):
        return "trace.negative_count", "a token count is at least 0"
    if re.fullmatch(rb"\d+", field):
        return "trace.huge_count", f"above {TOKEN_LIMIT}, which no served model can hold in one request"
    return "trace.count", "not a whole number of tokens"


def seconds(table: Table, column: str, problems: ProblemList, *, empty: int | None = None) -> Int64:
    """Decimal seconds of a column as ns (n,), exact to the nanosecond (further digits are cut); ``empty`` stands for a blank field.

    Without ``empty`` a blank time is a fault: a request without a time would fire at 0.
    """
    values = table.columns[column]
    blank = pc.equal(values, b"")
    bad = _failing(values, _SECONDS)
    if empty is not None:
        bad = bad[~blank.take(pa.array(bad)).to_numpy()] if len(bad) else bad
        values = pc.if_else(blank, b"0", values)
    for row in bad.tolist():
        what = f"{column}={show(values[row].as_py())}: not a time in seconds (digits, at most one point, below 1e9, no exponent)"
        problems.add("trace.timestamp", what, "restore the published form; a time that cannot be read cannot be replayed", table.line(row))
    if len(bad):
        return np.zeros(len(values), np.int64)
    times = _decimal_ns(values)
    return times if empty is None else np.where(blank.to_numpy(), empty, times)


def _decimal_ns(values: pa.ChunkedArray) -> Int64:
    """Exact ns of fields that match ``_SECONDS``."""
    text = values.cast(pa.string())
    if not pc.any(pc.match_substring(text, ".")).as_py():
        return _integers(values) * NS
    parts = pc.extract_regex(text, r"^(?P<whole>\d+)(?:\.(?P<part>\d*))?$")
    whole = pc.struct_field(parts, "whole").cast(pa.int64()).to_numpy()
    digits = pc.utf8_slice_codeunits(pc.ascii_rpad(pc.struct_field(parts, "part"), 9, "0"), 0, 9)
    exact: Int64 = whole * NS + digits.cast(pa.int64()).to_numpy()
    return exact


def labels(table: Table, column: str, problems: ProblemList) -> Labels:
    """Names of a column, dictionary-coded; a blank field has none (-1). Bytes that are no UTF-8 and control characters are recorded."""
    values = table.columns[column]
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    coded = values.dictionary_encode()
    names = [_name(raw) for raw in coded.dictionary.to_pylist()]
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    for code in [i for i, name in enumerate(names) if name is None][:CAP]:
        row = int(np.flatnonzero(codes == code)[0])
        what = f"{column}={show(values[row].as_py())}: not a name (UTF-8 without control characters)"
        problems.add("trace.encoding", what, _REPIN, table.line(row))
    return _sorted_labels([name or "" for name in names], codes)


def _name(raw: bytes) -> str | None:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _sorted_labels(names: list[str], codes: Int64) -> Labels:
    final = tuple(sorted({name for name in names if name}))
    place = {name: i for i, name in enumerate(final)}
    moved = np.array([place.get(name, -1) for name in names], np.int32)
    return Labels(final, frozen(moved[codes]))


def grid(times: Int64) -> int:
    """The coarsest decimal step, 1 s at most, that every time lies on: what the stamps were rounded to, as far as they show it."""
    step = NS
    while step > 1 and (times % step).any():
        step //= 10
    return step


def _failing(values: pa.ChunkedArray, pattern: str) -> Int64:
    fits = pc.match_substring_regex(values, pattern)
    return np.flatnonzero(~fits.to_numpy()).astype(np.int64)


def _integers(values: pa.ChunkedArray) -> Int64:
    numbers: Int64 = values.cast(pa.string()).cast(pa.int64()).to_numpy().copy()
    return numbers
