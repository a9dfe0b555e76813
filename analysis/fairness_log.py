"""From a record to who asked for what and what was completed for whom: the columns that fairness is measured on (F52, F53)."""

from __future__ import annotations

from dataclasses import dataclass

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
from analysis.tails import Floats
from harness.record.fairness import Fairness
from harness.record.reader import RunRecord

CELLS = 4096
"""Where a log has more events than ``EXACT``, stamps are rounded up to this many parts of the measured window before clients are paired: a
quarter of a per mille of it, far below what a gap over seconds is read to."""

EXACT = 200_000
"""Events that are paired as they are: fifty clients in pairs then cost well under a second."""


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
    arrival, end = (np.clip(x[named], start, stop) for x in (clocks.arrival_ns, leaves))
    return Eligibility(start, stop, backlog(who.row[named], arrival, end, len(who.names)))


def left_queue(record: RunRecord, clocks: Clocks) -> Int64:
    """When each request stopped waiting (n,): its first token, or its departure without one."""
    return np.where(clocks.first_ns == MISSING, departures(record, clocks), clocks.first_ns)


def service_log(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, who: Parties, declared: Fairness) -> tuple[ServiceLog, str]:
    """Completed work of the measured window by party, in weighted tokens; and why it is not known, empty when it is.

    A prompt costs w_p for every token of it, those that a cache supplied too. The work of a request that failed counts nothing, whatever
    had been streamed of it (0x09A); one cut by the drain or given up by plan keeps what it got under publication by tokens.
    """
    build = _by_requests if declared.publication == "requests" else _by_tokens
    row, at, cost, unknown = build(record, clocks, outcome, declared)
    start, stop = in_window(record)
    kept = (who.row[row] != MISSING) & (at > start) & (at <= stop)
    return ServiceLog(who.row[row][kept], at[kept], cost[kept], len(who.names)), unknown if bool(kept.any()) else ""


Events = tuple[Int64, Int64, Floats, str]
"""Row of the clocks, instant and cost of each event, each (k,); why costs are not known, if they are not."""


def _by_tokens(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, declared: Fairness) -> Events:
    counts: Bools = (outcome != Outcome.FAILED) & (clocks.first_ns != MISSING)
    prompts = np.flatnonzero(counts)
    input_tokens = planned(record.schedule, "input_tokens", clocks.request_id)[prompts]
    streamed = counts[clocks.token_event_request]
    tokens = clocks.token_event_count[streamed]
    row = np.concatenate((prompts, clocks.token_event_request[streamed]))
    at = np.concatenate((clocks.first_ns[prompts], clocks.token_event_ns[streamed]))
    cost = np.concatenate((
        weighted_cost(np.maximum(input_tokens, 0), 0, declared.input_weight, declared.output_weight),
        weighted_cost(0, np.maximum(tokens, 0), declared.input_weight, declared.output_weight),
    ))  # fmt: skip
    return row, at, cost, _uncounted(input_tokens, tokens, "events carried an unknown number of tokens")


def _by_requests(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, declared: Fairness) -> Events:
    row = np.flatnonzero(completed(outcome))
    tokens = clocks.tokens[row]
    input_tokens = planned(record.schedule, "input_tokens", clocks.request_id)[row]
    cost = weighted_cost(np.maximum(input_tokens, 0), np.maximum(tokens, 0), declared.input_weight, declared.output_weight)
    return row, clocks.end_ns[row], cost, _uncounted(input_tokens, tokens, "answers of an unknown number of tokens")


def _uncounted(input_tokens: Int64, tokens: Int64, words: str) -> str:
    """Why costs are not known: a log that somebody else kept may lack the prompts' lengths too."""
    found = [words] if bool((tokens < 0).any()) else []
    return "; ".join([*found, *(["prompts of an unknown length"] if bool((input_tokens < 0).any()) else [])])


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


def coarse(log: ServiceLog, start: int, stop: int) -> ServiceLog:
    """A log of many events with stamps rounded up to ``CELLS`` parts of (start, stop], one event a client and part.

    A small one stays as it is.
    """
    if len(log.at) <= EXACT:
        return log
    width = -(-(stop - start) // CELLS)
    key = log.client * (CELLS + 1) + -(-(log.at - start) // width)
    cost = np.bincount(key, weights=log.cost, minlength=1).astype(np.float64)
    there = np.flatnonzero(cost)
    client, cell = np.divmod(there, CELLS + 1)
    return ServiceLog(client, np.minimum(start + cell * width, stop), cost[there], log.clients)


def total(log: ServiceLog) -> Floats:
    """Sum of each party's costs, shape (n,)."""
    return np.bincount(log.client, weights=log.cost, minlength=log.clients).astype(np.float64)


def counted(who: Int64, mask: Bools, n: int) -> Int64:
    """How many rows under ``mask`` bear each code, shape (n,)."""
    return np.bincount(who[mask & (who != MISSING)], minlength=n).astype(np.int64)
