"""Reader ``tracelab`` (UW SyFI): coding-agent rounds as ``round_trace.jsonl``, and the replayer's CSV workload. The first line tells which.

Rounds have wall times of their events. A round arrives with its last input event (user message or tool result) and ends with its last other
event; the pause before the next round runs from that end to the next arrival, so that neither service nor tools are counted twice.
``input_tokens_total`` is the whole prompt, of which ``prefix_tokens`` came from the provider's cache: what was hit, not what could be.

The CSV gives one arrival a session, in ms, on all of its rows; later rounds follow ``tool_wait_after_ms`` after the round before. Its
``input_len`` is the new part only: the prompt is ``prefix_len + input_len``, and that is what ``input_tokens`` holds, history included.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.schedule import Labels, Trace
from workloads.traces.collect import Columns, TurnColumn, pause_notes
from workloads.traces.contract import FormatInfo, NoOptions
from workloads.traces.fields import LATEST_NS, instant, integer, text, tokens
from workloads.traces.jsonl import REPIN, JsonLines, content_lines, first_object, show
from workloads.traces.problems import TOKEN_LIMIT, ProblemList

FORMAT = "tracelab"
MS_NS = 1_000_000
HEADER = b"session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms"
_COLUMNS = HEADER.decode().split(",")
_COUNTS = ("input_tokens_total", "prefix_tokens", "newly_append_tokens", "output_tokens")
_KEYS = frozenset({"session_id", "round_index", *_COUNTS, "timing_events", "first_input_event_type"})
_INPUT_EVENTS = frozenset({"user_message", "tool_result"})


@dataclass(frozen=True, slots=True)
class _Round:
    """One round: where it stands, and its arrival and end (-1: unknown) in ns."""

    row: int
    line: int
    session: str
    index: int
    arrival_ns: int
    end_ns: int


class _TraceLab:
    """``tracelab``: both files of the project."""

    info = FormatInfo(
        format=FORMAT,
        summary="TraceLab coding-agent rounds: wall times, token counts, cached prefix lengths; or the replayer's CSV workload",
        clock="absolute",
        time_unit="ISO-8601 in ms (rounds); ms from the start, one arrival a session (CSV, clock relative)",
        lengths="whole prompt and output tokens as the provider billed them (CSV: prefix_len + input_len)",
        prefix=None,
        tested="sample",
    )
    options = NoOptions

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the first line tells
        """Whether the file begins with the CSV's header or a round."""
        return head.startswith(HEADER) or first_object(head).keys() >= {"round_index", "input_tokens_total", "timing_events"}

    def read(self, path: Path, options: NoOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing to choose or to draw
        """Read the whole file. Raises UsageError with every problem and its line."""
        first = next(content_lines(path, ProblemList(path.name)), (1, b""))[1]
        return _read_csv(path) if first.rstrip(b"\r\n").startswith(b"session_id,") else _read_rounds(path)


def _read_rounds(path: Path) -> Trace:
    problems, columns, kinds, rounds = ProblemList(path.name), Columns(), list[str | None](), list[_Round]()
    rows = JsonLines(path, problems)
    for line, row in rows:
        session, index = text(row, "session_id", problems, line), integer(row, "round_index", problems, line, low=0)
        total, arrival, end = tokens(row, "input_tokens_total", problems, line), *_times(row, problems, line)
        parts = tokens(row, "prefix_tokens", problems, line), tokens(row, "newly_append_tokens", problems, line)
        if sum(parts) != total:
            what = f"input_tokens_total={total}: not prefix_tokens + newly_append_tokens = {parts[0]} + {parts[1]}"
            problems.add("trace.token_sum", what, "restore the published form; the counts of this row contradict each other", line)
        rounds.append(_Round(len(columns), line, session, index, arrival, end))
        columns.add(arrival, total, tokens(row, "output_tokens", problems, line))
        kind = row.get("first_input_event_type")
        kinds.append(kind if isinstance(kind, str) and kind.isprintable() and kind else None)
    problems.raise_if_any()
    column, notes = _turns(rounds, columns, problems)
    problems.raise_if_any()
    turns = column.turns()
    notes = (*notes, *pause_notes(turns), *rows.unread(_KEYS))
    return columns.trace(FORMAT, path.name, clock="absolute", grid_ns=MS_NS, kind=Labels.of(kinds), turns=turns, notes=notes)


def _times(row: dict[str, Any], problems: ProblemList, line: int) -> tuple[int, int]:
    """(arrival, end) of a round, ns since 1970: last input event, or first event where there is none; last other event, or -1."""
    events = row.get("timing_events")
    stamps = [_event(event, problems, line) for event in events] if isinstance(events, list) else []
    if not stamps:
        what = f"timing_events={show(events)}: no event, so the round has no time; it must not fall back to 0"
        problems.add("trace.timestamp", what, "restore the published form, or remove the row on purpose", line)
        return 0, -1
    given = [ns for kind, ns in stamps if kind in _INPUT_EVENTS]
    arrival = max(given) if given else min(ns for _, ns in stamps)
    end = max((ns for kind, ns in stamps if kind not in _INPUT_EVENTS), default=-1)
    return arrival, end if end >= arrival else -1


def _event(event: object, problems: ProblemList, line: int) -> tuple[str, int]:
    if isinstance(event, dict) and isinstance(event.get("event_type"), str):
        found = instant(event.get("timestamp"))
        if found is not None and found[1]:
            return event["event_type"], found[0]
    what = f"timing_events has {show(event)}: an event_type and an ISO-8601 timestamp with its zone are wanted"
    problems.add("trace.timestamp", what, "restore the published form", line)
    return "", 0


def _turns(rounds: list[_Round], columns: Columns, problems: ProblemList) -> tuple[TurnColumn, tuple[str, ...]]:
    """Rounds of a session follow each other by index."""
    before = _before(rounds, problems)
    number: dict[str, int] = {}
    column, gaps, rewritten = TurnColumn(), 0, 0
    for here in rounds:
        last = before.get(here.row)
        pause = here.arrival_ns - last.end_ns if last and last.end_ns >= 0 else -1
        grows = last is not None and columns.tokens_in[here.row] >= columns.tokens_in[last.row] + columns.tokens_out[last.row]
        gaps += last is not None and here.index != last.index + 1
        rewritten += last is not None and not grows
        session = number.setdefault(here.session, len(number))
        column.add(session, here.index, (last.row,) if last else (), max(-1, pause), last.row if last and grows else -1)
    notes = []
    if gaps:
        notes.append(f"{gaps} rounds follow one whose number is not the one before theirs: rounds are missing from the file")
    if rewritten:
        notes.append(f"{rewritten} later rounds are shorter than prompt and answer before: history was cut, nothing is taken as shared")
    return column, tuple(notes)


def _before(rounds: list[_Round], problems: ProblemList) -> dict[int, _Round]:
    """The round before each row's, by session and index; a round that stands twice is recorded."""
    before: dict[int, _Round] = {}
    last: _Round | None = None
    for here in sorted(rounds, key=lambda r: (r.session, r.index, r.row)):
        if last is not None and last.session == here.session:
            if last.index == here.index:
                what = f"round {here.index} of session {show(here.session)} stands already on line {last.line}"
                problems.add("trace.repeated_id", what, "remove one of the two on purpose", here.line)
            before[here.row] = last
        last = here
    return before


def _read_csv(path: Path) -> Trace:
    problems, columns, waits = ProblemList(path.name), Columns(), array("q")
    rounds: list[_Round] = []
    last: dict[int, tuple[_Round, int]] = {}
    for line, (session, arrival_ms, index, prefix, new, out, wait_ms) in _csv_rows(path, problems):
        before, start_ms = last.get(session, (None, arrival_ms))
        if arrival_ms != start_ms or index != (before.index + 1 if before else 0):
            what = f"session_id={session}, round_idx={index}, arrival_time={arrival_ms}: rounds count from 0 and share one arrival"
            problems.add("trace.round_order", what, "restore the published order of rows", line)
        # Were answers to take no time, a round would arrive when the tools of the one before are done.
        arrival = before.end_ns if before else arrival_ms * MS_NS
        if arrival > LATEST_NS:
            what = f"session_id={session}, round_idx={index}: arrival and tool waits add up to more than 36 years"
            problems.add("trace.timestamp", what, "check the unit of arrival_time and tool_wait_after_ms, which is ms", line)
            arrival = 0
        here = _Round(len(columns), line, str(session), index, arrival, arrival + wait_ms * MS_NS)
        last[session] = here, start_ms
        rounds.append(here)
        waits.append(wait_ms * MS_NS)
        columns.add(arrival, prefix + new, out)
    problems.raise_if_any()
    column, notes = _csv_turns(rounds, columns, waits)
    turns = column.turns()
    later = "later rounds arrive by their tool waits, as if answers took no time; replay them as sessions"
    notes = (f"each session has one arrival: {later}", *notes, *pause_notes(turns))
    return columns.trace(FORMAT, path.name, clock="relative", grid_ns=MS_NS, turns=turns, notes=notes)


def _csv_turns(rounds: list[_Round], columns: Columns, waits: array[int]) -> tuple[TurnColumn, tuple[str, ...]]:
    column, number, last, other = TurnColumn(), dict[str, int](), dict[str, int](), 0
    for here in rounds:
        before = last.get(here.session)
        grows = before is not None and columns.tokens_in[here.row] >= columns.tokens_in[before] + columns.tokens_out[before]
        other += before is not None and not grows
        session = number.setdefault(here.session, len(number))
        pause = -1 if before is None else waits[before]
        column.add(session, here.index, () if before is None else (before,), pause, before if before is not None and grows else -1)
        last[here.session] = here.row
    note = (f"{other} later rounds are shorter than prompt and answer before: none of it is taken as shared",) if other else ()
    return column, note


def _csv_rows(path: Path, problems: ProblemList) -> Iterator[tuple[int, list[int]]]:
    """Yield (line, the seven whole numbers) of each row; what is none is recorded."""
    lines = content_lines(path, problems)
    _, header = next(lines, (1, b""))
    names = header.rstrip(b"\r\n").decode("utf-8", "backslashreplace").split(",")
    missing = [name for name in _COLUMNS if names.count(name) != 1]
    if missing:
        what = f"header={show(header)}: {', '.join(missing)} missing or twice"
        problems.add("trace.columns", what, f"name the right format; or {REPIN}", 1)
        return
    places = [names.index(name) for name in _COLUMNS]
    count = 0
    for number, line in lines:
        fields = line.rstrip(b"\r\n").split(b",")
        if len(fields) != len(names):
            what = f"row={show(line)}: {len(fields)} fields where the header has {len(names)}; the row is torn or blank"
            problems.add("trace.torn_row", what, f"remove or restore the row; or {REPIN}", number)
            continue
        count += 1
        values = [_whole(name, fields[place], problems, number) for name, place in zip(_COLUMNS, places, strict=True)]
        yield number, values
    if not count and not len(problems):
        problems.add("trace.no_rows", "rows=0: the file holds a header and nothing else", REPIN)


def _whole(name: str, field: bytes, problems: ProblemList, line: int) -> int:
    most = TOKEN_LIMIT if name in ("prefix_len", "input_len", "output_len") else LATEST_NS // MS_NS
    if re.fullmatch(rb"\d{1,18}", field) and int(field) <= most:
        return int(field)
    problems.add("trace.count", f"{name}={show(field)}: not a whole number from 0 to {most}", "write digits only", line)
    return 0


READERS = (_TraceLab(),)
