"""Who got how much while they could have had it (F52-F63): weighted service, gaps, starvation, over a log of completed work.

A statement of fairness names five things. Here the identity is a client code; the eligibility interval is what ``backlog`` makes of given
arrivals and ends; the cost is what ``weighted_cost`` makes of declared weights; the publication event is the completion of work, so that
planned or failed work counts nothing; the guarantee is the caller's, and ``service_bound`` gives none without its premises.

Clients are codes 0 .. n-1. Instants are integers (ns of a run, or ticks) on one clock. Service is counted over (t1, t2]: what is published
at t was done before t, so work done in a stretch is published up to and with its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.arguments import at_least, need
from analysis.model import Verdict
from harness.errors import Problem

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Published = tuple[Int64, Floats]
"""Instants of one client, ascending and unlike, and the cost published at each."""


@dataclass(frozen=True, slots=True, eq=False)
class ServiceLog:
    """Completed work of n ``clients``: code, instant of publication and weighted cost of each event, shape (k,), in any order.

    Sums of whole costs are exact below 2**53. UsageError for columns of unlike length, unknown codes, or negative costs.
    """

    client: Int64
    at: Int64
    cost: Floats
    clients: int

    def __post_init__(self) -> None:
        need(_unlike(self.client, at=self.at, cost=self.cost), at_least(0, clients=self.clients))
        need(_unknown_codes(self.client, self.clients), at_least(0, cost=float(self.cost.min(initial=0.0))))

    def of(self, client: int) -> Published:
        """Instants of one client in ascending order and the cost published at each, shapes (u,): events of one instant are one."""
        mine = self.client == client
        return _together(self.at[mine], self.cost[mine])

    def by_client(self) -> list[Published]:
        """What ``of`` gives for every client, from one sort of the log: thousands of clients cost no more than one."""
        order = np.argsort(self.client, kind="stable")
        edges = np.searchsorted(self.client[order], np.arange(self.clients + 1)).tolist()
        at, cost = self.at[order], self.cost[order]
        return [_together(at[a:b], cost[a:b]) for a, b in pairwise(edges)]


def _together(at: Int64, cost: Floats) -> Published:
    instants, where = np.unique(at, return_inverse=True)
    return instants, _sums(where, cost, len(instants))


class Gap(NamedTuple):
    """The widest service difference of two clients, and the stretch (t1, t2] over which it arose."""

    value: float
    f: int
    g: int
    t1: int
    t2: int


@dataclass(frozen=True, slots=True)
class VtcPremises:
    """What Theorem 4.4 of VTC rests on, one answer each; None: not known, which is no yes (section 0x09A)."""

    both_backlogged: bool | None
    """both clients wait throughout the measured interval"""
    lift_and_charges_kept: bool | None
    """the counter lift and the charging events of Algorithm 2"""
    work_conserving: bool | None
    """under the paper's memory criterion"""
    no_preemption: bool | None
    finite_bounds: bool | None
    """the longest input and the batch's most tokens bound every request and batch of the system"""


@dataclass(frozen=True, slots=True)
class ServiceBound:
    """``charge`` U is arithmetic (F57); ``value`` 2U is a bound (F60), None unless every premise holds: ``reason`` says which do not."""

    charge: float
    value: float | None
    reason: str = ""


# Service


def weighted_cost(input_rows: npt.ArrayLike, output_rows: npt.ArrayLike, w_p: float, w_q: float) -> Floats:
    """Cost w_p n_p + w_q n_q of events (k,) that completed so many input and output rows (F52, F53)."""
    need(at_least(0, w_p=w_p, w_q=w_q))
    return w_p * np.asarray(input_rows, dtype=np.float64) + w_q * np.asarray(output_rows, dtype=np.float64)


def service(log: ServiceLog, t1: int, t2: int) -> Floats:
    """W_i(t1, t2]: weighted service of each client, shape (n,) (F53)."""
    inside = (log.at > t1) & (log.at <= t2)
    return _sums(log.client[inside], log.cost[inside], log.clients)


def accumulated(log: ServiceLog, at: Int64) -> Floats:
    """Service of each client up to and with every instant of ``at`` (k,), shape (k, n)."""
    result = np.zeros((len(at), log.clients))
    for client, (instants, cost) in enumerate(log.by_client()):
        result[:, client] = np.concatenate(([0.0], np.cumsum(cost)))[np.searchsorted(instants, at, side="right")]
    return result


def windowed_service(log: ServiceLog, starts: Int64, width: int) -> Floats:
    """Service of each client in (s, s + width] for every start s, shape (windows, n); windows may overlap."""
    return accumulated(log, starts + width) - accumulated(log, starts)


# Eligibility


def backlog(client: Int64, arrival: Int64, end: Int64, clients: int) -> tuple[Int64, ...]:
    """For each client the stretches over which it has unfinished work: the union of its [arrival, end), shape (m, 2), ascending, apart.

    ``end`` (r,) says what unfinished means: the end of a request, or its first token for VTC's narrower sense, which is waiting only. A
    request without an end is given the horizon. UsageError for unknown codes, columns of unlike length, or an end before its arrival.
    """
    need(_unlike(client, arrival=arrival, end=end))
    need(_unknown_codes(client, clients), _reversed(arrival, end))
    order = np.lexsort((arrival, client))
    edges = np.searchsorted(client[order], np.arange(clients + 1))
    return tuple(_union(arrival[order[a:b]], end[order[a:b]]) for a, b in pairwise(edges.tolist()))


def _union(arrival: Int64, end: Int64) -> Int64:
    """Merge intervals sorted by arrival where they meet or overlap; empty ones vanish."""
    some = end > arrival
    arrival, reach = arrival[some], np.maximum.accumulate(end[some])
    if not len(arrival):
        return np.empty((0, 2), dtype=np.int64)
    breaks = np.flatnonzero(arrival[1:] > reach[:-1])
    return np.column_stack((arrival[np.append(0, breaks + 1)], reach[np.append(breaks, len(reach) - 1)]))


def shared(a: Int64, b: Int64) -> Int64:
    """Stretches that lie in both ``a`` and ``b``, each (m, 2), ascending and apart; shape (m, 2)."""
    points = np.concatenate((a[:, 0], b[:, 0], a[:, 1], b[:, 1]))
    steps = np.repeat([1, -1], [len(a) + len(b)] * 2)
    order = np.lexsort((steps, points))  # ends before starts, so stretches that only touch share nothing
    both = np.cumsum(steps[order]) == 2
    at = points[order]
    return np.column_stack((at[:-1][both[:-1]], at[1:][both[:-1]])) if len(at) else np.empty((0, 2), dtype=np.int64)


def covers(stretches: Int64, t1: int, t2: int) -> bool:
    """Whether one of ``stretches`` (m, 2) holds all of [t1, t2): a client eligible throughout."""
    return bool(((stretches[:, 0] <= t1) & (stretches[:, 1] >= t2)).any())


def contended(stretches: Sequence[Int64]) -> int:
    """Total time in which two clients or more were eligible, in units of the instants."""
    starts, stops = (np.concatenate([s[:, k] for s in stretches] or [np.empty(0, dtype=np.int64)]) for k in (0, 1))
    at = np.concatenate((starts, stops))
    order = np.argsort(at, kind="stable")
    eligible = np.cumsum(np.repeat([1, -1], len(starts))[order])
    return int(np.diff(at[order])[eligible[:-1] >= 2].sum())


# Gaps


def pair_gap(log: ServiceLog, f: int, g: int, stretches: Int64) -> Gap | None:
    """Return the greatest |W_f(t1, t2) - W_g(t1, t2)| over all t1 < t2 within one of ``stretches`` (m, 2); None when there are none.

    This is the left side of F60. By F59 it is the range of the running difference W_f - W_g in a stretch, so one pass finds it. Events of
    one instant are published together.
    """
    return _pair_gap((f, g), log.of(f), log.of(g), stretches)


def _pair_gap(pair: tuple[int, int], of_f: Published, of_g: Published, stretches: Int64) -> Gap | None:
    at = np.concatenate((of_f[0], of_g[0]))
    order = np.argsort(at, kind="stable")  # which merges two ascending runs in one pass
    at = at[order]
    last = np.append(at[1:] != at[:-1], True)[: len(at)]
    running = np.cumsum(np.concatenate((of_f[1], -of_g[1]))[order])[last]
    gaps = [_widest(at[last], np.append(0.0, running), pair, start, stop) for start, stop in stretches.tolist()]
    return max(gaps, key=lambda gap: gap.value, default=None)


def _widest(at: Int64, running: Floats, pair: tuple[int, int], start: int, stop: int) -> Gap:
    """Range of the running difference in (start, stop]; ``running`` (u+1,) begins with that before the first of ``at`` (u,)."""
    low, high = np.searchsorted(at, (start, stop), side="right")
    part = running[low : high + 1]
    ends = sorted((int(np.argmin(part)), int(np.argmax(part))))
    t1, t2 = (int(at[low + end - 1]) if end else start for end in ends)
    return Gap(float(np.ptp(part)), *pair, t1, t2)


def largest_gap(log: ServiceLog, stretches: tuple[Int64, ...], among: Sequence[int] | None = None) -> Gap | None:
    """Return the widest gap of any two clients while both are backlogged, ``stretches`` from ``backlog``; None when no two ever are.

    ``among``: the clients that are paired, all by default. Cost: pairs times their events, so name the largest ones of thousands.
    """
    published = log.by_client()
    pairs = combinations(range(log.clients) if among is None else sorted(among), 2)
    gaps = (_pair_gap((f, g), published[f], published[g], shared(stretches[f], stretches[g])) for f, g in pairs)
    return max((gap for gap in gaps if gap is not None), key=lambda gap: gap.value, default=None)


def windowed_gap(served: Floats, requested: Floats) -> Floats:
    """Sum over clients of min(greatest s - s_i, |r_i - s_i|) in each window, shape (windows,), from (windows, n) each.

    The measure of VTC's artifact: a client counts as far behind the best served as it asked for more than it got. Not the spread of
    accumulated service, and no side of its theorem.
    """
    behind = served.max(axis=1, keepdims=True, initial=0.0) - served
    return np.asarray(np.minimum(behind, np.abs(requested - served)).sum(axis=1), dtype=np.float64)


def jain(shares: Floats) -> float | None:
    """Jain's index (sum x)^2 / (n sum x^2) of shares (n,): 1 when all are equal, 1/n when one has all; None when no one has any."""
    need(at_least(0, shares=float(shares.min(initial=0.0))))
    most = shares.max(initial=0.0)
    if most == 0.0:
        return None
    scaled = shares / most  # the index does not depend on scale, squares of tiny shares do
    return float(scaled.sum() ** 2 / (len(scaled) * (scaled**2).sum()))


# Starvation and age


def starved(log: ServiceLog, stretches: tuple[Int64, ...], t1: int, t2: int) -> Bools:
    """Clients eligible throughout the horizon (t1, t2] with no completed event in it, shape (n,) (F63).

    A client that was not eligible throughout is not starved, and neither is it shown to be well. UsageError for an empty horizon.
    """
    need(at_least(t1 + 1, t2=t2))
    inside = (log.at > t1) & (log.at <= t2)
    served = np.bincount(log.client[inside], minlength=log.clients) > 0
    return np.array([covers(s, t1, t2) for s in stretches], dtype=bool) & ~served


def droughts(log: ServiceLog, stretches: tuple[Int64, ...]) -> Int64:
    """Longest time each client was eligible without a break and nothing of it completed, shape (n,).

    The wait before the first event of a stretch, between two, and after the last. A client is starved by a horizon (F63) exactly when this
    is as long, as far as horizons lie between events.
    """
    return np.array([_drought(at, s) for (at, _), s in zip(log.by_client(), stretches, strict=True)], dtype=np.int64)


def _drought(at: Int64, stretches: Int64) -> int:
    waits = [
        np.diff(np.concatenate(([start], at[np.searchsorted(at, start, side="right") : np.searchsorted(at, stop, side="right")], [stop])))
        for start, stop in stretches.tolist()
    ]
    return max((int(w.max()) for w in waits), default=0)


def aged_priority(base: npt.ArrayLike, waited: npt.ArrayLike, quantum: int) -> Int64:
    """p_base - floor((t - a) / q) of each request (n,), smaller goes first, for ``waited`` = t - a in units of ``quantum`` (F61)."""
    need(at_least(1, quantum=quantum))
    return np.asarray(base, dtype=np.int64) - np.asarray(waited, dtype=np.int64) // quantum


def aging_crossover(low: int, high: int, quantum: int) -> int:
    """Return the first wait at which a request of base ``low`` goes before one of base ``high`` that has just come (F61).

    An equal priority suffices, since the one that waits is older. Requests of equal rank need no waiting: 0.
    """
    need(at_least(1, quantum=quantum))
    return max(low - high, 0) * quantum


# VTC's bound


def counter_charge(w_p: float, w_q: float, longest_input: int, batch_tokens: int) -> float:
    """U = max(w_p L_input, w_q M): the most one step can add to a counter (F57), and their spread's limit while all wait (F58)."""
    need(at_least(0, w_p=w_p, w_q=w_q, longest_input=longest_input, batch_tokens=batch_tokens))
    return max(w_p * longest_input, w_q * batch_tokens)


def service_bound(charge: float, premises: VtcPremises) -> ServiceBound:
    """2U (F60) when all five premises hold; else no bound, and which of them fail or are unknown."""
    answers: Mapping[str, bool | None] = {f.name: getattr(premises, f.name) for f in fields(premises)}
    missing = [f"{name} {'unknown' if answer is None else 'does not hold'}" for name, answer in answers.items() if answer is not True]
    if missing:
        return ServiceBound(charge, None, f"no bound: {', '.join(missing)}")
    return ServiceBound(charge, 2 * charge)


def check_bound(gap: Gap | None, bound: ServiceBound) -> tuple[Verdict, str]:
    """Hold a measured gap against the bound: PASS, FAIL, or UNKNOWN where there is no gap or no bound. The text says why.

    PASS says that this log does not contradict the theorem. It proves no premise.
    """
    if bound.value is None:
        return Verdict.UNKNOWN, bound.reason
    if gap is None:
        return Verdict.UNKNOWN, "no two clients were backlogged together"
    return (
        Verdict.PASS if gap.value <= bound.value else Verdict.FAIL,
        f"gap {gap.value:g} of clients {gap.f} and {gap.g} over ({gap.t1}, {gap.t2}], bound {bound.value:g}",
    )


def _sums(where: Int64, cost: Floats, n: int) -> Floats:
    return np.bincount(where, weights=cost, minlength=n).astype(np.float64)  # an empty log has integer sums otherwise


# What is refused


def _unlike(client: Int64, **columns: npt.NDArray[np.generic]) -> list[Problem]:
    return [
        Problem("columns_differ", f"len({name})={len(column)}: client has {len(client)} values", f"give {name} one value an event")
        for name, column in columns.items()
        if len(column) != len(client)
    ]


def _unknown_codes(client: Int64, clients: int) -> list[Problem]:
    if not len(client) or (client.min() >= 0 and client.max() < clients):
        return []
    what = f"client: codes from {client.min()} to {client.max()}, but clients={clients}, so some service would be no one's"
    return [Problem("client_unknown", what, f"number the clients 0 to {clients - 1}, or give the true number of clients")]


def _reversed(arrival: Int64, end: Int64) -> list[Problem]:
    return [
        Problem(
            "end_before_arrival",
            f"arrival[{i}]={arrival[i]}, end[{i}]={end[i]}: a request cannot leave before it comes",
            "give the horizon as end",
        )
        for i in np.flatnonzero(end < arrival).tolist()
    ]
