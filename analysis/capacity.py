"""Capacity (F38, DESIGN 7, rigor 13): the largest load at which the share of valid requests is still alpha, or why it cannot be said.

``next_probe`` drives the search, ``estimate`` reads it. A goodput in a fixed window is never called capacity, and a crossing is a derived
value: it comes with an interval over trace replicates and with the bracket of what was measured on either side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from analysis.capacity_curve import Crossing, crossing, smoothed
from analysis.capacity_declared import Search, Stages, coordinate
from analysis.capacity_rows import Bracket, RateRow, bracket, rate_rows, rises
from analysis.capacity_runs import History, Key, Probe, ProbeRun, probe_run
from analysis.capacity_search import Done, crossings, gap, mostly_overloaded, next_probe, spread
from analysis.intervals import replicate_interval
from analysis.model import Figure, Interval, Reason

__all__ = [
    "Bracket",
    "CapacityEstimate",
    "Done",
    "History",
    "Probe",
    "ProbeRun",
    "RateRow",
    "Search",
    "Stages",
    "coordinate",
    "estimate",
    "next_probe",
    "probe_run",
]

Status = Literal["resolved", "censored", "non_monotone", "unresolved"]

UNITS = {"rate": "req/s", "time_compression": "x"}


@dataclass(frozen=True, slots=True)
class CapacityEstimate:
    """An answer of a search. Only ``resolved`` has a value; every other status says why in ``reasons``.

    ``figures``: ``capacity`` in the unit of the search (req/s, or x for a compression), ``capacity_rate`` (req/s), ``capacity_per_gpu``
    (req/s per GPU), ``capacity_per_watt`` (requests per joule); beside them the diagnostic ``capacity_pooled``, the crossing of the summed
    counts: how far it lies off tells how much the bend of the curve moves the mean of the replicates' capacities (it shrinks as 1/n).
    ``by_replicate``: each trace replicate's own capacity, also where not all of them cross. ``at_least``/``at_most``: the bound of a
    censored answer. ``discarded``: locating runs, read by nothing here. ``load``: the load coordinate, which is the search.
    """

    status: Status
    target: float
    figures: Mapping[str, Figure]
    by_replicate: tuple[tuple[int, float], ...]
    bracket: Bracket
    at_least: float | None
    at_most: float | None
    rows: tuple[RateRow, ...]
    reasons: tuple[Reason, ...]
    estimand: Literal["E1", "E2", "unknown"]
    discarded: int
    load: str


@dataclass(frozen=True, slots=True)
class _Grid:
    """A complete grid: every run of rates x replicates, each one evidence. ``groups``: label of each replicate's server starts."""

    search: Search
    rates: tuple[float, ...]
    count: int
    runs: Mapping[Key, ProbeRun]
    found: tuple[Crossing, ...]
    groups: tuple[int, ...]
    logs: tuple[float, ...]
    """ln capacity by replicate; empty unless all cross inside"""

    def column(self, rate: float) -> list[ProbeRun]:
        """Runs at one rate, by replicate."""
        return [self.runs["grid", rate, r] for r in range(self.count)]


def estimate(history: History, gpus: int | None = None) -> CapacityEstimate:
    """Estimate capacity from a finished search; the order of the runs changes nothing. ``gpus``: GPUs of the arm, None when not known.

    One capacity per trace replicate, a t interval on the log scale over them; the value is the geometric mean that the interval is centred
    on. Where attainment falls off a cliff between two rates, the interval is no narrower than that gap (``capacity_curve.cliff``). An
    unfinished search is ``unresolved``: reading it early would be peeking.
    """
    done = next_probe(history)
    reasons = tuple(_unusable(history, done))
    if reasons or isinstance(done, Probe):
        return _answer(history, "unresolved", reasons)
    grid = _grid(history, done)
    rows = rate_rows(grid.rates, grid.count, grid.runs, history.search.attainment, history.search.confidence)
    ends = bracket(rows)
    return _judge(history, grid, rows, ends, gpus)


def _judge(history: History, grid: _Grid, rows: tuple[RateRow, ...], ends: Bracket, gpus: int | None) -> CapacityEstimate:
    """Take the first status that holds: non_monotone, censored, unresolved, resolved."""
    sides = {c.side for c in grid.found}
    rising = tuple(rises(grid.rates, grid.groups, grid.runs))
    if rising:
        return _answer(history, "non_monotone", rising, grid, rows, ends)
    if sides == {"above"} and ends.low == grid.rates[-1]:
        return _answer(history, "censored", (_top(grid),), grid, rows, ends, at_least=grid.rates[-1])
    if sides == {"below"} and ends.high == grid.rates[0]:
        return _answer(history, "censored", (_bottom(grid),), grid, rows, ends, at_most=grid.rates[0])
    interval = _interval(grid, grid.logs) if grid.logs else None
    reasons = tuple(_unresolved(grid, interval))
    if reasons or interval is None:
        return _answer(history, "unresolved", reasons, grid, rows, ends)
    return _answer(history, "resolved", (), grid, rows, ends, figures=_figures(grid, interval, gpus))


def _unusable(history: History, done: Probe | Done) -> Iterator[Reason]:
    """Why the runs cannot be read at all."""
    again = "finish the search (`trigpoint resume`)"
    if isinstance(done, Probe):
        text = f"the next run is {done.phase} at {done.rate:g}, replicate {done.replicate}"
        yield Reason("search_unfinished", text, again)
        return
    if done.reason is not None:
        yield done.reason
        return
    asked = {("grid", rate, r) for rate in done.rates for r in range(done.replicates)}
    extra = sorted(run.key for run in history.runs if run.phase == "grid" and run.key not in asked)
    if extra:
        text = f"{len(extra)} grid runs that the search did not ask for, the first at {extra[0][1]:g}, replicate {extra[0][2]}"
        yield Reason("runs_not_asked_for", text, "give the runs of this search only: which ones to add must not depend on what they show")
    yield from _seeds(history)


def _seeds(history: History) -> Iterator[Reason]:
    """A replicate has one seed at all rates, another in every other replicate (or one for all: E1), and none that locating has seen."""
    by_replicate: dict[int, set[int]] = {}
    for run in history.runs:
        if run.phase == "grid":
            by_replicate.setdefault(run.replicate, set()).add(run.seed)
    split = sorted(r for r, seeds in by_replicate.items() if len(seeds) > 1)
    if split:
        text = f"replicates {split} were drawn from other seeds at other rates, so a curve mixes traces"
        yield Reason("draws_differ", text, "give a replicate the same draw at every rate")
    seeds = {min(s) for s in by_replicate.values()}
    if 1 < len(seeds) < len(by_replicate):
        yield Reason(
            "draws_repeat", "some replicates share a seed and some do not", "give every replicate its own draw, or all the same one"
        )
    used = seeds & {run.seed for run in history.runs if run.phase == "locate"}
    if len(seeds) > 1 and used:
        text = f"{len(used)} seeds of the grid were already used to locate it"
        yield Reason("search_data_reused", text, "draw the replicates of locating and grid by their own numbers")


def _unresolved(grid: _Grid, interval: Interval | None) -> Iterator[Reason]:
    """Why a complete and falling grid still gives no number."""
    outside = {side: sum(c.side == side for c in grid.found) for side in ("above", "below", "flat")}
    if any(outside.values()):
        words = ", ".join(f"{n} {side}" for side, n in outside.items() if n)
        text = f"not every one of {grid.count} replicates crosses the target inside the grid ({words}), so their mean is not known"
        yield Reason("not_all_cross", text, "lengthen window.measured, or declare a wider grid")
        few = min(grid.runs["grid", rate, r].offered for rate in grid.rates for r in range(grid.count))
        if smoothed(few, few) < grid.search.attainment:
            text = f"{few} requests in a run, which counts as {smoothed(few, few):.3g} even when none of them is missed"
            yield Reason("too_few_requests", text, "lengthen window.measured, or relax load.capacity.attainment")
    elif interval is None:
        text = "all replicates share one server start, whose luck cannot be told from the system"
        yield Reason("one_server_start", text, "declare as many server starts as replicates")
    elif grid.search.stages and len(set(grid.groups)) < grid.count:
        yield Reason("stages_share_starts", "a second stage needs replicates that share no server start", "declare as many as replicates")
    high = max((c.rate for c in grid.found if c.rate), default=grid.rates[-1])
    piled = [rate for rate in grid.rates if rate <= high and mostly_overloaded(grid.column(rate))]
    if piled:
        text = f"work piles up at rate {piled[0]:g} where attainment still holds: the window ends before the limits break"
        yield Reason("overloaded_below_crossing", text, "lengthen window.measured until overload shows in attainment")


def _top(grid: _Grid) -> Reason:
    rate = grid.rates[-1]
    change = "raise load.capacity.limit" if math.isclose(rate, grid.search.limit, rel_tol=1e-5) else "raise load.capacity.widen"
    return Reason("censored", f"the highest rate {rate:g} passes in every replicate: only a bound is known", change)


def _bottom(grid: _Grid) -> Reason:
    rate, search = grid.rates[0], grid.search
    at_end = rate / (1 + search.step) < search.start / 2**search.halvings
    change = "lower load.capacity.start or relax the SLO" if at_end else "raise load.capacity.widen"
    return Reason("censored", f"the lowest rate {rate:g} fails in every replicate: only a bound is known", change)


def _grid(history: History, done: Done) -> _Grid:
    runs = {run.key: run for run in history.runs}
    found = tuple(crossings(history.search, done.rates, done.replicates, runs))
    logs = tuple(math.log(c.rate) for c in found if c.rate is not None)
    starts = [{runs["grid", rate, r].server_start for rate in done.rates} for r in range(done.replicates)]
    return _Grid(
        search=history.search,
        rates=done.rates,
        count=done.replicates,
        runs=runs,
        found=found,
        groups=_linked(starts),
        logs=logs if len(logs) == done.replicates else (),
    )


def _linked(starts: Sequence[set[int]]) -> tuple[int, ...]:
    """Label replicates (R,) so that those which share a server start, directly or through others, have one label."""
    labels = list(range(len(starts)))
    for i, mine in enumerate(starts):
        for j in range(i):
            if mine & starts[j] and labels[i] != labels[j]:
                old, new = sorted((labels[i], labels[j]))[::-1]
                labels = [new if label == old else label for label in labels]
    return tuple(labels)


def _interval(grid: _Grid, logs: Sequence[float]) -> Interval | None:
    """Interval of the geometric mean over replicates; under a declared second stage with the spread of the first (Stein)."""
    level = grid.search.confidence
    if grid.search.stages is None:
        return replicate_interval([math.exp(x) for x in logs], grid.groups, level, log=True)
    first = logs[: grid.search.replicates]
    half = float(stats.t.ppf(0.5 + level / 2, len(first) - 1)) * spread(first) / math.sqrt(len(logs))
    mean = sum(logs) / len(logs)
    method = f"t over replicates, log scale, spread of the first {len(first)} (Stein's two stages)"
    return Interval(math.exp(mean - half), math.exp(mean + half), level, method, len(logs), "replicate")


def _figures(grid: _Grid, capacity: Interval, gpus: int | None) -> dict[str, Figure]:
    """Build every form of the capacity; one without its inputs has no value and says which is missing."""
    own = [math.exp(x) for x in grid.logs]
    rates = own if grid.search.unit == "rate" else _at(grid, own, "offered_rate")
    watts = _at(grid, own, "watts")
    joule = [r / w for r, w in zip(rates, watts, strict=True)] if rates and watts else None
    no_rate = "" if rates else "the offered rate of some run is not known"
    no_gpu = "" if gpus else "the number of GPUs is not known, or there is none"
    no_watt = "" if watts else "power was not measured in every run"
    return {
        "capacity": _figure("capacity", UNITS[grid.search.unit], grid, capacity),
        "capacity_pooled": _pooled(grid),
        "capacity_rate": _figure("capacity_rate", "req/s", grid, _over(grid, rates), no_rate),
        "capacity_per_gpu": _figure(
            "capacity_per_gpu", "req/s/GPU", grid, _over(grid, [r / gpus for r in rates] if rates and gpus else None), no_rate or no_gpu
        ),
        "capacity_per_watt": _figure("capacity_per_watt", "req/J", grid, _over(grid, joule), no_rate or no_watt),
    }


def _pooled(grid: _Grid) -> Figure:
    columns = [grid.column(rate) for rate in grid.rates]
    valid, offered = ([sum(getattr(run, name) for run in column) for column in columns] for name in ("valid", "offered"))
    found = crossing(grid.rates, valid, offered, grid.search.attainment, grid.search.method)
    reason = "" if found.rate is not None else f"the summed counts do not cross the target ({found.side})"
    figure = _figure("capacity_pooled", UNITS[grid.search.unit], grid, None, reason)
    return replace(figure, value=found.rate, status="unknown" if reason else "ok", diagnostic=True)


def _at(grid: _Grid, own: Sequence[float], name: Literal["offered_rate", "watts"]) -> list[float] | None:
    """Each replicate's reading at its own capacity, interpolated between neighbouring rates on log scales; None when one is missing."""
    columns = [[getattr(grid.runs["grid", rate, r], name) for rate in grid.rates] for r in range(grid.count)]
    if any(value is None or value <= 0 for column in columns for value in column):
        return None
    x = np.log(grid.rates)
    return [float(np.exp(np.interp(math.log(c), x, np.log(column)))) for c, column in zip(own, columns, strict=True)]


def _over(grid: _Grid, values: Sequence[float] | None) -> Interval | None:
    return _interval(grid, [math.log(v) for v in values]) if values else None


def _resolved(grid: _Grid, value: float, found: Interval) -> Interval:
    """The interval, no narrower than the grid resolves: replicates that fall off one cliff agree on where we drew it between two rates."""
    down = up = 0.0
    for r, log in enumerate(grid.logs):
        between = gap([grid.runs["grid", rate, r] for rate in grid.rates], grid.search.attainment)
        if between is not None:
            down += min(math.log(between[0]) - log, 0.0) / grid.count
            up += max(math.log(between[1]) - log, 0.0) / grid.count
    low, high = min(found.low, value * math.exp(down)), max(found.high, value * math.exp(up))
    if (low, high) == (found.low, found.high):
        return found
    return replace(found, low=low, high=high, method=f"{found.method}, no narrower than the grid resolves a cliff of attainment")


def _figure(metric: str, unit: str, grid: _Grid, interval: Interval | None, reason: str = "") -> Figure:
    value = math.sqrt(interval.low) * math.sqrt(interval.high) if interval else None
    interval = _resolved(grid, value, interval) if interval and value else None
    return Figure(
        metric=metric,
        unit=unit,
        value=value,
        status="ok" if interval else "unknown",
        n=grid.count,
        population=f"trace replicates, {len(grid.rates)} rates each, {grid.search.method} crossing at {grid.search.attainment:g}",
        denominator="offered requests of the cohort",
        reason=reason,
        interval=interval,
    )


def _answer(
    history: History,
    status: Status,
    reasons: tuple[Reason, ...],
    grid: _Grid | None = None,
    rows: tuple[RateRow, ...] = (),
    ends: Bracket = Bracket(None, None),  # noqa: B008 - frozen
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    figures: Mapping[str, Figure] | None = None,
) -> CapacityEstimate:
    search = history.search
    seeds = {run.replicate: run.seed for run in history.runs if run.phase == "grid"}
    return CapacityEstimate(
        status=status,
        target=search.attainment,
        figures=figures if figures is not None else {"capacity": _none(search, status, reasons, len(seeds))},
        by_replicate=tuple((r, c.rate) for r, c in enumerate(grid.found) if c.rate is not None) if grid else (),
        bracket=ends,
        at_least=at_least,
        at_most=at_most,
        rows=rows,
        reasons=reasons,
        estimand="unknown" if len(seeds) < 2 else "E1" if len(set(seeds.values())) == 1 else "E2",
        discarded=sum(run.phase == "locate" for run in history.runs),
        load=coordinate(search),
    )


def _none(search: Search, status: Status, reasons: Sequence[Reason], replicates: int) -> Figure:
    text = f"{status}: {'; '.join(reason.text for reason in reasons)}"
    return Figure("capacity", UNITS[search.unit], None, "unknown", replicates, "trace replicates", "offered requests of the cohort", text)
