"""OpenTelemetry spans from a file, in the shapes exporters write: OTLP JSON, ``{"spans": [...]}``, or one of these a line.

OTLP writes ids in camel case, times as ns since 1970 in strings, and attributes as a list of typed values; other exporters write snake
case, ISO times and a plain object. Both come out as ``Span``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.traces.fields import instant, text
from workloads.traces.find import opened
from workloads.traces.jsonl import JsonLines, Placed, Sink, first_object, parse, show
from workloads.traces.problems import ProblemList
from workloads.traces.streams import limited_line


@dataclass(frozen=True, slots=True)
class Span:
    """One span: start and end in ns since 1970, whether they have a zone, causes by (trace, span), whether its status is an error."""

    trace: str
    identity: str
    start_ns: int
    end_ns: int
    zoned: bool
    causes: tuple[tuple[str, str], ...]
    attributes: dict[str, Any]
    failed: bool


def read_spans(path: Path, problems: ProblemList) -> Iterator[tuple[Placed, Span | None]]:
    """Yield (place, span) of every span in file order; None for one that is recorded in ``problems``."""
    with opened(path) as stream:
        by_line = bool(first_object(limited_line(stream)))
    if by_line:
        documents: Iterator[tuple[str, Any]] = ((f"line {line}", row) for line, row in JsonLines(path, problems))
    else:
        with opened(path) as stream:
            documents = iter([("document", parse(stream.read(), None, problems))])
    for name, document in documents:
        for i, raw in enumerate(_flatten(document, Placed(problems, name))):
            place = Placed(problems, f"{name}, span {i}")
            yield place, _span(raw, place)


def _flatten(value: Any, place: Sink) -> Iterator[Any]:
    """Every span below a document."""
    if isinstance(value, list):
        for item in value:
            yield from _flatten(item, place) if isinstance(item, dict) else iter([item])
    elif isinstance(value, dict) and "spans" in value:
        spans = value["spans"]
        yield from spans if isinstance(spans, list) else [spans]
    elif isinstance(value, dict) and ("resourceSpans" in value or "scopeSpans" in value):
        below = value.get("resourceSpans", value.get("scopeSpans"))
        yield from _flatten(below if isinstance(below, list) else [below], place)
    elif isinstance(value, dict):
        yield value
    elif value is not None:
        place.add("trace.row_type", f"{show(value)}: no spans in it", "name the right format")


def _span(raw: Any, place: Placed) -> Span | None:
    if not isinstance(raw, dict):
        place.add("trace.row_type", f"{show(raw)}: a span is an object", "restore the exporter's form")
        return None
    row: dict[str, Any] = {str(_SNAKE.get(key, key)): value for key, value in raw.items()}
    trace, identity = text(row, "trace_id", place, None), text(row, "span_id", place, None)
    start, end = _time(row, "start_time", place), _time(row, "end_time", place)
    if start is None or end is None:
        return None
    if end[0] < start[0]:
        what = f"end_time={show(row['end_time'])}: before start_time={show(row['start_time'])}"
        place.add("trace.timestamp", what, "mend the span's times")
        return None
    status = row.get("status")
    code = status.get("code") if isinstance(status, dict) else None
    failed = code in (2, "ERROR", "STATUS_CODE_ERROR")
    zoned = start[1] and end[1]
    return Span(trace, identity, start[0], end[0], zoned, _causes(row, trace), _attributes(row.get("attributes")), failed)


_SNAKE: dict[str, str] = {
    "traceId": "trace_id",
    "spanId": "span_id",
    "parentSpanId": "parent_span_id",
    "startTimeUnixNano": "start_time",
    "endTimeUnixNano": "end_time",
}


def _time(row: dict[str, Any], key: str, place: Placed) -> tuple[int, bool] | None:
    """(ns since 1970, whether with a zone) of an ISO string or of OTLP's ns."""
    value = row.get(key)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        value = int(value)
    found = (value, True) if type(value) is int and 0 <= value < 1 << 63 else instant(value)
    if found is None:
        what = f"{key}={show(row.get(key))}: not an instant (ISO-8601, or ns since 1970); a missing time is never 0"
        place.add("trace.timestamp", what, "restore the exporter's form")
    return found


def _causes(row: dict[str, Any], trace: str) -> tuple[tuple[str, str], ...]:
    """Parent and links as (trace, span)."""
    causes = []
    parent = row.get("parent_span_id")
    if isinstance(parent, str) and parent:
        causes.append((trace, parent))
    links = row.get("links")
    for link in links if isinstance(links, list) else []:
        context = link.get("context", link) if isinstance(link, dict) else None
        if isinstance(context, dict):
            identity = context.get("span_id", context.get("spanId"))
            other = context.get("trace_id", context.get("traceId", trace))
            if isinstance(identity, str) and isinstance(other, str):
                causes.append((other, identity))
    return tuple(causes)


def _attributes(raw: Any) -> dict[str, Any]:
    if isinstance(raw, dict):
        return raw
    pairs = [item for item in raw if isinstance(item, dict)] if isinstance(raw, list) else []
    return {item["key"]: _value(item.get("value")) for item in pairs if isinstance(item.get("key"), str)}


def _value(raw: Any) -> Any:
    """Value of an OTLP attribute; OTLP writes 64-bit integers as strings."""
    if not isinstance(raw, dict) or len(raw) != 1:
        return raw
    kind, value = next(iter(raw.items()))
    if kind == "intValue" and isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) <= 20:
        number = int(value)
        return number if -(1 << 63) <= number < 1 << 63 else value
    if kind == "arrayValue" and isinstance(value, dict):
        return [_value(item) for item in value.get("values", [])] if isinstance(value.get("values", []), list) else value
    if kind == "kvlistValue" and isinstance(value, dict):
        return _attributes(value.get("values"))
    return value
