"""Rates with their denominators (F36, F37, DESIGN 6): throughput by stamp, goodput and attainment by cohort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from analysis.clocks import Clocks
from analysis.model import Figure, Outcome, Outcomes
from analysis.outcomes import OutcomeArray, expected_tokens, unjudged
from analysis.planned import MISSING, Bools, Int64, in_window
from analysis.slos import judged_by
from harness.clock import NS_PER_S
from harness.record.reader import RunRecord
from harness.record.spec import Slo

Status = Literal["ok", "withheld", "undefined", "unknown"]

COHORT = "offered cohort (arrival in the measured window)"
STAMPED = "all requests, stamped in the measured window"


def rate_figures(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, outcomes: Outcomes) -> dict[str, Figure]:
    """Every rate of a run by metric name. Units: req/s, tok/s, ratio."""
    return {f.metric: f for f in (*_throughput(record, clocks, outcome, outcomes), *_service(record, clocks, outcome, outcomes))}


def completed(outcome: OutcomeArray) -> Bools:
    """Say which requests (n,) were answered completely, with or without meeting the SLO."""
    done: Bools = (outcome == Outcome.VALID) | (outcome == Outcome.MISS)
    return done


def could_still_be_valid(record: RunRecord, clocks: Clocks, outcome: OutcomeArray) -> Bools:
    """Say which open requests of the cohort had not yet broken their SLO when the drain ended (n,).

    For these the drain was too short: nobody knows what they would have become. A request that can no longer meet its limits is a miss in
    the making and harms nothing.
    """
    undecided = np.zeros(len(clocks), dtype=bool)
    for slo, mask in judged_by(record, clocks.request_id):
        undecided |= mask & _still_within(record, slo, clocks)
    open_: Bools = clocks.in_cohort & (outcome == Outcome.OPEN)
    return open_ & undecided


def _still_within(record: RunRecord, slo: Slo, clocks: Clocks) -> Bools:
    """Say which requests had broken no limit of ``slo`` when they were closed (n,)."""
    closed = np.where(clocks.end_ns == MISSING, record.spec.window.end_ns, clocks.end_ns)
    age = closed - clocks.arrival_ns
    begun = clocks.first_ns != MISSING
    alive: Bools = np.ones(len(clocks), dtype=bool)
    if slo.ttft_ns is not None:
        alive &= np.where(begun, clocks.first_ns - clocks.arrival_ns <= slo.ttft_ns, age < slo.ttft_ns)
    if slo.e2e_ns is not None:
        alive &= age < slo.e2e_ns
    if slo.tbt_ns is not None:
        alive &= ~begun | _gaps_still_good(record, slo, slo.tbt_ns, clocks, closed)
    return alive


def _gaps_still_good(record: RunRecord, slo: Slo, limit: int, clocks: Clocks, closed: Int64) -> Bools:
    """Say whose gaps could still satisfy the rule (n,), for requests that have begun and were closed at ``closed`` (n,)."""
    expected = expected_tokens(record, clocks)
    promised = record.spec.workload.output_length in ("forced", "client_stop")
    # Silence is a gap in the making only where another token must come; an answer of free length may simply have been about to end.
    due: Bools = promised & (clocks.tokens != MISSING) & (clocks.tokens < expected)
    if slo.tbt_rule == "every":
        unbroken: Bools = clocks.marks.longest <= limit
        return unbroken & (~due | (closed - clocks.last_ns < limit))
    if slo.tbt_rule == "mean":
        return ~due | (closed - clocks.first_ns < limit * (expected - 1))
    # p99 and top10: how many gaps may be late depends on how many are to come, so an open request is given the benefit of the doubt.
    return np.ones(len(clocks), dtype=bool)


def _throughput(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, outcomes: Outcomes) -> list[Figure]:
    window = record.spec.window
    seconds = window.measured_ns / NS_PER_S
    per_window = f"measured window W = {seconds:g} s"
    ended = completed(outcome) & in_window(clocks.end_ns, window)
    marks = clocks.marks
    n_ended, n_tokens = int(ended.sum()), int(marks.inside_tokens.sum())
    uncounted = "events carried an unknown number of tokens" if (marks.inside_tokens == MISSING).any() else ""
    carriers = int(np.count_nonzero(marks.inside))
    return [
        rate("offered_rate", "req/s", outcomes.offered / seconds, outcomes.offered, COHORT, per_window),
        rate("request_throughput", "req/s", n_ended / seconds, n_ended, f"completions among {STAMPED}", per_window),
        rate("token_throughput", "tok/s", n_tokens / seconds, carriers, f"tokens of {STAMPED}", per_window, unknown=uncounted),
    ]


def _service(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, outcomes: Outcomes) -> list[Figure]:
    seconds = record.spec.window.measured_ns / NS_PER_S
    per_window = f"measured window W = {seconds:g} s"
    offered, valid = outcomes.offered, outcomes.counts[Outcome.VALID]
    done = valid + outcomes.counts[Outcome.MISS]
    unknown = "; ".join(_doubts(record, clocks, outcome, outcomes))
    none = "" if offered else "no request was offered in the measured window"
    tokens = clocks.tokens[clocks.in_cohort & (outcome == Outcome.VALID)]
    uncounted = "; ".join(filter(None, [unknown, "valid requests with an unknown number of tokens" if (tokens == MISSING).any() else ""]))
    share, served = (valid / offered if offered else 0.0), (valid / done if done else 0.0)
    nothing = none or ("" if done else "no request of the cohort completed")
    by_offered, by_done = f"offered requests, N_off = {offered}", f"completed requests = {done}"
    return [
        rate("goodput", "req/s", valid / seconds, offered, COHORT, per_window, unknown=unknown, undefined=none),
        rate("token_goodput", "tok/s", int(tokens.sum()) / seconds, offered, COHORT, per_window, unknown=uncounted, undefined=none),
        rate("attainment", "ratio", share, offered, COHORT, by_offered, unknown=unknown, undefined=none),
        rate(
            "attainment_completed",
            "ratio",
            served,
            done,
            "completed requests of the cohort",
            by_done,
            unknown=unknown,
            undefined=nothing,
            diagnostic=True,
        ),
    ]


def _doubts(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, outcomes: Outcomes) -> list[str]:
    """Why goodput cannot be known from this record; empty when it can."""
    undecided = int(could_still_be_valid(record, clocks, outcome).sum())
    uncounted = sorted({s.tbt_rule for s, mask in judged_by(record, clocks.request_id) if (mask & unjudged(s, clocks)).any()})
    return doubts(outcomes, undecided, uncounted)


def doubts(outcomes: Outcomes, undecided: int, uncounted: Sequence[str]) -> list[str]:
    """Put into words why a share of valid requests cannot be known.

    ``undecided``: open requests that could still have become valid; ``uncounted``: TBT rules that lacked token counts.
    """
    found = []
    if not outcomes.closes():
        recorded = sum(outcomes.counts.values())
        found.append(f"offered={outcomes.offered} but {recorded} outcomes recorded: the partition does not close")
    if undecided:
        found.append(f"{undecided} open requests could still have become valid when the drain ended: lengthen window.drain")
    return found + [f"slo.tbt.rule={rule} needs token counts that the stream did not give" for rule in uncounted]


def rate(
    metric: str,
    unit: str,
    value: float,
    n: int,
    population: str,
    denominator: str,
    *,
    unknown: str = "",
    undefined: str = "",
    diagnostic: bool = False,
) -> Figure:
    """Build a rate; ``undefined`` and ``unknown`` say why it has no value, the former first."""
    status: Status = "undefined" if undefined else "unknown" if unknown else "ok"
    return Figure(
        metric=metric,
        unit=unit,
        value=value if status == "ok" else None,
        status=status,
        n=n,
        population=population,
        denominator=denominator,
        reason=undefined or unknown,
        diagnostic=diagnostic,
    )
