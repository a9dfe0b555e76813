"""Clocks of every request, columnar, derived from raw events (F30-F37, DESIGN 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.planned import MISSING, Bools, Int64, Strings, in_window, integers, texts
from harness.errors import Problem, UsageError
from harness.record.reader import RunRecord
from harness.record.schema import EndKind, EventKind

EVENT_COLUMNS = ("event_ns", "event_tokens", "event_kind")


@dataclass(frozen=True, slots=True, eq=False)
class Clocks:
    """Columns of shape (n,) in ascending (arrival_ns, request_id) order; stamps in ns since the epoch, MISSING (-1) when absent.

    One row a request that arrived. A turn that never came due has no arrival and no row here; ``outcomes.not_due`` counts those. Of a turn
    that waited for others the arrival is the recorded one, for the schedule's is only what it would have been had answers taken no time.

    ``first_ns``: first event that carried a token (t1); ``last_ns``: last such event (tn); ``tokens``: output tokens the client counted
    (by ids or continuous usage, else the server's usage when the response was complete, else MISSING).
    ``gap_ns``/``gap_request``: per-token gaps pooled over requests (tokens sharing an event share its stamp, so gaps of 0 occur) and the
    row each belongs to. ``event_gap_ns``/``event_gap_request``: gaps between token-carrying events. ``shared_share``: share of output
    tokens whose stamp is shared with another token of the same request. ``in_cohort``: arrival in the measured window.

    ``token_event_ns``/``token_event_count``/``token_event_request``: the token-carrying events themselves, grouped by row in arrival order;
    a count of -1 is an event that carried an unknown number of tokens. ``gaps_defined`` is False when any such event exists: then token
    stamps cannot be placed, ``gap_ns`` is empty and ``shared_share`` is NaN, while event gaps stay valid.
    """

    request_id: Int64
    arrival_ns: Int64
    send_ns: Int64
    first_ns: Int64
    last_ns: Int64
    end_ns: Int64
    tokens: Int64
    end_kind: Strings
    http_status: Int64
    error_status: Int64
    in_cohort: Bools
    gap_ns: Int64
    gap_request: Int64
    event_gap_ns: Int64
    event_gap_request: Int64
    shared_share: float
    token_event_ns: Int64
    token_event_count: Int64
    token_event_request: Int64
    gaps_defined: bool

    def __len__(self) -> int:
        return len(self.request_id)


class _TokenEvents(NamedTuple):
    """Events that carried a token, in row order: stamp, tokens carried (-1 unknown), row; each of shape (m,)."""

    ns: Int64
    carried: Int64
    row: Int64


def derive_clocks(record: RunRecord) -> Clocks:
    """Compute every clock of a run.

    Raises UsageError when a row's event lists differ in length, because then no stamp can be tied to a token.
    """
    table = _ordered(record.whole_requests())
    n = table.num_rows
    events = _token_events(table)
    first, last = _ends(events, n)
    event_gap, event_row = _gaps(events.ns, events.row)
    defined = bool((events.carried > 0).all())
    gap, gap_row = _token_gaps(events, event_gap, event_row) if defined else (event_gap[:0], event_row[:0])
    arrival, end_kind = integers(table, "arrival_ns"), texts(table, "end_kind")
    return Clocks(
        request_id=integers(table, "request_id"),
        arrival_ns=arrival,
        send_ns=integers(table, "send_ns"),
        first_ns=first,
        last_ns=last,
        end_ns=integers(table, "end_ns"),
        tokens=_tokens(table, end_kind),
        end_kind=end_kind,
        http_status=integers(table, "http_status"),
        error_status=integers(table, "error_status"),
        in_cohort=in_window(arrival, record.spec.window),
        gap_ns=gap,
        gap_request=gap_row,
        event_gap_ns=event_gap,
        event_gap_request=event_row,
        shared_share=_shared_share(events) if defined else float("nan"),
        token_event_ns=events.ns,
        token_event_count=events.carried,
        token_event_request=events.row,
        gaps_defined=defined,
    )


def distinct_rows(row: Int64) -> int:
    """Count different rows in an ascending row column such as ``gap_request``; a pass, where a sort of millions of gaps would not do."""
    return int(np.count_nonzero(np.diff(row))) + 1 if len(row) else 0


def _ordered(table: pa.Table) -> pa.Table:
    # The writer merges by (arrival, id) with the rows without an arrival last; taking rows of list columns copies every event, so it is
    # done only when needed.
    arrival, ident = integers(table, "arrival_ns"), integers(table, "request_id")
    order = np.lexsort((ident, arrival))
    order = order[arrival[order] != MISSING]
    n = len(order)
    return table.slice(0, n) if np.array_equal(order, np.arange(n)) else table.take(pa.array(order))


def _tokens(table: pa.Table, end_kind: Strings) -> Int64:
    counted, usage = integers(table, "client_tokens"), integers(table, "usage_completion_tokens")
    served = np.where(end_kind == EndKind.COMPLETE.value, usage, MISSING)
    return np.where(counted != MISSING, counted, served)


def _list(table: pa.Table, name: str) -> tuple[Int64, Any]:
    """Lengths (n,) and flat values of a list column; a null list counts as empty."""
    column = table.column(name)
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    # A null element is a count or a stamp nobody wrote down: -1, the same word as an unknown token count.
    flat = pc.fill_null(pc.list_flatten(column), MISSING)
    return np.asarray(lengths.to_numpy(), dtype=np.int64), flat.to_numpy()


def _token_events(table: pa.Table) -> _TokenEvents:
    lists = {name: _list(table, name) for name in EVENT_COLUMNS}
    lengths, stamps = lists["event_ns"]
    torn = [name for name in EVENT_COLUMNS if not np.array_equal(lists[name][0], lengths)]
    if torn:
        raise UsageError(
            *(
                Problem(
                    "record_torn",
                    f"{name}: list lengths differ from event_ns, so no stamp can be tied to a token",
                    "re-run this attempt; the record was not written by this instrument or was edited",
                    "requests.parquet",
                )
                for name in torn
            )
        )
    counts = lists["event_tokens"][1]
    carries = (lists["event_kind"][1] == int(EventKind.TOKEN)) & (counts != 0)
    row = np.repeat(np.arange(table.num_rows, dtype=np.int64), lengths)[carries]
    return _TokenEvents(stamps[carries].astype(np.int64), np.maximum(counts[carries].astype(np.int64), MISSING), row)


def _ends(events: _TokenEvents, n: int) -> tuple[Int64, Int64]:
    counts = np.bincount(events.row, minlength=n).astype(np.int64)
    stop = np.cumsum(counts)
    has = counts > 0
    first, last = np.full(n, MISSING, dtype=np.int64), np.full(n, MISSING, dtype=np.int64)
    first[has] = events.ns[stop[has] - counts[has]]
    last[has] = events.ns[stop[has] - 1]
    return first, last


def _gaps(ns: Int64, row: Int64) -> tuple[Int64, Int64]:
    same = row[1:] == row[:-1]
    return np.diff(ns)[same], row[1:][same]


def _token_gaps(events: _TokenEvents, event_gap: Int64, event_row: Int64) -> tuple[Int64, Int64]:
    if (events.carried == 1).all():  # the common stream: one token an event, so both kinds of gap coincide
        return event_gap, event_row
    return _gaps(np.repeat(events.ns, events.carried), np.repeat(events.row, events.carried))


def _shared_share(events: _TokenEvents) -> float:
    total = int(events.carried.sum())
    if total == 0:
        return float("nan")
    new_stamp = np.ones(len(events.ns), dtype=bool)
    new_stamp[1:] = (events.row[1:] != events.row[:-1]) | (events.ns[1:] != events.ns[:-1])
    per_stamp = np.add.reduceat(events.carried, np.flatnonzero(new_stamp))
    return float(per_stamp[per_stamp > 1].sum() / total)
