"""From sealed records to everything a report prints: each run, each cell, each pair, and the verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from analysis.advice import advise
from analysis.capacity_campaign import analyze_searches
from analysis.cell import measure_cell
from analysis.compare import Side, compare
from analysis.coordinates import merge_runs, result_coordinates
from analysis.fairness_cell import fairness_of_cell
from analysis.fairness_words import declared_fairness
from analysis.gates import CellContext, PairContext, RunContext, cell_checks, pair_checks, run_checks
from analysis.groups import group_cell
from analysis.loops import labelled, loop_name
from analysis.memory import memory_use
from analysis.model import CampaignAnalysis, CellAnalysis, Comparison, Figure, RunAnalysis
from analysis.neighbours import neighbours
from analysis.pareto import front_of
from analysis.ranking import decide, select_load
from analysis.run import RunMeasures, measure_run
from analysis.scale_cell import slo_scales
from analysis.series import Series
from analysis.server_cell import server_of_cell
from analysis.server_side import ServerSide, server_side
from analysis.slos import drawn_limits
from harness.errors import UsageError
from harness.record.coordinates import Coordinate
from harness.record.reader import RunRecord
from harness.record.spec import RunSpec


def analyze(records: Sequence[RunRecord], *, incomplete: Sequence[str]) -> CampaignAnalysis:
    """Analyze the sealed replicates of one campaign.

    ``records``: at most one a (cell, replicate); ``incomplete``: planned runs without a readable sealed record, in words. Raises UsageError
    when there is no record or the records belong to different campaigns.
    """
    spec = _one_campaign(records)
    grouped: dict[str, list[RunRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda r: (r.spec.cell, r.spec.replicate)):
        if record.spec.probe is None or not record.spec.probe.discarded:
            grouped[record.spec.cell].append(record)
    metric = spec.rank.metric if spec.rank else "goodput"
    analyzed = [cell_in_context(group, "attainment" if spec.probe else metric) for group in grouped.values()]
    cells, contexts = tuple(cell for cell, _ in analyzed), {cell.cell: context for cell, context in analyzed}
    searched = analyze_searches(records, analyzed) if spec.probe else None
    pool, seen = (searched.sides, searched.contexts) if searched else (cells, contexts)
    sides = select_load(spec.rank, pool) if spec.rank else list(pool)
    pairs = [(a, b) for a, b in combinations(sides, 2) if spec.rank is not None or a.load == b.load]
    comparisons = tuple(_compare(a, b, PairContext(seen[a.cell], seen[b.cell])) for a, b in pairs)
    standing = searched.unranked if searched else None
    verdict = decide(spec.rank, spec.slo, pool, comparisons, incomplete, spec.slo_classes, standing)
    return CampaignAnalysis(
        campaign=spec.campaign,
        question=spec.question,
        digest=spec.campaign_digest,
        cells=cells,
        comparisons=comparisons,
        verdict=verdict,
        waivers=tuple((w.gate, w.reason) for w in spec.waivers),
        incomplete=tuple(incomplete),
        provenance=_provenance(records),
        advice=advise(spec.rank, sides, verdict),
        front=None if searched else front_of(spec.rank, cells, contexts, incomplete),
        capacities=searched.capacities if searched else (),
        neighbours=neighbours(cells, {name: [(r.record.spec, r.fairness) for r in context.runs] for name, context in contexts.items()}),
    )


def analyze_cell(records: Sequence[RunRecord], metric: str) -> CellAnalysis:
    """Analyze the replicates of one cell; ``metric`` frames the result coordinates."""
    return cell_in_context(records, metric)[0]


def cell_in_context(records: Sequence[RunRecord], metric: str) -> tuple[CellAnalysis, CellContext]:
    """Analyze the replicates of one cell as ``analyze_cell`` does, with what the gates of a pair look at."""
    measured = [(record, measure_run(record)) for record in records]
    contexts = [RunContext(r, m.clocks, m.outcome, m.outcomes, m.figures, m.fairness) for r, m in measured]
    scales, curves = slo_scales(measured)
    runs = tuple(_run(c, m, curve) for c, (_, m), curve in zip(contexts, measured, curves, strict=True))
    figures, outcomes, design_effect = measure_cell(measured)
    spec = records[0].spec
    coordinates = merge_runs([(r.spec.replicate, r.coordinates) for r in records])
    context = CellContext(contexts, spec)
    analysis = CellAnalysis(
        cell=spec.cell,
        arm=spec.arm.name,
        load=f"{spec.load.kind}={spec.load.value:g}",
        estimand=spec.estimand,
        evidence_class=spec.evidence_class,
        runs=runs,
        outcomes=outcomes,
        figures=_of(spec.estimand, figures | labelled(scales, loop_name(spec.workload))),
        checks=cell_checks(context),
        coordinates={**coordinates, **_result(spec, metric)},
        declared=spec.arm.declared,
        design_effect=design_effect,
        loop=loop_name(spec.workload),
        groups=tuple(
            replace(group, figures=_of(spec.estimand, group.figures))
            for group in (*group_cell(measured, "client"), *group_cell(measured, "request_class"))
        ),
        fairness=fairness_of_cell(measured),
        without=spec.workload.without_clients,
        limits=drawn_limits(spec.slo, spec.slo_classes),
        server=_server_of(runs, spec),
    )
    return analysis, context


def _of(estimand: str, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Every number says what it is a number of."""
    return {name: replace(figure, estimand=estimand) for name, figure in figures.items()}


def side_of(cell: CellAnalysis, spec: RunSpec, metric: str | None, name: str) -> Side:
    """Frame a cell as one side of a comparison by ``metric`` (None: the declared one)."""
    own = _result(spec, metric) if metric else {}
    return Side(name, {**cell.coordinates, **own}, frozenset(cell.declared))


def _result(spec: RunSpec, metric: str) -> dict[str, Coordinate]:
    return result_coordinates(spec.rank, metric, spec.slo, spec.load, spec.slo_classes, declared_fairness(spec))


def _compare(a: CellAnalysis, b: CellAnalysis, context: PairContext) -> Comparison:
    """Hold two cells of a campaign side by side: their coordinates, and what must hold between them beside those."""
    found, checks = compare(_side(a), _side(b), same_campaign=True), pair_checks(context)
    return replace(found, checks=checks, comparable=found.comparable and all(check.lets_through for check in checks))


def _side(cell: CellAnalysis) -> Side:
    return Side(cell.cell, cell.coordinates, frozenset(cell.declared))


def _run(context: RunContext, measures: RunMeasures, curve: Mapping[str, Series]) -> RunAnalysis:
    spec = context.record.spec
    return RunAnalysis(
        path=f"{spec.cell}/{spec.replicate}/{spec.attempt}",
        cell=spec.cell,
        arm=spec.arm.name,
        replicate=spec.replicate,
        server_start=spec.server_start,
        seal_root=context.record.seal.root,
        outcomes=measures.outcomes,
        figures=_of(spec.estimand, measures.figures),
        checks=run_checks(context),
        series={**measures.series, **curve},
        sent=measures.sent,
        dialects=tuple(replace(said, figure=replace(said.figure, estimand=spec.estimand)) for said in measures.dialects),
        bins=measures.bins,
        memory=memory_use(context.record, measures.clocks),
        server=_server(context, measures),
    )


def _server(context: RunContext, measures: RunMeasures) -> ServerSide:
    found = server_side(context.record, measures.clocks, measures.figures)
    return replace(found, figures=_of(context.record.spec.estimand, found.figures))


def _server_of(runs: Sequence[RunAnalysis], spec: RunSpec) -> ServerSide:
    sides = [run.server for run in runs if run.server is not None]
    return server_of_cell(sides, [run.server_start for run in runs], spec.rank.confidence if spec.rank else 0.95)


def _one_campaign(records: Sequence[RunRecord]) -> RunSpec:
    digests = sorted({r.spec.campaign_digest for r in records})
    if len(digests) != 1:
        raise UsageError.single(
            "records_mixed",
            f"campaigns={len(digests)} among {len(records)} records: a ranking holds within one campaign",
            "analyze one campaign's folder; compare across campaigns with `compare --factor`",
        )
    return records[0].spec


def _provenance(records: Sequence[RunRecord]) -> Mapping[str, Any]:
    """Where the numbers come from: what a reader needs to find and check them again."""
    specs = [r.spec for r in records]
    traces = {s.workload.trace.sha256: s.workload.trace for s in specs if s.workload.trace}
    certificates = {s.certificate.id: s.certificate for s in specs if s.certificate}
    return {
        "version": sorted({s.version for s in specs}),
        "source_digest": sorted({s.source_digest for s in specs}),
        "measurement_protocol": sorted({s.measurement_protocol for s in specs}),
        "traces": [t.model_dump() for t in traces.values()],
        "certificates": [c.model_dump() for c in certificates.values()],
        "seals": {f"{s.cell}/{s.replicate}/{s.attempt}": r.seal.root for s, r in zip(specs, records, strict=True)},
        "arms": {s.arm.name: s.arm.model_dump() for s in specs},
        "pins": {s.arm.name: s.pins.model_dump() for s in specs},
        "pin_results": {f"{r.spec.cell}/{r.spec.replicate}": [p.model_dump() for p in r.facts.pins] for r in records},
        "epochs": {f"{r.spec.cell}/{r.spec.replicate}": r.facts.epoch_wall for r in records},
    }
