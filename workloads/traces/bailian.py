"""Reader ``qwen-bailian`` (Alibaba Cloud): arrivals in fractional seconds, chat trees, one id per started block of 16 tokens.

Written to the published description of the columns: no published file was at hand, and ``tested`` says so. Ids are salted per trace (their
authors' word; the paper's "per record" would leave no sharing at all), so they compare within one file only. A prompt is rebuilt with one
fixed list of tokens per id. ``chat_id`` names a request and ``parent_chat_id`` the request it follows, -1 for none.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
from pydantic import Field

from workloads.schedule import Labels, Trace, Turns
from workloads.traces.collect import BlockColumn, Columns, TurnColumn, arrival_notes, first_block_notes, int64, is_prefix, pause_notes
from workloads.traces.contract import FormatInfo, Options, PrefixRule
from workloads.traces.fields import elapsed, integer, text, tokens
from workloads.traces.jsonl import JsonLines, first_object
from workloads.traces.problems import ProblemList

FORMAT = "qwen-bailian"
NS = 1_000_000_000
ROOT = -1
_KEYS = frozenset({"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "type", "turn", "hash_ids"})


class BailianOptions(Options):
    """For files of this shape with another block size."""

    block_size: int = Field(16, ge=1, le=1 << 20)


class _Chats:
    """Chat columns as they stand in the file."""

    def __init__(self) -> None:
        self.chat = array("q")
        self.parent = array("q")
        self.turn = array("q")
        self.kind: list[str] = []
        self.line = array("q")


class _Bailian:
    """``qwen-bailian``: chat, API, coder and thinking traces of one release."""

    info = FormatInfo(
        format=FORMAT,
        summary="Qwen-Bailian usage traces: arrivals, token counts, chat trees, request types and prefix block ids",
        clock="relative",
        time_unit="seconds from the trace's start, fractional",
        lengths="input and output tokens; the input holds the earlier turns",
        prefix=PrefixRule(16, "ceil", "trace"),
        tested="schema",
    )
    options = BailianOptions

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the keys tell
        """Whether the first row has chat ids and block ids."""
        return first_object(head).keys() >= {"chat_id", "parent_chat_id", "hash_ids"}

    def read(self, path: Path, options: BailianOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing is drawn
        """Read the whole file. Raises UsageError with every problem and its line."""
        problems = ProblemList(path.name)
        rows, columns, chats = JsonLines(path, problems), Columns(), _Chats()
        blocks = BlockColumn(options.block_size, "ceil")
        for line, row in rows:
            tokens_in = tokens(row, "input_length", problems, line)
            arrival = elapsed(row, "timestamp", NS, problems, line)
            columns.add(arrival, tokens_in, tokens(row, "output_length", problems, line))
            blocks.add(row.get("hash_ids"), tokens_in, problems, line)
            chats.chat.append(integer(row, "chat_id", problems, line, low=0))
            chats.parent.append(integer(row, "parent_chat_id", problems, line, low=ROOT))
            chats.turn.append(integer(row, "turn", problems, line, low=1))
            chats.kind.append(text(row, "type", problems, line))
            chats.line.append(line)
        problems.raise_if_any()
        turns, notes = _turns(chats, columns, blocks, problems)
        problems.raise_if_any()
        prefix = blocks.blocks()
        notes = (*arrival_notes(int64(columns.arrival), 1), *first_block_notes(prefix), *notes, *pause_notes(turns), *rows.unread(_KEYS))
        return columns.trace(FORMAT, path.name, kind=Labels.of(chats.kind), blocks=prefix, turns=turns, notes=notes)


def _turns(chats: _Chats, columns: Columns, blocks: BlockColumn, problems: ProblemList) -> tuple[Turns, tuple[str, ...]]:
    """Each row waits for its parent where the file holds it; rows whose parent it lacks arrive by the clock, in one session per parent."""
    parents = _parent_rows(chats, problems)
    if len(problems):
        return TurnColumn().turns(), ()
    sessions = _sessions(chats, columns, parents, problems)
    column, ids = TurnColumn(), blocks.ragged()
    for row, parent in enumerate(parents):
        full = columns.tokens_in[parent] // blocks.size if parent >= 0 else 0
        grown = parent >= 0 and columns.tokens_in[row] >= columns.tokens_in[parent] + columns.tokens_out[parent]
        extends = parent if grown and is_prefix(ids, parent, row, full) else -1
        column.add(sessions[row], chats.turn[row] - 1, (parent,) if parent >= 0 else (), -1, extends)
    lost = sum(parent < 0 and chats.parent[row] != ROOT for row, parent in enumerate(parents))
    changed = sum(parent >= 0 and column.extends[row] < 0 for row, parent in enumerate(parents))
    notes = []
    if lost:
        notes.append(f"{lost} rows name a parent that the file does not hold: they arrive by the clock, and nothing replaces the parent")
    if changed:
        notes.append(f"{changed} later turns do not begin with their parent's full blocks and answer: their history was cut or rewritten")
    return column.turns(), tuple(notes)


def _parent_rows(chats: _Chats, problems: ProblemList) -> list[int]:
    """Row of each row's parent, -1 for a root and for a parent that is not there; a chat id that stands twice is recorded."""
    place: dict[int, int] = {}
    for row, chat in enumerate(chats.chat):
        if place.setdefault(chat, row) != row:
            what = f"chat_id={chat}: stands already on line {chats.line[place[chat]]}, so which row its children follow cannot be known"
            problems.add("trace.repeated_id", what, "remove one of the two on purpose", chats.line[row])
    return [place.get(parent, -1) for parent in chats.parent]


def _sessions(chats: _Chats, columns: Columns, parents: list[int], problems: ProblemList) -> list[int]:
    """Number of each row's chat tree, by the first row in the file; a parent must not arrive after its child."""
    roots: dict[tuple[str, int], int] = {}
    root_of: list[tuple[str, int] | None] = [None] * len(parents)
    for row in np.argsort(int64(columns.arrival), kind="stable").tolist():
        parent = parents[row]
        if parent < 0:
            lost = chats.parent[row] != ROOT
            root_of[row] = ("parent", chats.parent[row]) if lost else ("chat", chats.chat[row])
        elif root_of[parent] is not None:
            root_of[row] = root_of[parent]
        else:
            what = f"parent_chat_id={chats.parent[row]}: arrives later than this row or is the row itself: no turn can wait for it"
            problems.add("trace.parent_order", what, "mend the ids or the times", chats.line[row])
    return [roots.setdefault(root or ("none", row), len(roots)) for row, root in enumerate(root_of)]


READERS = (_Bailian(),)
