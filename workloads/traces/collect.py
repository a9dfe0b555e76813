"""Columns gathered row by row: counts, prefix ids and turns, in compact arrays and never as Python lists of the whole file."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from workloads.schedule import Blocks, Int64, Ragged, Trace, Turns, UInt64, frozen
from workloads.traces.jsonl import Sink, show

Rounding = Literal["ceil", "floor"]
LONG_PAUSE_NS = 600 * 1_000_000_000
"""Ten minutes, the publication length of a measured window (DESIGN 8): a pause beyond it outlasts a run."""


class Columns:
    """Arrival, input and output of every row."""

    def __init__(self) -> None:
        self.arrival = array("q")
        self.tokens_in = array("q")
        self.tokens_out = array("q")

    def __len__(self) -> int:
        return len(self.arrival)

    def add(self, arrival_ns: int, tokens_in: int, tokens_out: int) -> None:
        """Append one row."""
        self.arrival.append(arrival_ns)
        self.tokens_in.append(tokens_in)
        self.tokens_out.append(tokens_out)

    def trace(self, fmt: str, name: str, **facts: Any) -> Trace:
        """Build the trace; arrivals count from the earliest row, and what lay before it becomes a note unless the clock is absolute."""
        arrival = int64(self.arrival)
        first = int(arrival.min())
        notes = tuple(facts.pop("notes", ()))
        if first and facts.get("clock", "relative") == "relative":
            notes = (f"the first request comes {first / 1e9:.9g} s after the file's zero; arrivals here count from that request", *notes)
        rows = frozen(np.arange(len(arrival), dtype=np.int64))
        columns = frozen(arrival - first), int64(self.tokens_in), int64(self.tokens_out), rows
        return Trace(fmt, name, *columns, notes=notes, **facts)


class BlockColumn:
    """Prefix ids under one rule: ``size`` tokens a block, as many ids as blocks (``ceil``) or as full blocks (``floor``)."""

    def __init__(self, size: int, rounding: Rounding) -> None:
        self.size = size
        self._rounding = rounding
        self.ids = array("Q")
        self.ends = array("q", [0])

    def add(self, ids: object, tokens: int, problems: Sink, line: int | None) -> None:
        """Append one row's ids; records ids that are no integers of 64 bits, and a count that does not fit the row's tokens."""
        if not isinstance(ids, list):
            what = f"hash_ids={show(ids)}: a list of block ids is wanted"
            problems.add("trace.hash_ids", what, "name the right format; missing ids would replay as no sharing at all", line)
        elif self._checked(ids, problems, line) and len(ids) != self.expected(tokens):
            problems.add("trace.block_count", *_misfit(len(ids), tokens, self.size, self._rounding), line)
        self.ends.append(len(self.ids))

    def _checked(self, ids: list[Any], problems: Sink, line: int | None) -> bool:
        try:
            if bool not in set(map(type, ids)):  # true is an int to Python and no id to anyone
                self.ids.fromlist(ids)
                return True
        except (TypeError, OverflowError):
            pass
        wrong = next(x for x in ids if type(x) is not int or not 0 <= x < 1 << 64)
        what = f"hash_ids has {show(wrong)}: an id is a whole number in [0, 2**64); cutting it to fewer bits would merge distinct prefixes"
        problems.add("trace.hash_id", what, "write ids as JSON integers of at most 64 bits", line)
        return False

    def expected(self, tokens: int) -> int:
        """Ids a prompt of so many tokens has."""
        return -(-tokens // self.size) if self._rounding == "ceil" else tokens // self.size

    def ragged(self) -> Ragged:
        """The ids as they were read."""
        return Ragged(int64(self.ends), uint64(self.ids))

    def blocks(self) -> Blocks:
        """The column; ids as they were read."""
        return Blocks(self.ragged(), self.size, self._rounding)


def _misfit(count: int, tokens: int, size: int, rounding: Rounding) -> tuple[str, str]:
    """What is wrong with a number of ids, and which block sizes would make it right."""
    ceil = rounding == "ceil"
    due = -(-tokens // size) if ceil else tokens // size
    rule = "one for every started block" if ceil else "one for every full block"
    what = f"hash_ids: {count} for {tokens} tokens, where blocks of {size} tokens need {due} ({rule})"
    low, high = _fitting(count, tokens, ceil=ceil)
    if low is None or (high is not None and low > high):
        return what, "no block size fits this row: mend it, or remove it on purpose"
    sizes = f"{low} or more" if high is None else f"{low} to {high}"
    return what, f"this row fits a block_size of {sizes}: set the option if that is the file's, or remove the row on purpose"


def _fitting(count: int, tokens: int, *, ceil: bool) -> tuple[int | None, int | None]:
    """Smallest and largest size (None: no bound above) of which ``tokens`` fill ``count`` blocks; (None, None) when none does."""
    if not ceil:
        return tokens // (count + 1) + 1, tokens // count if count else None
    if not count or not tokens:
        return None, None
    return -(-tokens // count), -(-tokens // (count - 1)) - 1 if count > 1 else None


class TurnColumn:
    """Sessions and dependencies, by row."""

    def __init__(self) -> None:
        self.session = array("q")
        self.turn = array("q")
        self.after = array("q")
        self.after_ends = array("q", [0])
        self.think = array("q")
        self.extends = array("q")

    def add(self, session: int, turn: int, after: Sequence[int], think_ns: int, extends: int) -> None:
        """Append one row; a row that waits for nothing has no pause."""
        self.session.append(session)
        self.turn.append(turn)
        self.after.extend(after)
        self.after_ends.append(len(self.after))
        self.think.append(think_ns if after else -1)
        self.extends.append(extends)

    def turns(self) -> Turns:
        """The columns; ``input_tokens`` of every format here counts the earlier turns already."""
        after = Ragged(int64(self.after_ends), int64(self.after))
        think, extends = int64(self.think), int64(self.extends)
        return Turns(int64(self.session), int64(self.turn), after, think, extends, "included")


def pause_notes(turns: Turns) -> tuple[str, ...]:
    """What a user must know of recorded pauses: unknown ones, and those that outlast a run."""
    waits = np.diff(turns.after.offsets) > 0
    unknown = int((waits & (turns.think_ns < 0)).sum())
    long = turns.think_ns[turns.think_ns > LONG_PAUSE_NS]
    notes = []
    if unknown:
        notes.append(f"{unknown} of {int(waits.sum())} later turns have no known think time (-1); none is made up from gaps of starts")
    if len(long):
        worst = int(long.max()) / 1e9
        notes.append(f"{len(long)} pauses exceed 10 min, the longest lasts {worst:.9g} s: cap them in the plan of sessions (think limit)")
    return tuple(notes)


def arrival_notes(arrival_ns: Int64, unit_ns: int) -> tuple[str, ...]:
    """A note when arrivals lie on a grid far coarser than their unit, which makes bursts that were not there."""
    inorder = np.sort(arrival_ns)
    gaps = inorder[1:] - inorder[:-1]
    positive = gaps[gaps > 0]
    step = float(np.median(positive)) if len(positive) >= 20 else 0.0  # fewer gaps show no grid
    if step < 100 * unit_ns:
        return ()
    # Stamps of one grid differ from its multiples by their own rounding only: two parts in a thousand, three units in 3,000 ms.
    off = np.abs(positive - np.rint(positive / step) * step)
    if float((off <= 0.002 * step).mean()) < 0.95:
        return ()
    most = int(np.unique(arrival_ns, return_counts=True)[1].max())
    zero = 100 * (1 - len(positive) / len(gaps))
    what = f"arrivals lie on a grid of about {step / 1e9:.3g} s, coarser than their unit"
    effect = f"{zero:.1f}% of gaps are zero and up to {most} requests share one instant"
    return (f"{what}: {effect}; spread them inside the grid (transform jitter) or say that you did not",)


def first_block_notes(blocks: Blocks) -> tuple[str, ...]:
    """A note when every row starts with the same block."""
    starts = blocks.ids.offsets[:-1]
    whole = bool((np.diff(blocks.ids.offsets) > 0).all()) and len(blocks.ids) > 1
    firsts = blocks.ids.values[starts] if whole else None
    if firsts is None or not (firsts == firsts[0]).all():
        return ()
    return (f"every row starts with block {int(firsts[0])}: the first {blocks.size} tokens hit any warm prefix cache",)


def is_prefix(blocks: Ragged, parent: int, child: int, count: int) -> bool:
    """Whether the first ``count`` ids of row ``parent`` are the first of row ``child``."""
    first, second = blocks.row(parent)[:count], blocks.row(child)[:count]
    return len(first) == len(second) == count and bool(np.array_equal(first, second))


def int64(values: array[int]) -> Int64:
    """The array's own memory as a read-only column (n,)."""
    return frozen(np.frombuffer(values, dtype=np.int64)) if values else frozen(np.empty(0, np.int64))


def uint64(values: array[int]) -> UInt64:
    """The array's own memory as a read-only column (n,)."""
    column: npt.NDArray[np.uint64] = np.frombuffer(values, dtype=np.uint64) if values else np.empty(0, np.uint64)
    return frozen(column)
