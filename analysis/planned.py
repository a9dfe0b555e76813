"""The plan beside the rows that came back: what was planned of each request, which ones wait for others, and when those came due."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.record.reader import RunRecord
from harness.record.schema import EndKind
from harness.record.spec import Window

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Strings = npt.NDArray[np.object_]

MISSING = -1
"""Stands for "did not happen" or "not stated" in int64 columns; every consumer masks it before arithmetic."""

SERVED = (EndKind.COMPLETE.value, EndKind.CLIENT_STOP.value)
"""Exchanges that ended as planned; everything else produced no complete answer."""


def integers(table: pa.Table, name: str) -> Int64:
    """Column as int64 (n,), null as MISSING."""
    return np.asarray(pc.fill_null(table.column(name).cast(pa.int64()), MISSING).to_numpy(), dtype=np.int64)


def texts(table: pa.Table, name: str) -> Strings:
    """Column as object array (n,) of str or None."""
    return _texts(table.column(name))


def _texts(column: pa.ChunkedArray) -> Strings:
    """Texts (n,): each different one is made once, and the rows share it."""
    coded = column.combine_chunks().dictionary_encode()
    codes = np.asarray(pc.fill_null(coded.indices, MISSING).to_numpy(), dtype=np.int64)
    return np.array([*coded.dictionary.to_pylist(), None], dtype=object)[codes]


def is_any(values: Strings, *wanted: str) -> Bools:
    """Mask (n,) of values that equal one of ``wanted``."""
    return np.isin(values, wanted)


def rows_of(table: pa.Table, request_id: Int64) -> Int64:
    """Row of ``table`` that holds each id (n,), the first one where an id occurs twice; MISSING where none does."""
    ids = integers(table, "request_id")
    if len(ids) and np.array_equal(ids, np.arange(ids[0], ids[0] + len(ids))):  # numbered in order, as the writer leaves them
        at = request_id - ids[0]
        return np.where((at >= 0) & (at < len(ids)), at, MISSING)
    result = np.full(len(request_id), MISSING, dtype=np.int64)
    if len(ids):
        order = np.argsort(ids, kind="stable")
        at = np.minimum(np.searchsorted(ids[order], request_id), len(ids) - 1)
        found = ids[order][at] == request_id
        result[found] = order[at[found]]
    return result


def planned(table: pa.Table, name: str, request_id: Int64) -> Int64:
    """Values of an integer column for ``request_id`` (n,), MISSING for null and for ids the table does not hold."""
    rows = rows_of(table, request_id)
    return np.append(integers(table, name), MISSING)[rows]


def names(table: pa.Table, name: str, request_id: Int64) -> Strings:
    """Values of a text column for ``request_id`` (n,), None for null and for ids the table does not hold."""
    return np.append(_texts(table.column(name)), np.array([None], dtype=object))[rows_of(table, request_id)]


def waits(schedule: pa.Table) -> Bools:
    """Say which rows of the schedule (n,) wait for other requests; the rest arrive by the clock."""
    counts = pc.fill_null(pc.list_value_length(schedule.column("after")), 0)
    return np.asarray(counts.to_numpy(), dtype=np.int64) > 0


def in_window(ns: Int64, window: Window) -> Bools:
    """Say which stamps (n,) lie in the half-open measured window [w, w+W)."""
    inside: Bools = (ns >= window.start_ns) & (ns < window.stop_ns)
    return inside


def offered_rows(record: RunRecord) -> Bools:
    """Say which rows of the schedule (n,) belong to the offered cohort.

    A request that arrives by the clock does by its scheduled arrival, whatever came back of it. For one that waits for others the schedule
    knows no arrival, so the recorded one counts, once however often its row was written. One whose row is missing altogether is counted as
    offered, because nobody can say that it was not: then the partition does not close.
    """
    window, schedule = record.spec.window, record.schedule
    clocked = in_window(integers(schedule, "arrival_ns"), window)
    rows = rows_of(record.requests, integers(schedule, "request_id"))
    came = np.append(in_window(integers(record.requests, "arrival_ns"), window), True)[rows]
    return np.where(waits(schedule), came, clocked)


def without_arrival(record: RunRecord) -> Strings:
    """Say of each row of the schedule (n,) that never arrived how it ended, None of the others and of those without a row."""
    ids = integers(record.schedule, "request_id")
    kinds = names(record.requests, "end_kind", ids)
    kinds[planned(record.requests, "arrival_ns", ids) != MISSING] = None
    return kinds


def gone_users(record: RunRecord, until_ns: int) -> int:
    """Count users of a closed loop that had stopped sending before ``until_ns``: out of requests, or their last one not served.

    A user is the chain of requests that wait for each other; it is gone when its last request that came due has ended and the plan holds
    none to follow, or the end was not the planned one and nothing follows such an end.
    """
    schedule, goes_on = record.schedule, record.spec.workload.failed_pause_ns is not None
    ids = integers(schedule, "request_id")
    end, kinds = planned(record.requests, "end_ns", ids), names(record.requests, "end_kind", ids)
    came = planned(record.requests, "arrival_ns", ids) != MISSING
    followed, went_on = (np.isin(ids, _awaited(schedule, mask)) for mask in (waits(schedule), waits(schedule) & came))
    ended = came & (end != MISSING) & (end < until_ns)
    return int((ended & ~went_on & (~followed | ~(goes_on | is_any(kinds, *SERVED)))).sum())


def _awaited(schedule: pa.Table, rows: Bools) -> Int64:
    """Ids that the requests of some rows wait for."""
    return np.asarray(pc.list_flatten(schedule.column("after").filter(pa.array(rows))).to_numpy(), dtype=np.int64)


def due_ns(record: RunRecord) -> Int64:
    """When each row of the schedule (n,) should have come due, from the plan and the ends of the requests it waits for.

    Its own arrival when it arrives by the clock; ``think_ns`` after the last of the ends it waits for; MISSING when one of those did not
    end as planned, for then it never comes due. Where users go on after a failure (``failed_pause_ns``) it does, that pause after it at the
    soonest.
    """
    schedule, waiting = record.schedule, waits(record.schedule)
    due = integers(schedule, "arrival_ns").copy()
    if waiting.any():
        after = schedule.column("after").filter(pa.array(waiting))
        counts = np.asarray(pc.list_value_length(after).to_numpy(), dtype=np.int64)
        think = np.repeat(np.maximum(integers(schedule, "think_ns"), 0)[waiting], counts)
        free = _free_ns(record, np.asarray(pc.list_flatten(after).to_numpy(), dtype=np.int64), think)
        starts = np.concatenate(([0], np.cumsum(counts)))[:-1].astype(np.int64)
        known = np.minimum.reduceat(free, starts) != MISSING
        due[waiting] = np.where(known, np.maximum.reduceat(free, starts), MISSING)
    return due


def _free_ns(record: RunRecord, ids: Int64, think_ns: Int64) -> Int64:
    """When a request that waits for each of ``ids`` (m,) may arrive as far as that one goes, MISSING when never."""
    rows, pause = rows_of(record.requests, ids), record.spec.workload.failed_pause_ns
    end = np.append(integers(record.requests, "end_ns"), MISSING)[rows]
    served = np.append(is_any(texts(record.requests, "end_kind"), *SERVED), False)[rows]
    free = end + np.where(served, think_ns, np.maximum(think_ns, pause or 0))
    return np.where((end != MISSING) & (served | (pause is not None)), free, MISSING)
