"""The same runs in other tools' words: one table of their rules, and what each says of every cell."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.dialect_model import Said
from analysis.model import CampaignAnalysis, CellAnalysis, Figure
from analysis.report.table import Table
from analysis.report.words import Unit, clean, decimals_for, number

TITLE = "The same runs in other tools' words (diagnostic: never ranked)"

NOTE = (
    "What each tool computes of the same records by its own rule, over the requests of the cohort that ended as planned. Of several "
    "replicates the lowest and the highest; nothing is averaged over them. A value that is absent says why in the JSON output."
)


def dialect_tables(c: CampaignAnalysis) -> tuple[Table, ...]:
    """One row a tool and rule, one column of values a cell; nothing when no run was asked."""
    cells = [cell for cell in c.cells if any(run.dialects for run in cell.runs)]
    if not cells:
        return ()
    header = ("Tool", "Quantity", "Rule", "Population", "Unit", *(clean(cell.cell) for cell in cells))
    first = next(run for run in cells[0].runs if run.dialects)
    rows = tuple(_row(said, [_of(cell, i) for cell in cells]) for i, said in enumerate(first.dialects))
    return (Table(TITLE, header, rows, frozenset(range(5, len(header))), NOTE, folded=True),)


def _of(cell: CellAnalysis, index: int) -> list[Figure]:
    return [run.dialects[index].figure for run in cell.runs if run.dialects]


def _row(said: Said, found: Sequence[Sequence[Figure]]) -> tuple[str, ...]:
    figure = said.figure
    unit = Unit("ms", 1000.0) if figure.unit == "s" else Unit(figure.unit)
    places = decimals_for(f.value * unit.factor for figures in found for f in figures if f.value is not None)
    values = (_values(figures, unit, places) for figures in found)
    return (clean(said.tool), clean(figure.metric), clean(said.rule), clean(figure.population), clean(unit.name), *values)


def _values(figures: Sequence[Figure], unit: Unit, places: int) -> str:
    known = [f.value * unit.factor for f in figures if f.value is not None and math.isfinite(f.value)]
    absent = ", ".join(sorted({f.status for f in figures if f.value is None}))
    ends = dict.fromkeys(number(v, places) for v in (min(known), max(known))) if known else {}
    return ", ".join(filter(None, [" to ".join(ends), absent]))
