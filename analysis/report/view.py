"""A campaign's analysis as titled tables of text, in the order of the report. The three renderers only lay them out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from analysis.compare import narrow
from analysis.loops import loop_words
from analysis.model import (
    CampaignAnalysis,
    CellAnalysis,
    CheckResult,
    Comparison,
    Figure,
    Outcome,
    Outcomes,
    Ranking,
    Reason,
    Refusal,
    Standing,
    Verdict,
)
from analysis.report.answer import ranking_words, refusal_words, unranked_tables
from analysis.report.capacity import capacity_tables
from analysis.report.dialects import dialect_tables
from analysis.report.estimand import estimand_words, stated
from analysis.report.fairness import fairness_tables
from analysis.report.front import front_tables
from analysis.report.memory import memory_tables
from analysis.report.next_study import advice_tables
from analysis.report.numbers import glance, numbers
from analysis.report.pairwise import effects_tables
from analysis.report.pins import CONSEQUENCES_NOTE, attested_lines, pin_tables
from analysis.report.sent import NEVER, OUTCOME_ORDER, group_tables, run_name, sent_tables
from analysis.report.server_side import server_tables
from analysis.report.table import Table
from analysis.report.words import Unit, basis, clean, coordinate, latency_unit, measured, percent, shorten, source

_PLACE_AT_END = re.compile(r"(.*) \(([^()]+)\)")
NOT_PASSED = "Gates that did not pass"


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Reasons that share code and remedy: one way out, every text of it."""

    code: str
    remedy: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerdictView:
    """What the reader came for. ``reasons`` is empty exactly when a ranking was emitted."""

    ranked: bool
    headline: str
    answer: str
    tables: tuple[Table, ...]
    reasons: tuple[ReasonGroup, ...] = ()
    waivers: tuple[tuple[str, str], ...] = ()
    incomplete: tuple[str, ...] = ()
    attested: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """The whole report but for its figures."""

    campaign: str
    question: str
    evidence: str
    verdict: VerdictView
    capacity: tuple[Table, ...]
    outcomes: Table
    glance: tuple[Table, ...]
    groups: tuple[Table, ...]
    fairness: tuple[Table, ...]
    sent: tuple[Table, ...]
    server: tuple[Table, ...]
    numbers: tuple[Table, ...]
    gates: tuple[Table, ...]
    gates_by_run: tuple[Table, ...]
    coordinates: tuple[Table, ...]
    provenance: tuple[Table, ...]
    sealed: str
    unit: Unit = field(default_factory=lambda: Unit("s"))


def build_view(c: CampaignAnalysis) -> View:
    """Lay out an analysis; nothing is computed here that could change what it says."""
    unit = latency_unit(list(_all_figures(c)))
    by_run, overview = _gates_by_run(c), _gate_overview(c)
    return View(
        campaign=clean(c.campaign),
        question=clean(c.question),
        evidence=_evidence(c),
        verdict=_verdict(c, unit),
        capacity=capacity_tables(c),
        outcomes=stated(c, [_outcomes(c)])[0],
        glance=(*stated(c, glance(c, unit)), *front_tables(c, unit), *(() if isinstance(c.verdict, Ranking) else advice_tables(c))),
        groups=stated(c, group_tables(c, unit)),
        fairness=stated(c, fairness_tables(c, unit)),
        sent=sent_tables(c, unit),
        server=server_tables(c),
        numbers=stated(c, (*numbers(c, unit), *memory_tables(c), *dialect_tables(c))),
        gates=(*_standing_gates(c), overview),
        gates_by_run=by_run,
        coordinates=(*pin_tables(c), *_coordinates(c)),
        provenance=_provenance(c),
        sealed=_sealed(c),
        unit=unit,
    )


def _sealed(c: CampaignAnalysis) -> str:
    runs = [run for cell in c.cells for run in cell.runs]
    kept = sum(run.seal_root is not None for run in runs)
    missing = f", {len(c.incomplete)} planned runs incomplete" if c.incomplete else ""
    return f"{kept} of {len(runs)} analyzed runs sealed{missing}, campaign digest {clean(c.digest)[:16]}"


def _all_figures(c: CampaignAnalysis) -> Iterable[Figure]:
    for cell in c.cells:
        yield from cell.figures.values()


def _evidence(c: CampaignAnalysis) -> str:
    classes = ", ".join(sorted({clean(x.evidence_class) for x in c.cells})) or "none"
    loops = ", ".join(sorted({clean(x.loop) for x in c.cells})) or "none"
    words = "".join(f" {clean(w[0].upper() + w[1:])}." for w in sorted({loop_words(x.loop) for x in c.cells} - {""}))
    return f"Evidence class: {classes}. {estimand_words(c) or 'Estimand: none.'} Loop: {loops}.{words}"


def _unit_of(figure: Figure, unit: Unit) -> Unit:
    return unit if figure.unit == "s" else Unit(figure.unit)


def _verdict(c: CampaignAnalysis, unit: Unit) -> VerdictView:
    waivers = tuple((clean(g), clean(r)) for g, r in c.waivers)
    incomplete, vouched = tuple(clean(i) for i in c.incomplete), attested_lines(c)
    if isinstance(c.verdict, Refusal):
        headline = f"No ranking: {clean(c.verdict.title).removeprefix('No ranking').lstrip(': ')}".rstrip(": ")
        return VerdictView(False, headline, refusal_words(c.verdict), (), _group(c.verdict.reasons), waivers, incomplete, vouched)
    tables = (_standings(c.verdict, unit), *effects_tables(c.verdict), *unranked_tables(c.verdict), *advice_tables(c))
    return VerdictView(True, f"Ranking by {clean(c.verdict.title)}", ranking_words(c.verdict), tables, (), waivers, incomplete, vouched)


def _group(reasons: Sequence[Reason]) -> tuple[ReasonGroup, ...]:
    """No reason is left out; texts that differ only in the place at their end are told once, with all the places."""
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for reason in reasons:
        found = _PLACE_AT_END.fullmatch(clean(reason.text))
        text, place = (found[1], found[2]) if found else (clean(reason.text), "")
        groups.setdefault((clean(reason.code), clean(reason.remedy)), {}).setdefault(text, []).append(place)
    return tuple(
        ReasonGroup(code, remedy, tuple(_with_places(text, places) for text, places in texts.items()))
        for (code, remedy), texts in groups.items()
    )


def _with_places(text: str, places: Sequence[str]) -> str:
    shown = ", ".join(dict.fromkeys(p for p in places if p))
    return f"{text} ({shown})" if shown else text


def _standings(ranking: Ranking, unit: Unit) -> Table:
    ties = Counter(s.rank for s in ranking.standings)
    own = _unit_of(ranking.standings[0].figure, unit) if ranking.standings else unit
    places = own.decimals(s.figure for s in ranking.standings)
    rows = [_standing(s, own, places, tied=ties[s.rank] > 1) for s in ranking.standings]
    note = "Equal ranks are ties: the intervals do not tell these arms apart, or show them equivalent."
    header = ("Rank", "Arm", "Cell", f"{clean(ranking.metric)}, {clean(own.name)}", "Interval", "Basis")
    table = Table("Standings", header, tuple(rows), frozenset({3, 4}), note if max(ties.values(), default=1) > 1 else "")
    return table.without_shared(5, "Intervals:")


def _standing(s: Standing, own: Unit, places: int, *, tied: bool) -> tuple[str, ...]:
    place = f"{s.rank} (tie)" if tied else str(s.rank)
    value, interval = own.value(s.figure, places), own.interval(s.figure.interval, places)
    return (place, clean(s.arm), clean(s.cell), value, interval, basis(s.figure.interval))


def _outcomes(c: CampaignAnalysis) -> Table:
    rows = [(clean(x.cell), str(x.outcomes.offered), *(_share(x, o) for o in OUTCOME_ORDER)) for x in c.cells]
    header = ("Cell", "Offered", *(o.value.capitalize() for o in OUTCOME_ORDER))
    note = "Every offered request of all replicates, in exactly one class; shares are of the offered requests."
    note += "".join(f" {text}" for text in _four_classes(c))
    broken = [clean(x.cell) for x in c.cells if not x.outcomes.closes()]
    if broken:
        note += f" The classes do NOT add up in: {', '.join(broken)}."
    return Table("Outcomes", header, tuple(rows), frozenset(range(1, len(header))), note)


def _four_classes(c: CampaignAnalysis) -> Iterable[str]:
    """What the classes leave out or fold, for cells where it matters: turns that never came due, and cancellations by plan."""
    for kind in sorted({kind for x in c.cells for kind in x.outcomes.not_due}):
        counts = ", ".join(f"{clean(x.cell)} {x.outcomes.not_due[kind]}" for x in c.cells if kind in x.outcomes.not_due)
        yield f"In no class, since they never arrived ({NEVER.get(kind, clean(kind))}): {counts}."
    cancelled = [(x, x.outcomes.counts.get(Outcome.CANCELLED, 0)) for x in c.cells]
    told = [f"{clean(x.cell)} {_folded(x.outcomes)} of {x.outcomes.offered - n}" for x, n in cancelled if n]
    if told:
        yield f"In the four-class form, which leaves cancellations by plan out of the cohort and counts failed as open: {'; '.join(told)}."


def _folded(outcomes: Outcomes) -> str:
    return ", ".join(f"{name} {n}" for name, n in outcomes.folded().items())


def _share(cell: CellAnalysis, outcome: Outcome) -> str:
    count, offered = cell.outcomes.counts.get(outcome, 0), cell.outcomes.offered
    return f"{count} ({percent(count / offered)})" if offered else str(count)


def _checks_of(c: CampaignAnalysis) -> Iterable[tuple[str, CheckResult]]:
    for cell in c.cells:
        for run in cell.runs:
            yield from ((run_name(run), check) for check in run.checks)
        yield from ((clean(cell.cell), check) for check in cell.checks)
    for pair in c.comparisons:
        yield from ((f"{clean(pair.a)} against {clean(pair.b)}", check) for check in pair.checks)


def _standing_gates(c: CampaignAnalysis) -> tuple[Table, ...]:
    """Everything that stands against a claim, and everything waived; runs that answer alike share a row."""
    places: dict[tuple[str, ...], list[str]] = {}
    for where, check in _checks_of(c):
        if check.verdict is not Verdict.PASS:
            places.setdefault(_check_row(check), []).append(where)
    rows = tuple((*row, ", ".join(where)) for row, where in places.items())
    return (Table(NOT_PASSED, (*_CHECK_HEADER, "Where"), rows),) if rows else ()


_CHECK_HEADER = ("Gate", "Verdict", "Reason", "Measured", "Protects", "Remedy")


def _check_row(check: CheckResult) -> tuple[str, ...]:
    verdict = check.verdict.value + (f", waived: {clean(check.waived)}" if check.waived is not None else "")
    protects = ", ".join(p.value for p in check.protects)
    return (clean(check.code), verdict, clean(check.reason), measured(check), protects, clean(check.remedy))


def _gate_overview(c: CampaignAnalysis) -> Table:
    """Gates by cells, over the runs and the cell's own checks."""
    codes = list(dict.fromkeys(x.code for cell in c.cells for x in (*(x for run in cell.runs for x in run.checks), *cell.checks)))
    rows = [(clean(code), *(_tally(cell, code) for cell in c.cells)) for code in codes]
    return Table("Gates by cell", ("Gate", *(clean(x.cell) for x in c.cells)), tuple(rows))


def _tally(cell: CellAnalysis, code: str) -> str:
    found = Counter(x.verdict for x in (*(x for run in cell.runs for x in run.checks), *cell.checks) if x.code == code)
    return ", ".join(f"{found[v]} {v.value}" for v in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS) if found[v]) or "not checked"


def _gates_by_run(c: CampaignAnalysis) -> tuple[Table, ...]:
    groups: list[tuple[str, Sequence[CheckResult]]] = []
    for cell in c.cells:
        groups += [(run_name(run), run.checks) for run in cell.runs]
        groups.append((f"{clean(cell.cell)} (all replicates)", cell.checks))
    return tuple(_gate_table(name, checks) for name, checks in groups if checks)


def _gate_table(name: str, checks: Sequence[CheckResult]) -> Table:
    found = Counter(x.verdict for x in checks)
    tally = ", ".join(f"{found[v]} {v.value}" for v in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS) if found[v])
    return Table(f"{name}: {tally}", _CHECK_HEADER, tuple(_check_row(x) for x in checks), folded=True)


def _coordinates(c: CampaignAnalysis) -> tuple[Table, ...]:
    """Comparisons first; then what every cell shares and what differs between cells."""
    names = list(dict.fromkeys(n for cell in c.cells for n in cell.coordinates))
    shared: list[tuple[str, ...]] = []
    varying: list[tuple[str, ...]] = []
    for name in names:
        found = [(cell, coordinate(cell.coordinates[name]), source(cell.coordinates[name])) for cell in c.cells if name in cell.coordinates]
        if len(found) == len(c.cells) and len({text for _, text, _ in found}) == 1:
            shared.append((clean(name), shorten(found[0][1]), found[0][2]))
        else:
            varying += [(clean(name), clean(cell.cell), shorten(text), by) for cell, text, by in found]
    tables = [
        *_comparisons(c),
        Table("Coordinates that differ between cells", ("Coordinate", "Cell", "Value", "Source"), tuple(varying)),
        Table("Coordinates that all cells share", ("Coordinate", "Value", "Source"), tuple(shared), folded=True),
    ]
    return tuple(t for t in tables if t.rows)


def _comparisons(c: CampaignAnalysis) -> list[Table]:
    rows = [row for pair in c.comparisons for row in _pair_rows(pair)]
    header = ("Pair", "Comparable", "Coordinate", "Answer", "First", "Second", "Remedy")
    return [Table("Pairs held side by side", header, tuple(rows), note=f"{CONSEQUENCES_NOTE}.")]


def _pair_rows(pair: Comparison) -> list[tuple[str, ...]]:
    start = (f"{clean(pair.a)} against {clean(pair.b)}", "comparable" if pair.comparable else "NOT comparable")
    rows: list[tuple[str, ...]] = [] if pair.differences else [(*start, f"all {pair.equal}", "equal", "", "", "")]
    rows += [(*start, clean(x.code), _check_row(x)[1], clean(x.reason), "", clean(x.remedy)) for x in pair.checks]
    for d in pair.differences:
        a, b = (shorten(coordinate(side)) for side in narrow(d.a, d.b))
        rows.append((*start, clean(d.coordinate), d.answer.replace("_", " "), a, b, clean(d.remedy)))
    return rows


def _provenance(c: CampaignAnalysis) -> tuple[Table, ...]:
    seals = [(clean(run.path), clean(run.seal_root or "not sealed")) for cell in c.cells for run in cell.runs]
    rest = [("campaign digest", clean(c.digest))]
    for key, value in c.provenance.items():
        rest += _flatten(clean(key), value) if key != "seals" else []
    return (
        Table("Instrument and inputs", ("What", "Value"), tuple(rest)),
        Table("Sealed attempts", ("Attempt", "Root of the seal (sha256)"), tuple(seals)),
    )


def _flatten(key: str, value: object) -> list[tuple[str, str]]:
    """One row a leaf group: traces and certificates by field, everything else on one line."""
    if key in ("traces", "certificates") and isinstance(value, list | tuple):
        return [(f"{key[:-1]} {clean(k)}", coordinate(v)) for item in value if isinstance(item, dict) for k, v in item.items()]
    if isinstance(value, dict):
        return [(f"{key}: {clean(k)}", coordinate(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return [(key, ", ".join(coordinate(v) for v in value))]
    return [(key, coordinate(value))]
