"""Latency samples and percentiles of a run, in two views (DESIGN 6 and 7): over completions, and over the offered cohort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from analysis.backlog import Overload
from analysis.clocks import Clocks
from analysis.margins import fluidity, headroom
from analysis.model import Figure, Outcomes
from analysis.outcomes import OutcomeArray
from analysis.planned import MISSING, Bools, Int64
from analysis.rates import Status, completed, rate
from analysis.tails import LEVELS, Floats, Ordered, Sample, percentile_figure
from harness.clock import NS_PER_S
from harness.record.reader import RunRecord

COMPLETED = "completed requests of the cohort"
OFFERED = "offered cohort, +inf for every request that did not complete"
GAPS = "token gaps of completed requests of the cohort, pooled; n counts requests"
EVENT_GAPS = "gaps between token-carrying events of completed requests of the cohort, pooled; n counts requests"
SENT = "requests of the cohort that were sent"
COUNTED = f"{COMPLETED} with a known number of tokens"
LIMITED = f"{COMPLETED} whose SLO sets a limit"
PACED = f"{COMPLETED} whose SLO limits gaps"

RATIOS = frozenset({"headroom", "fluidity"})
"""Samples that are shares and no times; their bad end is the low one."""


@dataclass(frozen=True, slots=True)
class Tail:
    """One reported percentile: of which sample, at which level; ``diagnostic`` figures are never ranked."""

    sample: str
    level: str
    diagnostic: bool = False

    @property
    def metric(self) -> str:
        """Key of the figure; the view follows the level (``ttft_p99_offered``)."""
        base, _, view = self.sample.partition("@")
        return f"{base}_{self.level}" + (f"_{view}" if view else "")

    @property
    def unit(self) -> str:
        """s, or ratio."""
        return "ratio" if self.sample in RATIOS else "s"

    @property
    def fraction(self) -> Fraction:
        """Exact level."""
        return LEVELS[self.level]


TAILS = (
    *(Tail(s, p) for s in ("ttft", "tbt", "e2e") for p in ("p50", "p95", "p99", "p999")),
    *(Tail("tpot", p) for p in ("p50", "p95", "p99")),
    *(Tail(s, p) for s in ("ttft@offered", "e2e@offered") for p in ("p50", "p95", "p99")),
    *(Tail(s, p, diagnostic=True) for s in ("ttft_send", "event_gap") for p in ("p50", "p99")),
    *(Tail("slip", p) for p in ("p50", "p99")),
    *(Tail("norm_e2e", p) for p in ("p50", "p95", "p99")),
    *(Tail(s, p) for s in sorted(RATIOS) for p in ("p50", "p05", "p01")),
)
"""Every percentile a run reports."""


def samples(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, outcomes: Outcomes) -> dict[str, Ordered]:
    """Raw values behind every percentile, s or ratio. TTFT and E2E start at the intended arrival; ``ttft_send`` starts at the send
    (diagnostic). ``norm_e2e`` is (e - a)/n; ``headroom`` and ``fluidity`` are those of ``analysis.margins``.

    ``@offered`` samples hold one value an offered request: +inf where it did not complete, whether its row came back or not.
    """
    done = clocks.in_cohort & completed(outcome)
    begun, sent = done & (clocks.first_ns != MISSING), clocks.in_cohort & (clocks.send_ns != MISSING)
    events = clocks.event_gaps(done, EVENT_GAPS)
    (room, _), (in_time, tokens) = headroom(record, clocks), fluidity(clocks, done)
    ttft, e2e = _seconds(clocks.first_ns - clocks.arrival_ns, begun), _seconds(clocks.end_ns - clocks.arrival_ns, done)
    return {
        "ttft": Sample.of(ttft, COMPLETED),
        "ttft@offered": Sample.of(_with_infinity(ttft, outcomes.offered), OFFERED),
        "ttft_send": Sample.of(_seconds(clocks.first_ns - clocks.send_ns, begun & sent), COMPLETED),
        "e2e": Sample.of(e2e, COMPLETED),
        "e2e@offered": Sample.of(_with_infinity(e2e, outcomes.offered), OFFERED),
        "tpot": Sample.of(tpot_s(clocks, done), f"{COMPLETED} with at least two tokens"),
        "tbt": events.called(GAPS) if clocks.one_token_an_event else clocks.token_gaps(done, GAPS),
        "event_gap": events,
        "norm_e2e": Sample.of(normalised_e2e_s(clocks, done), COUNTED),
        "headroom": Sample.of(room[done & ~np.isnan(room)], LIMITED),
        "fluidity": Sample.of(in_time / tokens, PACED),
        "slip": Sample.of(_seconds(clocks.send_ns - clocks.arrival_ns, sent), SENT),
    }


def tpot_s(clocks: Clocks, mask: Bools) -> Floats:
    """(tn - t1)/(n - 1), s, of each request of ``mask`` with n >= 2 tokens (q,); a one-output request has no interval and no value."""
    use = mask & (clocks.tokens >= 2) & (clocks.first_ns != MISSING)
    return np.asarray((clocks.last_ns[use] - clocks.first_ns[use]) / (clocks.tokens[use] - 1) / NS_PER_S, dtype=np.float64)


def normalised_e2e_s(clocks: Clocks, mask: Bools) -> Floats:
    """(e - a)/n, s a token, of each request of ``mask`` with a known number of tokens (q,), as ORCA and PagedAttention have it."""
    use = mask & (clocks.tokens >= 1)
    return np.asarray((clocks.end_ns[use] - clocks.arrival_ns[use]) / clocks.tokens[use] / NS_PER_S, dtype=np.float64)


def latency_figures(
    record: RunRecord, clocks: Clocks, outcome: OutcomeArray, taken: Mapping[str, Ordered], load: Overload
) -> dict[str, Figure]:
    """Return every percentile of a run, the largest slip, and the share of all tokens that came in time (``fluidity``).

    While the backlog grows a latency is a function of the run's length, so all but the client's own slip are withheld. What needs token
    counts that the stream did not give is unknown; event gaps remain.
    """
    unknown = _unknown(record, clocks)
    figures = {tail.metric: _figure(record, tail, taken[tail.sample], load, unknown.get(tail.sample, "")) for tail in TAILS}
    return figures | {"slip_max": _slip_max(taken["slip"]), "fluidity": _fluidity(clocks, outcome, load, unknown)}


def _unknown(record: RunRecord, clocks: Clocks) -> dict[str, str]:
    """Why samples say nothing of this run, by sample."""
    uncounted = "events carried an unknown number of tokens, so token stamps cannot be placed; see event_gap"
    found = {} if clocks.gaps_defined else dict.fromkeys(("tbt", "fluidity"), uncounted)
    return found | {"headroom": headroom(record, clocks)[1]}


def _figure(record: RunRecord, tail: Tail, sample: Ordered, load: Overload, unknown: str) -> Figure:
    rank = record.spec.rank
    rule, level = (rank.percentile_rule, rank.confidence) if rank else ("nearest_rank", 0.95)
    figure = percentile_figure(tail.metric, sample, tail.fraction, rule=rule, level=level, diagnostic=tail.diagnostic, unit=tail.unit)
    if unknown:
        return without_value(figure, "unknown", unknown)
    if load.flag and tail.sample != "slip":
        return without_value(figure, "withheld", load.reason)
    return figure


def _fluidity(clocks: Clocks, outcome: OutcomeArray, load: Overload, unknown: Mapping[str, str]) -> Figure:
    """Share of all tokens in time: a long answer counts more than a short one here, and not in the percentiles over requests."""
    in_time, tokens = fluidity(clocks, clocks.in_cohort & completed(outcome))
    n = int(tokens.sum())
    found = rate(
        "fluidity",
        "ratio",
        int(in_time.sum()) / n if n else 0.0,
        len(tokens),
        PACED,
        f"tokens = {n}",
        unknown=unknown.get("fluidity", ""),
        undefined="" if n or "fluidity" in unknown else "no completed request of the cohort has a limit on gaps",
    )
    return without_value(found, "withheld", load.reason) if load.flag and found.status == "ok" else found


def without_value(figure: Figure, status: Status, reason: str) -> Figure:
    """The same figure with the reason why it has no value."""
    return replace(figure, value=None, status=status, reason=reason, interval=None)


def _slip_max(sample: Ordered) -> Figure:
    n = sample.size
    return Figure(
        metric="slip_max",
        unit="s",
        value=float(sample.at(np.array([n]))[0]) if n else None,
        status="ok" if n else "undefined",
        n=n,
        population=sample.population,
        reason="" if n else "no request of the cohort was sent",
    )


def _seconds(ns: Int64, mask: Bools) -> Floats:
    return ns[mask] / NS_PER_S


def _with_infinity(values: Floats, offered: int) -> Floats:
    return np.concatenate([values, np.full(max(offered - len(values), 0), np.inf)])
