"""Rows of a trace and the absolute send plan made of them: columnar, immutable, pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
_A = TypeVar("_A", bound=npt.NDArray[np.generic])

ClockKind = Literal["absolute", "relative", "session", "none"]
"""absolute: wall time; relative: seconds from the trace's start; session: every session starts at 0 and sessions have no arrivals of their
own; none: rows carry no time at all. The last two need arrivals from a process."""


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """A column of names, dictionary-coded: ``codes`` (n,) int32 index into ``names``, -1 for a row without one."""

    names: tuple[str, ...]
    codes: Int32

    @classmethod
    def of(cls, values: Sequence[str | None]) -> Labels:
        """Code ``values``; names are sorted, so that equal columns are equal whatever order rows come in."""
        names = tuple(sorted({v for v in values if v is not None}))
        index = {name: i for i, name in enumerate(names)}
        return cls(names, frozen(np.fromiter((-1 if v is None else index[v] for v in values), np.int32, len(values))))

    def take(self, rows: Int64) -> Labels:
        """Rows by index (k,); names stay, also those that no row bears any more."""
        return Labels(self.names, frozen(self.codes[rows]))

    def at(self, row: int) -> str | None:
        """Name of one row."""
        code = int(self.codes[row])
        return None if code < 0 else self.names[code]

    def values(self) -> list[str | None]:
        """Every row's name."""
        return [None if code < 0 else self.names[code] for code in self.codes.tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Lists of unequal length: row i is ``values[offsets[i]:offsets[i + 1]]``; ``offsets`` (n + 1,) int64 from 0."""

    offsets: Int64
    values: npt.NDArray[np.generic]

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]], dtype: npt.DTypeLike) -> Ragged:
        """Join rows; every value must fit ``dtype`` (OverflowError otherwise, never a wrapped id)."""
        lists = [np.array(row, dtype=dtype) for row in rows]
        offsets = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in lists], out=offsets[1:])
        values = np.concatenate(lists) if lists else np.empty(0, dtype)
        return cls(frozen(offsets), frozen(values))

    def row(self, i: int) -> npt.NDArray[np.generic]:
        """Values of one row."""
        return self.values[int(self.offsets[i]) : int(self.offsets[i + 1])]

    def take(self, rows: Int64) -> Ragged:
        """Rows by index (k,)."""
        lengths = (self.offsets[1:] - self.offsets[:-1])[rows]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        # Position of each value: its row's start in the source plus its place within the row.
        within = np.arange(int(offsets[-1]), dtype=np.int64) - np.repeat(offsets[:-1], lengths)
        return Ragged(frozen(offsets), frozen(self.values[np.repeat(self.offsets[:-1][rows], lengths) + within]))

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Prefix identities: ``ids`` ragged uint64, one id per block of ``size`` tokens from the start of the prompt.

    Two prompts share a prefix as far as their ids agree from the first on. ``rounding`` ceil: the last id may name a block that the prompt
    fills partly; floor: only full blocks have ids and the tail after them is the request's own. Ids are unique within the trace (a reader
    whose ids are local to a session has made them so).
    """

    ids: Ragged
    size: int
    rounding: Literal["ceil", "floor"]

    def take(self, rows: Int64) -> Blocks:
        """Rows by index (k,)."""
        return Blocks(self.ids.take(rows), self.size, self.rounding)


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Which rows belong to one conversation and what each waits for.

    ``session`` (n,) int64 number of the session; ``turn`` (n,) 0-based within it; ``after`` ragged int64 rows whose end this row waits for
    (none: it arrives by the clock); ``think_ns`` (n,) pause from the last of these ends to this row's arrival, -1 unknown; ``extends`` (n,)
    row whose prompt and answer are the beginning of this prompt, -1 none. ``history``: included: ``input_tokens`` counts the earlier turns
    already; excluded: it counts the new part only.
    """

    session: Int64
    turn: Int64
    after: Ragged
    think_ns: Int64
    extends: Int64
    history: Literal["included", "excluded"]

    def take(self, rows: Int64) -> Turns:
        """Rows by index (k,), each once at most.

        References to rows that are gone are dropped, so a row left without any arrives by the clock.
        """
        place = np.full(len(self.session), -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        kept = self.after.take(rows)
        moved = place[kept.values.astype(np.int64)]
        offsets = np.concatenate(([0], np.cumsum(moved >= 0)))[kept.offsets]
        counts = np.diff(offsets)
        extends = np.where(self.extends[rows] >= 0, place[self.extends[rows]], -1)
        after = Ragged(frozen(offsets), frozen(moved[moved >= 0]))
        think = np.where(counts > 0, self.think_ns[rows], -1)
        return Turns(frozen(self.session[rows]), frozen(self.turn[rows]), after, frozen(think), frozen(extends), self.history)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Rows of a trace, columnar and read-only; a reader gives them in file order.

    ``arrival_ns`` (n,) from the first instant of the trace, >= 0, ascending unless the file is not (the transform ``sort`` mends that);
    ``input_tokens``/``output_tokens`` (n,) >= 0; ``source_row`` (n,) zero-based data row in the file. Optional columns are None where the
    format has none: ``client`` tenant, ``kind`` request class, ``failed`` (n,) true where the traced service did not answer,
    ``blocks``, ``turns``. ``grid_ns``: the resolution its stamps were rounded to. ``skipped``: rows left out, by reason. ``notes``: what a
    user must know of this file, one sentence each. ``unpinned``: reader options that would pin what was read from beside the file,
    with the values that pin what lies there now; a manifest has to give them.
    """

    format: str
    name: str
    arrival_ns: Int64
    input_tokens: Int64
    output_tokens: Int64
    source_row: Int64
    clock: ClockKind = "relative"
    grid_ns: int = 1
    sha256: str = ""
    licence: str = ""
    attribution: str = ""
    client: Labels | None = None
    kind: Labels | None = None
    failed: Bools | None = None
    blocks: Blocks | None = None
    turns: Turns | None = None
    skipped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unpinned: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def take(self, rows: Int64) -> Trace:
        """Rows by index (k,), every column alike."""
        return replace(
            self,
            arrival_ns=frozen(self.arrival_ns[rows]),
            input_tokens=frozen(self.input_tokens[rows]),
            output_tokens=frozen(self.output_tokens[rows]),
            source_row=frozen(self.source_row[rows]),
            client=self.client and self.client.take(rows),
            kind=self.kind and self.kind.take(rows),
            failed=None if self.failed is None else frozen(self.failed[rows]),
            blocks=self.blocks and self.blocks.take(rows),
            turns=self.turns and self.turns.take(rows),
        )


class Prompts(Protocol):
    """Prompts of a schedule by request id; pure, so that any process makes the same ones in any order."""

    def ids(self, request_id: int) -> npt.NDArray[np.int32]:
        """Token ids, as the server will count them."""
        ...

    def text(self, request_id: int) -> str | None:
        """Text to send instead of ids; None when the prompt has no text that encodes back to its ids."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """What will be sent and when, by request id 0..n-1 in order of ``arrival_ns``.

    ``arrival_ns`` (n,) is relative to the run's epoch; for a turn that waits for others (``turns.after`` not empty) it is the planned
    arrival were every answer to take no time, and the real one is decided by the run. ``max_tokens`` (n,) is what the server is told
    (-1: nothing). ``output_tokens`` (n,) is the realized length and goes to ``truth.parquet`` only; ``stop_after`` (n,) is -1 unless the
    control is client_stop; ``cancel_after_ns`` (n,) is when the client gives up, from its arrival, -1 never; ``priority`` (n,) or None.
    ``recipe`` is what the plan chose, as canonical JSON; ``workloads.content_digest`` covers it, every column and every prompt.
    """

    arrival_ns: Int64
    input_tokens: Int64
    output_tokens: Int64
    max_tokens: Int64
    stop_after: Int64
    source_row: Int64
    prompts: Prompts
    transforms: tuple[dict[str, object], ...]
    ignore_eos: bool
    recipe: bytes
    client: Labels | None = None
    request_class: Labels | None = None
    turns: Turns | None = None
    priority: Int64 | None = None
    cancel_after_ns: Int64 | None = None

    def __len__(self) -> int:
        return len(self.arrival_ns)


def frozen(column: _A) -> _A:
    """Make ``column`` read-only and return it."""
    column.flags.writeable = False
    return column


def array_digest(*arrays: npt.NDArray[np.generic]) -> str:
    """sha256 over dtype, shape and little-endian bytes of each array."""
    digest = hashlib.sha256()
    for array in arrays:
        little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
        digest.update(f"{little.dtype.str}{little.shape}".encode())
        digest.update(little.tobytes())
    return digest.hexdigest()
