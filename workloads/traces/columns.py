"""Columns of a trace in the making: exact integers from the text of numbers and stamps, block by block.

Every conversion has two halves that agree: Arrow's, for a block in which every value is plain, and one that goes value by value, for any
other block, and says what is wrong in which line. No float is ever made of a time: ``1700000000.123456789`` has more digits than one holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workloads.schedule import Bools, Int64
from workloads.traces.problems import TOKEN_LIMIT, ProblemList

UNITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""Decimal places between a unit of time and the nanosecond."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = Context(prec=200)  # longer than any believable number; rounds half to even
_FLAGS = {"true": True, "false": False, "1": True, "0": False}


class Growing:
    """An int64 column that rows are added to. Room that is never filled is never touched, so it costs no memory."""

    __slots__ = ("_room", "_rows")

    def __init__(self, capacity: int = 0) -> None:
        self._room = np.empty(max(capacity, 1), dtype=np.int64)
        self._rows = 0

    def extend(self, values: Int64) -> None:
        """Add rows at the end."""
        end = self._rows + len(values)
        if end > len(self._room):
            wider = np.empty(2 * end, dtype=np.int64)
            wider[: self._rows] = self._room[: self._rows]
            self._room = wider
        self._room[self._rows : end] = values
        self._rows = end

    def values(self) -> Int64:
        """Rows so far (n,): a view, not a copy."""
        return self._room[: self._rows]


def int64_view(column: pa.ChunkedArray) -> Int64:
    """Values (n,) of an Arrow column of 64-bit type without nulls, as they lie in memory; a copy only when it has several chunks.

    Not ``to_numpy``: for instants that imports pandas where there is one, which costs more than reading the trace.
    """
    parts = [np.frombuffer(c.buffers()[1], dtype=np.int64, count=len(c), offset=8 * c.offset) for c in column.chunks if len(c)]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])


@dataclass(frozen=True, slots=True)
class Cells:
    """Values of one column in one block, as text, 64-bit integers or instants; ``line`` gives the line of each in the file."""

    name: str
    values: pa.Array
    line: Callable[[int], int]

    def fault(self, problems: ProblemList, row: int, code: str, why: str, remedy: str) -> None:
        """Record what is wrong with one value."""
        problems.add(code, f"{self.name}={shown(self.values[row].as_py())}: {why}", remedy, self.line(row))


class _WrongError(Exception):
    """Code, reason and remedy of a value that cannot be taken."""


def shown(value: object) -> str:
    """Printable, bounded form of a value for a message."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def counts(cells: Cells, problems: ProblemList, limit: int = TOKEN_LIMIT) -> Int64:
    """Whole numbers in [0, limit] (n,); ``12.0`` is one, ``12.5`` is not."""

    def count(text: str | None) -> int:
        number = _number(text, "trace.count", "a whole number is wanted")
        if number < 0:
            raise _WrongError("trace.negative_count", "a count is at least 0", "remove the row on purpose")
        if number > limit:
            why = f"above {limit}, which no served model can hold in one request" if limit == TOKEN_LIMIT else f"above {limit}"
            raise _WrongError("trace.huge_count", why, "check the column and its unit")
        if number != int(number):
            raise _WrongError("trace.count", "not a whole number", "map the column that counts, not one that averages or estimates")
        return int(number)

    return _convert(cells, lambda values: _within(_integers(values, 0), limit), count, problems)


def times(cells: Cells, unit: str, problems: ProblemList) -> Int64:
    """Exact ns (n,) of numbers of ``unit`` (rounded half to even where finer) or of ISO stamps; from the unit's zero or from 1970."""
    if unit == "iso":
        return _convert(cells, _instants, _stamp, problems)
    shift = UNITS[unit]

    def time(text: str | None) -> int:
        number = _number(text, "trace.timestamp", f"a time in {unit} is wanted")
        if number < 0:
            raise _WrongError("trace.timestamp", "a time before the trace's zero", "shift the column, or map the right one")
        if number and number.adjusted() + shift > 18:
            raise _too_far(unit)
        exact = int(_EXACT.to_integral_value(_EXACT.scaleb(number, shift)))
        if exact >= 1 << 63:
            raise _too_far(unit)
        return exact

    return _convert(cells, lambda values: _within(_integers(values, shift), (1 << 63) - 1), time, problems)


def where_known(cells: Cells, convert: Callable[[Cells], Int64]) -> Int64:
    """Values (n,) as ``convert`` makes them, -1 where the cell is null or empty."""
    known = pc.not_equal(pc.fill_null(cells.values.cast(pa.string()), ""), "")
    rows = np.flatnonzero(known.to_numpy(zero_copy_only=False))
    found = np.full(len(cells.values), -1, dtype=np.int64)
    found[rows] = convert(Cells(cells.name, cells.values.filter(known), lambda row: cells.line(int(rows[row]))))
    return found


def flags(cells: Cells, problems: ProblemList) -> Bools:
    """Truth values (n,) of true/false or 1/0."""

    def flag(text: str | None) -> int:
        found = _FLAGS.get((text or "").strip().lower())
        if found is None:
            raise _WrongError("trace.flag", "true, false, 1 or 0 is wanted", "map a column that says which rows failed, by one of these")
        return found

    return _convert(cells, lambda _: None, flag, problems).astype(np.bool_)


def _convert(cells: Cells, fast: Callable[[pa.Array], Int64 | None], slow: Callable[[str | None], int], problems: ProblemList) -> Int64:
    try:
        found = fast(cells.values) if not cells.values.null_count else None
    except pa.ArrowInvalid:
        found = None
    if found is not None:
        return found
    column = np.zeros(len(cells.values), dtype=np.int64)
    texts = cells.values if pa.types.is_string(cells.values.type) else cells.values.cast(pa.string())
    for row, text in enumerate(texts.to_pylist()):
        try:
            column[row] = slow(text)
        except _WrongError as wrong:
            cells.fault(problems, row, *wrong.args)
    return column


def _integers(values: pa.Array, shift: int) -> Int64 | None:
    """Value times 10**shift, rounded half to even; ArrowInvalid or None for what is no plain decimal number of a common size."""
    if pa.types.is_integer(values.type) or _is_digits(values):
        whole = int64_view(pa.chunked_array([values.cast(pa.int64())]))
        most = ((1 << 63) - 1) // 10**shift
        return whole * 10**shift if not len(whole) or (whole.min() >= 0 and whole.max() <= most) else None
    if not pa.types.is_string(values.type):
        return None
    exact = values.cast(pa.decimal128(38, 18))  # raises for more fractional digits; the slow half rounds those
    rounded = pc.round(exact, ndigits=shift, round_mode="half_to_even") if shift else exact
    scaled = rounded.cast(pa.decimal128(38, shift))  # raises when a whole number is wanted and this is none
    words = np.frombuffer(scaled.buffers()[1], dtype=np.int64, count=2 * len(scaled), offset=16 * scaled.offset).reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    return low.copy() if (high == low >> 63).all() else None


def _is_digits(values: pa.Array) -> bool:
    """Whether a block of text holds digits and nothing else: Arrow would read hexadecimal, too."""
    if not pa.types.is_string(values.type) or values.buffers()[2] is None:
        return False
    return not values.buffers()[2].to_pybytes().translate(None, b"0123456789\0")  # NUL: the padding of a buffer


def _within(column: Int64 | None, limit: int) -> Int64 | None:
    if column is None or not len(column):
        return column
    return column if column.min() >= 0 and column.max() <= limit else None


def _instants(values: pa.Array) -> Int64 | None:
    """Arrow's reading of stamps that all have a zone, or all none (taken as UTC); shortened stamps are left to the slow half."""
    if not pa.types.is_timestamp(values.type):
        if not len(values) or pc.min(pc.binary_length(values)).as_py() < len("YYYY-MM-DDTHH:MM:SS"):
            return None
        zoned = re.search(r"(Z|[+-]\d\d:?\d\d)$", values[0].as_py()[10:])
        values = values.cast(pa.timestamp("ns", "UTC" if zoned else None))
    return _within(int64_view(pa.chunked_array([values.cast(pa.timestamp("ns", values.type.tz))])), (1 << 63) - 1)


def _stamp(text: str | None) -> int:
    match = _STAMP.fullmatch((text or "").strip())
    if match is None:
        raise _wrong(text, "trace.timestamp", "an ISO-8601 instant is wanted (YYYY-MM-DDTHH:MM:SS, up to 9 digits, Z or an offset)")
    date, clock, fraction, zone = match.groups()
    try:
        seconds = (datetime.fromisoformat(f"{date}T{clock}").replace(tzinfo=_zone(zone)) - _EPOCH) // timedelta(seconds=1)
    except (ValueError, OverflowError):
        raise _WrongError("trace.timestamp", "no instant of the calendar", "restore the stamp") from None
    ns = seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0"))
    if not 0 <= ns < 1 << 63:
        raise _WrongError("trace.timestamp", "outside the years 1970 to 2262", "restore the stamp")
    return ns


def _zone(zone: str | None) -> timezone:
    if zone is None or zone == "Z":
        return UTC
    minutes = int(zone[1:3]) * 60 + int(zone[-2:])
    return timezone(timedelta(minutes=-minutes if zone[0] == "-" else minutes))


def _number(text: str | None, code: str, wanted: str) -> Decimal:
    plain = (text or "").strip()
    if _NUMBER.fullmatch(plain) is None:
        raise _wrong(text, code, wanted)
    return Decimal(plain)


def _wrong(text: str | None, code: str, wanted: str) -> _WrongError:
    if text is None or not text.strip():
        return _WrongError(
            "trace.missing", f"nothing stands there; {wanted}, and nothing stands in for it, least of all 0", "restore the value"
        )
    return _WrongError(code, wanted, "write the column in one plain form; or map another")


def _too_far(unit: str) -> _WrongError:
    return _WrongError("trace.timestamp", f"read in {unit} this lies beyond the year 2262", "check the option unit against the file")
