"""Fluidity: the share of a request's tokens that came before their own deadline, with slack carried over."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from analysis.planned import MISSING, Int64
from analysis.stamps import Piece, ramp

LIFT = 1 << 47
"""ns between requests that are looked at together, 39 hours: more than any request is late, and 2^14 of them fit 62 bits."""

SLOWEST = 1 << 41
"""A pace of more than 37 minutes a token counts as that: its multiples would leave 63 bits, and no answer is read so slowly."""


class Deadlines(NamedTuple):
    """Per request (n,): arrival, limit of the first token x and pace of the others y, ns; x or y MISSING where the SLO sets none."""

    arrival_ns: Int64
    first_ns: Int64
    pace_ns: Int64

    def of(self, rows: slice) -> Deadlines:
        """Those of some rows."""
        return Deadlines(*(column[rows] for column in self))


def late_tokens(piece: Piece, carried: Int64, first: Int64, longest: Int64, due: Deadlines) -> Int64:
    """Count tokens of each request (r,) that came after their deadline; MISSING without a pace, a token, or a count of them.

    Token 1 is due at D_1 = a + x (whenever it comes, where no x is set). Token k is due at D_k = max(D_(k-1), t_(k-1)) + y: one that came
    early leaves its slack to the next, and after a late one the pace starts anew from when it came, so a stall is counted once for the
    token that was late and not again for those that follow at pace. It is a fluidity index after Etalon's idea, which counts a late token
    as several misses when it is late by several paces.

    With u_k = D_k - a - (k - 1) y the recursion is u_k = max(u_(k-1), t_(k-1) - a - (k - 2) y), a running maximum: a token is late exactly
    when t_k - a - (k - 1) y exceeds x and all its predecessors'. Tokens that share an event share its stamp, so only the first of them can.
    """
    result = np.where((due.pace_ns == MISSING) | (carried == MISSING) | (first == MISSING), MISSING, 0)
    tardy = (due.first_ns != MISSING) & (first - due.arrival_ns > due.first_ns)
    doubtful = (result == 0) & (
        (longest > due.pace_ns) | tardy
    )  # with every gap within the pace, only a late first token makes others late
    if doubtful.any():
        result[doubtful] = _records(piece.only(doubtful), due.arrival_ns[doubtful], due.first_ns[doubtful], due.pace_ns[doubtful])
    return result


def _records(piece: Piece, arrival: Int64, first: Int64, pace: Int64) -> Int64:
    """Late tokens of requests that have a pace, tokens and counts (r,)."""
    start = np.cumsum(piece.counts) - piece.counts
    before = ramp(len(piece.ns)) if piece.single else np.cumsum(piece.carried, dtype=np.int64) - piece.carried
    base = np.minimum(pace, SLOWEST)
    behind = np.repeat(base * before[start] - arrival, piece.counts)
    behind += piece.ns
    behind -= np.repeat(base, piece.counts) * before
    # What is ahead of its schedule by any time is no record over x >= 0, so cutting it off there changes nothing and keeps it within LIFT.
    lifted = np.clip(behind, -1, LIFT // 2, out=behind)
    lifted += np.repeat(np.arange(len(start)) * LIFT, piece.counts)
    begun = lifted[start]
    allowed = np.where(first == MISSING, begun, np.minimum(first, LIFT // 2) + np.arange(len(start)) * LIFT)
    late = np.empty(len(lifted), dtype=bool)
    late[start] = begun > allowed
    level = lifted.copy()
    level[start] = np.maximum(begun, allowed)
    np.maximum.accumulate(level, out=level)
    inner = np.ones(len(lifted), dtype=bool)
    inner[start] = False
    late[1:] = np.where(inner[1:], lifted[1:] > level[:-1], late[1:])
    return piece.total(late)
