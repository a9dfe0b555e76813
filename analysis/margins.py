"""How far inside its limits each request was: headroom against all of them at once, and fluidity against a deadline a token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis.clocks import Clocks
from analysis.outcomes import tbt_value, unjudged
from analysis.planned import MISSING, Bools, Int64
from analysis.slos import judged_by
from harness.record.reader import RunRecord
from harness.record.spec import Slo, TbtRule

Floats = npt.NDArray[np.float64]

UNJUDGED = "the TBT rule needs token counts that the stream did not give"


def needed_scale(slo: Slo, clocks: Clocks) -> Floats:
    """Least multiple of all limits at which each request meets ``slo`` (n,), had it completed; +inf without a token.

    The largest of each clock over its limit: a quotient of whole numbers is at most 1 exactly when the clock is at most the limit. Without
    any limit it is 0: such a request is valid at every scale.
    """
    begun = clocks.first_ns != MISSING
    needed = np.where(begun & (clocks.end_ns != MISSING), 0.0, np.inf)
    if slo.ttft_ns is not None:
        needed = np.maximum(needed, over(clocks.first_ns - clocks.arrival_ns, slo.ttft_ns))
    if slo.e2e_ns is not None:
        needed = np.maximum(needed, over(clocks.end_ns - clocks.arrival_ns, slo.e2e_ns))
    if slo.tbt_ns is not None:
        needed = np.maximum(needed, needed_tbt(slo.tbt_ns, slo.tbt_rule, clocks))
    return needed


def needed_tbt(limit: int, rule: TbtRule, clocks: Clocks) -> Floats:
    """What the TBT rule says of each request over its limit (n,); 0 without a gap, +inf where the mean lacks a count of tokens."""
    value, count = tbt_value(rule, clocks)
    needed = over(value, limit * np.maximum(count, 1))
    return np.where(clocks.tokens < 1, np.inf, needed) if rule == "mean" else needed


def over(clock_ns: Int64, limit_ns: int | Int64) -> Floats:
    """A clock as a multiple of its limit (n,)."""
    return np.asarray(clock_ns / limit_ns, dtype=np.float64)


def headroom(record: RunRecord, clocks: Clocks) -> tuple[Floats, str]:
    """Share of the tightest limit that each request left unused (n,), and why nothing is known ("" when something is).

    min over its limits of 1 - value / limit, value being TTFT, E2E, or the gap its TBT rule reads off it: 0 just met the SLO, below 0 broke
    it. -inf without a token; NaN where the SLO sets no limit.
    """
    found, reason = np.full(len(clocks), np.nan), ""
    for slo, mask in judged_by(record, clocks.request_id):
        if any(limit is not None for limit in (slo.ttft_ns, slo.tbt_ns, slo.e2e_ns)):
            found[mask] = 1 - needed_scale(slo, clocks)[mask]
        reason = UNJUDGED if (mask & unjudged(slo, clocks)).any() else reason
    return found, reason


def fluidity(clocks: Clocks, mask: Bools) -> tuple[Int64, Int64]:
    """Tokens in time and all tokens of the requests of ``mask`` that have a TBT limit and a count of tokens (k,), (k,).

    Their quotient is a request's fluidity index; ``analysis.deadlines`` says when a token is in time.
    """
    marks = clocks.marks
    some = mask & (marks.late != MISSING)
    return (marks.carried - marks.late)[some], marks.carried[some]
