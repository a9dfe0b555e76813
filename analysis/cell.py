"""One arm at one load over its replicates: pooled percentiles, mean rates, intervals by replicate (DESIGN 7, rigor 6 and 8)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from analysis.effects import SHARES as RANKED_SHARES
from analysis.intervals import design_effect, replicate_interval, share_interval
from analysis.latency import TAILS, Tail
from analysis.model import Figure, Interval, Outcome, Outcomes
from analysis.outcomes import sum_outcomes
from analysis.rates import Status
from analysis.run import RunMeasures
from analysis.tails import Ordered, minimum_requests, percentile_figure
from harness.record.reader import RunRecord
from harness.record.spec import PercentileRule

Replicates = Sequence[tuple[RunRecord, RunMeasures]]

SEVERITY: tuple[Status, ...] = ("unknown", "undefined", "withheld")
"""Which reason a cell shows first when replicates lack a figure for different ones."""

INSUFFICIENT = "insufficient_sample"
_COUNTED = re.compile(r"(.*) = (\d+)")
"""A denominator that counts: its words and its number."""


SHARES = RANKED_SHARES | {"attainment_completed", "fluidity", "shared_stamp_share", "contended_share"}
"""Figures that lie in [0, 1] by definition."""


class CellMeasures(NamedTuple):
    """Figures with replicate intervals, summed outcomes, and the design effect of attainment (None: cannot be known)."""

    figures: dict[str, Figure]
    outcomes: Outcomes
    design_effect: float | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What replicates of a cell share."""

    starts: tuple[int, ...]
    level: float


def measure_cell(runs: Replicates) -> CellMeasures:
    """Measure a cell from its replicates. ValueError when there are none.

    A rate is the mean over replicates of the replicate's rate. A percentile is the nearest rank over the pooled raw values of all
    replicates, never an average of percentiles; its interval is a t interval over the replicates' own percentiles (log scale) and says so,
    so it need not be centred on the value. A figure that any replicate lacks is lacking in the cell too: leaving that replicate out would
    choose the data.
    """
    if not runs:
        raise ValueError("runs=(): a cell without a replicate has no figures")
    specs = [record.spec for record, _ in runs]
    plan = _Plan(tuple(s.server_start for s in specs), specs[0].rank.confidence if specs[0].rank else 0.95)
    tails = {tail.metric: tail for tail in TAILS}
    pooled = _pool(runs)
    figures = {}
    for metric in (m for m in runs[0][1].figures if all(m in measures.figures for _, measures in runs)):
        parts = [measures.figures[metric] for _, measures in runs]
        if any(part.status != "ok" for part in parts):
            figures[metric] = _lacking(parts, _replicates(runs), tails.get(metric))
        elif metric in tails:
            figures[metric] = _percentile(tails[metric], parts, pooled[tails[metric].sample], plan)
        elif metric == "slip_max":
            population = f"{parts[0].population}, pooled over {_count(len(parts))}"
            figures[metric] = replace(parts[0], value=max(_values(parts)), n=sum(p.n for p in parts), population=population)
        else:
            figures[metric] = _mean(parts, plan, runs)
    counted = [measures.outcomes for _, measures in runs]
    return CellMeasures(figures, sum_outcomes(counted), _effect(counted))


def _replicates(runs: Replicates) -> tuple[int, ...]:
    return tuple(record.spec.replicate for record, _ in runs)


def _count(replicates: int) -> str:
    return f"{replicates} replicate{'s' * (replicates != 1)}"


def _pool(runs: Replicates) -> dict[str, Ordered]:
    first, rest = runs[0][1].samples, [m.samples for _, m in runs[1:]]
    return {name: one.joined([other[name] for other in rest]) for name, one in first.items()}


def _percentile(tail: Tail, parts: Sequence[Figure], pooled: Ordered, plan: _Plan) -> Figure:
    rule: PercentileRule = "linear" if parts[0].percentile_rule == "linear" else "nearest_rank"
    figure = percentile_figure(tail.metric, pooled, tail.fraction, rule=rule, level=plan.level, diagnostic=tail.diagnostic, unit=tail.unit)
    interval = replicate_interval(_values(parts), plan.starts, plan.level, log=tail.unit == "s")
    if interval is not None:
        interval = replace(interval, method=f"{interval.method} of the replicates' percentiles; the value is pooled")
    return replace(figure, interval=interval, population=f"{parts[0].population}, pooled over {_count(len(parts))}")


def _mean(parts: Sequence[Figure], plan: _Plan, runs: Replicates) -> Figure:
    values = _values(parts)
    mean = float(np.mean(values))
    return replace(
        parts[0],
        value=mean,
        n=sum(p.n for p in parts),
        population=f"{parts[0].population}, mean over {_count(len(parts))}",
        denominator=_shared([p.denominator for p in parts]),
        interval=_rate_interval(parts[0].metric, values, plan, runs),
    )


def _rate_interval(metric: str, values: Sequence[float], plan: _Plan, runs: Replicates) -> Interval | None:
    """Attainment is taken on the logit scale; so is goodput where every replicate was offered the same number, which makes it the same."""
    counted = [measures.outcomes for _, measures in runs]
    valid, offered = [o.counts[Outcome.VALID] for o in counted], [o.offered for o in counted]
    if metric == "attainment":
        return share_interval(valid, offered, plan.starts, plan.level)
    hits: int = sum(valid)
    if metric == "goodput" and len(set(offered)) == 1 and hits:
        found, unit = share_interval(valid, offered, plan.starts, plan.level), float(np.sum(values)) / hits * offered[0]
        return found and replace(found, low=found.low * unit, high=found.high * unit)
    return _possible(metric, replicate_interval(values, plan.starts, plan.level))


def _possible(metric: str, interval: Interval | None) -> Interval | None:
    """Cut an interval to values the figure can take: no rate is below 0, no share above 1. Coverage is not touched by it."""
    if interval is None:
        return None
    return replace(interval, low=max(0.0, interval.low), high=min(1.0, interval.high) if metric in SHARES else interval.high)


def _lacking(parts: Sequence[Figure], replicates: Sequence[int], tail: Tail | None) -> Figure:
    missing = [(r, p) for r, p in zip(replicates, parts, strict=True) if p.status != "ok"]
    status = next(s for s in SEVERITY if any(p.status == s for _, p in missing))
    grouped: dict[str, list[tuple[int, Figure]]] = {}
    for r, p in missing:
        why = INSUFFICIENT if tail and p.reason.startswith(INSUFFICIENT) else p.reason
        grouped.setdefault(f"{p.status}: {why}", []).append((r, p))
    reasons = [_reason(why, who, tail, everyone=len(who) == len(parts)) for why, who in grouped.items()]
    population = f"{parts[0].population}, {'pooled' if tail else 'mean'} over {_count(len(parts))}"
    n = sum(p.n for p in parts)
    return replace(missing[0][1], value=None, status=status, n=n, population=population, reason="; ".join(reasons), interval=None)


def _reason(why: str, who: Sequence[tuple[int, Figure]], tail: Tail | None, *, everyone: bool) -> str:
    """One reason of some replicates; replicates that have too few requests share one although each has its own count."""
    if tail and why.endswith(INSUFFICIENT):
        counts = [p.n for _, p in who]
        few = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)}-{max(counts)}"
        why += f": {few} requests a replicate, {minimum_requests(tail.fraction)} needed"
    if everyone:
        return why.partition(": ")[2]  # the figure's own status says the rest
    return f"replicate{'s' * (len(who) > 1)} {', '.join(str(r) for r, _ in who)} {why}"


def _shared(texts: Sequence[str]) -> str:
    """One denominator for all replicates: the same text, or the same words with the counts summed."""
    if len(set(texts)) == 1:
        return texts[0]
    counted = [_COUNTED.fullmatch(text) for text in texts]
    words = {found[1] for found in counted if found}
    if len(words) > 1 or not all(counted):
        return " | ".join(texts)
    total = sum(int(found[2]) for found in counted if found)
    return f"{words.pop()} = {total} over {_count(len(texts))}"


def _values(parts: Sequence[Figure]) -> list[float]:
    return [p.value for p in parts if p.value is not None]


def _effect(counted: Sequence[Outcomes]) -> float | None:
    if not all(o.closes() for o in counted):
        return None
    return design_effect([o.counts[Outcome.VALID] for o in counted], [o.offered for o in counted])
