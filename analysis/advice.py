"""What a campaign could not resolve, and how many replicates would: advice for the next study, drawn from this one's spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from analysis.allocation import replicates_for_width, replicates_to_resolve
from analysis.effects import DIFFERENCE_METRICS, SHARES
from analysis.model import Advice, CellAnalysis, Effect, Ranking, Refusal
from harness.record.spec import Rank


def advise(rank: Rank | None, cells: Sequence[CellAnalysis], verdict: Ranking | Refusal) -> tuple[Advice, ...]:
    """Say for every unresolved pair, or without a ranking for every interval wider than the margin, how many replicates a new study needs.

    ``cells``: those at the declared load. Empty when no metric was declared: without a margin there is nothing to resolve. Where arms are
    ranked their pairs decide, and pairing by trace needs fewer replicates than each arm's own interval would; those are not advised on.
    """
    if rank is None:
        return ()
    if isinstance(verdict, Refusal):
        return tuple(found for found in (_of_cell(cell, rank) for cell in cells) if found is not None)
    by_arm = {cell.arm: cell for cell in cells}
    return tuple(_of_pair(e, rank.metric, by_arm[e.a], by_arm[e.b]) for e in verdict.effects if e.verdict == "unresolved")


def by_replicate(cell: CellAnalysis, metric: str) -> dict[int, tuple[float, int]]:
    """Value and server start of every replicate of ``cell`` that has a finite value of ``metric``."""
    found = {run.replicate: (run.figures.get(metric), run.server_start) for run in cell.runs}
    known = {r: (f.value, start) for r, (f, start) in found.items() if f is not None and f.status == "ok" and f.value is not None}
    return {r: (value, start) for r, (value, start) in known.items() if math.isfinite(value)}


def _of_pair(effect: Effect, metric: str, a: CellAnalysis, b: CellAnalysis) -> Advice:
    one, two = by_replicate(a, metric), by_replicate(b, metric)
    shared = [(one[r][0], two[r][0]) for r in sorted(one.keys() & two.keys())]
    if effect.scale == "ratio":
        differences, limit = [math.log(y / x) for x, y in shared if x > 0 and y > 0], math.log1p(effect.margin)
    else:
        differences, limit = [y - x for x, y in shared], effect.margin
    found = replicates_to_resolve(differences, -limit, limit, level=effect.level)
    return replace(found, subject=f"{effect.b} against {effect.a}", aim=f"{found.aim} at margin {effect.margin:.3g}")


def _of_cell(cell: CellAnalysis, rank: Rank) -> Advice | None:
    """The replicates that would bring the interval of the declared figure within +- the margin; None where it is, or has no value."""
    figure = cell.figures.get(rank.metric)
    if figure is None or figure.status != "ok" or not figure.value or not math.isfinite(figure.value):
        return None
    relative = rank.metric not in DIFFERENCE_METRICS
    # The margin of goodput is a share of it, of attainment a number of points; latencies are planned on the log scale of their interval.
    wanted = math.log1p(rank.margin) if relative else rank.margin * (1.0 if rank.metric in SHARES else figure.value)
    if figure.interval is not None and _half(figure.interval.low, figure.interval.high, relative) <= wanted:
        return None
    values = by_replicate(cell, rank.metric)
    x = [math.log(v) if relative else v for v, _ in values.values() if v > 0 or not relative]
    found = replicates_for_width(x, [start for v, start in values.values() if v > 0 or not relative], wanted, level=rank.confidence)
    margin = f"{rank.margin:.3g}" if rank.metric in SHARES else f"{100 * rank.margin:.3g}%"
    return replace(found, subject=cell.cell, aim=f"know {rank.metric} within +-{margin}")


def _half(low: float, high: float, relative: bool) -> float:
    if relative:
        return math.log(high / low) / 2 if low > 0 and math.isfinite(high) else math.inf
    return (high - low) / 2
