"""Reader ``otel-genai``: OpenTelemetry spans under the GenAI conventions; every span of a model call is a request, all others are counted.

Token counts come from ``gen_ai.usage.*``. Where a span lacks them the file is refused, unless the option ``bytes_per_token`` allows an
estimate from the messages' text. What a request waits for is found in this order: links and parents that had ended before it began; answers
of its session that stand word for word among its messages; and, for a session with neither, the order of times, where a request waits for
those that ended before it began and that no other one in between waited for. The pause runs from the last such end to the start.

Text is digested at once and never kept.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from pydantic import Field

from workloads.schedule import Bools, Labels, Trace, frozen
from workloads.traces.collect import Columns, TurnColumn, pause_notes
from workloads.traces.contract import FormatInfo, Options
from workloads.traces.fields import tokens
from workloads.traces.jsonl import Placed, TooDeepError, members
from workloads.traces.problems import TOKEN_LIMIT, ProblemList
from workloads.traces.spandeps import Request, waits_of
from workloads.traces.spans import Span, read_spans

FORMAT = "otel-genai"
_ANSWERING = ("assistant", "model", "ai")
_CALLS = frozenset({"chat", "text_completion", "generate_content"})
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
"""Names of the counts: today's first, then those of before semantic conventions 1.27."""


class OtelOptions(Options):
    """``bytes_per_token``: UTF-8 bytes of message text a token, for spans without usage; None refuses them."""

    bytes_per_token: float | None = Field(None, gt=0, le=64)


@dataclass(slots=True)
class _Read:
    """What the file gave."""

    requests: list[Request]
    columns: Columns
    kinds: list[str | None]
    failed: list[bool]
    source: list[int]
    skipped: dict[str, int]
    estimated: int = 0
    zoned: int = 0


class _Otel:
    """``otel-genai``: exporters' files of model calls."""

    info = FormatInfo(
        format=FORMAT,
        summary="OpenTelemetry GenAI spans: model calls with their dependencies",
        clock="absolute",
        time_unit="ISO-8601 up to ns, or ns since 1970 (OTLP)",
        lengths="input and output tokens as the span's usage says; the input holds the earlier turns",
        prefix=None,
        tested="sample",
    )
    options = OtelOptions

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the attribute names tell
        """Whether the head has spans and an attribute of the GenAI conventions."""
        return b'"gen_ai.' in head and (b'"span_id"' in head or b'"spanId"' in head)

    def read(self, path: Path, options: OtelOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing is drawn
        """Read the whole file. Raises UsageError with every problem and its place."""
        problems = ProblemList(path.name)
        read = _read(path, options, problems)
        problems.raise_if_any()
        column, notes = _turns(read)
        turns = column.turns()
        notes = (*_notes(read, options), *notes, *pause_notes(turns))
        failed: Bools = np.array(read.failed, dtype=np.bool_)
        facts: dict[str, Any] = {"kind": Labels.of(read.kinds), "failed": frozen(failed), "turns": turns, "skipped": read.skipped}
        trace = read.columns.trace(FORMAT, path.name, clock="absolute", grid_ns=_grid(read), notes=notes, **facts)
        return replace(trace, source_row=frozen(np.array(read.source, dtype=np.int64)))


def _read(path: Path, options: OtelOptions, problems: ProblemList) -> _Read:
    read = _Read([], Columns(), [], [], [], {})
    known: set[tuple[str, str]] = set()
    number = -1
    for number, (place, span) in enumerate(read_spans(path, problems)):
        if span is None:
            continue
        if (span.trace, span.identity) in known:
            place.add("trace.repeated_id", f"span_id={span.identity!r}: stands twice in its trace", "remove one of the two on purpose")
        known.add((span.trace, span.identity))
        reason = _not_a_call(span)
        if reason is None:
            _add(read, span, number, options, place)
        else:
            read.skipped[reason] = read.skipped.get(reason, 0) + 1
    if not read.requests and not len(problems):
        what = f"spans={number + 1}: not one of them is a model call (gen_ai.operation.name: {', '.join(sorted(_CALLS))})"
        problems.add("trace.no_rows", what, "name the right format, or export the spans of model calls too")
    if 0 < read.zoned < len(read.requests):
        what = f"{read.zoned} of {len(read.requests)} spans have times with a zone, the rest without: two clocks cannot be told apart"
        problems.add("trace.clock", what, "write all times with their zone")
    return read


def _not_a_call(span: Span) -> str | None:
    """Why a span is no request, None when it is one. A span without an operation's name is one when it bears token counts."""
    operation = span.attributes.get("gen_ai.operation.name")
    if isinstance(operation, str) and operation in _CALLS:
        return None
    if operation is None:
        return None if _first(span, _INPUT) is not None else "span of no model call"
    return f"operation {operation}" if isinstance(operation, str) and operation.isprintable() else "span of no model call"


def _add(read: _Read, span: Span, number: int, options: OtelOptions, place: Placed) -> None:
    asked, answered = _messages(span, "input"), _messages(span, "output")
    counted = [_first(span, names) for names in (_INPUT, _OUTPUT)]
    if None in counted and span.failed and options.bytes_per_token is None:
        reason = "failed and without token counts"
        read.skipped[reason] = read.skipped.get(reason, 0) + 1
        return
    sizes = [_count(span, *side, options, place) for side in ((_INPUT, asked), (_OUTPUT, answered))]
    read.estimated += None in counted
    read.zoned += span.zoned
    read.columns.add(span.start_ns, *sizes)
    operation = span.attributes.get("gen_ai.operation.name")
    read.kinds.append(operation if isinstance(operation, str) else None)
    read.failed.append(span.failed)
    read.source.append(number)
    prompt, answer = tuple(digest for digest, _ in asked), tuple(digest for digest, _ in answered)
    own = span.trace, span.identity
    read.requests.append(Request(_session(span), own, span.start_ns, span.end_ns, span.causes, prompt, answer, sum(sizes), sizes[0]))


def _first(span: Span, names: Sequence[str]) -> str | None:
    return next((name for name in names if span.attributes.get(name) is not None), None)


def _count(span: Span, names: Sequence[str], messages: list[tuple[bytes, int]], options: OtelOptions, place: Placed) -> int:
    name = _first(span, names)
    if name is not None:
        return tokens(span.attributes, name, place, None)
    if options.bytes_per_token is None or (not messages and not span.failed):
        what = f"{names[0]}: missing{'' if messages else ', and so is the text'}; a token count cannot be had from the span"
        remedy = "export usage; or allow an estimate from the text with trace.options.bytes_per_token (about 4 for English)"
        place.add("trace.missing", what, remedy if messages else "export usage")
        return 0
    return min(TOKEN_LIMIT, math.ceil(sum(size for _, size in messages) / options.bytes_per_token))


def _session(span: Span) -> str:
    """Conversation or session the span names, else its trace."""
    named = ["gen_ai.conversation.id", "session.id", *sorted(key for key in span.attributes if key.endswith(".session.id"))]
    return next((f"s:{v}" for key in named if isinstance(v := span.attributes.get(key), str) and v), f"t:{span.trace}")


def _messages(span: Span, side: str) -> list[tuple[bytes, int]]:
    """(digest, bytes of text) of each message: over text and role, for an answer returns as a message of another shape."""
    raw = span.attributes.get(f"gen_ai.{side}.messages", span.attributes.get(f"gen_ai.{side}.text"))
    if isinstance(raw, str):
        raw = _list_in(raw)
    found = []
    for item in raw if isinstance(raw, list) else [] if raw is None else [raw]:
        said = item.get("role") if isinstance(item, dict) and side == "input" else "assistant"
        role = b"assistant" if said in _ANSWERING else said.encode() if isinstance(said, str) else b""
        text = _text(item).encode()
        found.append((hashlib.sha256(role + b"\0" + text).digest(), len(text)))
    return found


def _list_in(raw: str) -> Any:
    """The list that JSON inside a string holds; the string itself when it holds none."""
    try:
        value = orjson.loads(raw)
        members(value)
    except (orjson.JSONDecodeError, TooDeepError):
        return raw
    return value if isinstance(value, list) else raw


def _text(message: Any) -> str:
    """Text of a message: its content, or that of its parts, or its JSON for what has none (a tool call)."""
    if isinstance(message, str):
        return message
    body = message.get("content", message.get("parts")) if isinstance(message, dict) else None
    if isinstance(body, list):
        return "\n".join(map(_text, body))
    return body if isinstance(body, str) else orjson.dumps(message, option=orjson.OPT_SORT_KEYS).decode()


def _turns(read: _Read) -> tuple[TurnColumn, tuple[str, ...]]:
    waits, guessed = waits_of(read.requests)
    number: dict[str, int] = {}
    turn: dict[str, int] = {}
    places = [0] * len(read.requests)
    for row in sorted(range(len(read.requests)), key=lambda r: (read.requests[r].start_ns, r)):
        name = read.requests[row].session
        places[row] = turn[name] = turn.get(name, -1) + 1
    column = TurnColumn()
    for row, request in enumerate(read.requests):
        after, extends = waits[row]
        pause = request.start_ns - max((read.requests[other].end_ns for other in after), default=0)
        column.add(number.setdefault(request.session, len(number)), places[row], after, pause, extends)
    if not guessed:
        return column, ()
    return column, (f"{guessed} requests have neither links nor text: what they wait for was taken from the order of times",)


def _grid(read: _Read) -> int:
    return 1000 if all(request.start_ns % 1000 == 0 for request in read.requests) else 1


def _notes(read: _Read, options: OtelOptions) -> tuple[str, ...]:
    notes = []
    if read.estimated:
        notes.append(f"{read.estimated} requests have no usage: tokens are estimated at {options.bytes_per_token:g} bytes of text a token")
    if not read.zoned:
        notes.append("times bear no zone and are taken as UTC")
    return tuple(notes)


READERS = (_Otel(),)
