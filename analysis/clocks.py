"""Clocks of every request, columnar, derived from raw events (F30-F37, DESIGN 6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.deadlines import Deadlines
from analysis.gaps import Gaps, Pool
from analysis.marks import Marks, join, measure, tokens_before
from analysis.planned import MISSING, Bools, Int64, Strings, in_window, integers, texts
from analysis.slos import limits
from analysis.stamps import Piece, arrival_order, arrived_rows, pieces, spread
from harness.record.reader import RunRecord
from harness.record.schema import EndKind

__all__ = ["MISSING", "Clocks", "Int64", "derive_clocks"]

BINS = 20
"""Parts of the measured window that rates are told by: half a minute each of a window of publication level."""


@dataclass(frozen=True, eq=False)
class Clocks:
    """Columns of shape (n,) in ascending (arrival_ns, request_id) order; stamps in ns since the epoch, MISSING (-1) when absent.

    One row a request that arrived. A turn that never came due has no arrival and no row here; ``outcomes.not_due`` counts those. Of a turn
    that waited for others the arrival is the recorded one, for the schedule's is only what it would have been had answers taken no time.

    ``tokens``: output tokens the client counted (by ids or continuous usage, else the server's usage when the response was complete, else
    MISSING). ``in_cohort``: arrival in the measured window. ``marks``: what the stamps say, a request at a time. ``gaps``: all gaps between
    token-carrying events. ``gaps_defined`` is False when some event carried an unknown number of tokens: then token stamps cannot be
    placed, so per-token gaps and ``shared_share`` do not exist, while event gaps stay valid.

    ``bin_edges`` (b,): ends of BINS equal parts of the measured window, ns; ``tokens_before`` (b,): output tokens stamped before each.

    The columns as long as the tokens (``token_event_ns``, ``gap_ns`` and their like) are read from the record again when asked for, at 8
    bytes a value; ``marks``, ``token_gaps`` and ``event_gaps`` answer most questions without them.
    """

    request_id: Int64
    arrival_ns: Int64
    send_ns: Int64
    end_ns: Int64
    tokens: Int64
    end_kind: Strings
    http_status: Int64
    error_status: Int64
    in_cohort: Bools
    marks: Marks
    gaps: Gaps
    bin_edges: Int64
    tokens_before: Int64
    gaps_defined: bool
    record: RunRecord

    def __len__(self) -> int:
        return len(self.request_id)

    @property
    def first_ns(self) -> Int64:
        """First event that carried a token, t1."""
        return self.marks.first

    @property
    def last_ns(self) -> Int64:
        """Last event that carried a token, tn."""
        return self.marks.last

    @property
    def shared_share(self) -> float:
        """Share of output tokens whose stamp is shared with another token of the same request; NaN without tokens or their counts."""
        carried = int(self.marks.carried.sum()) if self.gaps_defined else 0
        return int(self.marks.shared.sum()) / carried if carried else float("nan")

    @property
    def one_token_an_event(self) -> bool:
        """Whether every event carried one token, so that gaps between tokens are those between events."""
        return bool((self.marks.carried == self.marks.events).all())

    def token_gaps(self, mask: Bools, population: str) -> Pool:
        """Gaps between the tokens of the requests of ``mask`` (n,): tokens of one event have gaps of 0. None unless ``gaps_defined``."""
        return self.gaps.pooled(mask & self.gaps_defined, population, tokens=True)

    def event_gaps(self, mask: Bools, population: str) -> Pool:
        """Gaps between the token-carrying events of the requests of ``mask`` (n,)."""
        return self.gaps.pooled(mask, population, tokens=False)

    @cached_property
    def _events(self) -> tuple[Int64, Int64, Int64]:
        found = list(pieces(self.record, arrival_order(self.record.requests), len(self)))
        none = np.zeros(0, dtype=np.int64)
        ns, carried = (np.concatenate([none, *(getattr(p, name) for p in found)]) for name in ("ns", "carried"))
        return ns, carried, np.repeat(np.arange(len(self)), self.marks.events)

    @property
    def token_event_ns(self) -> Int64:
        """Stamps of all token-carrying events (m,), grouped by row."""
        return self._events[0]

    @property
    def token_event_count(self) -> Int64:
        """Tokens that each of them carried (m,), -1 for an unknown number."""
        return self._events[1]

    @property
    def token_event_request(self) -> Int64:
        """Row that each of them belongs to (m,)."""
        return self._events[2]

    @property
    def event_gap_ns(self) -> Int64:
        """Gaps between token-carrying events, grouped by row."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *self.gaps.parts])

    @property
    def event_gap_request(self) -> Int64:
        """Row that each of them belongs to."""
        return np.repeat(np.arange(len(self)), self.gaps.counts)

    @cached_property
    def _token_gaps(self) -> tuple[Int64, Int64]:
        ns, carried, row = (column[: None if self.gaps_defined else 0] for column in self._events)
        ns, row = np.repeat(ns, carried), np.repeat(row, carried)
        same = row[1:] == row[:-1]
        return np.diff(ns)[same], row[1:][same]

    @property
    def gap_ns(self) -> Int64:
        """Gaps between tokens, grouped by row; tokens that share an event share its stamp, so gaps of 0 occur."""
        return self._token_gaps[0]

    @property
    def gap_request(self) -> Int64:
        """Row that each of them belongs to."""
        return self._token_gaps[1]


def derive_clocks(record: RunRecord) -> Clocks:
    """Compute every clock of a run in one pass over its events.

    Raises UsageError when a row's event lists differ in length or its stamps run backwards, because then no stamp can be tied to a token.
    """
    order, table = arrived_rows(record)
    ids, arrival, end_kind = integers(table, "request_id"), integers(table, "arrival_ns"), texts(table, "end_kind")
    due = Deadlines(arrival, limits(record, ids, "ttft_ns"), limits(record, ids, "tbt_ns"))
    window = record.spec.window
    bins = np.linspace(window.start_ns, window.stop_ns, BINS + 1).astype(np.int64)

    def _read(piece: Piece) -> tuple[Marks, npt.NDArray[Any], Int64]:
        own, gaps = measure(piece, due.of(piece.rows), window)
        return own, gaps, tokens_before(piece, own, bins)

    read = spread(record, order, table.num_rows, _read)
    marks = join([own for own, _, _ in read])
    edges = np.concatenate(([0], np.cumsum([len(own.first) for own, _, _ in read], dtype=np.int64)))
    extra = np.where(marks.carried == MISSING, 0, marks.carried - marks.events)
    return Clocks(
        request_id=ids,
        arrival_ns=arrival,
        send_ns=integers(table, "send_ns"),
        end_ns=integers(table, "end_ns"),
        tokens=output_tokens(table, end_kind),
        end_kind=end_kind,
        http_status=integers(table, "http_status"),
        error_status=integers(table, "error_status"),
        in_cohort=in_window(arrival, window),
        marks=marks,
        bin_edges=bins,
        tokens_before=np.sum([before for _, _, before in read], axis=0, initial=0, dtype=np.int64) + np.zeros(len(bins), dtype=np.int64),
        gaps=Gaps(tuple(gaps for _, gaps, _ in read), edges, np.maximum(marks.events - 1, 0), extra),
        gaps_defined=bool((marks.carried != MISSING).all()),
        record=record,
    )


def output_tokens(table: pa.Table, end_kind: Strings) -> Int64:
    """Output tokens of each request (n,) as ``Clocks.tokens`` says."""
    counted, usage = integers(table, "client_tokens"), integers(table, "usage_completion_tokens")
    served = np.where(end_kind == EndKind.COMPLETE.value, usage, MISSING)
    return np.where(counted != MISSING, counted, served)
