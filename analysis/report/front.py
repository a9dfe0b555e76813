"""Cells in the plane of two figures: a table of who is on the front, who is dominated by whom, who is left out and why; and a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from analysis.effect_model import Front, FrontPoint
from analysis.effects import HIGHER_IS_BETTER
from analysis.model import CampaignAnalysis, Figure, Verdict
from analysis.report.svg import FAINT, PALETTE, Plot, draw
from analysis.report.table import Table
from analysis.report.words import Unit, clean, percent, shorten

MARKS = {"front": ("o", PALETTE[0]), "shown": ("o", FAINT), "dominated": ("x", FAINT)}
NAMED = 6
"""Points that can bear their cells' names; more names lie over each other."""
_WORDS = {"front": "on the front", "shown": "shown, nothing claimed", "excluded": "left out"}


def front_tables(c: CampaignAnalysis, unit: Unit) -> tuple[Table, ...]:
    """The plane as a table; none where the campaign has too few arms and loads. ``unit``: the report's unit of latencies."""
    front = c.front
    if front is None:
        return ()
    units = _units(front, unit)
    header = (
        "No.",
        "Cell",
        "Load",
        *(f"{clean(m)}, {clean(u.name)}" for m, u in zip((front.x, front.y), units, strict=True)),
        "Standing",
        "Why",
    )
    told = {
        x.code for cell in c.cells for x in (*cell.checks, *(x for run in cell.runs for x in run.checks)) if x.verdict is not Verdict.PASS
    }
    rows = tuple((str(i), *_row(p, units, told)) for i, p in enumerate(front.points, 1))
    return (Table(_title(front), header, rows, frozenset({0, 3, 4}), _note(front), folded=front.declaration != "declared"),)


def _title(front: Front) -> str:
    """A front is named one only where it is claimed."""
    figures = f"{clean(front.x)} against {clean(front.y)}"
    return f"Pareto front: {figures}" if front.declaration == "declared" else f"{figures[0].upper()}{figures[1:]} (post hoc)"


def _note(front: Front) -> str:
    if front.declaration != "declared":
        return "Post hoc: no second figure was declared before the run (rank.against), so points are shown and no front is claimed."
    beyond = f"better beyond the margin ({percent(front.margin)}) in one figure and better or equivalent in the other"
    by = f"simultaneous {percent(front.level)} intervals over all pairs and both figures"
    return f"Dominated: another point is {beyond}, by {by}. What they do not resolve stays on the front."


def _units(front: Front, unit: Unit) -> tuple[Unit, Unit]:
    return _unit([p.x for p in front.points], unit), _unit([p.y for p in front.points], unit)


def _unit(figures: list[Figure | None], unit: Unit) -> Unit:
    name = next((f.unit for f in figures if f is not None), "")
    return unit if name == "s" else Unit(name)


def _row(p: FrontPoint, units: tuple[Unit, Unit], told: set[str]) -> tuple[str, ...]:
    """``told``: gates whose reasons stand under "Gates that did not pass", and are named here only."""
    values = [_value(f, u) for f, u in zip((p.x, p.y), units, strict=True)]
    why = ", ".join(p.dominated_by)
    if not p.dominated_by:
        why = "; ".join(
            dict.fromkeys(r.code if r.code in told or r.code == "figure_withheld" else f"{r.code}: {r.text}" for r in p.reasons)
        )
    return (
        clean(p.cell),
        clean(p.load),
        *values,
        f"dominated by {len(p.dominated_by)}" if p.dominated_by else _WORDS[p.standing],
        clean(why),
    )


def _value(figure: Figure | None, unit: Unit) -> str:
    if figure is None:
        return "not computed"
    places = unit.decimals([figure])
    return f"{unit.value(figure, places)} {unit.interval(figure.interval, places)}".rstrip()


def front_plots(c: CampaignAnalysis, unit: Unit) -> tuple[Plot, ...]:
    """The plane as a plot of every point that takes part, with its intervals; none without two of them."""
    front = c.front
    taking = [p for p in front.points if p.standing != "excluded" and _finite(p)] if front else []
    if front is None or len(taking) < 2:
        return ()
    units = _units(front, unit)

    def _paint(canvas: Canvas) -> None:
        panel = canvas.subplots()
        for p in taking:
            _mark(panel, p, units)
        for text, at in _names(front, taking, units):
            panel.annotate(text, at, (5, 5), textcoords="offset points", fontsize=8)
        for set_label, metric, own in ((panel.set_xlabel, front.x, units[0]), (panel.set_ylabel, front.y, units[1])):
            set_label(f"{clean(metric)}, {clean(own.name)} ({'more' if metric in HIGHER_IS_BETTER else 'less'} is better)")
        panel.margins(0.12)

    numbers = " Numbers are those of the table." if len(taking) > NAMED else ""
    words = "No front is claimed: no second figure was declared before the run."
    if front.declaration == "declared":
        words = "Circles: on the front. Crosses: dominated, resolved by intervals."
    return (Plot(_title(front), draw(4.0, _paint), f"Bars are each cell's own intervals over replicates. {words}{numbers}"),)


def _finite(p: FrontPoint) -> bool:
    return all(f is not None and f.value is not None and math.isfinite(f.value) for f in (p.x, p.y))


def _mark(panel: Axes, p: FrontPoint, units: tuple[Unit, Unit]) -> None:
    (x, x_ends), (y, y_ends) = (_scaled(f, u) for f, u in zip((p.x, p.y), units, strict=True) if f is not None)
    mark, colour = MARKS[p.standing]
    panel.plot(x_ends, [y, y], color=colour, linewidth=1)
    panel.plot([x, x], y_ends, color=colour, linewidth=1)
    panel.plot([x], [y], mark, color=colour, markersize=6)


def _names(front: Front, taking: Sequence[FrontPoint], units: tuple[Unit, Unit]) -> list[tuple[str, tuple[float, float]]]:
    """Names of few points; of many, their numbers in the table, and one text for those that no eye would tell apart."""
    scaled = [[_scaled(f, u) for f, u in zip((p.x, p.y), units, strict=True) if f is not None] for p in taking]
    places = [(x[0], y[0]) for x, y in scaled]
    if len(taking) <= NAMED:
        return [(shorten(clean(p.cell), 30), at) for p, at in zip(taking, places, strict=True)]
    ends = [[e for point in scaled for e in point[axis][1]] for axis in (0, 1)]
    near = [((max(e) - min(e)) or 1.0) / 20 for e in ends]
    found: list[tuple[list[int], tuple[float, float]]] = []
    for p, (x, y) in zip(taking, places, strict=True):
        number = front.points.index(p) + 1
        group = next((g for g, at in found if abs(at[0] - x) < near[0] and abs(at[1] - y) < near[1]), None)
        if group is None:
            found.append(([number], (x, y)))
        else:
            group.append(number)
    return [(_ranges(numbers), at) for numbers, at in found]


def _ranges(numbers: Sequence[int]) -> str:
    """3, 4, 5, 9 as 3-5, 9."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def _scaled(figure: Figure, unit: Unit) -> tuple[float, list[float]]:
    value = (figure.value or 0.0) * unit.factor
    ends = (figure.interval.low, figure.interval.high) if figure.interval else ()
    return value, [e * unit.factor for e in ends if math.isfinite(e)] or [value, value]
