"""The four records of the scheduler contract: what a policy may see, what it decides, what execution reports.

Four writers, four records: the workload is declared, the state is published by the transition alone, the plan by a policy, the result by
execution. A plan advances nothing; only a validated, completed result does. Formulas F01-F07, F12-F14, F20-F21. Counts are tokens (rows
of the KV cache), instants and durations ns on the engine's clock.

Inside, records are columnar: one int64 array ``cells`` (columns, members) a queue, read-only, copied by the transition and never written
again, so that a decision over hundreds of requests costs a few array operations. No column holds a realized length, a token id or a
physical block: what is not in the record cannot be read by a policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class Phase(IntEnum):
    """Annotation of an interval, always derived from the frontiers (``Table.phase``) and never chosen."""

    DECODE = 0
    PREFILL = 1
    REBUILD = 2
    """Recomputes rows below the semantic frontier after a preemption; emits nothing and debits no service."""


_REBUILD = np.int64(Phase.REBUILD)  # comparing arrays with enum members costs microseconds


class Terminal(IntEnum):
    """How a request ended; NONE while it lives."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4


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
COLUMNS: Final = 18

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

    __slots__ = ("_buffer", "_end", "_limit", "_phase", "_size", "cells")

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

    def __init__(self, cells: Int64, buffer: _Buffer | None = None, end: int = 0) -> None:
        cells.flags.writeable = False
        self._buffer, self._end = buffer, end
        self.cells = cells
        self._size: int = cells.shape[1]
        self._phase: Int64 | None = None
        self._limit: Int64 | None = None

    def __len__(self) -> int:
        return self._size

    @property
    def phase(self) -> Int64:
        """Phase of each member's next interval (n,)."""
        if self._phase is None:
            self._derive()
        return self._phase  # type: ignore[return-value]  # set by _derive

    @property
    def limit(self) -> Int64:
        """Greatest legal end of each member's next interval (n,)."""
        if self._limit is None:
            self._derive()
        return self._limit  # type: ignore[return-value]  # set by _derive

    def take(self, at: Int64) -> Table:
        """Members by position (k,)."""
        return Table(self.cells.take(at, axis=1))

    def without(self, at: Int64) -> Table:
        """All members but those at positions (k,); order is kept."""
        if not len(at):
            return self
        if int(at[0]) == 0 and int(at[-1]) == len(at) - 1 and at.tobytes() == _IDENTITY_BYTES[: 8 * len(at)]:
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

    def _derive(self) -> None:
        cells = self.cells
        computed, prompt = cells[COMPUTED], cells[PROMPT]
        rebuild, prefill = cells[RESIDENT] < computed, computed < prompt
        if occurs(rebuild) or occurs(prefill):
            self._phase = np.where(rebuild, _REBUILD, prefill)
            self._limit = np.where(rebuild, computed, np.where(prefill, prompt, computed + 1))
        else:  # nothing but decodes, as most iterations are
            self._phase, self._limit = np.zeros(self._size, np.int64), computed + 1
        self._phase.flags.writeable = self._limit.flags.writeable = False


EMPTY: Final = Table(np.zeros((COLUMNS, 0), np.int64))
"""A queue without members."""


class Declaration(NamedTuple):
    """What a client declared of a request: all that an online policy may ever know of it beside its observed progress.

    ``priority``: lower runs first. ``client`` numbers the tenant. ``ttft_ns``, ``tbt_ns``: declared latency limits, NO_LIMIT for none.
    """

    handle: int
    arrival_order: int
    prompt_tokens: int
    max_output_tokens: int
    priority: int = 0
    client: int = 0
    arrival_ns: int = 0
    ttft_ns: int = NO_LIMIT
    tbt_ns: int = NO_LIMIT
    generation: int = 0


def declared_table(declarations: Sequence[Declaration]) -> Table:
    """Rows of requests that were declared and have not run: nothing computed, nothing emitted, ready."""
    cells = np.zeros((COLUMNS, len(declarations)), np.int64)
    if declarations:
        columns = np.array(declarations, np.int64).T
        cells[HANDLE], cells[ORDER], cells[PROMPT : CLIENT + 1], cells[ARRIVAL_NS:] = columns[0], columns[1], columns[2:6], columns[6:9]
        cells[GENERATION] = columns[9]
    cells[LAST_NS], cells[READY] = -1, 1
    return Table(cells)


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits of one iteration (F05, F06, F20, F21) and of the cache (F28), in tokens and sequences.

    ``kv_watermark`` rows are held back from admission, never from requests that already run.
    """

    tokens: int
    sequences: int
    kv_capacity: int
    kv_watermark: int = 0


@dataclass(frozen=True, slots=True)
class WorkloadManifest:
    """The online projection of a workload: declarations and limits, no realized lengths. ``parameters``: the policy's own, by name."""

    workload_id: str
    clock: str
    policy_id: str
    policy_version: str
    tie_break: tuple[str, ...]
    budgets: Budgets
    requests: tuple[Declaration, ...] = ()
    parameters: tuple[tuple[str, int], ...] = ()


class SchedulerState(NamedTuple):
    """Everything known at one cut; the four tables partition the live requests, and each member stands in one of them only.

    ``finished`` holds what became terminal in the last transition. ``service`` (2, clients): completed prefill and decode rows of each
    client (F52, F53). ``held_rows``: KV rows resident now, of running members (a waiting one has a credit at most). ``memory``: what the
    policy published about its own past (None: it has none).
    """

    decision_id: int
    state_version: int
    now_ns: int
    running: Table
    suspended: Table
    waiting: Table
    finished: Table
    service: Int64
    held_rows: int = 0
    recomputed_rows: int = 0
    memory: object = None


class Moves(NamedTuple):
    """Members that leave a queue: positions in it (k,), and handle and generation (2, k) as the identity that is meant."""

    at: Int64
    keys: Int64


NO_MOVES: Final = Moves(np.zeros(0, np.int64), np.zeros((2, 0), np.int64))

POSITION, PHASE, END = 5, 6, 7
WORK_COLUMNS: Final = 8


class Work(NamedTuple):
    """Authorized intervals, one a selected request, in packed order.

    ``at`` (n,): positions among the members that may run (``eligible``). ``cells`` (8, n): handle, generation, snapshot, epoch, start,
    local position of the first row, phase, end. Positions of the rows are start, start + 1, ...; the column binds them.
    """

    at: Int64
    cells: Int64

    @property
    def widths(self) -> Int64:
        """Rows of each interval q (F12)."""
        widths: Int64 = self.cells[END] - self.cells[RESIDENT]
        return widths


class Ledger(NamedTuple):
    """What a plan uses: rows (F21), request generations (F20), KV rows resident after it completes."""

    tokens: int
    sequences: int
    kv_rows: int


class IterationPlan(NamedTuple):
    """A policy's decision for one iteration.

    ``order`` (fields, n): the tie-break evidence, one column for each interval, ascending. ``preempt`` leave the running queue (their KV
    is freed before execution), ``resume`` leave the suspended and ``admit`` the waiting queue. ``notes``: score inputs kept as evidence.
    """

    decision_id: int
    input_state_version: int
    policy_id: str
    policy_version: str
    work: Work
    order: Int64
    ledger: Ledger
    preempt: Moves = NO_MOVES
    resume: Moves = NO_MOVES
    admit: Moves = NO_MOVES
    notes: tuple[tuple[str, int], ...] = ()


PLANNED_END, COMPLETED_END, COMPUTED_BEFORE, EMITTED_BEFORE = range(5, 9)
RESIDENT_AFTER, COMPUTED_AFTER, COMMITTED_AFTER, EMITTED_AFTER, TERMINAL, FAILURE = range(9, 15)
RESULT_COLUMNS: Final = 15


class IterationResult(NamedTuple):
    """Facts of one completed iteration, one column for each planned interval.

    ``rows`` (15, n): identity and start as planned, planned and completed end, clocks before and after, Terminal, failure code (0: none).
    ``tokens`` (n,): ids of emitted tokens, -1 where none; None when execution only counts (virtual time). ``debits`` (2, clients):
    completed semantic service; rebuilt rows are a cost in ``recomputed_rows`` and no service.
    """

    decision_id: int
    input_state_version: int
    rows: Int64
    debits: Int64
    recomputed_rows: int = 0
    tokens: Int64 | None = None


def join(tables: Sequence[Table]) -> Table:
    """Members of several tables, one after the other."""
    parts = [table for table in tables if len(table)]
    if len(parts) <= 1:
        return parts[0] if parts else EMPTY
    return Table(np.concatenate([table.cells for table in parts], axis=1))


def eligible(state: SchedulerState, preempt: Moves = NO_MOVES, resume: Moves = NO_MOVES, admit: Moves = NO_MOVES) -> Table:
    """Members that may run under a plan's queue intents: the running ones it keeps, then resumed, then admitted."""
    if not (len(preempt.at) or len(resume.at) or len(admit.at)):
        return state.running
    return join((state.running.without(preempt.at), state.suspended.take(resume.at), state.waiting.take(admit.at)))


_IDENTITY: Final = np.arange(4096)
_IDENTITY.flags.writeable = False
_IDENTITY_BYTES: Final = _IDENTITY.tobytes()


def pick(members: Table, at: Int64) -> Int64:
    """Columns of the members at positions ``at`` (COLUMNS, k), without a copy when they are all members in their order."""
    count = len(at)
    if count == len(members) and at.tobytes() == _IDENTITY_BYTES[: 8 * count]:
        return members.cells
    return members.cells.take(at, axis=1)


def positions_of(members: Table) -> Int64:
    """Every position in order."""
    return _IDENTITY[: len(members)] if len(members) <= len(_IDENTITY) else np.arange(len(members))


def occurs(mask: npt.NDArray[np.bool_]) -> bool:
    """Whether anything in a (contiguous) mask holds: ``mask.any()`` at a tenth of its cost on the short columns of an iteration."""
    return b"\1" in mask.tobytes()


def credit_rows(state: SchedulerState, admit: Moves) -> int:
    """KV rows that come in with admitted requests: a waiting one's resident rows are a credit, and take room only when it is let in."""
    return int(state.waiting.resident.take(admit.at).sum()) if len(admit.at) else 0


def moves(table: Table, at: Int64) -> Moves:
    """Bind positions of a queue to the generations that stand there now."""
    return Moves(at, table.cells[:2].take(at, axis=1)) if len(at) else NO_MOVES


def make_work(members: Table, at: Int64, widths: Int64) -> Work:
    """Intervals of ``widths`` rows for the members at positions ``at``; annotations are derived here."""
    cells = np.empty((WORK_COLUMNS, len(at)), np.int64)
    cells[: RESIDENT + 1] = pick(members, at)[: RESIDENT + 1]
    cells[POSITION] = cells[RESIDENT]
    cells[PHASE] = members.phase.take(at)
    cells[END] = cells[RESIDENT] + widths
    cells.flags.writeable = False
    return Work(at, cells)


class Authorized(NamedTuple):
    """A plan that passed ``validate.authorize``, the members its positions point to and their columns in plan order.

    The only thing execution takes.
    """

    plan: IterationPlan
    members: Table
    picked: Int64

    @classmethod
    def of(cls, plan: IterationPlan, members: Table) -> Authorized:
        """Bind a plan to its members."""
        return cls(plan, members, pick(members, plan.work.at))
