"""Rows of a mapped table: its blocks gathered into the columns of a trace, and what only the whole file can tell.

Two clocks in one file are refused: an epoch stamp among times from 0 makes a trace of decades, of which a replay sees the first row.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workloads.schedule import Blocks, Bools, ClockKind, Int64, Labels, Ragged, Trace, Turns, frozen
from workloads.traces.columns import Cells, Growing, counts, flags, int64_view, times, where_known
from workloads.traces.csvcols import grid
from workloads.traces.problems import CAP, ProblemList

NS = 1_000_000_000
EPOCH_NS = 978_307_200 * NS
"""2001-01-01. No served model was traced before it, and no trace lasts the 31 years that lie between it and an epoch's zero: a time on one
side of it is of a relative clock, on the other of an absolute one."""

LONGEST_NS = 1 << 60
"""Most time a trace may cover, 36 years: what transforms can still compute with."""

_TURN_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class Rules:
    """What the options say of the file as a whole."""

    clock: Literal["absolute", "relative", "none"]
    unit: str | None
    block_size: int | None
    rounding: Literal["ceil", "floor"] | None
    history: Literal["included", "excluded"] | None


class TableRows:
    """Columns so far. ``mapped``: the file's name of each column, by role; ``line``: line of a row in the file."""

    def __init__(self, mapped: Mapping[str, str], rules: Rules, problems: ProblemList, line: Callable[[int], int]) -> None:
        self._mapped, self._rules, self._problems, self._line = mapped, rules, problems, line
        self._rows = 0
        self._numbers = {role: Growing() for role in ("arrival", "input_tokens", "output_tokens", "turn", "think") if role in mapped}
        self._names: dict[str, list[pa.Array]] = {role: [] for role in ("client", "session", "kind") if role in mapped}
        self._failed: list[Bools] = []
        self._ids, self._ends = array("Q"), array("q", [0])
        self._zones: dict[str, int] = {}

    def add(self, block: Mapping[str, pa.Array]) -> None:
        """Take the rows of one block; what is wrong with them is recorded."""
        first = self._rows
        cells = {role: Cells(self._mapped[role], values, lambda row: self._line(first + row)) for role, values in block.items()}
        for role, column in self._numbers.items():
            column.extend(self._number(role, cells[role]))
        for role, parts in self._names.items():
            parts.append(_names(block[role]))
        if "failed" in cells:
            self._failed.append(flags(cells["failed"], self._problems))
        if "prefix_ids" in cells:
            self._add_ids(cells["prefix_ids"])
        self._rows += len(block["input_tokens"])

    def trace(self, fmt: str, name: str, notes: tuple[str, ...]) -> Trace:
        """Build the trace. Raises UsageError with everything recorded, and with what only the whole file tells."""
        if not self._rows and not len(self._problems):
            self._problems.add("trace.no_rows", "rows=0: the file holds no row", "give the file that was meant")
        self._problems.raise_if_any()
        columns = {role: column.values() for role, column in self._numbers.items()}
        tokens_in, tokens_out = columns["input_tokens"], columns["output_tokens"]
        arrival = columns.get("arrival", np.zeros(self._rows, dtype=np.int64))
        self._check_clock(arrival)
        blocks = self._blocks(tokens_in)
        turns = self._turns(columns, arrival)
        self._problems.raise_if_any()
        step, start = grid(arrival), int(arrival.min())
        arrival -= start
        return Trace(
            fmt,
            name,
            frozen(arrival),
            frozen(tokens_in),
            frozen(tokens_out),
            frozen(np.arange(self._rows, dtype=np.int64)),
            clock=self._rules.clock,
            grid_ns=step,
            client=self._labels("client"),
            kind=self._labels("kind"),
            failed=frozen(np.concatenate(self._failed)) if self._failed else None,
            blocks=blocks,
            turns=turns,
            notes=(*notes, *_clock_notes(self._rules.clock, arrival, start), *_turn_notes(turns)),
        )

    def _number(self, role: str, cells: Cells) -> Int64:
        unit = self._rules.unit or "s"
        if role == "arrival":
            self._note_zones(cells)
            return times(cells, unit, self._problems)
        if role == "think":
            return where_known(cells, lambda known: self._pauses(known, "s" if unit == "iso" else unit))
        if role == "turn":
            return where_known(cells, lambda known: counts(known, self._problems, _TURN_LIMIT))
        return counts(cells, self._problems)

    def _pauses(self, cells: Cells, unit: str) -> Int64:
        pauses = times(cells, unit, self._problems)
        for row in np.flatnonzero(pauses > LONGEST_NS).tolist():
            cells.fault(self._problems, row, "trace.timestamp", "a pause of more than 36 years", "check the option unit")
        return pauses

    def _note_zones(self, cells: Cells) -> None:
        """Remember the first row whose stamp has a zone, and the first without."""
        if self._rules.unit != "iso" or not pa.types.is_string(cells.values.type):
            return
        stamps = pc.utf8_trim_whitespace(pc.fill_null(cells.values, ""))
        west = pc.equal(pc.count_substring(stamps, "-"), 3)  # two stand in the date
        zoned = pc.or_(pc.or_(pc.ends_with(stamps, "Z"), pc.match_substring(stamps, "+")), west)
        for kind, rows in (("with", zoned), ("without", pc.and_not(pc.not_equal(stamps, ""), zoned))):
            if kind not in self._zones and (first := pc.index(rows, True).as_py()) >= 0:
                self._zones[kind] = self._rows + first

    def _check_clock(self, ns: Int64) -> None:
        """Refuse times of another clock than the one declared, and of two clocks in one file."""
        if self._rules.clock == "none":
            return
        name, declared = self._mapped["arrival"], self._rules.clock
        if len(self._zones) == 2:  # hours may lie between the two clocks
            lines = ", ".join(f"{kind} in line {self._line(row)}" for kind, row in self._zones.items())
            what = f"{name}: stamps with and without a zone in one file (first {lines})"
            self._problems.add("trace.mixed_clocks", what, "write every stamp with its zone")
        absolute = ns >= EPOCH_NS
        if absolute.any() and not absolute.all():
            lines = " and ".join(f"line {self._line(int(np.argmax(side)))}" for side in (absolute, ~absolute))
            what = f"{name}: {int(absolute.sum())} of {len(ns)} rows have wall times, the others times from 0 (first seen in {lines})"
            self._problems.add("trace.mixed_clocks", what, "bring every row to one clock; rows of two cannot be replayed together")
        elif absolute.all() != (declared == "absolute"):
            first = f"{name}: the first row lies {int(ns[0]) / NS:.9g} s after "
            what = first + ("1970, before 2001" if declared == "absolute" else "the trace's start, more than 31 years")
            other = "relative" if declared == "absolute" else "absolute"
            self._problems.add(
                "trace.clock", f"clock={declared}: {what}", f"declare clock {other}; or check the option unit", self._line(0)
            )
        elif int(ns.max()) - int(ns.min()) > LONGEST_NS:
            what = f"{name}: the rows span {(int(ns.max()) - int(ns.min())) / NS:.9g} s, more than 36 years"
            self._problems.add("trace.clock", what, "check the option unit, and look for rows of another clock")

    def _add_ids(self, cells: Cells) -> None:
        for row, value in enumerate(cells.values.to_pylist()):
            entries = _entries(value)
            if entries is None:
                why = "a list of ids is wanted" if value is not None else "nothing stands there; it would replay as no sharing at all"
                cells.fault(self._problems, row, "trace.prefix_ids", why, "restore the ids, or leave the column out of the map")
            else:
                try:
                    self._ids.extend(entries)
                except OverflowError:
                    wrong = next(entry for entry in entries if not 0 <= entry < 1 << 64)
                    why = f"id {wrong} is not in [0, 2**64); cutting it would merge prefixes that differ"
                    cells.fault(self._problems, row, "trace.prefix_id", why, "write ids of at most 64 bits")
            self._ends.append(len(self._ids))

    def _blocks(self, tokens_in: Int64) -> Blocks | None:
        """Ids by row; as many as the blocks that the prompt fills, or fills partly, and no other number."""
        size, rounding = self._rules.block_size, self._rules.rounding
        if size is None or rounding is None:
            return None
        offsets = frozen(np.frombuffer(self._ends, dtype=np.int64))
        found, due = np.diff(offsets), -(-tokens_in // size) if rounding == "ceil" else tokens_in // size
        for row in np.flatnonzero(found != due)[: CAP + 1].tolist():
            which = "started" if rounding == "ceil" else "full"
            what = (
                f"{self._mapped['prefix_ids']}: {found[row]} ids for {tokens_in[row]} tokens, which are {due[row]} {which} blocks of {size}"
            )
            self._problems.add("trace.block_count", what, "check block-size and rounding against the file's description", self._line(row))
        values = np.frombuffer(self._ids, dtype=np.uint64) if self._ids else np.empty(0, np.uint64)
        return Blocks(Ragged(offsets, frozen(values)), size, rounding)

    def _labels(self, role: str) -> Labels | None:
        if role not in self._names:
            return None
        names, codes = _coded(self._names[role])
        order = {name: code for code, name in enumerate(sorted(names))}
        place = np.array([*(order[name] for name in names), -1], dtype=np.int32)
        return Labels(tuple(order), frozen(place[codes]))

    def _turns(self, columns: Mapping[str, Int64], arrival: Int64) -> Turns | None:
        """Turns by session: each waits for the one before it."""
        history = self._rules.history
        if history is None:
            return None
        codes = _coded(self._names["session"])[1]
        session = _alone(codes)
        number = columns.get("turn", np.arange(self._rows, dtype=np.int64))
        unnumbered = np.flatnonzero((number < 0) & (codes >= 0))
        for row in unnumbered[: CAP + 1].tolist():
            what = f"{self._mapped['turn']}: nothing stands there, so the place of this row in its session is unknown"
            self._problems.add(
                "trace.missing", what, "restore the number, or map no turn and let the order of the file count", self._line(row)
            )
        if len(unnumbered):
            return None  # refused
        order = np.lexsort((number, session))
        follows = session[order[1:]] == session[order[:-1]]
        later, before = order[1:][follows], order[:-1][follows]
        self._check_turns(later, before, number, arrival)
        parent = np.full(self._rows, -1, dtype=np.int64)
        parent[later] = before
        starts = np.flatnonzero(np.concatenate(([True], ~follows)))
        turn = np.empty(self._rows, dtype=np.int64)
        turn[order] = np.arange(self._rows) - np.repeat(starts, np.diff(starts, append=self._rows))
        think = np.where(parent >= 0, columns.get("think", np.int64(-1)), -1)
        offsets = np.concatenate(([0], np.cumsum(parent >= 0)))
        after = Ragged(frozen(offsets), frozen(parent[parent >= 0]))
        tokens = columns["input_tokens"]
        holds = (history == "excluded") | (tokens >= (tokens + columns["output_tokens"])[parent])
        extends = np.where((parent >= 0) & holds, parent, -1)
        return Turns(frozen(session), frozen(turn), after, frozen(think), frozen(extends), history)

    def _check_turns(self, later: Int64, before: Int64, number: Int64, arrival: Int64) -> None:
        for row in later[number[later] == number[before]][: CAP + 1].tolist():
            what = f"{self._mapped['turn']}={number[row]}: stands twice in one session"
            self._problems.add("trace.turn", what, "number the turns of a session without repeats", self._line(row))
        for row in later[arrival[later] < arrival[before]][: CAP + 1].tolist():
            what = f"{self._mapped['session']}: this turn arrives before the turn that it follows"
            self._problems.add("trace.turn_order", what, "map the column that numbers the turns, or order the rows", self._line(row))


def _names(values: pa.Array) -> pa.Array:
    """Dictionary-coded text; an empty name is none."""
    text = values.cast(pa.string())
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text).dictionary_encode()


def _coded(parts: list[pa.Array]) -> tuple[list[str], Int64]:
    """(names in order of their first row, code of each row, -1 for none)."""
    whole = pa.chunked_array(parts).unify_dictionaries()
    codes = [pc.fill_null(chunk.indices, -1).cast(pa.int64()) for chunk in whole.chunks]
    return whole.chunks[0].dictionary.to_pylist(), int64_view(pa.chunked_array(codes)).copy()


def _alone(codes: Int64) -> Int64:
    """Give each row without a session (-1) one of its own, after all others."""
    session, none = codes.copy(), codes < 0
    session[none] = max(int(codes.max()), -1) + 1 + np.arange(int(none.sum()))
    return session


def _entries(value: object) -> list[int] | None:
    """Ids of one cell: a list of whole numbers, or text of them between commas, blanks or bars, in brackets or not."""
    if isinstance(value, str):
        value = [entry for entry in re.split(r"[\s,;|]+", value.strip().removeprefix("[").removesuffix("]").strip()) if entry]
    if not isinstance(value, list):
        return None
    if all(type(entry) is int for entry in value):
        return value
    return [int(entry) for entry in value] if all(re.fullmatch(r"-?\d{1,40}", str(entry), re.ASCII) for entry in value) else None


def _clock_notes(clock: ClockKind, arrival: Int64, start: int) -> tuple[str, ...]:
    notes = []
    if clock == "relative" and start:
        notes.append(f"the first request comes {start / NS:.9g} s after the file's zero; arrivals here count from that request")
    if back := int(np.count_nonzero(arrival[1:] < arrival[:-1])):
        notes.append(f"{back} rows arrive before the row above them; the transform sort puts them in order")
    return tuple(notes)


def _turn_notes(turns: Turns | None) -> tuple[str, ...]:
    if turns is None:
        return ()
    waits = np.diff(turns.after.offsets) > 0
    notes = []
    if unknown := int((waits & (turns.think_ns < 0)).sum()):
        notes.append(
            f"{unknown} of {int(waits.sum())} later turns have no known think time; start-to-start gaps would count the answer twice"
        )
    if cut := int((waits & (turns.extends < 0)).sum()):
        notes.append(f"{cut} of {int(waits.sum())} later turns have fewer input tokens than the history they should hold: they extend none")
    return tuple(notes)
