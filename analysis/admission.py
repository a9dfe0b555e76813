"""Settling reservations (F22-F27): what admission promised before lengths were known, against the lengths that came true.

Deciding is not done here: rules and forecasts belong to the engine (``harness.reference.admission``), which never sees a length that has
not shown; this settlement sees all of them, and nothing of it goes back. All rows are logical K/V rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.arguments import at_least, at_most, need
from harness.errors import Problem

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Promises:
    """A frozen decision over requests in arrival order; arrays of shape (n,).

    ``emitted``: outputs published when it was made, 0 for a new request. ``uncached_rows``: prompt rows to prefill, 0 once something is
    emitted. ``declared_max``: most outputs the request may have. ``forecast``: total outputs it was promised for. ``admitted``: who got
    the promise. ``reserved_rows``: committed or promised to others; ``hard_rows``: the ceiling of all. UsageError, with all reasons, for
    what no request or cache can have.
    """

    policy: str
    request_id: tuple[str, ...]
    emitted: Int64
    uncached_rows: Int64
    declared_max: Int64
    forecast: Int64
    admitted: Bools
    reserved_rows: int
    hard_rows: int
    row_bytes: int

    def __post_init__(self) -> None:
        need(_misshapen(self))
        need(_impossible(self))

    @property
    def estimate_rows(self) -> Int64:
        """Future rows of each by its forecast (n,)."""
        return future_rows(self.emitted, self.uncached_rows, self.forecast)


@dataclass(frozen=True, slots=True, eq=False)
class ReservationLedger:
    """Promises against the lengths that came true. ``error_rows`` (n,): estimate minus realized, 0 for who was not admitted (F27).

    ``unused_rows``, ``under_rows``: sums of its positive and its negative part, never netted. ``occupied_rows``: what was reserved before
    plus all realized rows of the admitted; ``breach_rows``: how far that passes the hard ceiling.
    """

    policy: str
    row_bytes: int
    error_rows: Int64
    unused_rows: int
    under_rows: int
    occupied_rows: int
    breach_rows: int
    admitted: int
    deferred: int


# Rows and bytes


def active_bytes(rows: Int64, row_bytes: int) -> int:
    """Committed payload of the active requests with ``rows`` (n,) each, logical bytes (F22 for one, F23 for all)."""
    return int(rows.sum()) * row_bytes


def future_rows(emitted: Int64, uncached_rows: Int64, forecast: Int64) -> Int64:
    """Rows still to be appended if ``forecast`` total outputs come true, shape (n,).

    Resumed: max(G - E, 0) (F24). New: U + max(G - 1, 0) (F25), since the last output of a request is never processed as an input.
    """
    return np.where(emitted > 0, np.maximum(forecast - emitted, 0), uncached_rows + np.maximum(forecast - 1, 0))


# Settling


def settle(promises: Promises, realized_outputs: Int64) -> ReservationLedger:
    """Compare promises with ``realized_outputs`` (n,), the total outputs that each admitted request came to; other values are not read.

    UsageError for lengths below what was emitted, or above what was declared: then the ledger would be of other requests.
    """
    p = promises
    need(_same_length(p, realized_outputs=realized_outputs))
    realized_outputs = np.where(p.admitted, realized_outputs, p.declared_max)
    short = realized_outputs < np.maximum(p.emitted, 1)
    need(
        _beyond_declared("realized_outputs", realized_outputs, p),
        _each(p, short, "realized_too_short", "realized_outputs", realized_outputs, "fewer outputs than were already emitted"),
    )
    realized = future_rows(p.emitted, p.uncached_rows, realized_outputs)
    error = np.where(p.admitted, p.estimate_rows - realized, 0)
    occupied = p.reserved_rows + int(realized[p.admitted].sum())
    return ReservationLedger(
        policy=p.policy,
        row_bytes=p.row_bytes,
        error_rows=error,
        unused_rows=int(np.maximum(error, 0).sum()),
        under_rows=int(np.maximum(-error, 0).sum()),
        occupied_rows=occupied,
        breach_rows=max(occupied - p.hard_rows, 0),
        admitted=int(p.admitted.sum()),
        deferred=int((~p.admitted).sum()),
    )


# What is refused


def _misshapen(p: Promises) -> list[Problem]:
    columns = {"emitted": p.emitted, "uncached_rows": p.uncached_rows, "declared_max": p.declared_max, "forecast": p.forecast}
    found = _same_length(p, **columns) + _same_length(p, admitted=p.admitted.astype(np.int64))
    if len(set(p.request_id)) != len(p.request_id):
        what = "request_id: one stands twice, and its rows would be promised twice"
        found.append(Problem("request_twice", what, "give every request once"))
    return found


def _impossible(p: Promises) -> list[Problem]:
    done = p.emitted >= p.declared_max
    twice = (p.emitted > 0) & (p.uncached_rows > 0)
    return [
        *at_least(0, emitted=int(p.emitted.min(initial=0)), uncached_rows=int(p.uncached_rows.min(initial=0)), hard_rows=p.hard_rows),
        *at_least(0, reserved_rows=p.reserved_rows),
        *at_least(1, forecast=int(p.forecast.min(initial=1)), row_bytes=p.row_bytes),
        *at_most(p.hard_rows, "the hard ceiling: more is promised than exists", reserved_rows=p.reserved_rows),
        *_beyond_declared("forecast", p.forecast, p),
        *_each(p, done, "nothing_left", "emitted", p.emitted, "all declared outputs are emitted, so there is nothing to reserve for"),
        *_each(p, twice, "uncached_after_output", "uncached_rows", p.uncached_rows, "a request with outputs has prefilled its prompt"),
    ]


def _beyond_declared(name: str, totals: Int64, p: Promises) -> list[Problem]:
    return _same_length(p, **{name: totals}) or _each(
        p, totals > p.declared_max, "beyond_declared", name, totals, "more outputs than the declared maximum allows"
    )


def _each(p: Promises, wrong: Bools, code: str, name: str, values: Int64, why: str) -> list[Problem]:
    return [
        Problem(code, f"{name}[{p.request_id[i]}]={values[i]}: {why}", f"correct {name} of {p.request_id[i]}, or leave the request out")
        for i in np.flatnonzero(wrong).tolist()
    ]


def _same_length(p: Promises, **columns: Int64) -> list[Problem]:
    n = len(p.request_id)
    return [
        Problem("columns_differ", f"len({name})={len(column)}: there are {n} candidates", f"give {name} one value a candidate")
        for name, column in columns.items()
        if len(column) != n
    ]
