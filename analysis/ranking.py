"""Ranking or refusal: the one decision the whole record exists for (DESIGN 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from analysis.effects import HIGHER_IS_BETTER, paired_effect, replicates_of
from analysis.fairness_model import ATTAINED, FAIRNESS_METRICS
from analysis.gates import standing_against
from analysis.loops import loop_words
from analysis.model import (
    CellAnalysis,
    Claim,
    Comparison,
    Effect,
    Ranking,
    Reason,
    Refusal,
    Standing,
)
from analysis.noise import attach, broken_floor, floors_of, identical, stands_apart
from analysis.significance import holm
from analysis.slos import describe_slo
from harness.record.spec import Rank, Slo


def claims_of(metric: str) -> frozenset[Claim]:
    """Which claims a ranking by ``metric`` makes; integrity is always among them."""
    if metric in FAIRNESS_METRICS:
        judged = {Claim.GOODPUT} if metric in ATTAINED else set()
        return frozenset({Claim.INTEGRITY, Claim.COMPARISON, Claim.FAIRNESS}) | judged
    if metric == "capacity":
        return frozenset({Claim.INTEGRITY, Claim.COMPARISON, Claim.CAPACITY})
    service = Claim.GOODPUT if metric in HIGHER_IS_BETTER else Claim.LATENCY
    return frozenset({Claim.INTEGRITY, Claim.COMPARISON, service})


def decide(
    rank: Rank | None,
    slo: Slo,
    cells: Sequence[CellAnalysis],
    comparisons: Sequence[Comparison],
    incomplete: Sequence[str],
    classes: Mapping[str, Slo] | None = None,
    standing: Mapping[str, tuple[Reason, ...]] | None = None,
) -> Ranking | Refusal:
    """Emit a ranking of the cells at the declared load, or refuse with every reason.

    ``cells``: all cells of the campaign. ``comparisons``: every pair of the cells to be ranked. ``classes``: SLOs of request classes with
    one of their own. ``standing``: what stands against each arm, where a cell's own checks are not what decides it (a search). An arm that
    its gates or its figure exclude is listed unranked and stays in the family the intervals are simultaneous over; fewer than two arms left
    is a refusal.
    """
    if rank is None:
        reason = Reason(
            "rank_undeclared",
            "rank=null: no metric was declared before the run, so every figure is post_hoc",
            "declare `rank` in the manifest and run again",
        )
        return Refusal("No ranking", (reason,))
    at_load = select_load(rank, cells)
    title = _title(rank, describe_slo(slo, classes), at_load)
    misplaced = _load_reasons(rank, cells, at_load) if standing is None else []
    reasons = [*misplaced, *_incomplete_reasons(incomplete), *_comparison_reasons(comparisons)]
    controls = {c.arm: (_control(c),) for c in cells if c.without and c.load in {x.load for x in at_load}}
    if standing is None:
        standing = {c.arm: arm_reasons(c, rank.metric) for c in at_load}
    unranked = {arm: found for arm, found in standing.items() if arm not in controls}
    ranked = [c for c in at_load if not unranked[c.arm]]
    family = _pairs(len(unranked))
    effects, missing = _effects(rank, ranked, family=family)
    effects, broken = _qualified(effects, comparisons, ranked, family=family)
    reasons += [*missing, *broken]
    # Who stops a search that looks bad must not keep the ranking of the others: it is a run that is missing.
    unfinished = any(r.code == "search_unfinished" for found in unranked.values() for r in found)
    if reasons or unfinished or len(ranked) < 2:
        named = [Reason(r.code, f"arm {arm}: {r.text}", r.remedy) for arm, found in unranked.items() for r in found]
        return Refusal(title, tuple(reasons + named) or (_too_few(len(ranked)),))
    standings = _standings(rank, ranked, effects)
    return Ranking(title, rank.metric, standings, tuple(effects), tuple((a, r) for a, r in (unranked | controls).items() if r))


def select_load(rank: Rank, cells: Sequence[CellAnalysis]) -> list[CellAnalysis]:
    """Return the cells at the load the ranking was declared for (the only load when none was named), without controls.

    A control is not sent some of the clients: it is another load by declaration, no contender, and no member of the family.
    """
    contenders = [c for c in cells if not c.without]
    if rank.at is None:
        return contenders
    return [c for c in contenders if c.load.split("=")[-1] == f"{rank.at:g}"]


def _control(cell: CellAnalysis) -> Reason:
    text = f"without-clients={', '.join(cell.without)}: a control with less load, shown beside its like in the neighbour table"
    return Reason("control_arm", text, "none needed; an arm that serves every client is ranked")


def _title(rank: Rank, predicate: str, cells: Sequence[CellAnalysis]) -> str:
    load = ", ".join(sorted({c.load for c in cells})) or "no load"
    loops = sorted({f" ({words})" for words in (loop_words(c.loop) for c in cells) if words})
    return f"{rank.metric} under {predicate} at {load}{''.join(loops)}"


def _too_few(n: int) -> Reason:
    return Reason("too_few_arms", f"arms={n}: a ranking needs at least two", "run the campaign with two or more arms")


def _load_reasons(rank: Rank, cells: Sequence[CellAnalysis], at_load: Sequence[CellAnalysis]) -> list[Reason]:
    found = []
    if not at_load:
        have = ", ".join(sorted({c.load for c in cells})) or "none"
        found.append(
            Reason("load_missing", f"rank.at={rank.at}: no cell was run at this load (loads: {have})", "run the missing load point")
        )
    if len({c.load for c in at_load}) > 1:
        found.append(Reason("load_ambiguous", "rank.at=null with several load points: a ranking holds at one load", "declare rank.at"))
    if rank.percentile_rule != "nearest_rank":
        found.append(
            Reason(
                "percentile_rule",
                f"rank.percentile-rule={rank.percentile_rule}: only nearest_rank carries a verdict; other "
                "rules are for looking at other tools' numbers",
                "set rank.percentile-rule to nearest_rank",
            )
        )
    return found


def _incomplete_reasons(incomplete: Sequence[str]) -> list[Reason]:
    return [Reason("run_incomplete", f"{what}", "resume the campaign; finished replicates are kept") for what in incomplete]


def _comparison_reasons(comparisons: Sequence[Comparison]) -> list[Reason]:
    found = []
    for pair in comparisons:
        for d in pair.differences:
            if d.answer in ("different", "unknown"):
                code = "coordinate_different" if d.answer == "different" else "coordinate_unknown"
                found.append(Reason(code, f"{d.coordinate} of {pair.a} against {pair.b}: {d.a!r} against {d.b!r}", d.remedy))
        found += [Reason(c.code, f"{c.verdict}: {c.reason} ({c.scope})", c.remedy) for c in pair.checks if not c.lets_through]
    return found


def arm_reasons(cell: CellAnalysis, metric: str) -> tuple[Reason, ...]:
    """Return everything about one cell that stands against a claim by ``metric``: its gates, its figure, its interval."""
    claims = claims_of(metric)
    against = [c for run in cell.runs for c in standing_against(claims, run.checks, "run", run.path)]
    against += standing_against(claims, cell.checks, "cell", cell.cell)
    found = [Reason(c.code, f"{c.verdict}: {c.reason} ({c.scope})", c.remedy) for c in against]
    figure = cell.figures.get(metric)
    if figure is not None and figure.diagnostic:
        why = f"{metric} by the rule {figure.percentile_rule} is diagnostic: shown, and no claim rests on it"
        found.append(Reason("figure_diagnostic", why, "declare another metric, or rank.percentile-rule: nearest_rank"))
    elif figure is None or figure.status != "ok":
        why = figure.reason if figure else "not computed"
        status = figure.status if figure else "unknown"
        found.append(Reason(f"figure_{status}", f"{metric} is {status}: {why}", "lengthen the window or lower the load, and run again"))
    elif figure.interval is None:
        found.append(
            Reason(
                "interval_missing",
                f"{metric} has no interval over replicates (n={len(cell.runs)})",
                "run at least two replicates on their own server starts",
            )
        )
    return tuple(found)


def _pairs(n: int) -> int:
    return max(n * (n - 1) // 2, 1)


def _effects(rank: Rank, cells: Sequence[CellAnalysis], *, family: int) -> tuple[list[Effect], list[Reason]]:
    effects, reasons = [], []
    for a, b in combinations(cells, 2):
        one, two = (replicates_of(c, rank.metric, c.arm) for c in (a, b))
        effect = paired_effect(
            rank.metric,
            (a.arm, b.arm),
            (one.values, two.values),
            margin=rank.margin,
            confidence=rank.confidence,
            family=family,
            starts=(one.starts, two.starts),
            bounds=(one.bounds, two.bounds),
        )
        if effect is None:
            reasons.append(
                Reason(
                    "pairs_missing",
                    f"{a.arm} and {b.arm} share fewer than two replicates with a usable {rank.metric}",
                    "run both arms on the same trace windows, two replicates or more",
                )
            )
        else:
            effects.append(effect)
    return effects, reasons


def _qualified(
    effects: Sequence[Effect], comparisons: Sequence[Comparison], cells: Sequence[CellAnalysis], *, family: int
) -> tuple[list[Effect], list[Reason]]:
    """Put beside each effect its p adjusted over the family (Holm), and the noise floor if identical arms were run.

    ``family``: pairs that were to be compared; of those without an effect nothing is known, which is a p of 1. Identical arms that come
    out different are a reason to refuse.
    """
    arm = {c.cell: c.arm for c in cells}
    twins = frozenset(frozenset((arm[p.a], arm[p.b])) for p in comparisons if identical(p) and p.a in arm and p.b in arm)
    floors = floors_of(effects, twins, "this campaign")
    ps = [1.0 if e.p is None else e.p for e in effects]
    adjusted = holm([*ps, *[1.0] * (family - len(ps))])[: len(ps)]
    found = [replace(e, p_holm=p) for e, p in zip(attach(effects, floors), adjusted, strict=True)]
    return found, [broken_floor(floor) for floor in floors if stands_apart(floor.effect)]


def _standings(rank: Rank, cells: Sequence[CellAnalysis], effects: Sequence[Effect]) -> tuple[Standing, ...]:
    """Rank = 1 + number of arms resolved to be better; arms that are equivalent or unresolved against each other tie."""
    beaten_by = {c.arm: 0 for c in cells}
    for e in effects:
        if e.verdict == "better":
            beaten_by[e.a] += 1
        elif e.verdict == "worse":
            beaten_by[e.b] += 1
    sign = -1.0 if rank.metric in HIGHER_IS_BETTER else 1.0
    rows = [Standing(1 + beaten_by[c.arm], c.arm, c.cell, c.figures[rank.metric]) for c in cells]
    return tuple(sorted(rows, key=lambda s: (s.rank, sign * (s.figure.value or 0.0), s.arm)))
