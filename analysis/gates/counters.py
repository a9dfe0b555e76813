"""The client's account of the load against the server's own counters and gauges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.gates.registry import ErrorRates, Finding, RunContext, attempt, combine, failed, gate, judge, number
from analysis.gates.tables import SECOND, Floats, in_flight, in_order, inside
from analysis.model import Claim
from analysis.planned import Bools, Int64, integers, is_any, planned, texts
from analysis.samples import RestartedError, counter_delta, need, need_seen, summed
from harness.record.schema import EndKind

LEVEL = 0.99
"""The in-flight test is two-sided at 1%: DESIGN allows at most one false alarm in a hundred runs."""

MIN_SAMPLES = 8
"""Four blocks of two samples: fewer give no error estimate worth the name (t with 2 degrees of freedom or less)."""

MAX_BLOCKS = 10
"""More and shorter blocks would be correlated with their neighbours, and the error would come out too small."""

COUNTS_AS_GENERATED = frozenset({"vllm", "reference"})
"""Runtimes whose token counters grow with every iteration, so that a closed request's tokens are in them; for others the lower bound of a
closed request is 0 (they may count on completion only)."""


GAUGE_STEPS: Mapping[str, tuple[str, int]] = {"sglang": ("decode-log-interval", 40)}
"""Runtimes that write their gauges only every so many decode steps (and at each prefill, and when idle): the argument that says how many,
and the number without it. Between, a request that ended is still shown."""


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """What the client can say about every request it sent; arrays (n,), masks over the rows."""

    complete: Bools
    sent: Bools
    started: Bools
    """at least one token was seen"""
    input: Int64
    seen: Int64
    limit: Floats
    """most output tokens the server can have made: the declared maximum, inf when none"""


def ledger(context: RunContext) -> Ledger:
    """Build the client's side of the account."""
    record, table = context.record, in_order(context.record)
    ids, kind = integers(table, "request_id"), texts(table, "end_kind")
    counted, usage = integers(table, "client_tokens"), integers(table, "usage_completion_tokens")
    seen = np.maximum(np.where(counted >= 0, counted, usage), 0)
    told = planned(record.schedule, "max_tokens", ids)
    return Ledger(
        complete=is_any(kind, EndKind.COMPLETE),
        sent=integers(table, "send_ns") >= 0,
        started=context.clocks.first_ns >= 0,
        input=planned(record.schedule, "input_tokens", ids),
        seen=seen,
        limit=np.where(told >= 0, told, np.inf),
    )


def _engine(context: RunContext) -> str:
    """Whose counters were read: of an endpoint, those that its user named."""
    arm = context.record.spec.arm
    return arm.metrics or arm.runtime


def _within(context: RunContext, metric: str, low: float, high: float) -> Finding:
    limit = f"{low:g}" if low == high else f"{low:g}..{high:g}"
    try:
        delta = counter_delta(context.record, metric, int(context.clocks.end_ns.max(initial=0)))
    except RestartedError as restarted:
        return failed(str(restarted), **{metric: number(None, limit, "count")})
    return judge(low <= delta <= high, f"server {metric} grew by {delta:g}, client says {limit}", **{metric: number(delta, limit, "count")})


def prompt_tokens(context: RunContext) -> Finding:
    """Input tokens: exact for completed requests; a closed request counts its input at most once."""
    books = ledger(context)
    need(bool((books.input[books.sent] >= 0).all()), "a sent request has no scheduled input length")
    sure = books.complete | (books.started & (_engine(context) in COUNTS_AS_GENERATED))
    low, high = int(books.input[sure & books.sent].sum()), int(books.input[books.sent].sum())
    return _within(context, "prompt_tokens_total", low, high)


def generation_tokens(context: RunContext) -> Finding:
    """Output tokens: exact for completed requests; a closed one made at least what was seen and at most its declared maximum."""
    books = ledger(context)
    cut = books.sent & ~books.complete
    exact = int(books.seen[books.complete].sum())
    floor = int(books.seen[cut].sum()) if _engine(context) in COUNTS_AS_GENERATED else 0
    return _within(context, "generation_tokens_total", exact + floor, exact + float(books.limit[cut].sum()))


def finished_requests(context: RunContext) -> Finding:
    """Requests: every completed one is counted once; a closed or refused one at most once."""
    books = ledger(context)
    return _within(context, "requests_finished_total", int(books.complete.sum()), int(books.sent.sum()))


@dataclass(frozen=True, slots=True)
class AreaError:
    """Server minus client in-flight, averaged over the window, in requests, and the error it may have: by sampling, and by age."""

    difference: float
    sampling: float
    bias: float
    samples: int


def gauge_age_s(context: RunContext) -> float:
    """How old a gauge may be when the page is read, s: 0 for engines that write it at every step.

    The steps of ``GAUGE_STEPS`` times a step, taken as the mean gap between tokens that the client saw: a stream gets one token a step.
    Raises AbsentError where no request streamed two tokens, so that the length of a step is unknown.
    """
    engine = _engine(context)
    if engine not in GAUGE_STEPS:
        return 0.0
    name, steps = GAUGE_STEPS[engine]
    told = context.record.spec.arm.args.get(name, steps)
    clocks = context.clocks
    streamed = (clocks.tokens > 1) & (clocks.first_ns >= 0)
    need(bool(streamed.any()), "no request streamed two tokens, so how old the server's gauges are is unknown")
    step = float((clocks.last_ns - clocks.first_ns)[streamed].sum()) / float((clocks.tokens - 1)[streamed].sum())
    return step * (told if isinstance(told, int) else steps) / SECOND


def area_error(difference: Floats, period_s: float, churn: float, age_s: float = 0.0) -> AreaError:
    """Judge sampled differences d (n,) in time order.

    ``sampling``: t quantile times the standard error from block means (neighbouring samples are correlated, so single samples would
    understate it). ``bias``: a gauge shows a request up to half a sampling period ``period_s`` early or late, so with ``churn`` requests a
    second the mean may be off by churn x period / 2; one that is ``age_s`` old itself, by churn x age more. Raises AbsentError below
    MIN_SAMPLES.
    """
    need(len(difference) >= MIN_SAMPLES, f"{len(difference)} in-flight samples in the window, at least {MIN_SAMPLES} are needed")
    blocks = min(MAX_BLOCKS, len(difference) // 2)
    means = np.array([part.mean() for part in np.array_split(difference, blocks)])
    error = float(means.std(ddof=1) / math.sqrt(blocks))
    return AreaError(
        float(difference.mean()), float(stats.t.ppf((1 + LEVEL) / 2, blocks - 1)) * error, churn * (period_s / 2 + age_s), len(difference)
    )


def in_flight_area(context: RunContext) -> Finding:
    """Area under running + waiting against the area under the client's sent-and-not-ended, over the measured window.

    Both are compared at the same jittered instants, so the shape of the load cancels and only bookkeeping is left.
    """
    record, clocks = context.record, context.clocks
    t, running = summed(record.server_metrics, "server", "requests_running")
    t_waiting, waiting = summed(record.server_metrics, "server", "requests_waiting")
    shared, at, also = np.intersect1d(t, t_waiting, return_indices=True)
    mask = inside(record, shared)
    need_seen(shared[mask], record.spec.window, "in-flight samples")
    sent = clocks.send_ns >= 0
    need(bool(sent.any()), "no request was sent")
    end = np.where(clocks.end_ns >= 0, clocks.end_ns, record.spec.window.end_ns)[sent]
    client = in_flight(clocks.send_ns[sent], end, shared[mask])
    width = record.spec.window.measured_ns / SECOND
    churn = float(inside(record, clocks.send_ns).sum()) / width
    period = float(np.median(np.diff(shared[mask]))) / SECOND if mask.sum() > 1 else 0.0
    found = area_error((running[at] + waiting[also])[mask] - client, period, churn, gauge_age_s(context))
    allowed = found.sampling + found.bias
    return judge(
        abs(found.difference) <= allowed,
        f"in-flight area: server - client = {found.difference * width:.4g} request-s of {client.mean() * width:.4g}, allowed "
        f"{allowed * width:.3g} (sampling {found.sampling * width:.3g}, age of the gauges {found.bias * width:.3g}, {found.samples} "
        f"samples)",
        area_difference=number(found.difference * width, allowed * width, "request-s"),
    )


@gate(
    "counts_agree",
    protects=(Claim.INTEGRITY,),
    threshold="Counters: exact when every request completed, else bounds from what was seen and what was declared. In-flight area: t "
    "interval at 99% from block means of sampled differences, plus churn x period / 2 because a gauge may be half a period "
    "old, and for SGLang churn x the 40 decode steps (decode-log-interval) between two writings of it.",
    remedy="Keep every other client and probe off the server during the run, take a counter snapshot before the first arrival and after "
    "the last end, and sample the server's metrics several times a second.",
    rates=ErrorRates(
        0.01, 0.90, "other clients add as much in-flight load as ours and half a period's churn", "tests/sim/test_gates_counts.py"
    ),
)
def counts_agree(context: RunContext) -> Finding:
    """Server counters and gauges tell the client's story."""
    need(context.record.requests.num_rows > 0, "no request was recorded")
    return combine(attempt(part, context) for part in (prompt_tokens, generation_tokens, finished_requests, in_flight_area))
