"""What the stamps of a request say of it, one number a request: found piece by piece, so that no column as long as the tokens is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.deadlines import Deadlines, late_tokens
from analysis.gaps import Ranked, narrow, ranked
from analysis.planned import MISSING, Int64, in_window
from analysis.stamps import Piece, ends_of, events_before, gaps_of
from harness.record.spec import Window

WITHIN_REQUEST = 99, 100
"""The quantile of the TBT rule ``p99``, as a fraction: nearest rank within one request."""


class Marks(NamedTuple):
    """Columns (n,), ns and counts; MISSING where a request has nothing of the kind.

    ``first``/``last``: first and last event that carried a token; ``events``: how many such; ``carried``: tokens in them, MISSING when some
    count is unknown; ``reads``: different stamps among them; ``shared``: tokens that share their stamp with another of the request;
    ``last_read``: tokens that came with the last stamp. ``longest``: longest gap; ``tail`` and ``event_tail``: nearest-rank 99th percentile
    within the request of its gaps between tokens and between events; ``tenth``: sum of the longest tenth of its token gaps
    (``longest_tenth``). ``inside``/``inside_tokens``: events in the measured window, and their tokens (MISSING when some count is unknown).
    ``late``: tokens after their deadline (``analysis.deadlines``).
    """

    first: Int64
    last: Int64
    events: Int64
    carried: Int64
    reads: Int64
    shared: Int64
    last_read: Int64
    longest: Int64
    tail: Int64
    event_tail: Int64
    tenth: Int64
    inside: Int64
    inside_tokens: Int64
    late: Int64


def longest_tenth(gaps: Int64) -> Int64:
    """How many gaps are the longest tenth of each number of gaps (n,): rounded up, so at least one of any.

    Mooncake (FAST'25, section 5.1) takes the mean of a request's longest 10% and does not say how a part of a gap counts. Rounding up is
    our assumption: it keeps the rule defined for every request that has a gap, and averages in no more than it must.
    """
    return -(-gaps // 10)


def measure(piece: Piece, due: Deadlines, window: Window) -> tuple[Marks, npt.NDArray[Any]]:
    """Marks of the requests of one piece, and all gaps between its events in row order, ns (m,). Raises UsageError as ``gaps_of`` does."""
    counts, (first, last) = piece.counts, ends_of(piece)
    gaps, carried = narrow(gaps_of(piece)), _carried(piece)
    longest, tail, event_tail, tenth = _long_gaps(gaps, np.maximum(counts - 1, 0), carried)
    reads, shared, last_read = _reads(piece, gaps)
    inside, inside_tokens = _inside(piece, first, last, carried, window)
    late = late_tokens(piece, carried, first, longest, due)
    columns = (first, last, counts, carried, reads, shared, last_read, longest, tail, event_tail, tenth, inside, inside_tokens, late)
    return Marks(*columns), gaps


def tokens_before(piece: Piece, marks: Marks, edges: Int64) -> Int64:
    """Tokens stamped before each of ``edges`` (b,), ns. Only requests that stream across an edge are looked into."""
    has = (marks.events > 0)[:, None]
    over = has & (marks.last[:, None] < edges)
    found = np.where(over, marks.carried[:, None], 0).sum(axis=0)
    rows, at = np.nonzero(has & (marks.first[:, None] < edges) & ~over)
    early = events_before(piece, rows, edges[at])
    np.add.at(found, at, early if piece.single else _first_tokens(piece, rows, early))
    return np.asarray(found, dtype=np.int64)


def _first_tokens(piece: Piece, rows: Int64, events: Int64) -> Int64:
    """Tokens in the first so many events (k,) of some requests (k,)."""
    start = (np.cumsum(piece.counts) - piece.counts)[rows]
    upto = np.concatenate(([0], np.cumsum(piece.carried, dtype=np.int64)))
    return np.asarray(upto[start + events] - upto[start], dtype=np.int64)


def join(parts: Sequence[Marks]) -> Marks:
    """Put the marks of consecutive pieces under each other."""
    none = np.zeros(0, dtype=np.int64)
    return Marks(*(np.concatenate([none, *(getattr(part, name) for part in parts)]) for name in Marks._fields))


def _carried(piece: Piece) -> Int64:
    return piece.counts if piece.single else _known_total(piece, piece.carried)


def _known_total(piece: Piece, values: npt.NDArray[Any]) -> Int64:
    """Sum of each request (r,), MISSING when one of its values is negative, which stands for unknown."""
    return np.where(piece.total(values < 0) > 0, MISSING, piece.total(values))


def _long_gaps(gaps: npt.NDArray[Any], counts: Int64, carried: Int64) -> tuple[Int64, Int64, Int64, Int64]:
    """Longest gap, 99th percentile over tokens and over events, sum of the longest tenth of the token gaps: each (r,)."""
    longest, event_tail = np.full(len(counts), MISSING), np.full(len(counts), MISSING)
    tail, tenth = (np.where(carried > 1, 0, MISSING) for _ in range(2))  # tokens of one event have gaps of 0
    for some in ranked(gaps, counts):
        total, rows = carried[some.rows] - 1, some.rows
        longest[rows] = some.gaps[:, -1]
        event_tail[rows] = _tail(some, some.counts)
        if np.array_equal(total, some.counts):  # a token an event
            tail[rows], tenth[rows] = event_tail[rows], some.sum_of_longest(longest_tenth(total))
        else:
            known = total > 0
            tail[rows] = np.where(known, _tail(some, total), MISSING)
            tenth[rows] = np.where(known, some.sum_of_longest(longest_tenth(np.maximum(total, 1))), MISSING)
    return longest, tail, event_tail, tenth


def _tail(some: Ranked, total: Int64) -> Int64:
    """Nearest rank ceil(p total) of each request's gaps, counted from the longest (q,)."""
    over, under = WITHIN_REQUEST
    return some.from_top(np.maximum(total - (-(-over * total // under)) + 1, 1))


def _reads(piece: Piece, gaps: npt.NDArray[Any]) -> tuple[Int64, Int64, Int64]:
    """Different stamps of each request, tokens that share theirs, and tokens with the last one, each (r,); unknown counts add nothing."""
    some = piece.counts > 0
    if piece.single and (not len(gaps) or gaps.min() > 0):  # the common stream: a stamp for every token
        return piece.counts, np.zeros(len(piece.counts), dtype=np.int64), some.astype(np.int64)
    new = np.ones(len(piece.ns), dtype=bool)
    inner = np.ones(len(piece.ns), dtype=bool)
    inner[(np.cumsum(piece.counts) - piece.counts)[some]] = False
    new[inner] = gaps > 0
    reads, at = piece.total(new), np.flatnonzero(new)
    per_read = np.add.reduceat(np.maximum(piece.carried, 0).astype(np.int64), at) if len(at) else np.zeros(0, dtype=np.int64)
    by_read = Piece(piece.row, reads, piece.ns[at], per_read, single=False)
    last_read = np.zeros(len(reads), dtype=np.int64)
    last_read[some] = per_read[np.cumsum(reads)[some] - 1]
    return reads, by_read.total(np.where(per_read > 1, per_read, 0)), last_read


def _inside(piece: Piece, first: Int64, last: Int64, carried: Int64, window: Window) -> tuple[Int64, Int64]:
    """Events in the measured window and the tokens they carried, each (r,)."""
    part = np.flatnonzero((piece.counts > 0) & ((first < window.start_ns) | (last >= window.stop_ns)))
    if not len(part):
        return piece.counts, carried
    events = piece.counts.copy()
    events[part] = events_before(piece, part, window.stop_ns) - events_before(piece, part, window.start_ns)
    if piece.single:
        return events, events
    return events, _known_total(piece, np.where(in_window(piece.ns, window), piece.carried, 0))
