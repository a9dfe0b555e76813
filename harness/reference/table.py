"""Columnar rows of requests: what every record of the contract is made of. Read-only from construction on.

One int64 array ``cells`` (columns, members) a queue, copied by the transition and never written again, so that a decision over hundreds of
requests costs a few array operations. No column holds a realized length, a token id or a physical block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Phase(IntEnum):
    """Annotation of an interval, always derived from the frontiers (``Table.phase``) and never chosen."""

    DECODE = 0
    PREFILL = 1
    REBUILD = 2
    """Recomputes rows below the semantic frontier after a preemption; emits nothing and debits no service."""


_ONE, _REBUILD = np.int64(1), np.int64(Phase.REBUILD)  # comparing arrays with enum members costs microseconds


class Terminal(IntEnum):
    """How a request ended; NONE while it lives."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4
    REJECTED = 5
    """Declined by the policy while it waited: no output was ever emitted."""


FINISH_REASONS: Final[Mapping[int, str]] = {
    Terminal.STOP: "stop",
    Terminal.LENGTH: "length",
    Terminal.ABORT: "abort",
    Terminal.ERROR: "error",
}

HANDLE, GENERATION, SNAPSHOT, EPOCH, RESIDENT = range(5)
"""Identity that authorizes work, then the start of the only legal next interval: shared by tables, work and results.

HANDLE: number of the request, never reused. GENERATION: a cancellation publishes the next one, so an id alone authorizes nothing.
SNAPSHOT: version of the request's own state. EPOCH: counts suspensions, so that a receipt of an earlier one cannot serve a later.
RESIDENT: rows whose KV is held now; below COMPUTED only after a preemption. Of a waiting request: a credit, rows it can take from a prefix
store, which take room when it is admitted.
"""
COMPUTED, COMMITTED, EMITTED, LAST_NS, READY = range(5, 10)  # from RESIDENT to EMITTED in the order of a result's clocks
"""Facts: computed c and committed k (equal at every cut), emitted e, instant of the last emission (-1: none), dependencies ready (0/1)."""
PROMPT, MAXIMUM, PRIORITY, CLIENT, ORDER, ARRIVAL_NS, TTFT_NS, TBT_NS = range(10, 18)
"""Declarations: prompt rows p, greatest output, priority (lower first), client, arrival order and instant, latency limits (-1: none)."""
RESERVED, PRESERVED = range(18, 20)
"""Facts: rows that admission set aside for a running request (0: the rule sets nothing aside), rows of a suspended one that a second tier
holds ready (0: none)."""
COLUMNS: Final = 20

NO_LIMIT: Final = -1


class _Column:
    """Read access to one column of a table by name."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, table: Table, _owner: type[Table]) -> Int64:
        column: Int64 = table.cells[self._index]
        return column


class _Buffer:
    """Storage that successive snapshots of a growing queue share: each sees only the columns it was made with, none is written twice."""

    __slots__ = ("cells", "used")

    def __init__(self, cells: Int64, used: int) -> None:
        self.cells, self.used = cells, used


class Table:
    """Members of one queue in queue order: ``cells`` (COLUMNS, n) int64, read-only from construction on.

    ``phase`` and ``limit`` are derived from the frontiers once and kept: the annotation of the next interval and its greatest legal end
    (F01-F04; a rebuild ends at the computed frontier). The interval starts at ``resident`` in every phase.
    """

    __slots__ = ("_buffer", "_decoding", "_end", "_limit", "_phase", "_size", "cells")

    handle = _Column(HANDLE)
    generation = _Column(GENERATION)
    snapshot = _Column(SNAPSHOT)
    epoch = _Column(EPOCH)
    resident = _Column(RESIDENT)
    computed = _Column(COMPUTED)
    committed = _Column(COMMITTED)
    emitted = _Column(EMITTED)
    last_ns = _Column(LAST_NS)
    ready = _Column(READY)
    prompt = _Column(PROMPT)
    maximum = _Column(MAXIMUM)
    priority = _Column(PRIORITY)
    client = _Column(CLIENT)
    order = _Column(ORDER)
    arrival_ns = _Column(ARRIVAL_NS)
    ttft_ns = _Column(TTFT_NS)
    tbt_ns = _Column(TBT_NS)
    reserved = _Column(RESERVED)
    preserved = _Column(PRESERVED)

    def __init__(self, cells: Int64, buffer: _Buffer | None = None, end: int = 0) -> None:
        cells.flags.writeable = False
        self._buffer, self._end = buffer, end
        self.cells = cells
        self._size: int = cells.shape[1]
        self._phase: Int64 | None = None
        self._limit: Int64 | None = None
        self._decoding: bool | None = None

    def __len__(self) -> int:
        return self._size

    @property
    def decoding(self) -> bool:
        """Whether every member decodes next, as in most iterations: nothing to rebuild, every prompt complete."""
        if self._decoding is None:
            cells = self.cells
            whole = cells[RESIDENT].tobytes() == cells[COMPUTED].tobytes()
            self._decoding = whole and not occurs(cells[COMPUTED] < cells[PROMPT])
        return self._decoding

    @property
    def phase(self) -> Int64:
        """Phase of each member's next interval (n,)."""
        if self._phase is None:
            self._phase = self._phases()
            self._phase.flags.writeable = False
        return self._phase

    @property
    def limit(self) -> Int64:
        """Greatest legal end of each member's next interval (n,)."""
        if self._limit is None:
            self._limit = self._limits()
            self._limit.flags.writeable = False
        return self._limit

    def take(self, at: Int64) -> Table:
        """Members by position (k,)."""
        return Table(self.cells.take(at, axis=1))

    def without(self, at: Int64) -> Table:
        """All members but those at positions (k,); order is kept."""
        if not len(at):
            return self
        if is_identity(at):
            return Table(self.cells[:, len(at) :], self._buffer, self._end)  # the head of a queue leaves without a copy of the rest
        keep = np.ones(len(self), bool)
        keep[at] = False
        return Table(self.cells.compress(keep, axis=1))

    def with_more(self, new: Table) -> Table:
        """All members, then ``new`` ones; over a sequence of calls the cost is linear in what came in, however long the queue is."""
        end, buffer = self._end + len(new), self._buffer
        if buffer is None or buffer.used != self._end or end > buffer.cells.shape[1]:
            end = self._size + len(new)
            buffer = _Buffer(np.empty((COLUMNS, max(64, 2 * end)), np.int64), self._size)
            buffer.cells[:, : self._size] = self.cells
        buffer.cells[:, end - len(new) : end] = new.cells
        buffer.used = end
        return Table(buffer.cells[:, end - len(new) - self._size : end], buffer, end)

    def _phases(self) -> Int64:
        if self.decoding:
            return np.zeros(self._size, np.int64)
        cells = self.cells
        prefill: Int64 = (cells[COMPUTED] < cells[PROMPT]).astype(np.int64)  # Phase.PREFILL is 1
        return np.where(cells[RESIDENT] < cells[COMPUTED], _REBUILD, prefill) if self._some_lost() else prefill

    def _limits(self) -> Int64:
        computed = self.cells[COMPUTED]
        next_row: Int64 = computed + _ONE
        if self.decoding:
            return next_row
        limit: Int64 = np.maximum(next_row, self.cells[PROMPT])
        return np.where(self.cells[RESIDENT] < computed, computed, limit) if self._some_lost() else limit

    def _some_lost(self) -> bool:
        """Whether rows of some member are not where they were computed: most often none, which comparing bytes tells cheaply."""
        lost: bool = self.cells[RESIDENT].tobytes() != self.cells[COMPUTED].tobytes()
        return lost


EMPTY: Final = Table(np.zeros((COLUMNS, 0), np.int64))
"""A queue without members."""


def join(tables: Sequence[Table]) -> Table:
    """Members of several tables, one after the other."""
    parts = [table for table in tables if len(table)]
    if len(parts) <= 1:
        return parts[0] if parts else EMPTY
    return Table(np.concatenate([table.cells for table in parts], axis=1))


_KEPT: Final = 4096
"""Members for which positions and ones are kept ready; more than any server runs at once, and longer queues only cost more."""
_IDENTITY: Final = np.arange(_KEPT)
_IDENTITY.flags.writeable = False
_IDENTITY_BYTES: Final = _IDENTITY.tobytes()
_INT64_BYTES: Final = 8
_ONES: Final = np.ones(4 * _KEPT, np.int64)
_ONES.flags.writeable = False
_ONES_BYTES: Final = _ONES.tobytes()
_ZERO_BYTES: Final = bytes(8 * _KEPT)


def is_identity(at: Int64) -> bool:
    """Whether positions are 0, 1, 2, ...: every member from the first on, in its order (False beyond the 4096 that are kept ready).

    Bytes of narrower integers would read as other positions, so only 64 bits count.
    """
    return at.itemsize == _INT64_BYTES and _IDENTITY_BYTES.startswith(at.tobytes())


def pick(members: Table, at: Int64) -> Int64:
    """Columns of the members at positions ``at`` (COLUMNS, k), without a copy when they are all members in their order."""
    return members.cells if len(at) == len(members) and is_identity(at) else members.cells.take(at, axis=1)


def positions_of(members: Table) -> Int64:
    """Every position in order."""
    return _IDENTITY[: len(members)] if len(members) <= _KEPT else np.arange(len(members))


def ones(count: int) -> Int64:
    """That many ones (read-only): the widths of an iteration that only decodes."""
    return _ONES[:count] if count <= _KEPT else np.ones(count, np.int64)


def all_ones(values: Int64) -> bool:
    """Whether every value is 1 (any shape). Comparing bytes costs a tenth of making an array of truths."""
    return _ONES_BYTES.startswith(values.tobytes()) or (values.size > len(_ONES) and bool((values == 1).all()))


def all_zero(values: Int64) -> bool:
    """Whether every value is 0 (any shape)."""
    return _ZERO_BYTES.startswith(values.tobytes()) or (values.size > _KEPT and not values.any())


def occurs(mask: Bools) -> bool:
    """Whether anything in a (contiguous) mask holds: ``mask.any()`` at a tenth of its cost on the short columns of an iteration."""
    return b"\1" in mask.tobytes()


def in_blocks(rows: Int64, block: int) -> Int64:
    """Rows that whole blocks of ``block`` rows take up for each count (n,): what an owner of blocks gives for it."""
    if block == 1:
        return rows
    whole: Int64 = -(-rows // block) * block
    return whole


def one_in_blocks(rows: int, block: int) -> int:
    """``in_blocks`` of one count."""
    return -(-rows // block) * block
