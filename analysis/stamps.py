"""Token-carrying events of a run in pieces that fit a processor's cache: which request each belongs to, when it came, what it carried."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis.planned import MISSING, Bools, Int64, integers
from harness.errors import Problem, UsageError
from harness.record.reader import RunRecord
from harness.record.schema import EventKind

EVENT_COLUMNS = ("event_ns", "event_tokens", "event_kind")

EVENTS = 1 << 17
"""Events worked on at a time: 1 MB of stamps, what a second-level cache holds."""

REQUESTS = 1 << 14
"""Requests worked on at a time, at most: what is computed over several at once lifts each by 2^47 ns above the last, in 63 bits."""


WORKERS = min(4, os.cpu_count() or 1)
"""Threads that work on pieces; NumPy lets go of the interpreter in what takes long. Results do not depend on it."""

_RAMP = np.arange(2 * EVENTS)

Result = TypeVar("Result")


def ramp(n: int) -> Int64:
    """0 .. n - 1 (n,), to be read only: made once for any usual size, since fresh memory costs more than the numbers in it."""
    return _RAMP[:n] if n <= len(_RAMP) else np.arange(n)


class Piece(NamedTuple):
    """Consecutive rows of ``Clocks`` from ``row`` on: token-carrying events of each (r,), their stamps and the tokens they carried (m,).

    ``carried`` is -1 where an event carried an unknown number of tokens; ``single``: every event carried exactly one.
    """

    row: int
    counts: Int64
    ns: Int64
    carried: npt.NDArray[Any]
    single: bool

    @property
    def rows(self) -> slice:
        """The rows of ``Clocks`` it covers."""
        return slice(self.row, self.row + len(self.counts))

    def only(self, mask: Bools) -> Piece:
        """The requests of ``mask`` (r,) alone; their rows are no longer consecutive."""
        if mask.all():
            return self
        chosen = np.repeat(mask, self.counts)
        return Piece(self.row, self.counts[mask], self.ns[chosen], self.carried[chosen], self.single)

    def total(self, values: npt.NDArray[Any]) -> Int64:
        """Add up one value an event (m,) over the events of each request (r,)."""
        sums = np.concatenate(([0], np.cumsum(values, dtype=np.int64)))
        stop = np.cumsum(self.counts)
        return np.asarray(sums[stop] - sums[stop - self.counts], dtype=np.int64)


def arrival_order(table: pa.Table) -> Int64 | None:
    """Rows in ascending (arrival, id) order without those that never arrived (n,); None when they lie that way, n first rows of the table.

    The writer merges them so; taking rows of list columns copies every event, so it is done only when needed.
    """
    arrival, ident = integers(table, "arrival_ns"), integers(table, "request_id")
    came = arrival != MISSING
    n = int(came.sum())
    step = np.diff(arrival[:n])
    if came[:n].all() and ((step > 0) | ((step == 0) & (np.diff(ident[:n]) >= 0))).all():
        return None
    order = np.lexsort((ident, arrival))
    return np.asarray(order[arrival[order] != MISSING], dtype=np.int64)


def arrived_rows(record: RunRecord) -> tuple[Int64 | None, pa.Table]:
    """``arrival_order`` of a run's requests, and its columns of one value a request in that order, without those that never arrived."""
    order = arrival_order(record.requests)
    table = record.requests.select([f.name for f in record.requests.schema if not pa.types.is_list(f.type)])
    arrived = int((integers(table, "arrival_ns") != MISSING).sum())
    return order, table.slice(0, arrived) if order is None else table.take(pa.array(order))


def pieces(record: RunRecord, order: Int64 | None, n: int) -> Iterator[Piece]:
    """Yield the token-carrying events of the ``n`` rows of ``Clocks``, one piece at a time; ``order`` as ``arrival_order`` gives it.

    Raises UsageError when a row's event lists differ in length, because then no stamp can be tied to a token.
    """
    for row, table in _slices(record, order, n):
        yield _piece(table, row)


def spread(record: RunRecord, order: Int64 | None, n: int, work: Callable[[Piece], Result]) -> list[Result]:
    """Apply ``work`` to every one of ``pieces`` and return what it gives in their order; a few at a time, side by side on several cores."""
    done: list[Result] = []
    with ThreadPoolExecutor(WORKERS) as pool:
        waiting: deque[Future[Result]] = deque()
        for row, table in _slices(record, order, n):
            waiting.append(pool.submit(_worked, work, table, row))
            if len(waiting) > 2 * WORKERS:
                done.append(waiting.popleft().result())
        return done + [future.result() for future in waiting]


def _worked(work: Callable[[Piece], Result], table: pa.Table, row: int) -> Result:
    return work(_piece(table, row))


def _slices(record: RunRecord, order: Int64 | None, n: int) -> Iterator[tuple[int, pa.Table]]:
    row = 0
    for table in _tables(record, order):
        for part in _cut(table.slice(0, n - row)):
            yield row, part
            row += part.num_rows
        if row >= n:
            return


def _tables(record: RunRecord, order: Int64 | None) -> Iterator[pa.Table]:
    if order is None:
        yield from record.event_lists(EVENT_COLUMNS)
    else:
        yield record.whole_requests().select(list(EVENT_COLUMNS)).take(pa.array(order))


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    """Cut rows where the events before them pass a multiple of EVENTS, and every REQUESTS rows."""
    before = np.cumsum(_lengths(table, "event_ns"))
    by_events = np.flatnonzero(np.diff(before // EVENTS)) + 1
    edges = np.unique(np.concatenate((by_events, np.arange(0, table.num_rows + 1, REQUESTS), [0, table.num_rows])))
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        yield table.slice(start, stop - start)


def _lengths(table: pa.Table, name: str) -> Int64:
    """Lengths of a list column (r,); a null list counts as empty."""
    return np.asarray(pc.fill_null(pc.list_value_length(table.column(name)), 0).to_numpy(), dtype=np.int64)


def _flat(table: pa.Table, name: str) -> npt.NDArray[Any]:
    column = table.column(name)
    lists = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # which would copy one chunk too
    # A null element is a count or a stamp nobody wrote down: -1, the same word as an unknown token count.
    values = pc.list_flatten(lists)
    return np.asarray(pc.fill_null(values, MISSING) if values.null_count else values)


def _piece(table: pa.Table, row: int) -> Piece:
    lengths = {name: _lengths(table, name) for name in EVENT_COLUMNS}
    torn = [name for name in EVENT_COLUMNS if not np.array_equal(lengths[name], lengths["event_ns"])]
    if torn:
        raise UsageError(*(_torn(name, "list lengths differ from event_ns, so no stamp can be tied to a token") for name in torn))
    ns, tokens, kind = (_flat(table, name) for name in EVENT_COLUMNS)
    carries: Bools = (kind == int(EventKind.TOKEN)) & (tokens != 0)
    counts, kept = _kept(lengths["event_ns"], carries), ns[carries]
    if np.count_nonzero(carries & (tokens == 1)) == len(kept):
        return Piece(row, counts, kept, np.broadcast_to(np.int64(1), len(kept)), single=True)
    return Piece(row, counts, kept, np.maximum(tokens[carries], MISSING), single=False)


def _kept(lengths: Int64, keep: Bools) -> Int64:
    """How many events of each request (r,) are kept, of ``lengths`` (r,): by those that are not, for they are few."""
    dropped = np.searchsorted(np.cumsum(lengths), np.flatnonzero(~keep), side="right")
    return lengths - np.bincount(dropped, minlength=len(lengths))


def _torn(name: str, what: str) -> Problem:
    remedy = "re-run this attempt; the record was not written by this instrument or was edited"
    return Problem("record_torn", f"{name}: {what}", remedy, "requests.parquet")


def ends_of(piece: Piece) -> tuple[Int64, Int64]:
    """First and last stamp of each request (r,), ns; MISSING without one."""
    first, last, has = np.full(len(piece.counts), MISSING), np.full(len(piece.counts), MISSING), piece.counts > 0
    stop = np.cumsum(piece.counts)
    first[has], last[has] = piece.ns[(stop - piece.counts)[has]], piece.ns[stop[has] - 1]
    return first, last


def events_before(piece: Piece, rows: Int64, ns: Int64 | int) -> Int64:
    """Count events of some requests of a piece (k,) that came before an instant each (k,), by bisection: stamps of a request ascend."""
    start = (np.cumsum(piece.counts) - piece.counts)[rows]
    low, high = start.copy(), start + piece.counts[rows]
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) >> 1
        early = (low < high) & (piece.ns[np.minimum(middle, len(piece.ns) - 1)] < ns)
        low, high = np.where(early, middle + 1, low), np.where(early, high, np.minimum(middle, high))
    return low - start


def gaps_of(piece: Piece) -> Int64:
    """Gaps between the events of each request, ns, in row order: one fewer than it has events. UsageError when one is negative."""
    start = np.cumsum(piece.counts) - piece.counts
    gap = np.diff(piece.ns)
    inside = np.ones(len(gap), dtype=bool)
    inside[start[piece.counts > 0][1:] - 1] = False
    gap = gap[inside]
    if len(gap) and gap.min() < 0:
        raise UsageError(_torn("event_ns", "stamps of a request run backwards, so no gap between them can be told"))
    return gap
