"""What to run next in a search for capacity: locate, then a grid of rates x replicates (F38, rigor 13, DESIGN 7). Pure functions.

Locating is cheap and its data are thrown away: a bisection never revisits an early wrong answer, so it may choose where to look and nothing
else. The grid is measured afresh, on draws of the load that the search has not seen.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from analysis.capacity_curve import Crossing, cliff, crossing
from analysis.capacity_declared import Search
from analysis.capacity_runs import History, Key, Probe, ProbeRun
from analysis.model import Reason
from harness.errors import Problem, UsageError

DIGITS = 6
"""Rates are rounded to the digits a load label shows (``%g``), so that text, folder name and number are one and the same rate."""

FALSE_ALARM = 0.01
"""Of a statistical gate, per healthy run, at most (DESIGN 8); of the whole grid for having more alarms than that explains, and once more of
all its loads together for having more at one load."""


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more to run. ``rates``: the grid, ascending; ``replicates`` at each; ``reason``: why it ended early, None when complete."""

    rates: tuple[float, ...]
    replicates: int
    reason: Reason | None = None


def next_probe(history: History) -> Probe | Done:
    """Say what to run next. The same runs in any order give the same answer; a lost run is asked for again.

    Ends after at most ``Search.most_probes``, asks for no rate above ``Search.limit`` and for no (rate, draw) twice.
    """
    search, runs = history.search, {run.key: run for run in history.runs}
    place = _locate(search, {run.replicate: run for run in history.runs if run.phase == "locate"})
    if isinstance(place, Probe | Done):
        return place
    rates = first_grid(search, *place)
    count, room = search.replicates, search.widen
    while True:
        asked = _ask(search, rates, count, runs)
        if isinstance(asked, Probe | Done):
            return asked
        more = planned_replicates(search, asked)
        if more > count:
            count, asked = more, _ask(search, rates, more, runs)
            if isinstance(asked, Probe | Done):
                return asked
        extra = _wider(search, rates, asked, runs) if room else None
        if extra is None:
            return Done(rates, count)
        rates, room = tuple(sorted((*rates, extra))), room - 1


def first_grid(search: Search, low: float | None, high: float | None) -> tuple[float, ...]:
    """Rates around a located bracket, ascending, never above the limit; one rate where there is no bracket but an end of the range."""
    if low is None or high is None:
        return tuple(rate for rate in (low, high) if rate is not None)
    factor = 1 + search.step
    top = min(search.limit, math.sqrt(low * high) * factor ** ((search.grid - 1) / 2))
    return tuple(sorted(_rounded(top / factor**i, search.limit) for i in range(search.grid)))


def passes(run: ProbeRun, alpha: float) -> bool:
    """Say whether one run by itself met the target, without a growing backlog. It chooses where to look and proves nothing.

    By the plain share: the smoothed one of a light load is below a strict target even when nothing was missed, and would lead down from it.
    """
    return not run.overloaded and run.valid / run.offered >= alpha


def crossings(search: Search, rates: Sequence[float], count: int, runs: Mapping[Key, ProbeRun]) -> list[Crossing]:
    """Cross the target with the curve of each replicate; ``runs`` must hold all of rates x count."""
    columns = [[runs["grid", rate, r] for rate in rates] for r in range(count)]
    alpha, method = search.attainment, search.method
    return [crossing(rates, [run.valid for run in row], [run.offered for run in row], alpha, method) for row in columns]


def gap(row: Sequence[ProbeRun], alpha: float) -> tuple[float, float] | None:
    """The rates between which one replicate falls off a cliff, of its runs at ascending rates; None where it falls gently or not at all."""
    return cliff([run.rate for run in row], [run.valid for run in row], [run.offered for run in row], alpha)


def mostly_overloaded(column: Sequence[ProbeRun]) -> bool:
    """More than half of the runs at one rate piled up work: one of them may be a false alarm (1% a run), most of them are not."""
    return sum(bool(run.overloaded) for run in column) * 2 > len(column)


def planned_replicates(search: Search, found: Sequence[Crossing]) -> int:
    """Replicates that the declared plan asks for, given the crossings of the first stage (of which only the first ones are read)."""
    if search.stages is None:
        return search.replicates
    logs = [math.log(c.rate) for c in found[: search.replicates] if c.rate is not None]
    if len(logs) < search.replicates:
        return search.replicates  # the grid does not hold the first stage yet: it must widen before a spread can be read
    wanted = float(stats.t.ppf(0.5 + search.confidence / 2, len(logs) - 1)) * spread(logs) / math.log1p(search.stages.half_width)
    return min(max(search.replicates, math.ceil(wanted**2)), search.most_replicates)


def spread(logs: Sequence[float]) -> float:
    """Return the standard deviation, n - 1 below; at least two values."""
    mean = sum(logs) / len(logs)
    return math.sqrt(sum((x - mean) ** 2 for x in logs) / (len(logs) - 1))


def _locate(search: Search, runs: Mapping[int, ProbeRun]) -> Probe | Done | tuple[float | None, float | None]:
    """Replay doubling and bisection over the runs made; returns what is missing, or the bracket (an end is None where there is none)."""
    low: float | None = None
    high: float | None = None
    rate, spoiled, halved = _rounded(search.start, search.limit), 0, 0
    for step in range(search.most_locating):
        probe = Probe("locate", rate, search.most_replicates + step)
        run = runs.get(probe.replicate)
        if run is None:
            return probe
        if run.rate != rate:
            _foreign(run, rate)
        if run.objections:
            spoiled += 1
            if spoiled > search.spare:
                return _spoiled(run, ())
            continue
        low, high = (rate, high) if passes(run, search.attainment) else (low, rate)
        if low is None and halved == search.halvings:
            return None, high
        if high is None and rate >= _lid(search.limit):
            return low, None
        if low is not None and high is not None and high <= low * (1 + search.resolution):
            return low, high
        halved += low is None
        rate = _onward(low, high, search.limit)
    raise AssertionError("most_locating bounds the search")  # pragma: no cover - the property tests look for a way here


def _onward(low: float | None, high: float | None, limit: float) -> float:
    if low is None:
        assert high is not None  # noqa: S101 - one of the two was just set
        return _rounded(high / 2, limit)
    return _rounded(min(2 * low, limit) if high is None else math.sqrt(low * high), limit)


def _ask(search: Search, rates: Sequence[float], count: int, runs: Mapping[Key, ProbeRun]) -> Probe | Done | list[Crossing]:
    """Return the first run that is missing; with none missing, each replicate's crossing.

    All rates of a replicate before the next one, in an order drawn for it: drift of the host then favours no rate.
    """
    keys: list[list[Key]] = [[("grid", rate, replicate) for rate in rates] for replicate in range(count)]
    made = [runs[key] for block in keys for key in block if key in runs]
    for run in made:
        if run.objections:
            return _spoiled(run, tuple(rates))
    ending = too_many_alarms(made, rates, count)
    if ending is not None:
        return Done(tuple(rates), 0, ending)
    for replicate, block in enumerate(keys):
        missing = [rate for _, rate, _ in (key for key in block if key not in runs)]
        if missing:
            return Probe("grid", min(missing, key=lambda rate: _draw(search.order_seed, replicate, rate)), replicate)
    return crossings(search, rates, count, runs)


def _draw(seed: int, replicate: int, rate: float) -> bytes:
    return hashlib.blake2b(f"trigpoint/capacity/order:{seed}:{replicate}:{rate!r}".encode(), digest_size=16).digest()


def _wider(search: Search, rates: Sequence[float], found: Sequence[Crossing], runs: Mapping[Key, ProbeRun]) -> float | None:
    """Return the rate to add where some replicate does not cross within the grid; None when all do or there is nowhere to go.

    Rates added further out hardly move an isotonic crossing that lies inside already, so a grid that may not widen any further leaves fewer
    answers, not other ones.
    """
    sides = {c.side for c in found}
    kept_up = not mostly_overloaded([runs["grid", rates[-1], r] for r in range(len(found))])
    if "above" in sides and rates[-1] < _lid(search.limit) and kept_up:
        return _rounded(rates[-1] * (1 + search.step), search.limit)
    lower = _rounded(rates[0] / (1 + search.step), search.limit)
    # Below the lowest load that locating may go to ends the declared range.
    return lower if "below" in sides and lower >= search.start / 2**search.halvings else None


def _spoiled(run: ProbeRun, rates: tuple[float, ...]) -> Done:
    """End the search for want of evidence. In the grid at once: leaving a run out, or trying until one suits, would choose the data."""
    text = f"{run.phase} run at {run.rate:g}, replicate {run.replicate}, is no evidence: {', '.join(run.objections)}"
    return Done(rates, 0, Reason("no_evidence", text, "mend what the gates name, and search again under a new root seed"))


def allowed_alarms(runs: int, level: float = FALSE_ALARM) -> int:
    """Runs out of ``runs`` that may alarm before chance no longer explains it: more come by chance with probability ``level`` at most.

    One alarm in a hundred healthy runs would otherwise spoil one search in four. The runs stay in the data: leaving them out would choose.
    """
    return int(stats.binom.ppf(1 - level, runs, FALSE_ALARM)) if runs else 0


def too_many_alarms(made: Sequence[ProbeRun], rates: Sequence[float], count: int) -> Reason | None:
    """Why a statistical gate fires more often in a grid of rates x ``count`` runs than it does on healthy ones; None when it does not.

    Counted over the grid and at each load by itself, since a fault that only shows near capacity leaves the other loads alone. Runs whose
    alarms overload explains cannot alarm, and allow for nothing either.
    """
    parts = [("grid runs", made, len(rates) * count, FALSE_ALARM)]
    parts += [(f"runs at {rate:g}", [run for run in made if run.rate == rate], count, FALSE_ALARM / len(rates)) for rate in rates]
    for words, runs, total, level in parts:
        alarmed = [run for run in runs if run.alarmed]
        able = total - sum(bool(run.overloaded) for run in runs)
        allowed = allowed_alarms(able, level)
        if len(alarmed) > allowed:
            codes = ", ".join(sorted({code for run in alarmed for code in run.alarmed}))
            where = ", ".join(f"{run.rate:g}/{run.replicate}" for run in alarmed)
            text = f"{len(alarmed)} of {able} {words} fail {codes} (rate/replicate {where}); chance explains {allowed}"
            return Reason("no_evidence", text, "mend what the gate names, and search again under a new root seed")
    return None


def _foreign(run: ProbeRun, asked: float) -> None:
    what = f"rate={run.rate} in locating run {run.replicate}, where this search asks for {asked}: the run belongs to another search"
    raise UsageError(Problem("run_of_another_search", what, "keep the declaration of a search that has begun, or start a new campaign"))


def _rounded(rate: float, limit: float) -> float:
    return min(float(f"{rate:.{DIGITS}g}"), _lid(limit))


def _lid(limit: float) -> float:
    """Return the highest rate asked for: the limit in its six digits, or in all of them where six would exceed it."""
    short = float(f"{limit:.{DIGITS}g}")
    return min(short, limit)
