"""Reservation ledgers (F20-F29): what admission may promise before lengths are known, and what the promise turned out to cost.

Two halves that share no input. Deciding (``Candidates``, the forecasts, ``plan_admission``, ``recover``) sees declared maxima, a
predictor's values and published progress; realized lengths are no argument of any of it. Settling (``settle``) takes a plan that stands
and the lengths that came true. All rows are logical K/V rows: an intent is a request to an allocator, and no allocation.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from analysis.arguments import at_least, at_most, need
from analysis.tails import rank_of
from harness.errors import Problem

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Requests that ask for admission, in arrival order; arrays of shape (n,), ``draws`` (n, k).

    ``emitted``: outputs published so far, 0 for a new request. ``uncached_rows``: prompt rows to prefill, 0 once something is emitted.
    ``declared_max``: most outputs the request may have. ``point``, ``draws``: totals a predictor of version ``prediction`` forecasts, one
    value and k possible ones. UsageError, with all reasons, for shapes or values that no request can have.
    """

    request_id: tuple[str, ...]
    emitted: Int64
    uncached_rows: Int64
    declared_max: Int64
    point: Int64
    draws: Int64
    prediction: str

    def __post_init__(self) -> None:
        need(_misshapen(self))
        need(_impossible(self))


@dataclass(frozen=True, slots=True)
class Budget:
    """What a scheduler sees of capacity, rows: the hard ceiling, what is already committed or reserved, what is held back.

    ``epoch`` is the allocator's: an intent made under it is void under any other. UsageError for ceilings that contradict each other.
    """

    hard_rows: int
    reserved_rows: int
    epoch: int
    watermark_rows: int = 0

    def __post_init__(self) -> None:
        need(
            at_least(0, hard_rows=self.hard_rows, reserved_rows=self.reserved_rows, watermark_rows=self.watermark_rows),
            at_most(self.hard_rows, "the hard ceiling: rows cannot be held back from nothing", watermark_rows=self.watermark_rows),
            at_most(self.hard_rows, "the hard ceiling: more is promised than exists", reserved_rows=self.reserved_rows),
        )

    @property
    def soft_rows(self) -> int:
        """C_soft = C_hard - W: up to here ordinary admission reserves (F28)."""
        return self.hard_rows - self.watermark_rows


@dataclass(frozen=True, slots=True)
class Admission:
    """An intent to admit: rows and bytes asked of the allocator under its epoch. It holds no physical result, because there is none yet."""

    request_id: str
    rows: int
    bytes: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Deferral:
    """Not admitted now. ``short_rows``: how far past the soft ceiling it would have reached; 0 if only an earlier deferral bars it."""

    request_id: str
    rows: int
    short_rows: int


@dataclass(frozen=True, slots=True)
class Extension:
    """An intent to reserve ``rows`` more for an admitted request whose reservation ends before what it now needs."""

    request_id: str
    rows: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Preemption:
    """An intent to take ``rows`` from a request. Nothing is free until the owner of the rows says that it released them."""

    request_id: str
    rows: int
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionPlan:
    """A frozen decision over ``candidates``. ``estimate_rows`` (n,) are future rows of each; ``admitted`` (n,) says who gets them."""

    policy: str
    candidates: Candidates
    budget: Budget
    row_bytes: int
    estimate_rows: Int64
    admitted: Bools
    intents: tuple[Admission | Deferral, ...]

    @property
    def reserved_after(self) -> int:
        """Rows reserved once every admission of this plan is granted."""
        return self.budget.reserved_rows + int(self.estimate_rows[self.admitted].sum())


@dataclass(frozen=True, slots=True, eq=False)
class ReservationLedger:
    """A plan against the lengths that came true. ``error_rows`` (n,): estimate minus realized, 0 for requests that were not admitted (F27).

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


# Forecasts of total outputs, shape (n,)


def by_maximum(candidates: Candidates) -> Int64:
    """Reserve what was declared: never short, and idle by all that a request ends early."""
    return candidates.declared_max


def by_point(candidates: Candidates) -> Int64:
    """Reserve the predictor's one value."""
    return candidates.point


def by_quantile(candidates: Candidates, p: Fraction | float) -> Int64:
    """Reserve the nearest-rank quantile of each request's own draws (F39).

    p for each request is no promise that the admitted together fit with probability p.
    """
    return np.sort(candidates.draws, axis=1)[:, rank_of(p, candidates.draws.shape[1]) - 1]


# Deciding


def plan_admission(
    policy: str, candidates: Candidates, forecast: Int64, budget: Budget, row_bytes: int, *, may_pass: bool = False
) -> AdmissionPlan:
    """Go through the candidates in order and admit while R + A <= C_soft (F29).

    ``policy`` is the name the plan bears, ``forecast`` (n,) the totals it reserves by; a watermark is the budget's, so any forecast can
    have one. ``may_pass``: whether a later request may be admitted after one was deferred; without it order is kept.
    """
    need(at_least(1, row_bytes=row_bytes), _beyond_declared("forecast", forecast, candidates))
    rows = future_rows(candidates.emitted, candidates.uncached_rows, forecast)
    intents: list[Admission | Deferral] = []
    reserved, blocked = budget.reserved_rows, False
    for request, want in zip(candidates.request_id, rows.tolist(), strict=True):
        short = max(reserved + want - budget.soft_rows, 0)
        if short or blocked:
            intents.append(Deferral(request, want, short))
            blocked = not may_pass
        else:
            intents.append(Admission(request, want, want * row_bytes, budget.epoch))
            reserved += want
    admitted = np.array([isinstance(intent, Admission) for intent in intents], dtype=bool)
    return AdmissionPlan(policy, candidates, budget, row_bytes, rows, admitted, tuple(intents))


def recover(plan: AdmissionPlan, needed_rows: Int64, priority: Int64, epoch: int) -> tuple[Extension | Preemption, ...]:
    """Say what to ask for once admitted requests need ``needed_rows`` (n,): rows appended so far and those of their next step, both facts.

    An extension for each that needs more than it reserved; it may use the watermark, which is there for this. If all together pass the hard
    ceiling, preemptions first: of the lowest ``priority`` (n,) (greatest number), among equals the latest, until the rest fits; a request
    that is to leave asks for no extension. Rows of candidates that were not admitted are ignored.
    """
    need(
        _same_length(plan.candidates, needed_rows=needed_rows, priority=priority), at_least(0, needed_rows=int(needed_rows.min(initial=0)))
    )
    held = np.where(plan.admitted, np.maximum(plan.estimate_rows, needed_rows), 0)
    excess = plan.budget.reserved_rows + int(held.sum()) - plan.budget.hard_rows
    out = _victims(held, np.lexsort((np.arange(len(held)), priority))[::-1], excess)
    names = plan.candidates.request_id
    longer = [i for i in np.flatnonzero(held > np.where(plan.admitted, plan.estimate_rows, 0)).tolist() if i not in out]
    return (
        *(Preemption(names[i], int(held[i]), epoch) for i in out),
        *(Extension(names[i], int(held[i] - plan.estimate_rows[i]), epoch) for i in longer),
    )


def _victims(held: Int64, order: Int64, excess: int) -> list[int]:
    """Positions in ``order`` that hold rows, as many as cover ``excess``."""
    out: list[int] = []
    for i in order.tolist():
        if excess <= 0:
            break
        if held[i] > 0:
            out.append(i)
            excess -= int(held[i])
    return out


# Settling


def settle(plan: AdmissionPlan, realized_outputs: Int64) -> ReservationLedger:
    """Compare a plan with ``realized_outputs`` (n,), the total outputs that each admitted request came to; other values are not read.

    UsageError for lengths below what was emitted, or above what was declared: then the ledger would be of other requests.
    """
    candidates = plan.candidates
    need(_same_length(candidates, realized_outputs=realized_outputs))
    realized_outputs = np.where(plan.admitted, realized_outputs, candidates.declared_max)
    short = realized_outputs < np.maximum(candidates.emitted, 1)
    need(
        _beyond_declared("realized_outputs", realized_outputs, candidates),
        _each(candidates, short, "realized_too_short", "realized_outputs", realized_outputs, "fewer outputs than were already emitted"),
    )
    realized = future_rows(candidates.emitted, candidates.uncached_rows, realized_outputs)
    error = np.where(plan.admitted, plan.estimate_rows - realized, 0)
    occupied = plan.budget.reserved_rows + int(realized[plan.admitted].sum())
    return ReservationLedger(
        policy=plan.policy,
        row_bytes=plan.row_bytes,
        error_rows=error,
        unused_rows=int(np.maximum(error, 0).sum()),
        under_rows=int(np.maximum(-error, 0).sum()),
        occupied_rows=occupied,
        breach_rows=max(occupied - plan.budget.hard_rows, 0),
        admitted=int(plan.admitted.sum()),
        deferred=int((~plan.admitted).sum()),
    )


# What is refused


def _misshapen(c: Candidates) -> list[Problem]:
    found = _same_length(c, emitted=c.emitted, uncached_rows=c.uncached_rows, declared_max=c.declared_max, point=c.point, draws=c.draws)
    if c.draws.ndim != 2 or c.draws.shape[1] < 1:
        what = f"draws.shape={c.draws.shape}: must be (n, k) with k >= 1, or there is no quantile of them"
        found.append(Problem("draws_misshapen", what, "give each request the same number of predicted totals"))
    if len(set(c.request_id)) != len(c.request_id):
        what = "request_id: one stands twice, and its rows would be reserved twice"
        found.append(Problem("request_twice", what, "give every candidate once"))
    return found


def _impossible(c: Candidates) -> list[Problem]:
    low, high = c.draws.min(axis=1), c.draws.max(axis=1)
    done = c.emitted >= c.declared_max
    astray = (c.point < low) | (c.point > high)
    twice = (c.emitted > 0) & (c.uncached_rows > 0)
    return [
        *at_least(0, emitted=int(c.emitted.min(initial=0)), uncached_rows=int(c.uncached_rows.min(initial=0))),
        *at_least(1, draws=int(c.draws.min(initial=1))),
        *_beyond_declared("draws", high, c),
        *_each(c, done, "nothing_left", "emitted", c.emitted, "all declared outputs are emitted, so there is nothing to reserve for"),
        *_each(c, astray, "point_outside_draws", "point", c.point, "outside its own draws, so the two are not of one prediction"),
        *_each(c, twice, "uncached_after_output", "uncached_rows", c.uncached_rows, "a request with outputs has prefilled its prompt"),
    ]


def _beyond_declared(name: str, totals: Int64, c: Candidates) -> list[Problem]:
    return _same_length(c, **{name: totals}) or _each(
        c, totals > c.declared_max, "beyond_declared", name, totals, "more outputs than the declared maximum allows"
    )


def _each(c: Candidates, wrong: Bools, code: str, name: str, values: Int64, why: str) -> list[Problem]:
    return [
        Problem(code, f"{name}[{c.request_id[i]}]={values[i]}: {why}", f"correct {name} of {c.request_id[i]}, or leave the request out")
        for i in np.flatnonzero(wrong).tolist()
    ]


def _same_length(c: Candidates, **columns: Int64) -> list[Problem]:
    n = len(c.request_id)
    return [
        Problem("columns_differ", f"len({name})={len(column)}: there are {n} candidates", f"give {name} one value a candidate")
        for name, column in columns.items()
        if len(column) != n
    ]
