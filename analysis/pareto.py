"""Pareto fronts over two figures, among cells that compare with one another; a point is dominated only where intervals resolve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from analysis.compare import Side, compare
from analysis.effect_model import Front, FrontPoint, NoiseFloor
from analysis.effects import HIGHER_IS_BETTER, Frame, effect_between, replicates_of
from analysis.gates import CellContext, PairContext, pair_checks
from analysis.model import CellAnalysis, Effect, Reason
from analysis.noise import broken_floor, identical, stands_apart
from analysis.ranking import arm_reasons
from harness.record.spec import Rank

LOAD_AXIS = frozenset({"result.load", "workload.arrivals", "workload.transforms", "workload.digests", "workload.window"})
"""Coordinates that differ between load points of one manifest: the load itself, and the slices and schedules that it plays."""

FIXED_LENGTHS = frozenset({"forced", "client_stop"})
"""Output controls under which the plan fixes every length; else two loads have no request in common to hold lengths by."""

LEAST_LOADS, LEAST_ARMS = 2, 3
"""From so many load points, or arms, a plane shows more than a table of two rows."""

Pair = tuple[CellAnalysis, CellAnalysis]


@dataclass(frozen=True, slots=True)
class _Plane:
    """The two figures, and what their effects are held to."""

    metrics: tuple[str, str]
    declared: bool
    margin: float
    confidence: float


def front_of(
    rank: Rank | None, cells: Sequence[CellAnalysis], contexts: Mapping[str, CellContext], incomplete: Sequence[str] = ()
) -> Front | None:
    """Set every cell against two figures; None where there are too few arms and loads, or capacity is what was searched for.

    With ``rank.against`` declared, points are on the front or dominated: some other point is resolved better in one figure and in the other
    better or equivalent, at simultaneous intervals over all pairs and both figures. Unresolved points stay. Undeclared, the plane is
    post_hoc: shown, and nothing claimed. A cell that its gates, its figures or its coordinates exclude is listed with every reason. Nobody
    is on a declared front while planned runs are ``incomplete``, since a point that is not there may dominate, nor where identical arms
    come out different.
    """
    if len({c.load for c in cells}) < LEAST_LOADS and len({c.arm for c in cells}) < LEAST_ARMS:
        return None
    plane = _plane(rank)
    if plane is None:
        return None
    reasons = {c.cell: _own_reasons(c, plane.metrics) for c in cells}
    able = [c for c in cells if not reasons[c.cell]]
    together = _comparable(able, contexts, reasons)
    family = 2 * max(len(cells) * (len(cells) - 1) // 2, 1)
    barred = [*_missing(incomplete), *_twins_apart(together, plane, family)] if plane.declared else []
    if barred:
        together, reasons = [], {name: [*found, *barred] for name, found in reasons.items()}
    beaten = _beaten(together, plane, family) if plane.declared else {}
    points = tuple(_point(c, plane, reasons[c.cell], beaten) for c in cells)
    level = 1 - (1 - plane.confidence) / family
    return Front(*plane.metrics, "declared" if plane.declared else "post_hoc", level, plane.margin, points)


def _plane(rank: Rank | None) -> _Plane | None:
    """Return the declared figures; where no second one was declared, throughput beside a latency and a latency beside the rest."""
    metric = rank.metric if rank else "goodput"
    if metric == "capacity":
        return None
    usual = "ttft_p95" if metric in HIGHER_IS_BETTER else "token_throughput"
    against = (rank.against if rank else None) or usual
    declared = rank is not None and rank.against is not None
    return _Plane((metric, against), declared, rank.margin if rank else 0.0, rank.confidence if rank else 0.95)


def _own_reasons(cell: CellAnalysis, metrics: tuple[str, str]) -> list[Reason]:
    """Return what stands against a cell by either figure, each reason once; controls take no part."""
    if cell.without:
        return [Reason("control_arm", "a control with less load, by declaration", "none needed")]
    return list(dict.fromkeys(r for metric in metrics for r in arm_reasons(cell, metric)))


def _comparable(cells: Sequence[CellAnalysis], contexts: Mapping[str, CellContext], reasons: dict[str, list[Reason]]) -> list[CellAnalysis]:
    """Return the largest group of cells that compare pairwise, the first of equals; the others get the reason why not."""
    groups: list[list[CellAnalysis]] = []
    for cell in cells:
        home = next((g for g in groups if all(not _between(other, cell, contexts) for other in g)), None)
        groups.append([cell]) if home is None else home.append(cell)
    best = max(groups, key=len, default=[])
    for cell in (c for g in groups if g is not best for c in g):
        reasons[cell.cell] += next(found for other in best if (found := _between(other, cell, contexts)))
    return best


def _between(a: CellAnalysis, b: CellAnalysis, contexts: Mapping[str, CellContext]) -> list[Reason]:
    """Say what stands between two cells of a campaign, the load being an axis."""
    found = compare(_side(a), _side(b), factors=LOAD_AXIS if a.load != b.load else frozenset(), same_campaign=True)
    barred = [d for d in found.differences if d.answer in ("different", "unknown")]
    reasons = [Reason(f"coordinate_{d.answer}", f"{d.coordinate} against {a.cell}: {d.a!r} | {d.b!r}", d.remedy) for d in barred]
    return [*reasons, *_gates_between(a, b, PairContext(contexts[a.cell], contexts[b.cell]))]


def _side(cell: CellAnalysis) -> Side:
    return Side(cell.cell, cell.coordinates, frozenset(cell.declared))


def _gates_between(a: CellAnalysis, b: CellAnalysis, context: PairContext) -> list[Reason]:
    control = context.a.spec.workload.output_length
    if a.load == b.load:
        return [Reason(c.code, f"{c.verdict}: {c.reason}", c.remedy) for c in pair_checks(context) if not c.lets_through]
    if control in FIXED_LENGTHS:
        return []
    what = (
        f"output length is {control}: at another load than that of {a.cell} other requests were served, so lengths can't be held together"
    )
    return [Reason("output_length_agree", what, "compare loads under `forced` or `client_stop`")]


def _beaten(cells: Sequence[CellAnalysis], plane: _Plane, family: int) -> dict[str, list[str]]:
    """Name, by cell, the cells that dominate it."""
    found: dict[str, list[str]] = {c.cell: [] for c in cells}
    for a, b in combinations(cells, 2):
        verdicts = {_verdict((a, b), metric, plane, family) for metric in plane.metrics}
        if "better" in verdicts and verdicts <= {"better", "equivalent"}:
            found[a.cell].append(b.cell)
        elif "worse" in verdicts and verdicts <= {"worse", "equivalent"}:
            found[b.cell].append(a.cell)
    return found


def _verdict(pair: Pair, metric: str, plane: _Plane, family: int) -> str:
    effect = _effect(pair, metric, plane, family)
    return effect.verdict if effect else "unresolved"


def _effect(pair: Pair, metric: str, plane: _Plane, family: int) -> Effect | None:
    one, two = (replicates_of(c, metric, c.cell) for c in pair)
    return effect_between(one, two, Frame(metric, plane.margin, plane.confidence, family), same_campaign=True)


def _missing(incomplete: Sequence[str]) -> list[Reason]:
    if not incomplete:
        return []
    what = f"planned runs without a result: {len(incomplete)}, and a point that is not there may dominate"
    return [Reason("run_incomplete", what, "resume the campaign; finished replicates are kept")]


def _twins_apart(cells: Sequence[CellAnalysis], plane: _Plane, family: int) -> list[Reason]:
    """What a ranking refuses for as well: identical arms at one load that came out different in either figure."""
    twins = [(a, b) for a, b in combinations(cells, 2) if a.load == b.load and identical(compare(_side(a), _side(b), same_campaign=True))]
    effects = [_effect(pair, metric, plane, family) for pair in twins for metric in plane.metrics]
    return [broken_floor(NoiseFloor("this campaign", e)) for e in effects if e is not None and stands_apart(e)]


def _point(cell: CellAnalysis, plane: _Plane, reasons: Sequence[Reason], beaten: Mapping[str, Sequence[str]]) -> FrontPoint:
    figures = [cell.figures.get(metric) for metric in plane.metrics]
    by = tuple(beaten.get(cell.cell, ()))
    standing = "excluded" if reasons else "shown" if not plane.declared else "dominated" if by else "front"
    return FrontPoint(cell.cell, cell.arm, cell.load, figures[0], figures[1], standing, by, tuple(reasons))  # type: ignore[arg-type]
