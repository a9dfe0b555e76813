"""Reader ``burstgpt``: campus use of ChatGPT and GPT-4 over months, with failures, and with sessions in the later release.

Both header variants (six columns; eight with ``Session ID`` and ``Elapsed time`` put in between) are read by name. So is the JSON-lines
conversion that other tools keep (``arrival_ms``, ``session_id``, ...). No row is left out unless an option asks for it: a response of
zero tokens is a failed request and stays one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from harness.errors import UsageError
from workloads.schedule import Bools, Int64, Labels, Ragged, Trace, Turns, frozen
from workloads.traces import csvcols
from workloads.traces.collect import Columns, int64
from workloads.traces.contract import FormatInfo, Options
from workloads.traces.fields import elapsed, text, tokens
from workloads.traces.find import read_bytes
from workloads.traces.jsonl import JsonLines, first_object
from workloads.traces.problems import ProblemList

FORMAT = "burstgpt"
NS = csvcols.NS
REQUIRED = ("Timestamp", "Model", "Request tokens", "Response tokens", "Log Type")
OPTIONAL = ("Session ID", "Elapsed time", "Total tokens")
CONVERTED = frozenset({"request_id", "arrival_ms", "input_length", "output_length", "session_id"})
ROUNDING_NS = 3 * NS // 2
"""A pause is made of three stamps in whole seconds; each may be off by half of one. A turn sent earlier than that did not wait."""

HEAD_NOTE = (
    "the published files begin with a ramp of days (0.034 req/s, 3.17 req/s later): a slice from row 0 is no sample of the load, so choose "
    "a window by time"
)


class BurstGptOptions(Options):
    """What to keep, and what a request's class is. By default every row is kept."""

    models: tuple[str, ...] = Field((), description="keep rows of these models only, e.g. GPT-4; the others are counted as skipped")
    log_types: tuple[str, ...] = Field((), description="keep rows of these log types only, e.g. API log")
    kind: Literal["model", "log-type"] = Field("model", description="which column is the request class")


def parse(raw: bytes, name: str, options: BurstGptOptions) -> Trace:
    """Read a published file's bytes.

    Raises UsageError with every problem and its line, and for a model or log type that no row has.
    """
    problems = ProblemList(name)
    table = csvcols.read_table(raw, REQUIRED, OPTIONAL, problems)
    times = csvcols.seconds(table, "Timestamp", problems)
    tokens_in, tokens_out = (csvcols.counts(table, f"{side} tokens", problems) for side in ("Request", "Response"))
    total = csvcols.counts(table, "Total tokens", problems) if "Total tokens" in table.columns else tokens_in + tokens_out
    model, log_type = (csvcols.labels(table, column, problems) for column in ("Model", "Log Type"))
    session = csvcols.labels(table, "Session ID", problems) if "Session ID" in table.columns else None
    unknown = np.full(len(times), -1, np.int64)
    took = csvcols.seconds(table, "Elapsed time", problems, empty=-1) if "Elapsed time" in table.columns else unknown
    problems.raise_if_any()
    notes = [_shares("Log Type", log_type), _shares("Model", model)]
    wrong = int((total != tokens_in + tokens_out).sum())
    if wrong:
        notes.append(f"on {wrong} rows Total tokens is not request plus response tokens; the two are used, the total is not")
    if table.extra:
        notes.append(f"columns not used: {', '.join(table.extra)}")
    trace = _trace(name, times, tokens_in, tokens_out, session, took, notes)
    return _chosen(trace, model, log_type, options)


def parse_converted(path: Path, options: BurstGptOptions) -> Trace:
    """Read the JSON-lines conversion. Raises UsageError with every problem and its line."""
    problems = ProblemList(path.name)
    if options.models or options.log_types:
        what = "models or log-types chosen: this conversion has neither column"
        problems.add("trace.options", what, "leave the options out, or take the published CSV")
    rows, columns, sessions = JsonLines(path, problems), Columns(), []
    for line, row in rows:
        tokens_in, tokens_out = (tokens(row, f"{side}_length", problems, line) for side in ("input", "output"))
        columns.add(elapsed(row, "arrival_ms", 1_000_000, problems, line), tokens_in, tokens_out)
        sessions.append(None if row.get("session_id") is None else text(row, "session_id", problems, line))
    problems.raise_if_any()
    unknown = np.full(len(columns), -1, np.int64)
    lost = "a conversion by another tool: it has no models, log types or elapsed times, and the moment of its first row is lost"
    notes = [lost, *rows.unread(CONVERTED)]
    counts = int64(columns.tokens_in), int64(columns.tokens_out)
    return _trace(path.name, int64(columns.arrival), *counts, Labels.of(sessions), unknown, notes)


def _trace(name: str, times: Int64, tokens_in: Int64, tokens_out: Int64, session: Labels | None, took: Int64, notes: list[str]) -> Trace:
    start = int(times.min())
    arrival = times - start
    turns = None if session is None else _turns(arrival, tokens_in, tokens_out, session, took, notes)
    failed = tokens_out == 0
    return Trace(
        FORMAT,
        name,
        frozen(arrival),
        frozen(tokens_in),
        frozen(tokens_out),
        frozen(np.arange(len(arrival), dtype=np.int64)),
        clock="relative",
        grid_ns=csvcols.grid(times),
        failed=frozen(failed),
        turns=turns,
        notes=(*notes, *_arrival_notes(arrival, start), *_failure_notes(failed), HEAD_NOTE),
    )


def _turns(arrival: Int64, tokens_in: Int64, tokens_out: Int64, session: Labels, took: Int64, notes: list[str]) -> Turns:
    """Chain the rows of a session by arrival (ties by row). A row without a session is a session of one turn."""
    rows = len(arrival)
    codes = session.codes.astype(np.int64)
    lone = codes < 0
    number = np.where(lone, len(session.names) + np.cumsum(lone) - 1, codes)
    order = np.lexsort((np.arange(rows), arrival, number))
    first = np.concatenate(([True], np.diff(number[order]) != 0))
    place = np.arange(rows)
    turn, before = np.empty(rows, np.int64), np.full(rows, -1, np.int64)
    turn[order] = place - np.maximum.accumulate(np.where(first, place, 0))
    before[order[1:]] = np.where(first[1:], -1, order[:-1])
    pause = arrival - arrival[before] - took[before]
    known = (before >= 0) & (took[before] >= 0)
    overlap = known & (pause < -ROUNDING_NS)
    waits = (before >= 0) & ~overlap
    grown = (before >= 0) & (tokens_out[before] > 0) & (tokens_in >= tokens_in[before] + tokens_out[before])
    notes += _turn_notes(lone, waits, overlap, grown, known)
    return Turns(
        session=frozen(number),
        turn=frozen(turn),
        after=Ragged(frozen(np.concatenate(([0], np.cumsum(waits))).astype(np.int64)), frozen(before[waits])),
        think_ns=frozen(np.where(known & waits, np.maximum(pause, 0), -1)),
        extends=frozen(np.where(grown & waits, before, -1)),
        history="included",
    )


def _turn_notes(lone: Bools, waits: Bools, overlap: Bools, grown: Bools, known: Bools) -> list[str]:
    later = int(waits.sum())
    room = f"on {int((grown & waits).sum())} of {later} later turns there is room for all of the turn before"
    notes = [f"Request tokens count the conversation so far; {room}, which is then taken as the beginning of the prompt"] if later else []
    if lone.any():
        notes.append(f"{int(lone.sum())} rows without a Session ID are sessions of one turn")
    if overlap.any():
        notes.append(f"{int(overlap.sum())} turns were sent before the turn before them had ended: they arrive by the clock")
    unknown = int((waits & ~known).sum())
    if unknown:
        notes.append(f"think time is unknown on {unknown} later turns: the file does not say when the answer before them ended")
    return notes


def _arrival_notes(arrival: Int64, start: int) -> list[str]:
    notes = [f"the first stamp is {start / NS:.9g} s of the file's own clock; arrivals count from there"]
    back = int((np.diff(arrival) < 0).sum())
    if back:
        notes.append(f"arrivals go back on {back} rows: rows keep the file's order, the transform sort mends it")
    span, head = int(arrival.max()), int((arrival < arrival.max() / 10).sum())
    # Half of a steady tenth would be missing: with 20 rows and more a Poisson stream does that once in hundreds of files.
    if len(arrival) >= 200 and head * 20 < len(arrival):
        notes.append(f"ramp at the head: the first tenth of the {span / NS:.9g} s holds {head} of {len(arrival)} requests")
    return notes


def _failure_notes(failed: Bools) -> list[str]:
    count = int(failed.sum())
    if not count:
        return ["no row failed: a variant without failures, or a part without any"]
    share = f"{count} of {len(failed)} rows have 0 response tokens: the service failed them"
    return [f"{share}; they are kept as failed, and the transform drop_failed leaves them out on purpose"]


def _shares(column: str, values: Labels) -> str:
    sums = np.bincount(values.codes + 1, minlength=len(values.names) + 1).tolist()
    parts = [f"{name} {count}" for name, count in zip(("(none)", *values.names), sums, strict=True) if count]
    return f"rows by {column}: {', '.join(parts)}"


def _chosen(trace: Trace, model: Labels, log_type: Labels, options: BurstGptOptions) -> Trace:
    """Rows that the options keep; the rest counted by reason, each under the first that applies."""
    keep = np.ones(len(trace), np.bool_)
    skipped: dict[str, int] = {}
    for option, column, wanted, reason in (
        ("models", model, options.models, "model not chosen"),
        ("log-types", log_type, options.log_types, "log type not chosen"),
    ):
        if wanted:
            _check_choice(option, wanted, column)
            named = np.isin(column.codes, [i for i, name in enumerate(column.names) if name in wanted])
            skipped[reason] = int((keep & ~named).sum())
            keep &= named
    kind = model if options.kind == "model" else log_type
    trace = replace(trace, kind=kind, skipped={reason: count for reason, count in skipped.items() if count})
    if not keep.any():
        what = "models and log-types together leave no row"
        raise UsageError.single("trace.options", what, "choose a pair that the file has", "workload.trace.options")
    return trace if keep.all() else trace.take(np.flatnonzero(keep).astype(np.int64))


def _check_choice(option: str, wanted: tuple[str, ...], column: Labels) -> None:
    absent = [name for name in wanted if name not in column.names]
    if absent:
        what = f"{option}={', '.join(map(csvcols.show, absent))}: no row has it"
        raise UsageError.single("trace.options", what, f"the file has: {', '.join(column.names)}", f"workload.trace.options.{option}")


class _BurstGpt:
    """``burstgpt`` (KDD'25), releases 1 to 3, with and without failures."""

    info = FormatInfo(
        format=FORMAT,
        summary="BurstGPT: arrivals, token counts, failures and (release 3) sessions of a campus on ChatGPT and GPT-4",
        clock="relative",
        time_unit="seconds from midnight of the first day, whole in the published files",
        lengths="tokens as the service counted them; a request counts its conversation so far; 0 response tokens: failed",
        prefix=None,
        tested="sample",
    )
    options = BurstGptOptions

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the header tells
        """Whether the head has the columns of a published file, in any order, or the keys of the known conversion."""
        return first_object(head).keys() >= CONVERTED or set(REQUIRED) <= set(csvcols.header_of(head))

    def read(self, path: Path, options: BurstGptOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing is drawn
        """Read the whole file."""
        raw = read_bytes(path)
        return parse_converted(path, options) if raw[:1] == b"{" else parse(raw, path.name, options)


READERS = (_BurstGpt(),)
