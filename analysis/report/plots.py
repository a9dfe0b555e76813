"""Figures of a campaign."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.model import CampaignAnalysis, CellAnalysis, Effect, Ranking
from analysis.report.front import front_plots
from analysis.report.sent import OUTCOME_ORDER
from analysis.report.service_plot import service_plots
from analysis.report.svg import FAINT, PALETTE, Plot, draw
from analysis.report.words import Unit, clean, decimals_for, number, percent, shorten

OUTCOME_COLOURS = ("#009e73", "#e69f00", "#cc79a7", "#d55e00", "#999999", "#56b4e9")
_DASHES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)))
_LINES = (
    ("ttft_cdf", "Time to first token", "TTFT from the intended arrival", True),
    ("tbt_cdf", "Time between tokens", "TBT (gaps between tokens)", True),
    ("slip_cdf", "Client slip", "send minus intended arrival", True),
    ("in_flight", "Requests in flight", "time since the run's epoch", False),
)


def plots(c: CampaignAnalysis, unit: Unit) -> tuple[Plot, ...]:
    """Every figure whose data exists, in the order of the report; ``unit`` is the report's unit of latencies."""
    found = [_effects(c.verdict)] if isinstance(c.verdict, Ranking) and c.verdict.effects else []
    found += front_plots(c, unit)
    found.append(_outcomes(c.cells))
    for name, title, label, distribution in _LINES:
        own = unit if distribution else Unit("s")
        if any(_points(cell, name, own) for cell in c.cells):
            found.append(_lines(c, name, title, label, own, distribution=distribution))
    return (*found, *service_plots(c))


def _colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def _points(cell: CellAnalysis, name: str, unit: Unit) -> list[tuple[list[float], list[float]]]:
    """The finite points of every replicate of a cell, x in ``unit``; values that never came (+inf) have no place on an axis."""
    series = [run.series[name] for run in cell.runs if name in run.series]
    finite = [[(x * unit.factor, y) for x, y in zip(*s, strict=True) if math.isfinite(x)] for s in series]
    return [([x for x, _ in points], [y for _, y in points]) for points in finite if points]


def _lines(c: CampaignAnalysis, name: str, title: str, label: str, unit: Unit, *, distribution: bool) -> Plot:
    """One panel a load; one line a replicate, in its cell's colour."""
    loads = list(dict.fromkeys(cell.load for cell in c.cells))
    columns = min(len(loads), 3)
    rows = math.ceil(len(loads) / columns)

    def _paint(canvas: Canvas) -> None:
        panels = list(canvas.subplots(rows, columns, squeeze=False, sharey=True).flat)
        for panel, load in zip(panels, loads, strict=False):
            cells = [(i, _points(cell, name, unit)) for i, cell in enumerate(c.cells) if cell.load == load]
            _panel(panel, cells, distribution=distribution)
            panel.set_title(clean(load) if len(loads) > 1 else "", loc="left")
            panel.set_xlabel(f"{label}, {unit.name}")
        for panel in panels[len(loads) :]:
            panel.set_visible(False)
        panels[0].set_ylabel("share at or below" if distribution else "requests")
        _name_cells(canvas, c.cells)

    more = " Values at or below the left edge are drawn at it; values that never came (+∞) leave the line below 1." if distribution else ""
    return Plot(title, draw(2.9 * rows, _paint), f"One line a replicate.{more}")


def _panel(panel: Axes, cells: Sequence[tuple[int, list[tuple[list[float], list[float]]]]], *, distribution: bool) -> None:
    values = [x for _, lines in cells for xs, _ in lines for x in xs if x > 0]
    floor = -math.inf
    if distribution and values:
        floor, top = _decades(values)
        panel.set_xscale("log")
        panel.set_xlim(floor, top)
        panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: number(x)))
        panel.xaxis.set_minor_formatter(NullFormatter())
    for index, lines in cells:
        for xs, ys in lines:
            step = "steps-post" if distribution else "default"
            panel.plot([max(x, floor) for x in xs], ys, color=_colour(index), linestyle=_dashes(index), drawstyle=step)
    panel.set_ylim(0, 1.02 if distribution else None)
    if not distribution:
        panel.set_xlim(left=0)


def _dashes(index: int) -> Any:
    return _DASHES[index // len(PALETTE) % len(_DASHES)]


def _decades(xs: Sequence[float]) -> tuple[float, float]:
    """Limits that hold the data, three decades below its top at most five: a stray zero must not press the rest into a corner."""
    high = max(xs) * 1.1
    return max(min(xs) * 0.9, high / 1e5), high


def _name_cells(canvas: Canvas, cells: Sequence[CellAnalysis]) -> None:
    """Name the cells in their own colours above the panels. The leading space keeps names that begin with "_", which are else left out."""
    lines = [Line2D([], [], color=_colour(i), linestyle=_dashes(i), linewidth=2) for i in range(len(cells))]
    names = [f" {shorten(clean(c.cell), 40)}" for c in cells]
    canvas.legend(lines, names, loc="outside upper left", ncols=min(len(cells), 4), frameon=False, labelcolor="linecolor", handlelength=1.2)


def _outcomes(cells: Sequence[CellAnalysis]) -> Plot:
    def _paint(canvas: Canvas) -> None:
        panel = canvas.subplots()
        for row, cell in enumerate(cells):
            _outcome_bar(panel, row, cell)
        panel.set_yticks(range(len(cells)), [f"{shorten(clean(c.cell), 40)}\nN = {c.outcomes.offered}" for c in cells])
        panel.invert_yaxis()
        panel.set_xlim(0, 1)
        panel.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        panel.set_xlabel("share of offered requests")
        panel.grid(visible=False, axis="y")
        present = [i for i, o in enumerate(OUTCOME_ORDER) if any(c.outcomes.counts.get(o, 0) for c in cells)]
        for i in present:
            panel.barh(0, 0, color=OUTCOME_COLOURS[i], label=OUTCOME_ORDER[i].value)
        if present:
            canvas.legend(loc="outside upper left", ncols=len(present), frameon=False)

    caption = "All offered requests of the measured windows, all replicates together; each is in exactly one class."
    return Plot("Outcomes", draw(1.0 + 0.5 * len(cells), _paint), caption)


def _outcome_bar(panel: Axes, row: int, cell: CellAnalysis) -> None:
    left = 0.0
    for index, outcome in enumerate(OUTCOME_ORDER):
        count = cell.outcomes.counts.get(outcome, 0)
        if not count or not cell.outcomes.offered:
            continue
        share = count / cell.outcomes.offered
        panel.barh(row, share, left=left, height=0.6, color=OUTCOME_COLOURS[index])
        if share >= 0.08:  # narrower pieces cannot hold their number; the table has it
            panel.text(left + share / 2, row, f"{count} ({percent(share)})", ha="center", va="center", color="#000000", fontsize=8)
        left += share


def _effects(ranking: Ranking) -> Plot:
    """Pairs on one scale a panel: a ratio and a difference share no axis."""
    scales = list(dict.fromkeys(e.scale for e in ranking.effects))
    groups = [[e for e in ranking.effects if e.scale == scale] for scale in scales]

    def _paint(canvas: Canvas) -> None:
        ratios = [len(g) + 0.5 for g in groups]
        for panel, group in zip(canvas.subplots(len(groups), 1, squeeze=False, height_ratios=ratios).flat, groups, strict=True):
            unit = ranking.standings[0].figure.unit if ranking.standings and group[0].scale == "difference" else ""
            _effect_panel(panel, group, f"{group[0].scale} of {clean(ranking.metric)}{', ' if unit else ''}{clean(unit)}")

    caption = "Point and simultaneous interval; the band is the margin within which arms count as equivalent."
    return Plot("Pairwise effects", draw(0.9 + 0.45 * len(ranking.effects), _paint), caption)


def _effect_panel(panel: Axes, effects: Sequence[Effect], label: str) -> None:
    none = 1.0 if effects[0].scale == "ratio" else 0.0
    panel.axvline(none, color=FAINT, linewidth=0.8)
    for row, effect in enumerate(effects):
        panel.barh(row, 2 * effect.margin, left=none - effect.margin, height=0.8, color=FAINT, alpha=0.18)
    for row, effect in enumerate(effects):
        ends = [x for x in (effect.low, effect.high) if math.isfinite(x)]
        panel.plot([min([effect.estimate, *ends]), max([effect.estimate, *ends])], [row, row], color=PALETTE[0], linewidth=2)
        panel.plot([effect.estimate], [row], "o", color=PALETTE[0], markersize=6)
        text = f"{number(effect.estimate, decimals_for([effect.estimate, effect.low, effect.high]))} {effect.verdict}"
        panel.annotate(text, (effect.estimate, row), (0, 7), textcoords="offset points", ha="center", fontsize=8.5)
    panel.set_yticks(range(len(effects)), [f"{shorten(clean(e.b), 30)}\nagainst {shorten(clean(e.a), 30)}" for e in effects])
    panel.set_ylim(len(effects) - 0.4, -0.75)
    panel.set_xlabel(label)
    panel.use_sticky_edges = False
    panel.grid(visible=False, axis="y")
