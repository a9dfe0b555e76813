"""Reader ``weka-agentic`` (kv-cache-tester): coding-agent sessions with think times, sub-agents and local block ids.

One JSON object a session; a file is one session, or a tar of many (plain or gzip). Ids count full blocks of 64 tokens and are local: block
1 of two sessions are two blocks, so they are renumbered here and never meet. Sessions start at 0 and have no arrivals of their own.

What the published files show beyond their description, and what follows from it here:

- A request's ``think_time`` counts from the end of the last request before it whose ``api_time`` is known. Directly after a request with an
  end it is the pause; after one without an end it would count service again, and the pause is unknown. With the option ``waits_for:
  last_known_end`` such a request waits for that earlier one instead, with the recorded pause, and without any such one it keeps its place
  on the session's clock: every pause is known, and a request may be sent while the one before, whose end nobody recorded, is running.
- A sub-agent's marker bears the time at which it *ended*: marker minus ``duration_ms`` lies within a second after the end of the request
  that launched it, and the next request of its parent comes after the marker. So a sub-agent branches off that request, and that next
  request joins it; the pause at a join counts from the last end, while the recorded one counts from the parent's own last end.
"""

from __future__ import annotations

import hashlib
import tarfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from harness.errors import UsageError
from workloads.schedule import Blocks, Labels, Ragged, Trace, UInt64, frozen
from workloads.traces.collect import BlockColumn, Columns, TurnColumn, pause_notes
from workloads.traces.contract import FormatInfo, Options, PrefixRule
from workloads.traces.fields import LATEST_NS, duration, elapsed, tokens
from workloads.traces.find import opened, unreadable
from workloads.traces.jsonl import Placed, parse, show
from workloads.traces.problems import ProblemList

FORMAT = "weka-agentic"
NS = 1_000_000_000
BLOCK = 64
MS_NS = 1_000_000
GRID_NS = NS
"""Ordinary stamps are whole seconds, so times computed from them may be off by one; a pause this much below zero is zero."""

DEEPEST = 8
"""Sub-agents within sub-agents that are followed; published files have one level."""

SESSION_BYTES = 1 << 28
"""Most bytes of one session, 256 MiB: some twenty times the largest published one, and little enough to hold."""

_BROKEN = (tarfile.TarError, ValueError, OverflowError, IndexError, KeyError)
"""What the tar module raises on a damaged header."""


class WekaOptions(Options):
    """Which request the next one waits for: the one before it, or the last one before it whose end was recorded."""

    waits_for: Literal["previous", "last_known_end"] = "previous"


@dataclass(frozen=True, slots=True)
class _Request:
    """A request read: its row, and start and end on its session's clock (-1: the end is unknown)."""

    row: int
    start_ns: int
    end_ns: int


class _Rows:
    """Columns of all sessions so far."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.blocks = BlockColumn(BLOCK, "floor")
        self.turns = TurnColumn()
        self.kind: list[str] = []
        self.starts = array("q")  # first row of every session
        self.digests: set[bytes] = set()
        self.repeats = 0
        self.rewritten = 0

    def prompt_grows(self, before: int, row: int) -> bool:
        """Whether ``row`` can begin with the prompt and the answer of row ``before``."""
        ids = self.blocks.ids
        first = ids[self.blocks.ends[before] : self.blocks.ends[before + 1]]
        second = ids[self.blocks.ends[row] : self.blocks.ends[row + 1]]
        columns = self.columns
        return first == second[: len(first)] and columns.tokens_in[row] >= columns.tokens_in[before] + columns.tokens_out[before]

    def digest(self, first: int) -> bytes:
        """Digest of everything read of the rows from ``first`` on."""
        columns, ids = self.columns, self.blocks.ids[self.blocks.ends[first] :]
        parts = columns.arrival[first:], columns.tokens_in[first:], columns.tokens_out[first:], self.turns.think[first:], ids
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part.tobytes() for part in parts)).digest()


@dataclass(frozen=True, slots=True)
class _Strand:
    """One agent so far: where its clock starts, who launched it, its requests, and the last ones of agents that ended since."""

    base_ns: int
    launcher: _Request | None
    depth: int
    mine: list[_Request]
    ended: list[_Request]

    @property
    def last(self) -> _Request | None:
        """The agent's last request."""
        return self.mine[-1] if self.mine else None

    def waits(self, *, known: bool) -> tuple[_Request | None, list[_Request]]:
        """What its next request waits for: (its last one, agents that ended since); or, for its first, (None, who launched it).

        ``known``: only those whose end is known, and so the last such one of its own.
        """
        others = self.ended or ([self.launcher] if self.launcher and not self.mine else [])
        own = next((one for one in reversed(self.mine) if one.end_ns >= 0 or not known), None)
        return own, [one for one in others if one.end_ns >= 0 or not known]


class _Session:
    """Reads one session into ``rows``."""

    def __init__(self, rows: _Rows, number: int, options: WekaOptions) -> None:
        self._rows = rows
        self._number = number
        self._known = options.waits_for == "last_known_end"
        self._turn = 0

    def read(self, entries: object, place: Placed, base_ns: int = 0, launcher: _Request | None = None, depth: int = 0) -> _Request | None:
        """Read one agent's entries, whose clock starts at ``base_ns``; return its last request."""
        if not isinstance(entries, list) or not entries or depth > DEEPEST:
            what = f"requests={show(entries)}: a list of at least one request is wanted, at most {DEEPEST} agents deep"
            place.add("trace.requests", what, "restore the published form")
            return None
        strand = _Strand(base_ns, launcher, depth, [], [])
        for i, entry in enumerate(entries):
            here = place.at(f"[{i}]")
            if not isinstance(entry, dict):
                here.add("trace.row_type", f"{show(entry)}: no object", "restore the published form")
            elif entry.get("type") == "subagent":
                last = self._agent(entry, strand, here)
                strand.ended.extend([last] if last else [])
            else:
                strand.mine.append(self._request(entry, strand, here))
                strand.ended.clear()
        return strand.last

    def _agent(self, entry: dict[str, Any], parent: _Strand, place: Placed) -> _Request | None:
        """Read a sub-agent, which branches off its parent's last request before its start."""
        ended = _clocked(parent.base_ns, entry, place)
        lasted = elapsed(entry, "duration_ms", MS_NS, place, None)
        if lasted > ended:
            what = f"duration_ms={show(entry.get('duration_ms'))}: the sub-agent ends at t={show(entry.get('t'))} s, before it could start"
            place.add("trace.subagent", what, "restore the published form; t is the end of a sub-agent on its parent's clock")
            return None
        start = ended - lasted
        launcher = next((request for request in reversed(parent.mine) if request.start_ns <= start), parent.launcher)
        return self.read(entry.get("requests"), place.at(".requests"), start, launcher, parent.depth + 1)

    def _request(self, entry: dict[str, Any], strand: _Strand, place: Placed) -> _Request:
        rows, before = self._rows, strand.last
        if entry.get("type") not in ("n", "s"):
            place.add("trace.type", f"type={show(entry.get('type'))}: not n, s or subagent", "restore the published form")
        start, tokens_in = _clocked(strand.base_ns, entry, place), tokens(entry, "in", place, None)
        service, think = duration(entry, "api_time", NS, place, None), duration(entry, "think_time", NS, place, None)
        request = _Request(len(rows.columns), start, start + service if service >= 0 else -1)
        rows.columns.add(start, tokens_in, tokens(entry, "out", place, None))
        rows.blocks.add(entry.get("hash_ids"), tokens_in, place, None)
        rows.kind.append("subagent" if strand.depth else "main")
        extends = before.row if before and rows.prompt_grows(before.row, request.row) else -1
        rows.rewritten += before is not None and extends < 0
        own, others = strand.waits(known=self._known)
        after = [own, *others] if own else others
        rows.turns.add(self._number, self._turn, [wait.row for wait in after], _pause(start, think, own, after), extends)
        self._turn += 1
        return request


def _clocked(base_ns: int, entry: dict[str, Any], place: Placed) -> int:
    """An entry's ``t`` on its session's clock, ns; records one that lies beyond 36 years once its agent's own start is added."""
    at = base_ns + elapsed(entry, "t", NS, place, None)
    if at <= LATEST_NS:
        return at
    what = f"t={show(entry.get('t'))}: {at / NS:.9g} s after the session's start, more than 36 years"
    place.add("trace.timestamp", what, "check the unit of t, which is seconds")
    return 0


def _pause(start: int, think: int, own: _Request | None, waits: list[_Request]) -> int:
    """Pause from the last end among ``waits`` to ``start``, -1 when an end or the pause is unknown; never from start to start."""
    if not waits or any(wait.end_ns < 0 for wait in waits):
        return -1
    if own is None:  # a sub-agent's first request has no think time of its own: its clock starts with it
        pause = start - max(wait.end_ns for wait in waits)
    elif think < 0:
        return -1
    else:
        pause = own.end_ns + think - max(wait.end_ns for wait in waits)
    return max(0, pause) if pause >= -GRID_NS else -1


class _Weka:
    """``weka-agentic``: one session, or a tar of sessions."""

    info = FormatInfo(
        format=FORMAT,
        summary="Coding-agent sessions (kv-cache-tester): turns, think times, sub-agents and prefix block ids",
        clock="session",
        time_unit="seconds from the session's start; sub-agent ends in ms, the rest in whole seconds",
        lengths="input and output tokens as the service counted them; the input holds the earlier turns",
        prefix=PrefixRule(BLOCK, "floor", "session"),
        tested="full file",
    )
    options = WekaOptions

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the key tells, in a session and in a tar's first one
        """Whether the head has the key that only this format has."""
        return b'"hash_id_scope"' in head

    def read(self, path: Path, options: WekaOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing is drawn
        """Read one session or a tar of them. Raises UsageError with every problem and its place."""
        problems, rows, skipped = ProblemList(path.name), _Rows(), dict[str, int]()
        for name, raw in documents(path, skipped):
            place = Placed(problems, name)
            document = parse(raw, None, place)
            if document is not None:
                _session(document, rows, place, options)
        if not len(rows.columns) and not len(problems):
            problems.add("trace.no_rows", "sessions=0: the file holds no session", "name the right format, or take the file again")
        problems.raise_if_any()
        return _trace(path.name, rows, skipped)


def _session(document: object, rows: _Rows, place: Placed, options: WekaOptions) -> None:
    if not isinstance(document, dict):
        place.add("trace.row_type", f"{show(document)}: a session is an object", "name the right format")
        return
    if document.get("block_size") != BLOCK or document.get("hash_id_scope") != "local":
        size, scope = show(document.get("block_size")), show(document.get("hash_id_scope"))
        what = f"block_size={size}, hash_id_scope={scope}: read are {BLOCK} and local"
        place.add("trace.block_rule", what, "sessions of another rule would share other prefixes: convert them first")
    first = len(rows.columns)
    _Session(rows, len(rows.starts), options).read(document.get("requests"), place.at(": requests"))
    if len(rows.columns) > first:
        rows.starts.append(first)
        zero = min(rows.columns.arrival[first:])
        for row in range(first, len(rows.columns)):
            rows.columns.arrival[row] -= zero
        digest = rows.digest(first)
        rows.repeats += digest in rows.digests
        rows.digests.add(digest)


def documents(path: Path, skipped: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of each session, one in memory at a time; members that are no sessions are counted."""
    with opened(path) as stream:
        head = stream.read(512)
        if head[257:262] != b"ustar":
            yield path.name, head + _limited(stream, path)
            return
    try:
        with opened(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                handle = archive.extractfile(member) if member.isfile() and member.name.endswith(".json") else None
                if handle is not None:
                    yield show(member.name)[1:-1], _limited(handle, path)
                elif not member.isdir():
                    skipped["archive member that is no .json file"] = skipped.get("archive member that is no .json file", 0) + 1
    except _BROKEN as error:
        raise unreadable(path, OSError(str(error))) from error


def _limited(stream: IO[bytes], path: Path) -> bytes:
    """The rest of a stream. Raises UsageError beyond ``SESSION_BYTES``."""
    raw = stream.read(SESSION_BYTES + 1)
    if len(raw) > SESSION_BYTES:
        what = f"a session of more than {SESSION_BYTES} bytes"
        raise UsageError.single("trace.huge_session", what, "name the right format; published sessions have a few MiB", str(path))
    return raw


def _trace(name: str, rows: _Rows, skipped: dict[str, int]) -> Trace:
    turns = rows.turns.turns()
    silent = sum(out == 0 for out in rows.columns.tokens_out)
    notes = [f"sessions start at 0 and have no arrivals of their own: {len(rows.starts)} sessions need an arrival process"]
    if rows.repeats:
        notes.append(f"{rows.repeats} sessions equal an earlier one but for their id: they are kept, each with prefixes of its own")
    if rows.rewritten:
        notes.append(f"{rows.rewritten} later turns do not hold all of the prompt and answer before: history was compacted, edited or cut")
    if silent:
        notes.append(f"{silent} requests have no output token; the file calls none of them failed, so they are kept unmarked")
    facts: dict[str, Any] = {"clock": "session", "grid_ns": GRID_NS, "skipped": skipped}
    facts |= {"kind": Labels.of(rows.kind), "blocks": _distinct(rows), "turns": turns}
    return rows.columns.trace(FORMAT, name, notes=(*notes, *pause_notes(turns)), **facts)


def _distinct(rows: _Rows) -> Blocks:
    """Renumber ids, so that blocks of two sessions differ: dense within a session, in its ids' order, sessions one after the other."""
    local = rows.blocks.ragged()
    ids: UInt64 = local.values.astype(np.uint64)
    offset = 0
    bounds = [int(local.offsets[row]) for row in (*rows.starts, len(rows.columns))]
    for low, high in pairwise(bounds):
        known, place = np.unique(ids[low:high], return_inverse=True)
        ids[low:high] = place.astype(np.uint64) + np.uint64(offset)
        offset += len(known)
    return Blocks(Ragged(local.offsets, frozen(ids)), BLOCK, "floor")


READERS = (_Weka(),)
