"""Two cells of any campaigns against each other: coordinates, gates, and the effect with everything that qualifies it (DESIGN 9)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from analysis.campaign import cell_in_context, side_of
from analysis.compare import Side, compare
from analysis.effect_model import Declaration, NoiseFloor
from analysis.effects import DIFFERENCE_METRICS, Frame, Replicates, directed, effect_between, replicates_of
from analysis.gates import CellContext, PairContext, pair_checks
from analysis.model import CellAnalysis, Comparison, Effect, Reason
from analysis.noise import broken_floor, identical, stands_apart, stands_elsewhere, widest
from analysis.ranking import arm_reasons
from harness.errors import UsageError
from harness.record.coordinates import Known
from harness.record.reader import RunRecord
from harness.record.spec import RunSpec

NO_NOISE = "no A/A run given"
NO_TWINS = "no two arms of it are identical and have an interval"


@dataclass(frozen=True, slots=True)
class Contender:
    """One side of a comparison with its replicates: a cell, framed by a metric."""

    side: Side
    cell: CellAnalysis
    context: CellContext
    spec: RunSpec
    broken: tuple[str, ...] = ()
    """replicates whose records cannot be read"""

    @property
    def key(self) -> tuple[str, str]:
        """Which cell of which campaign, whatever the user called it."""
        return self.spec.campaign_digest, self.spec.cell

    def replicates(self, metric: str) -> Replicates:
        """The figure of every replicate that has one, with server starts and schedule digests."""
        return replicates_of(self.cell, metric, self.side.name)


@dataclass(frozen=True, slots=True)
class Declared:
    """What a comparison is held to. ``margin`` None: nobody named one. ``post_hoc``: why nothing may be claimed, or empty."""

    metric: str
    margin: float | None
    margin_source: str
    confidence: float
    post_hoc: str
    declaration: Declaration


@dataclass(frozen=True, slots=True)
class Versus:
    """The whole answer about a pair. ``effect`` None: there is none, and ``reasons`` say why; with one, they say why nothing is claimed."""

    comparison: Comparison
    declared: Declared
    effect: Effect | None
    reasons: tuple[Reason, ...]
    unit: str
    waived: tuple[tuple[str, str, str], ...] = ()
    """side, gate and reason of every waiver: a waiver is printed on every result (DESIGN 8)"""
    attested: tuple[tuple[str, str], ...] = ()
    """side and name of every coordinate that somebody vouched for and nobody observed, printed likewise (DESIGN 9)"""


def contender(records: Sequence[RunRecord], metric: str | None, name: str, *, broken: Sequence[str] = ()) -> Contender:
    """Analyze the records of one cell as a side by ``metric`` (None: its declared one).

    UsageError when a cell has no such figure, or one of which nobody says whether more or less is better, or when its data are discarded.

    ``broken``: replicates that cannot be read, in words; leaving them out would choose the data, so they stand against every claim.
    """
    spec = records[0].spec
    if spec.probe is not None and spec.probe.discarded:
        what = f"{name}: its runs located a search for capacity, so their data are discarded"
        raise UsageError.single("data_discarded", what, "name a cell of the search's grid, which has the same name without +locate")
    by = metric or (spec.rank.metric if spec.rank else "goodput")
    cell, context = cell_in_context(records, by)
    if by not in cell.figures or not directed(cell.figures[by]):
        known = ", ".join(sorted(m for m, f in cell.figures.items() if directed(f) and not f.diagnostic))
        why = "no manifest can declare it, and nothing says which way is better" if by in cell.figures else f"{name} has no such figure"
        raise UsageError.single("metric_unknown", f"metric={by}: {why}", f"choose by --metric: {known}")
    return Contender(side_of(cell, spec, metric, name), cell, context, spec, tuple(broken))


def same_campaign(a: Contender, b: Contender) -> bool:
    """Tell whether one manifest planned both."""
    return a.spec.campaign_digest == b.spec.campaign_digest


def hold(
    a: Contender,
    b: Contender,
    *,
    factors: frozenset[str] = frozenset(),
    margin: float | None = None,
    noise: Sequence[Contender] = (),
    ahead: bool = False,
) -> Versus:
    """Hold b against a: every coordinate, the gates of a pair, and the effect on their metric.

    ``margin`` overrides the declared one; what nobody declared before the run is post_hoc and unclaimed, unless ``ahead`` says that metric
    and margin were fixed by who calls (a gate in CI). ``noise``: cells of an A/A campaign. Raises UsageError when margins disagree.
    """
    one = same_campaign(a, b)
    found = compare(a.side, b.side, factors=factors, same_campaign=one)
    checks = pair_checks(PairContext(a.context, b.context))
    comparison = replace(found, checks=checks, comparable=found.comparable and all(c.lets_through for c in checks))
    declared = declare(a, b, margin, ahead=ahead)
    reasons = (*_pair_reasons(comparison), *_own_reasons(a, b, declared.metric))
    effect = _effect(a, b, declared, one) if comparison.comparable else None
    if comparison.comparable and effect is None:
        reasons = (*reasons, _no_effect(a, b, declared.metric))
    if effect is not None:
        effect = with_noise(effect, (a, b), declared, noise)
        reasons = (*reasons, *([broken_floor(effect.noise)] if effect.noise and stands_apart(effect.noise.effect) else []))
        effect = _claimed(effect, declared, reasons)
    waived = tuple((side.side.name, w.gate, w.reason) for side in (a, b) for w in side.spec.waivers)
    return Versus(comparison, declared, effect, reasons, a.cell.figures[declared.metric].unit, waived, _attested(a, b))


def _attested(a: Contender, b: Contender) -> tuple[tuple[str, str], ...]:
    known = ((side.side.name, name, c) for side in (a, b) for name, c in side.side.coordinates.items() if isinstance(c, Known))
    return tuple((side, name) for side, name, c in known if c.source == "attested")


def declare(a: Contender, b: Contender, margin: float | None, *, ahead: bool) -> Declared:
    """Find what was declared before the runs: the metric by both sides, at this load, with a margin."""
    metric = str(getattr(a.side.coordinates["result.metric"], "value", ""))
    ranks = [s.spec.rank for s in (a, b) if s.spec.rank is not None and s.spec.rank.metric == metric]
    margins = sorted({rank.margin for rank in ranks})
    if margin is None and len(margins) > 1:
        what = f"margin: the sides declare {' and '.join(f'{m:g}' for m in margins)}, and a pair has one"
        raise UsageError.single("margins_differ", what, f"add --margin {margins[0]:g} or --margin {margins[1]:g}")
    found = margin if margin is not None else next(iter(margins), None)
    at = [rank.at for s, rank in ((s, s.spec.rank) for s in (a, b)) if rank is not None and rank.at not in (None, s.spec.load.value)]
    why = ""
    if len(ranks) < 2:
        why = f"{metric} was declared by {len(ranks)} of the 2 sides before it ran"
    elif at:
        why = f"{metric} was declared at load {at[0]:g}, and this is another"
    elif margin is not None and margin not in margins:
        why = f"margin={margin:g}: the margin declared before the run is {margins[0]:g}"
    source = "declared" if found in margins else "none" if found is None else "given now"
    confidence = max((rank.confidence for rank in ranks), default=0.95)
    if ahead and found is not None:
        return Declared(metric, found, source, confidence, "", "by_caller" if why else "declared")
    return Declared(metric, found, source, confidence, why, "post_hoc" if why else "declared")


def _effect(a: Contender, b: Contender, declared: Declared, one_campaign: bool) -> Effect | None:
    metric = declared.metric
    lacking = [c for c in (a, b) if c.cell.figures[metric].status != "ok" or c.cell.figures[metric].diagnostic]
    if lacking or _shared_runs(a, b):
        return None
    frame = Frame(metric, declared.margin, declared.confidence)
    return effect_between(a.replicates(metric), b.replicates(metric), frame, same_campaign=one_campaign)


def _no_effect(a: Contender, b: Contender, metric: str) -> Reason:
    shared = _shared_runs(a, b)
    if shared:
        what = f"runs={shared} held by both sides: a measurement is no evidence about itself"
        return Reason("same_runs", what, "name two cells, or the cells of two campaigns")
    for side in (a, b):
        figure = side.cell.figures[metric]
        if figure.status != "ok" or figure.diagnostic:
            status = "diagnostic" if figure.diagnostic else figure.status
            what = f"{metric} of {side.side.name} is {status}: {figure.reason or 'never compared'}"
            return Reason("figure_missing", what, "lengthen the window or lower the load and run again, or compare by another metric")
    few = min(
        sum(math.isfinite(v) and (v > 0 or metric in DIFFERENCE_METRICS) for v in s.replicates(metric).values.values()) for s in (a, b)
    )
    above = "" if metric in DIFFERENCE_METRICS else " above 0"
    what = f"replicates={few} with a finite {metric}{above} on one side: an interval needs every one, and two independent ones a side"
    return Reason("replicates_missing", what, "run both sides with replicates on server starts of their own")


def _shared_runs(a: Contender, b: Contender) -> int:
    seals = [{r.seal_root for r in side.cell.runs if r.seal_root} for side in (a, b)]
    return len(seals[0] & seals[1])


def _pair_reasons(comparison: Comparison) -> Iterable[Reason]:
    for d in comparison.differences:
        if d.answer in ("different", "unknown"):
            yield Reason(f"coordinate_{d.answer}", f"{d.coordinate}: {d.a!r} against {d.b!r}", d.remedy)
    for c in comparison.checks:
        if not c.lets_through:
            yield Reason(c.code, f"{c.verdict}: {c.reason}", c.remedy)


def _own_reasons(a: Contender, b: Contender, metric: str) -> Iterable[Reason]:
    for side in (a, b):
        for what in side.broken:
            yield Reason("run_incomplete", f"{side.side.name}: {what}", "repair or run the replicate again; finished ones are kept")
        for r in arm_reasons(side.cell, metric):
            if not r.code.startswith("figure_"):
                yield Reason(r.code, f"{side.side.name}: {r.text}", r.remedy)


def _claimed(effect: Effect, declared: Declared, reasons: Sequence[Reason]) -> Effect:
    """Take the verdict from an effect that nobody declared, or that a gate stands against."""
    why = [f"post_hoc: {declared.post_hoc}"] if declared.post_hoc else []
    why += [f"gates: {', '.join(sorted({r.code for r in reasons}))}"] if reasons else []
    told = replace(effect, declaration=declared.declaration, reason="; ".join(filter(None, [*why, effect.reason])))
    return replace(told, verdict="unclaimed") if why else told


def with_noise(effect: Effect, sides: tuple[Contender, Contender], declared: Declared, noise: Sequence[Contender]) -> Effect:
    """Put the widest fitting A/A floor beside an effect, or the reason why there is none."""
    if not noise:
        return replace(effect, noise_reason=NO_NOISE)
    own = {side.key for side in sides}
    floors: list[NoiseFloor] = []
    why: list[str] = []
    for one, two in combinations(sorted(noise, key=lambda c: c.key), 2):
        together = same_campaign(one, two)
        if {one.key, two.key} == own or not identical(compare(one.side, two.side, same_campaign=together)):
            continue
        if one.broken or two.broken:
            why.append("a replicate of the A/A run cannot be read")
            continue
        differs = stands_elsewhere(one.side, sides[0].side)
        found = None if differs else _effect(one, two, declared, together)
        why += [f"the A/A run stands elsewhere in: {differs}"] if differs else []
        floors += [NoiseFloor(f"{one.side.name} and {two.side.name}", found)] if found else []
    floor = widest(floors)
    return replace(effect, noise=floor, noise_reason="" if floor else next(iter(why), NO_TWINS))
