"""Priority inversions: first tokens given while a request of better effective priority waited, with and without aging (F61)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.arguments import at_least, need

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOST_LEVELS = 256
"""Distinct priorities that are looked at: each costs a pass over the requests, and a scheduler's classes are few."""


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """Requests by the instants a scheduler is judged at, each (n,): ``arrival``; ``left``, when it stopped waiting (first token, or its end
    without one); ``priority``, smaller goes first."""

    arrival: Int64
    left: Int64
    priority: Int64


def inverted(queue: Queue, rows: Int64, quantum: int | None) -> Bools:
    """Say which of ``rows`` (m,) got their first token (at ``left``) while a request of smaller effective priority waited (m,).

    ``quantum``: wait that lowers a priority number by one (F61), in units of the instants; None: priorities stand still. Both are judged at
    the instant of the first token. From outside a server nobody sees when a prompt was taken up, so one whose prompt was already being
    computed when the better request came counts too: the number is an upper bound of the scheduler's own decisions. UsageError for a
    quantum below 1. Cost: distinct priorities times n log n.
    """
    need([] if quantum is None else at_least(1, quantum=quantum))
    now = queue.left[rows]
    own = _effective(queue.priority[rows], now - queue.arrival[rows], quantum)
    best = np.full(len(rows), np.iinfo(np.int64).max, dtype=np.int64)
    for level in np.unique(queue.priority).tolist():
        since, waits = _oldest(queue, level, now)
        best = np.where(waits, np.minimum(best, _effective(np.int64(level), now - since, quantum)), best)
    return np.asarray(best < own, dtype=bool)


def _effective(base: Int64 | np.int64, waited: Int64, quantum: int | None) -> Int64:
    return np.asarray(base if quantum is None else base - waited // quantum, dtype=np.int64)


def _oldest(queue: Queue, level: int, now: Int64) -> tuple[Int64, Bools]:
    """Arrival of the request of one priority that has waited longest at each instant (m,), and whether there is one.

    In order of arrival, the first whose ``left`` lies after t is where the running maximum of ``left`` first exceeds t.
    """
    mine = queue.priority == level
    order = np.argsort(queue.arrival[mine], kind="stable")
    arrival, reach = queue.arrival[mine][order], np.maximum.accumulate(queue.left[mine][order])
    at = np.searchsorted(reach, now, side="right")
    since = arrival[np.minimum(at, len(arrival) - 1)]
    return since, np.asarray((at < len(arrival)) & (since < now), dtype=bool)
