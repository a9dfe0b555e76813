"""Typed values of a JSON row. Each accessor returns a value of its type always, and records a problem when the row has none.

The value returned with a problem (0 or "") never reaches a trace: readers raise what was recorded before they build one.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

from workloads.traces.jsonl import Sink, show
from workloads.traces.problems import TOKEN_LIMIT

LATEST_NS = 1 << 60
"""No instant of a trace lies further than this (36 years) from its zero. Beyond it lies every mixture of epoch and relative stamps."""

Form = Literal["number", "whole", "text"]
"""How a format writes times: JSON numbers, integers only, or decimal strings (numbers are read there as well)."""

_MISSING = object()
_DECIMAL = re.compile(r"(\d{1,12})(?:\.(\d{1,9}))?", re.ASCII)
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def tokens(row: dict[str, Any], key: str, problems: Sink, line: int | None) -> int:
    """Token count in [0, TOKEN_LIMIT]."""
    value = row.get(key, _MISSING)
    if type(value) is int and 0 <= value <= TOKEN_LIMIT:
        return value
    if _is_missing(value, key, problems, line):
        return 0
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and value < 0:
        problems.add("trace.negative_count", f"{key}={show(value)}: a token count is at least 0", "remove the row on purpose", line)
    elif number and value > TOKEN_LIMIT:
        what = f"{key}={show(value)}: above {TOKEN_LIMIT}, which no served model can hold in one request"
        problems.add("trace.huge_count", what, "check the key and its unit", line)
    else:
        problems.add("trace.count", f"{key}={show(value)}: not a whole number of tokens", "write counts as JSON integers", line)
    return 0


def integer(row: dict[str, Any], key: str, problems: Sink, line: int | None, low: int = -(1 << 63)) -> int:
    """Whole number >= ``low`` within int64."""
    value = row.get(key, _MISSING)
    if type(value) is int and low <= value < 1 << 63:
        return value
    if not _is_missing(value, key, problems, line):
        problems.add("trace.integer", f"{key}={show(value)}: not a whole number of at least {low}", "restore the published form", line)
    return 0


def text(row: dict[str, Any], key: str, problems: Sink, line: int | None) -> str:
    """Non-empty string without control characters."""
    value = row.get(key, _MISSING)
    if isinstance(value, str) and value and value.isprintable():
        return value
    if not _is_missing(value, key, problems, line):
        problems.add("trace.name", f"{key}={show(value)}: not a printable, non-empty string", "restore the published form", line)
    return ""


def elapsed(row: dict[str, Any], key: str, unit_ns: int, problems: Sink, line: int | None, form: Form = "number") -> int:
    """Time since the trace's zero as ns, >= 0, from a number of ``unit_ns``. A missing time is never 0."""
    value = row.get(key, _MISSING)
    found = _text_ns(value, unit_ns) if form == "text" and isinstance(value, str) else _number_ns(value, unit_ns, form)
    if found is not None:
        return found
    if not _is_missing(value, key, problems, line):
        kind = {"number": "number", "whole": "whole number", "text": "decimal number, as a string or not"}[form]
        what = f"{key}={show(value)}: not a time ({kind} of {unit_ns} ns, from 0 to 36 years)"
        remedy = "restore the published form; a stamp in another unit or from another clock needs its own reader option or format"
        problems.add("trace.timestamp", what, remedy, line)
    return 0


def _number_ns(value: object, unit_ns: int, form: Form) -> int | None:
    if (type(value) is int or (type(value) is float and form != "whole")) and 0 <= value <= LATEST_NS // unit_ns:
        return round(value * unit_ns)
    return None


def _text_ns(value: str, unit_ns: int) -> int | None:
    """Exact: up to 12 digits before the point and 9 behind it."""
    match = _DECIMAL.fullmatch(value)
    if match is None or int(match[1]) > LATEST_NS // unit_ns:
        return None
    return int(match[1]) * unit_ns + int((match[2] or "0").ljust(9, "0")) * unit_ns // 1_000_000_000


def duration(row: dict[str, Any], key: str, unit_ns: int, problems: Sink, line: int | None) -> int:
    """Length of time as ns, -1 (unknown) when the key is absent or null."""
    return -1 if row.get(key) is None else elapsed(row, key, unit_ns, problems, line)


def instant(value: object) -> tuple[int, bool] | None:
    """(ns since 1970, whether a zone was given) of an ISO-8601 string with up to nine fractional digits; naive ones are taken as UTC.

    None when it names no instant. Integers only: ``fromisoformat`` would drop the seventh digit without a word.
    """
    match = _ISO.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    date, clock, fraction, zone = match.groups()
    try:
        whole = datetime.fromisoformat(f"{date}T{clock}").replace(tzinfo=_zone(zone))
        seconds = (whole - _EPOCH) // timedelta(seconds=1)
    except (ValueError, OverflowError):
        return None
    ns = seconds * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))
    return (ns, zone is not None) if 0 <= ns < 1 << 63 else None


def _zone(zone: str | None) -> timezone:
    if zone is None or zone == "Z":
        return UTC
    minutes = int(zone[1:3]) * 60 + int(zone[-2:])
    return timezone(timedelta(minutes=-minutes if zone[0] == "-" else minutes))


def _is_missing(value: object, key: str, problems: Sink, line: int | None) -> bool:
    if value is not _MISSING and value is not None:
        return False
    what = f"{key}: {'null' if value is None else 'missing'}; nothing stands in for it, least of all 0"
    problems.add("trace.missing", what, "restore the key; or name the right format", line)
    return True
