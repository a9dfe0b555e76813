"""Execution: the one place where realized lengths are read, row by row as they come to be. It publishes facts, never state."""

from __future__ import annotations

import numpy as np

from harness.reference.contract import (
    COMPLETED_END,
    COMPUTED_BEFORE,
    EMITTED_AFTER,
    EMITTED_BEFORE,
    END,
    FAILURE,
    PLANNED_END,
    RESIDENT_AFTER,
    RESULT_COLUMNS,
    TERMINAL,
    Authorized,
    IterationResult,
    SchedulerState,
)
from harness.reference.results import IDENTITY, clocks_of, service_of
from harness.reference.table import COMPUTED, EMITTED, HANDLE, MAXIMUM, RESIDENT, Int64, Terminal, occurs
from harness.reference.tokens import Truth, tokens_at

_ENDLESS = np.iinfo(np.int64).max
_INJECTED = 1
_ONE = np.int64(1)
_STOP, _LENGTH = np.int64(Terminal.STOP), np.int64(Terminal.LENGTH)


class Truths:
    """Hidden truth by request number: natural lengths and seeds, in arrays that grow. Held by the executor alone."""

    def __init__(self) -> None:
        self._first = 0
        self._natural = np.empty(64, np.int64)
        self._seeds = np.empty(64, np.uint64)
        self._asked, self._last = b"", np.zeros(0, np.int64)

    def add(self, handle: int, truth: Truth, *, oldest: int = 0) -> None:
        """Keep the truth of one request; those of numbers below ``oldest`` are never asked for again and may be dropped."""
        while handle - self._first >= len(self._natural):
            self._make_room(oldest)
        self._natural[handle - self._first] = _ENDLESS if truth.natural is None else truth.natural
        self._seeds[handle - self._first] = truth.seed & 0xFFFFFFFFFFFFFFFF

    def _make_room(self, oldest: int) -> None:
        # Half of the room at least is gained each time, so that moving costs the same for each request however many there were.
        size, over = len(self._natural), oldest - self._first
        dropped, more = (over, over) if 2 * over >= size else (0, size)
        self._first += dropped
        self._natural = np.concatenate((self._natural[dropped:], np.empty(more, np.int64)))
        self._seeds = np.concatenate((self._seeds[dropped:], np.empty(more, np.uint64)))

    def natural(self, handles: Int64) -> Int64:
        """Output lengths at which end of sequence comes (k,)."""
        return self._natural.take(handles - self._first)

    def last(self, handles: Int64, maximum: Int64) -> Int64:
        """Number of the last output of requests (k,) with declared limits ``maximum`` (k,)."""
        asked = handles.tobytes() + maximum.tobytes()
        if asked != self._asked:  # the same requests run together for many iterations
            self._asked, self._last = asked, np.minimum(self.natural(handles), maximum)
        return self._last

    def tokens(self, handles: Int64, index: Int64) -> Int64:
        """Ids of output tokens ``index`` (0-based) of requests (k,)."""
        return tokens_at(self._seeds.take(handles - self._first), index, self.natural(handles))


def execute(
    state: SchedulerState, authorized: Authorized, truths: Truths, *, tokens: bool, failing: frozenset[int] = frozenset()
) -> IterationResult:
    """Complete every planned interval; intervals of requests in ``failing`` complete nothing (fault injection).

    ``tokens`` False only counts what is emitted. The first token comes with the last prompt row (F07); the last emitted one is never an
    input row, so a request that ends holds one row less than it has tokens.
    """
    plan, picked = authorized.plan, authorized.picked
    work = plan.work.cells
    rows = np.empty((RESULT_COLUMNS, work.shape[1]), np.int64)
    rows[:IDENTITY] = work[:IDENTITY]
    rows[PLANNED_END : COMPLETED_END + 1] = work[END]
    rows[TERMINAL : FAILURE + 1] = 0
    if failing:
        lost = np.isin(work[HANDLE], list(failing))
        rows[COMPLETED_END] = np.where(lost, work[RESIDENT], work[END])
        rows[FAILURE] = lost * _INJECTED
    if authorized.members.decoding and not failing:  # one row, one output each
        rows[COMPUTED_BEFORE], rows[EMITTED_BEFORE] = picked[COMPUTED], picked[EMITTED]
        np.add(picked[RESIDENT : EMITTED + 1], _ONE, rows[RESIDENT_AFTER : EMITTED_AFTER + 1])
    else:
        rows[COMPUTED_BEFORE : EMITTED_AFTER + 1] = clocks_of(picked, rows[COMPLETED_END])
    emitted = rows[EMITTED_AFTER]
    ended = emitted >= truths.last(work[HANDLE], picked[MAXIMUM])
    if occurs(ended):
        emits, natural = emitted > rows[EMITTED_BEFORE], emitted >= truths.natural(work[HANDLE])
        rows[TERMINAL] = (ended & emits) * np.where(natural, _STOP, _LENGTH)
    debits, rebuilt = service_of(state, authorized, rows)
    rows.flags.writeable = False
    ids = np.where(emitted > rows[EMITTED_BEFORE], truths.tokens(work[HANDLE], picked[EMITTED]), -1) if tokens else None
    return IterationResult(plan.decision_id, plan.input_state_version, rows, debits, rebuilt, ids)
