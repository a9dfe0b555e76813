"""A campaign of searches: what each arm's search found, everything that stands against it, and the arms as sides of a ranking (DESIGN 9).

An arm is summed up as one cell whose figure is its capacity and whose runs are its trace replicates; from there on arms are compared and
ranked by the rules that hold for every other metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.backlog import overload
from analysis.capacity import CapacityEstimate, History, ProbeRun, Search, estimate
from analysis.capacity_answers import answer_from, answer_of
from analysis.capacity_frame import UNITS, search_coordinates, search_words
from analysis.capacity_runs import EXPLAINED_BY_OVERLOAD, Measured, is_alarm
from analysis.capacity_search import allowed_alarms, gap, too_many_alarms
from analysis.gates import CellContext, RunContext, standing_against
from analysis.loops import loop_name
from analysis.model import CellAnalysis, CheckResult, Claim, Figure, Interval, Reason, RunAnalysis
from analysis.outcomes import sum_outcomes
from harness.errors import UsageError
from harness.record.reader import RunRecord
from harness.record.spec import Pins

CLAIMS = frozenset({Claim.CAPACITY, Claim.COMPARISON})
NO_GPU = "none"

Analyzed = Sequence[tuple[CellAnalysis, CellContext]]
"""Cells of the grid, each with what gates see of it."""


@dataclass(frozen=True, slots=True)
class ArmCapacity:
    """What the search of one arm found. ``unit``: of its loads. ``runs``: all of the search, the discarded ones too.

    ``alarms``: runs in which a statistical gate fired and that are kept, since chance explains up to ``allowed_alarms``
    of them in all. ``reasons``: everything that stands against ranking the arm; empty when nothing does.
    """

    arm: str
    unit: str
    estimate: CapacityEstimate
    runs: tuple[ProbeRun, ...]
    alarms: tuple[str, ...]
    allowed_alarms: int
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Searched:
    """All arms of a campaign. ``sides``: each arm as a cell to be ranked; ``contexts``: of all its grid runs, by the side's name."""

    capacities: tuple[ArmCapacity, ...]
    sides: tuple[CellAnalysis, ...]
    contexts: Mapping[str, CellContext]

    @property
    def unranked(self) -> dict[str, tuple[Reason, ...]]:
        """What stands against each arm."""
        return {found.arm: found.reasons for found in self.capacities}


def analyze_searches(records: Sequence[RunRecord], analyzed: Analyzed) -> Searched:
    """Put together what ``records`` say of every search; ``analyzed``: their grid cells.

    Raises UsageError ``run_of_another_search`` when two arms were not searched by one procedure, and what ``estimate`` raises.
    """
    search = _one_search(records)
    found, sides, contexts = [], [], {}
    shared = _shared(analyzed)
    for arm in sorted({record.spec.arm.name for record in records}):
        own = [(cell, context) for cell, context in analyzed if cell.arm == arm]
        locating = [r for r in records if r.spec.arm.name == arm and r.spec.probe is not None and r.spec.probe.discarded]
        capacity = _arm(arm, search, own, [answer_of(record) for record in locating])
        found.append(capacity)
        if own:
            context = CellContext([run for _, c in own for run in c.runs], own[0][1].spec)
            sides.append(_side(capacity, search, own, context, shared))
            contexts[arm] = context
    return Searched(tuple(found), tuple(sides), contexts)


def _shared(analyzed: Analyzed) -> frozenset[int]:
    """Replicates that every arm of the grid has."""
    by_arm: dict[str, set[int]] = {}
    for cell, _ in analyzed:
        by_arm.setdefault(cell.arm, set()).update(run.replicate for run in cell.runs)
    return frozenset(set.intersection(*by_arm.values())) if by_arm else frozenset()


def _one_search(records: Sequence[RunRecord]) -> Search:
    searches = {record.spec.probe.search for record in records if record.spec.probe is not None}
    if len(searches) != 1 or any(record.spec.probe is None for record in records):
        what = f"searches={len(searches)} among {len(records)} runs: capacities compare only when one procedure found them"
        raise UsageError.single("run_of_another_search", what, "analyze the runs of one campaign with load: {capacity: ...}")
    return searches.pop()


def _arm(arm: str, search: Search, own: Analyzed, located: Sequence[ProbeRun]) -> ArmCapacity:
    pairs = [(context, run) for cell, of_cell in own for context, run in zip(of_cell.runs, cell.runs, strict=True)]
    measured = [_answer(context, run) for context, run in pairs]
    found = estimate(History(search, (*located, *measured)), _gpus(pairs[0][0].record) if pairs else None)
    alarms = [f"{', '.join(run.alarmed)} at {run.rate:g}, replicate {run.replicate}" for run in measured if run.alarmed]
    rates, draws = (sorted({getattr(run, name) for run in measured}) for name in ("rate", "replicate"))
    tolerate = too_many_alarms(measured, rates, len(draws)) is None
    standing = list(_against(pairs, measured, tolerate=tolerate))
    # A grid that is not complete lacks replicates in every cell, which its own reason says already.
    standing += [c for cell, _ in own for c in standing_against(CLAIMS, cell.checks, "cell", cell.cell)] if found.rows else []
    gates = tuple(Reason(c.code, f"{c.verdict}: {c.reason} ({c.scope})", c.remedy) for c in standing)
    return ArmCapacity(
        arm=arm,
        unit=UNITS[search.unit],
        estimate=found,
        runs=tuple(sorted((*located, *measured), key=lambda run: (run.phase == "grid", run.replicate, run.rate))),
        alarms=tuple(alarms),
        allowed_alarms=allowed_alarms(sum(not run.overloaded for run in measured)),
        reasons=(*found.reasons, *gates),
    )


def _answer(context: RunContext, run: RunAnalysis) -> ProbeRun:
    """What a run of the grid answers, from what is measured already."""
    if run.sent is None:
        raise ValueError(f"{run.path}: analyzed without what it sent")
    flag = overload(context.record, context.clocks).flag
    return answer_from(context.record, Measured(run.outcomes, run.figures, flag, run.sent), run.checks)


def _against(pairs: Sequence[tuple[RunContext, RunAnalysis]], measured: Sequence[ProbeRun], *, tolerate: bool) -> Iterator[CheckResult]:
    """Gates of the grid's runs that stand against a ranking: not those that overload explains, nor alarms that chance does."""
    for (_, run), answer in zip(pairs, measured, strict=True):
        for check in standing_against(CLAIMS, run.checks, "run", run.path):
            explained = bool(answer.overloaded) and check.code in EXPLAINED_BY_OVERLOAD
            if not explained and not (tolerate and is_alarm(check)):
                yield check


def _gpus(record: RunRecord) -> int | None:
    """GPUs that the arm is split over, None on a host without any or of which that is not known."""
    gpu = record.facts.before.get("host.gpu")
    if gpu is None or gpu.value in (None, NO_GPU):
        return None
    return _degrees(record.spec.pins)


def _degrees(pins: Pins) -> int:
    split = pins.parallelism
    servers = split.replicas or 1 if split.disaggregation is None else split.disaggregation.prefill + split.disaggregation.decode
    return split.tensor * split.pipeline * split.data * servers


def _side(found: ArmCapacity, search: Search, own: Analyzed, context: CellContext, shared: frozenset[int]) -> CellAnalysis:
    """The arm as one cell: its figures are its capacity, its runs the trace replicates that crossed.

    Under a declared second stage only the first stage's replicates are paired: their number does not depend on what they show.
    """
    spec, first = context.spec, own[0][0]
    starts = {run.replicate: run.server_start for run in found.runs if run.phase == "grid"}
    capacity = found.estimate.figures["capacity"]
    replicates = [(r, value) for r, value in found.estimate.by_replicate if r < search.replicates]
    outcomes = sum_outcomes([cell.outcomes for cell, _ in own])
    runs = tuple(
        RunAnalysis(
            path=f"{found.arm}/{replicate}",
            cell=found.arm,
            arm=found.arm,
            replicate=replicate,
            server_start=starts[replicate],
            seal_root=None,
            outcomes=outcomes,
            figures={"capacity": _own(capacity, value, gap(_row(found, replicate), search.attainment))},
            checks=(),
        )
        for replicate, value in replicates
    )
    return replace(
        first,
        cell=found.arm,
        load=search_words(search),
        runs=runs,
        outcomes=outcomes,
        figures=found.estimate.figures,
        checks=(),
        coordinates=search_coordinates([run.record for run in context.runs], search, shared),
        design_effect=None,
        loop=loop_name(spec.workload),
        groups=(),
    )


def _row(found: ArmCapacity, replicate: int) -> list[ProbeRun]:
    """A replicate's runs in the grid, by ascending load."""
    return sorted((run for run in found.runs if run.phase == "grid" and run.replicate == replicate), key=lambda run: run.rate)


def _own(capacity: Figure, value: float, between: tuple[float, float] | None) -> Figure:
    """One replicate's capacity: no spread is known of it, but loads that it lies between where it falls off a cliff."""
    bounds = None
    if between is not None:
        low, high = min(between[0], value), max(between[1], value)
        bounds = Interval(low, high, 1.0, "between the loads on either side of a cliff of attainment", 1, "replicate")
    return replace(capacity, value=value, status="ok", n=1, reason="", interval=bounds)
