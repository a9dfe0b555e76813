"""The figures of a campaign as tables: the few that a reader looks for first, then every one with its population and denominator."""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from analysis.model import CampaignAnalysis, CellAnalysis, Figure, Ranking
from analysis.report.table import Table
from analysis.report.words import Unit, basis, clean, latency_unit, percent

Found = tuple[CellAnalysis, Figure]

GLANCE = (
    *("goodput", "attainment", "offered_rate", "request_throughput", "token_throughput"),
    *(f"{clock}_{level}" for clock in ("ttft", "tbt") for level in ("p50", "p95", "p99")),
    *("shared_stamp_share", "e2e_p50", "e2e_p95", "e2e_p99", "slip_p99"),
)
"""What stands at a glance, in order. The share of tokens that share a stamp stands beside TBT, which it qualifies."""

OVERVIEW = ("goodput", "attainment", "ttft_p95", "tbt_p99")
"""What a row of many cells holds beside the declared metric: how much was in time, and a tail of each clock."""

OPEN_CELLS = 6
"""Cells whose whole tables stand open; of more, a table with one row a cell comes first."""

GLANCE_CELLS = 3
"""Cells side by side in one table: three values with their intervals fit 120 columns."""

_NEXT_RUN = re.compile(r"; replicate \d+ withheld: ")
_FAMILIES = ("req/s", "tok/s", "ratio", "s")
_FAMILY_TITLES = {"req/s": "Request rates", "tok/s": "Token rates", "ratio": "Shares", "s": "Times"}


def glance(c: CampaignAnalysis, unit: Unit) -> tuple[Table, ...]:
    """Metrics by cells, the declared metric first; ``unit``: the report's unit of latencies."""
    metrics = [m for m in dict.fromkeys((*_declared(c), *GLANCE)) if any(m in cell.figures for cell in c.cells)]
    if not metrics:
        return ()
    groups = [c.cells[i : i + GLANCE_CELLS] for i in range(0, len(c.cells), GLANCE_CELLS)]
    tables = []
    for number, cells in enumerate(groups, 1):
        title = "Numbers at a glance" + (f" ({number} of {len(groups)})" if len(groups) > 1 else "")
        tables.append(_glance(title, cells, metrics, unit))
    if len(c.cells) <= OPEN_CELLS:
        return tuple(tables)
    return (_overview(c, unit), *(replace(table, folded=True) for table in tables))


def _overview(c: CampaignAnalysis, unit: Unit) -> Table:
    """Many cells, one a row, by the few metrics that a row holds; the rest is folded below."""
    metrics = [m for m in dict.fromkeys((*_declared(c), *OVERVIEW)) if any(m in cell.figures for cell in c.cells)]
    found = {m: [cell.figures[m] for cell in c.cells if m in cell.figures] for m in metrics}
    levels = ", ".join(sorted({percent(f.interval.level) for figures in found.values() for f in figures if f.interval}))
    units = {m: _own(figures, unit) for m, figures in found.items()}
    places = {m: units[m].decimals(figures) for m, figures in found.items()}
    rows = tuple(
        (clean(cell.cell), *(_brief(cell.figures[m], units[m], places[m], {}) if m in cell.figures else "" for m in metrics))
        for cell in c.cells
    )
    header = ("Cell", *(f"{clean(m)}, {clean(units[m].name)}" for m in metrics))
    intervals = f"Intervals: {levels}, over replicates. " if levels else ""
    note = f"{intervals}What each rests on, its n, why a figure is withheld and the other metrics stand in the tables below."
    return Table("Cells at a glance", header, rows, frozenset(range(1, len(header))), note)


def _declared(c: CampaignAnalysis) -> list[str]:
    """The metric the manifest ranks by, if any."""
    if isinstance(c.verdict, Ranking):
        return [c.verdict.metric]
    return [str(v) for v in (getattr(cell.coordinates.get("result.metric"), "value", None) for cell in c.cells[:1]) if v]


def _glance(title: str, cells: Sequence[CellAnalysis], metrics: Sequence[str], unit: Unit) -> Table:
    wanted = [(cell, cell.figures[m]) for m in metrics for cell in cells if m in cell.figures]
    marks = _footnotes(f for _, f in wanted)
    rows = tuple(_glance_row(m, [cell.figures.get(m) for cell in cells], unit, marks) for m in metrics)
    header = ("Metric", "Unit", *(text for cell in cells for text in (clean(cell.cell), "n")))
    numeric = frozenset(range(2, len(header)))
    return Table(title, header, rows, numeric, " ".join(filter(None, [_legend(marks), *_outside(wanted), _absences(wanted)])))


def _glance_row(metric: str, figures: Sequence[Figure | None], unit: Unit, marks: Mapping[str, str]) -> tuple[str, ...]:
    known = [f for f in figures if f]
    own = _own(known, unit) if known else unit
    places = own.decimals(known)
    cells = [(_brief(f, own, places, marks), str(f.n)) if f else ("", "") for f in figures]
    return (clean(metric), clean(own.name), *(text for pair in cells for text in pair))


def _brief(figure: Figure, unit: Unit, places: int, marks: Mapping[str, str]) -> str:
    """Value and interval in one text; the mark of what the interval rests on where a table has several."""
    value, interval = unit.value(figure, places), unit.interval(figure.interval, places)
    mark = marks[basis(figure.interval)] if figure.interval and len(marks) > 1 else ""
    return " ".join(filter(None, [value, interval, mark]))


def _outside(wanted: Sequence[Found]) -> Iterable[str]:
    """A pooled value beyond its own interval looks like a mistake unless it is explained."""
    pooled = [(f, f.interval) for _, f in wanted if f.interval and "pooled" in f.interval.method]
    found = [f for f, interval in pooled if f.value is not None and not interval.low <= f.value <= interval.high]
    if found:
        names = ", ".join(dict.fromkeys(clean(f.metric) for f in found))
        yield f"Outside its interval ({names}): the interval is about a run's own value, and the pooled one need not be such a value."


def _absences(wanted: Sequence[Found]) -> str:
    """Why figures have no value, each reason once with the metrics it takes."""
    why: dict[tuple[str, str], list[str]] = {}
    for _, f in wanted:
        if f.status != "ok":
            why.setdefault((f.status, _first_run(clean(f.reason))), []).append(clean(f.metric))
    return " ".join(f"{', '.join(dict.fromkeys(names))} {status}: {reason}." for (status, reason), names in why.items())


def _first_run(reason: str) -> str:
    """A reason that goes through the replicates, up to the first of them: all of it stands under "Every figure"."""
    parts = _NEXT_RUN.split(reason)
    more = len(parts) - 1
    return parts[0] + (f"; {more} more replicate{'s' * (more > 1)} withheld, see every figure" if more else "")


def _footnotes(figures: Iterable[Figure]) -> dict[str, str]:
    """What intervals rest on -> mark, in order of appearance."""
    return dict(zip(dict.fromkeys(basis(f.interval) for f in figures if f.interval), _marks(), strict=False))


def _legend(marks: Mapping[str, str]) -> str:
    if len(marks) == 1:
        return f"Intervals: {next(iter(marks))}."
    return "Intervals: " + "; ".join(f"{mark} = {text}" for text, mark in marks.items()) + "." if marks else ""


def _marks() -> Iterable[str]:
    """a to z, then a2, b2, ...: footnote marks."""
    return (letter if n == 1 else f"{letter}{n}" for n in itertools.count(1) for letter in string.ascii_lowercase)


def _own(found: Sequence[Figure], unit: Unit) -> Unit:
    """TTFT and E2E are read against each other and share the report's unit; gaps and slips beside seconds would be rows of zeros."""
    if found[0].unit != "s":
        return Unit(found[0].unit)
    return unit if any(f.metric.startswith(("ttft", "e2e")) for f in found) else latency_unit(found)


def numbers(c: CampaignAnalysis, unit: Unit) -> tuple[Table, ...]:
    """Every figure: one table for each unit and population, folded; diagnostics, which are never ranked, last."""
    every = [(cell, f) for cell in c.cells for f in cell.figures.values()]
    units = [*_FAMILIES, *sorted({f.unit for _, f in every} - set(_FAMILIES))]
    tables: list[Table] = []
    for diagnostic, family in itertools.product((False, True), units):
        groups: dict[str, list[Found]] = {}
        for cell, f in every:
            if f.unit == family and f.diagnostic == diagnostic:
                groups.setdefault(f.population, []).append((cell, f))
        tables += [_population(found, unit) for found in groups.values()]
    return tuple(tables)


def _population(found: Sequence[Found], unit: Unit) -> Table:
    """Figures of one unit over one population; what all its rows share stands in the note."""
    first = found[0][1]
    own, marks = _own([f for _, f in found], unit), _footnotes(f for _, f in found)
    metrics = list(dict.fromkeys(f.metric for _, f in found))
    rows = [row for metric in metrics for row in _metric_rows([(cell, f) for cell, f in found if f.metric == metric], own, marks)]
    kind = " (diagnostic: never ranked)" if first.diagnostic else ""
    title = f"{_FAMILY_TITLES.get(first.unit, 'Figures')}, {clean(own.name)}, over {clean(first.population)}{kind}"
    header = ("Metric", "Cell", "Value", "Interval", "n", "Reason", "Per")
    table = Table(title, header, tuple(rows), frozenset({2, 3, 4}), _legend(marks), folded=True)
    return table.without_shared(6, "Per").without_shared(5, "Reason:")


def _metric_rows(found: Sequence[Found], unit: Unit, marks: Mapping[str, str]) -> Iterable[tuple[str, ...]]:
    """One metric over the cells, in one unit and to the same place."""
    places = unit.decimals(f for _, f in found)
    for cell, f in found:
        mark = marks[basis(f.interval)] if f.interval and len(marks) > 1 else ""
        interval = " ".join(filter(None, [unit.interval(f.interval, places), mark]))
        per = clean(f.denominator) if f.status == "ok" else ""
        yield (clean(f.metric), clean(cell.cell), unit.value(f, places), interval, str(f.n), clean(f.reason), per)
