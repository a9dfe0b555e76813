"""From a record to who asked for what and what was completed for whom: the columns that fairness is measured on (F52, F53)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.backlog import departures
from analysis.clocks import Clocks
from analysis.fairness import ServiceLog, backlog, weighted_cost
from analysis.model import Outcome
from analysis.outcomes import OutcomeArray, expected_tokens
from analysis.planned import MISSING, Bools, Int64, planned, rows_of
from analysis.rates import completed
from analysis.stamps import arrival_order, pieces
from analysis.tails import Floats
from harness.record.fairness import Fairness
from harness.record.reader import RunRecord

CELLS = 4096
"""Where a run has more events than ``EXACT``, stamps are rounded up to this many parts of the measured window: a quarter of a per mille of
it, far below what a gap over seconds is read to."""

EXACT = 200_000
"""Events that are taken as they are: fifty clients in pairs then cost well under a second."""

FEW = 64
"""Clients up to which a table of all of them by part (2 MB) is filled faster than the parts that occur are sorted."""


@dataclass(frozen=True, slots=True, eq=False)
class Parties:
    """Whose service is compared. ``names`` in order; ``weight`` (n,); ``row``: code of each row of the clocks, ``planned``: of the
    schedule, MISSING for requests that bear no name."""

    names: tuple[str, ...]
    weight: Floats
    row: Int64
    planned: Int64

    @property
    def unnamed(self) -> int:
        """Scheduled requests that are nobody's."""
        return int((self.planned == MISSING).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Eligibility:
    """The measured window as (start, stop] of whole ns, and each party's eligible stretches in it, shape (m, 2) each."""

    start: int
    stop: int
    stretches: tuple[Int64, ...]


def parties(record: RunRecord, clocks: Clocks, declared: Fairness) -> Parties:
    """Code the declared identity of every request. Weights are the tenants' own where clients are compared, else 1."""
    column = record.schedule.column(declared.identity)
    coded = pc.cast(column, pa.string()).combine_chunks().dictionary_encode()
    found = coded.dictionary.to_pylist()
    order = sorted(range(len(found)), key=lambda i: _by_name(found[i], declared.identity))
    place = np.append(np.empty(len(found), dtype=np.int64), MISSING)
    place[order] = np.arange(len(found))
    codes = place[np.asarray(pc.fill_null(coded.indices, len(found)).to_numpy(zero_copy_only=False), dtype=np.int64)]
    names = tuple(str(found[i]) for i in order)
    tenants = record.spec.workload.tenants if declared.identity == "client" else {}
    weight = np.array([float(tenants.get(name, {}).get("weight", 1.0)) for name in names], dtype=np.float64)
    return Parties(names, weight, np.append(codes, MISSING)[rows_of(record.schedule, clocks.request_id)], codes)


def _by_name(name: str, identity: str) -> tuple[int, str]:
    return (int(name), "") if identity == "priority" else (0, name)


def in_window(record: RunRecord) -> tuple[int, int]:
    """The measured window [w, w+W) as (w-1, w+W-1]: stamps are whole ns, and service is counted up to and with an instant."""
    window = record.spec.window
    return window.start_ns - 1, window.stop_ns - 1


def eligibility(record: RunRecord, clocks: Clocks, who: Parties, declared: Fairness) -> Eligibility:
    """When each party was eligible within the measured window, in the declared sense."""
    start, stop = in_window(record)
    named = who.row != MISSING
    leaves = left_queue(record, clocks) if declared.eligible == "waiting" else departures(record, clocks)
    # Who comes at the window's first instant is there throughout it: (start, stop] holds that instant and not start.
    came = np.where(clocks.arrival_ns == start + 1, start, clocks.arrival_ns)
    arrival, end = (np.clip(x[named], start, stop) for x in (came, leaves))
    return Eligibility(start, stop, backlog(who.row[named], arrival, end, len(who.names)))


def left_queue(record: RunRecord, clocks: Clocks) -> Int64:
    """When each request stopped waiting (n,): its first token, or its departure without one."""
    return np.where(clocks.first_ns == MISSING, departures(record, clocks), clocks.first_ns)


class Events(NamedTuple):
    """Completed work: row of the clocks, instant, tokens (-1: how many is not known) and cost of a token, each (k,)."""

    row: Int64
    at: Int64
    tokens: Int64
    weight: float
    what: str


def service_log(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, who: Parties, declared: Fairness) -> tuple[ServiceLog, str]:
    """Completed work of the measured window by party, in weighted tokens; and why it is not known, empty when it is.

    A prompt costs w_p for every token of it, those that a cache supplied too. The work of a request that failed counts nothing, whatever
    had been streamed of it (0x09A); one cut by the drain or given up by plan keeps what it got under publication by tokens. Events are read
    a piece at a time, and of more than ``EXACT`` each piece is rounded up to ``CELLS`` parts of the window before the next.
    """
    build = _by_requests if declared.publication == "requests" else _by_tokens
    start, stop = in_window(record)
    rounded, unknown, logs = is_rounded(clocks), dict[str, None](), []
    for events in build(record, clocks, outcome, declared):
        code = who.row[events.row]
        kept = (code != MISSING) & (events.at > start) & (events.at <= stop)
        tokens = events.tokens[kept]
        unknown |= dict.fromkeys([events.what] if bool((tokens < 0).any()) else [])
        part = ServiceLog(code[kept], events.at[kept], events.weight * np.maximum(tokens, 0).astype(np.float64), len(who.names))
        logs.append(_rounded(part, start, stop) if rounded else part)
    client, at, cost = (np.concatenate([getattr(part, name) for part in logs]) for name in ("client", "at", "cost"))
    return ServiceLog(client, at, cost, len(who.names)), "; ".join(unknown)


def is_rounded(clocks: Clocks) -> bool:
    """Whether a run has so many events that their stamps are rounded up."""
    return int(clocks.marks.events.sum()) > EXACT


def _rounded(log: ServiceLog, start: int, stop: int) -> ServiceLog:
    """Stamps rounded up to ``CELLS`` parts of (start, stop], one event a client and part."""
    width = -(-(stop - start) // CELLS)
    key = log.client * (CELLS + 1) + -(-(log.at - start) // width)
    if log.clients <= FEW:
        there, cost = np.flatnonzero(np.bincount(key)), np.bincount(key, weights=log.cost)
        cost = cost[there]
    else:
        there, where = np.unique(key, return_inverse=True)
        cost = np.bincount(where, weights=log.cost, minlength=len(there))
    client, cell = np.divmod(there, CELLS + 1)
    return ServiceLog(client, np.minimum(start + cell * width, stop), cost.astype(np.float64), log.clients)


def _by_tokens(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, declared: Fairness) -> Iterator[Events]:
    counts: Bools = (outcome != Outcome.FAILED) & (clocks.first_ns != MISSING)
    rows = np.flatnonzero(counts)
    yield Events(rows, clocks.first_ns[rows], _input(record, clocks)[rows], declared.input_weight, _PROMPTS)
    for piece in pieces(record, arrival_order(record.requests), len(clocks)):
        part = piece.only(counts[piece.rows])
        row = np.repeat(np.arange(len(clocks))[piece.rows][counts[piece.rows]], part.counts)
        yield Events(row, part.ns, np.asarray(part.carried, dtype=np.int64), declared.output_weight, _STREAMED)


def _by_requests(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, declared: Fairness) -> Iterator[Events]:
    rows = np.flatnonzero(completed(outcome))
    yield Events(rows, clocks.end_ns[rows], _input(record, clocks)[rows], declared.input_weight, _PROMPTS)
    yield Events(rows, clocks.end_ns[rows], clocks.tokens[rows], declared.output_weight, "answers of an unknown number of tokens")


_PROMPTS, _STREAMED = "prompts of an unknown length", "events carried an unknown number of tokens"


def _input(record: RunRecord, clocks: Clocks) -> Int64:
    return planned(record.schedule, "input_tokens", clocks.request_id)


def demand_log(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, who: Parties, declared: Fairness) -> ServiceLog:
    """What was asked for, by party and arrival in the measured window, in weighted tokens.

    The output asked for is what an answer held when it is complete, else its planned length. Requests that were declined or failed stay in:
    to leave out who was turned away would make a gap of their own vanish.
    """
    start, stop = in_window(record)
    kept = np.flatnonzero((who.row != MISSING) & (clocks.arrival_ns > start) & (clocks.arrival_ns <= stop))
    counted = completed(outcome) & (clocks.tokens != MISSING)
    output = np.maximum(np.where(counted, clocks.tokens, expected_tokens(record, clocks)), 0)[kept]
    input_tokens = planned(record.schedule, "input_tokens", clocks.request_id)[kept]
    cost = weighted_cost(np.maximum(input_tokens, 0), output, declared.input_weight, declared.output_weight)
    return ServiceLog(who.row[kept], clocks.arrival_ns[kept], cost, len(who.names))


def per_weight(log: ServiceLog, who: Parties) -> ServiceLog:
    """The same log with every cost divided by its party's weight, which is what gaps and indices compare."""
    return log if bool((who.weight == 1.0).all()) else ServiceLog(log.client, log.at, log.cost / who.weight[log.client], log.clients)


def total(log: ServiceLog) -> Floats:
    """Sum of each party's costs, shape (n,)."""
    return np.bincount(log.client, weights=log.cost, minlength=log.clients).astype(np.float64)


def counted(who: Int64, mask: Bools, n: int) -> Int64:
    """How many rows under ``mask`` bear each code, shape (n,)."""
    return np.bincount(who[mask & (who != MISSING)], minlength=n).astype(np.int64)
