"""Every offered request in exactly one class (F35 refined, DESIGN 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from analysis.clocks import Clocks
from analysis.marks import longest_tenth
from analysis.model import Outcome, Outcomes
from analysis.planned import MISSING, SERVED, Bools, Int64, integers, offered_rows, planned, texts
from analysis.slos import judged_by
from harness.record.reader import RunRecord
from harness.record.schema import EndKind
from harness.record.spec import Slo, TbtRule

OutcomeArray = npt.NDArray[np.object_]

OVERLOAD_STATUS = (429, 503)
"""Too Many Requests and Service Unavailable: the server declined, as opposed to breaking (RFC 6585 section 4, RFC 9110 section 15.6.4)."""


def classify(record: RunRecord, clocks: Clocks) -> OutcomeArray:
    """Return the Outcome of every row of ``clocks``, shape (n,), object dtype.

    Total: an end kind this version does not know is ``failed``, because a class that could flatter the server needs evidence.
    """
    served = np.isin(clocks.end_kind, SERVED)
    complete = served & length_is_right(record, clocks)
    good = complete & meets_own_slo(record, clocks)
    result = np.full(len(clocks), Outcome.FAILED, dtype=object)
    for mask, outcome in (
        (complete, Outcome.MISS),
        (good, Outcome.VALID),
        (is_rejected(clocks), Outcome.REJECTED),
        (clocks.end_kind == EndKind.CANCELLED.value, Outcome.CANCELLED),
        (clocks.end_kind == EndKind.DRAIN_END.value, Outcome.OPEN),
    ):
        result[mask] = outcome
    return result


def count_outcomes(record: RunRecord, clocks: Clocks, outcomes: OutcomeArray) -> Outcomes:
    """Count classes over the offered cohort (arrival in [w, w+W)), and beside it the turns that never came due.

    ``offered`` comes from the schedule, not from the rows that came back, so that a lost or doubled row breaks the partition visibly
    (``planned.offered_rows`` says what that means for requests whose arrival only the run decides).
    """
    cohort = outcomes[clocks.in_cohort]
    counts = {outcome: int(np.count_nonzero(cohort == outcome)) for outcome in Outcome}
    return Outcomes(int(offered_rows(record).sum()), counts, not_due(record))


def sum_outcomes(counted: Sequence[Outcomes]) -> Outcomes:
    """Add up counts of several runs, or of the same class or client in them."""
    never = sum((Counter(o.not_due) for o in counted), Counter[str]())
    counts = {outcome: sum(o.counts[outcome] for o in counted) for outcome in Outcome}
    return Outcomes(sum(o.offered for o in counted), counts, dict(sorted(never.items())))


def not_due(record: RunRecord) -> dict[str, int]:
    """Count requests without an arrival by how they ended (an EndKind), over the whole run: no arrival lies in no window.

    ``never_due``: a request they wait for did not end as planned; ``never_sent``: the run ended before they came due.
    """
    kinds = texts(record.requests, "end_kind")[integers(record.requests, "arrival_ns") == MISSING]
    return {kind: int(np.count_nonzero(kinds == kind)) for kind in sorted(set(kinds.tolist()))}


def is_rejected(clocks: Clocks) -> Bools:
    """Say which requests (n,) the server declined before any output: HTTP 429/503, or such a code in an error event before a token."""
    by_status = (clocks.end_kind == EndKind.HTTP_ERROR.value) & np.isin(clocks.http_status, OVERLOAD_STATUS)
    by_event = (clocks.end_kind == EndKind.ERROR_EVENT.value) & np.isin(clocks.error_status, OVERLOAD_STATUS)
    declined: Bools = (by_status | by_event) & (clocks.first_ns == MISSING)
    return declined


def length_is_right(record: RunRecord, clocks: Clocks) -> Bools:
    """Say which requests (n,) produced as many tokens as the plan asked for.

    ``forced`` and ``client_stop`` promise a length (truth.parquet); natural and capped promise none. A length that was not counted is not
    right: what cannot be shown never helps the server. For a client stop, tokens beyond the target are overshoot, not a wrong length, as
    long as they came in the same read as the target token.
    """
    if record.spec.workload.output_length not in ("forced", "client_stop"):
        return np.ones(len(clocks), dtype=bool)
    expected = expected_tokens(record, clocks)
    excess = clocks.tokens - expected
    stopped = clocks.end_kind == EndKind.CLIENT_STOP.value
    overshoot: Bools = stopped & (excess > 0) & (excess < clocks.marks.last_read)
    known: Bools = (expected != MISSING) & (clocks.tokens != MISSING)
    right: Bools = known & ((excess == 0) | overshoot)
    return right


def expected_tokens(record: RunRecord, clocks: Clocks) -> Int64:
    """Return the planned length per row (n,): ``stop_after`` where there is one, else the realized length; MISSING when not in truth."""
    stop = planned(record.truth, "stop_after", clocks.request_id)
    return np.where(stop != MISSING, stop, planned(record.truth, "output_tokens", clocks.request_id))


def meets_own_slo(record: RunRecord, clocks: Clocks) -> Bools:
    """Judge every request by the SLO of its class (n,)."""
    good = np.zeros(len(clocks), dtype=bool)
    for slo, mask in judged_by(record, clocks.request_id):
        good |= mask & meets_slo(slo, clocks)
    return good


def meets_slo(slo: Slo, clocks: Clocks) -> Bools:
    """Judge every request jointly: TTFT, TBT under the declared rule, E2E; a limit that is null is not part of the predicate.

    An answer without a single token has no TTFT and never meets it. A one-output request has no gap and is judged on completion and TTFT
    (and E2E when limited). Shape (n,); rows that did not complete may be True here, completion is judged by ``classify``.
    """
    has_token = clocks.first_ns != MISSING
    good: Bools = has_token & (clocks.end_ns != MISSING)
    if slo.ttft_ns is not None:
        good &= clocks.first_ns - clocks.arrival_ns <= slo.ttft_ns
    if slo.e2e_ns is not None:
        good &= clocks.end_ns - clocks.arrival_ns <= slo.e2e_ns
    if slo.tbt_ns is not None:
        good &= _meets_tbt(slo.tbt_ns, slo.tbt_rule, clocks)
    return good


def unjudged(slo: Slo, clocks: Clocks) -> Bools:
    """Say for which served requests of the cohort the TBT rule cannot be decided (n,).

    ``every`` always can: the longest token gap is the longest event gap, however many tokens an event carried. ``mean`` needs the number
    of tokens; ``p99`` and ``top10`` need tokens per event, because the zero gaps inside events count too.
    """
    if slo.tbt_ns is None or slo.tbt_rule == "every":
        return np.zeros(len(clocks), dtype=bool)
    served: Bools = clocks.in_cohort & np.isin(clocks.end_kind, SERVED) & (clocks.first_ns != MISSING)
    return served & (clocks.tokens == MISSING) if slo.tbt_rule == "mean" else served & (not clocks.gaps_defined)


def tbt_value(rule: TbtRule, clocks: Clocks) -> tuple[Int64, Int64]:
    """What a TBT rule says of each request, as a quotient of whole numbers (n,) / (n,), ns: a gap of exactly the limit is then inside it.

    ``every``: the longest gap. ``mean``: TPOT, (tn - t1) / (n - 1). ``p99``: the nearest-rank 99th percentile of its token gaps. ``top10``:
    the mean of the longest tenth of them, rounded up to whole gaps (Mooncake, see ``longest_tenth``). The divisor is 0 without a gap, and
    where the number of tokens is not known. Where tokens per event are not known ``p99`` and ``top10`` take the gaps between events.
    """
    marks, one = clocks.marks, np.ones(len(clocks), dtype=np.int64)
    if rule == "mean":
        some = clocks.tokens > 1
        return np.where(some, clocks.last_ns - clocks.first_ns, 0), np.where(some, clocks.tokens - 1, 0)
    if rule == "top10" and clocks.gaps_defined:
        gaps = np.maximum(marks.carried - 1, 0)
        return np.maximum(marks.tenth, 0), longest_tenth(gaps)
    value = {"every": marks.longest, "top10": marks.longest, "p99": marks.tail if clocks.gaps_defined else marks.event_tail}[rule]
    return np.maximum(value, 0), np.where(value == MISSING, 0, one)


def _meets_tbt(limit: int, rule: TbtRule, clocks: Clocks) -> Bools:
    value, count = tbt_value(rule, clocks)
    within: Bools = value <= limit * count
    return within & (clocks.tokens >= 1) if rule == "mean" else within
