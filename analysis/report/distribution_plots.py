"""Distributions of clocks, a line a replicate: limits drawn, and what a percentile would have to withhold shown as withheld."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.distributions import COLUMNS_PER_DECADE
from analysis.model import CampaignAnalysis, CellAnalysis, Limit, Outcome, RunAnalysis
from analysis.report.svg import FAINT, INK, LINE, PALETTE, Plot, draw
from analysis.report.words import Unit, clean, number, shorten

_DASHES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)))
HISTOGRAMS = 12
"""Cells drawn as columns: four rows of small panels. Of more none is drawn; the lines above hold every cell."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """One plot: which series of a run it draws, and of which clock the limits stand in it."""

    series: str
    title: str
    label: str
    clock: str = ""
    distribution: bool = True


_LINES = (
    _Kind("ttft_cdf", "Time to first token", "TTFT from the intended arrival", "ttft"),
    _Kind("ttft_offered_cdf", "Time to first token, all offered requests", "TTFT from the intended arrival", "ttft"),
    _Kind("tbt_cdf", "Time between tokens", "TBT (gaps between tokens)", "tbt"),
    _Kind("e2e_cdf", "End to end", "E2E from the intended arrival", "e2e"),
    _Kind("slip_cdf", "Client slip", "send minus intended arrival"),
    _Kind("in_flight", "Requests in flight", "time since the run's epoch", distribution=False),
)
Line = tuple[list[float], list[float]]


def distribution_plots(c: CampaignAnalysis, unit: Unit) -> tuple[Plot, ...]:
    """Every plot whose data exists; ``unit`` is the report's unit of latencies."""
    found = []
    for kind in _LINES:
        own = unit if kind.distribution else Unit("s")
        if _wanted(c, kind) and any(_points(cell, kind.series, own) for cell in c.cells):
            found.append(_lines(c, kind, own))
    return (*found[:1], *_histograms(c, unit), *found[1:])


def _wanted(c: CampaignAnalysis, kind: _Kind) -> bool:
    """The view over all that was offered says more only where something did not complete; end to end only where it is limited."""
    if kind.series == "ttft_offered_cdf":
        return any(_completed(run) < 1 for cell in c.cells for run in cell.runs)
    if kind.series == "slip_cdf":  # a client in virtual time is never late, and a line at zero shows nothing
        return any(x for cell in c.cells for run in cell.runs for x in run.series.get("slip_cdf", ((), ()))[0])
    return kind.series != "e2e_cdf" or any(limit.clock == "e2e" for cell in c.cells for limit in cell.limits)


def _completed(run: RunAnalysis) -> float:
    counts = run.outcomes.counts
    done = counts.get(Outcome.VALID, 0) + counts.get(Outcome.MISS, 0)
    return done / run.outcomes.offered if run.outcomes.offered else 1.0


def _points(cell: CellAnalysis, name: str, unit: Unit) -> list[Line]:
    """The finite points of every replicate of a cell, x in ``unit``; values that never came (+inf) have no place on an axis."""
    series = [run.series[name] for run in cell.runs if name in run.series]
    finite = [[(x * unit.factor, y) for x, y in zip(*s, strict=True) if math.isfinite(x)] for s in series]
    return [([x for x, _ in points], [y for _, y in points]) for points in finite if points]


def _lines(c: CampaignAnalysis, kind: _Kind, unit: Unit) -> Plot:
    """One panel a load; one line a replicate, in its cell's colour."""
    loads = list(dict.fromkeys(cell.load for cell in c.cells))
    columns = min(len(loads), 3)
    rows = math.ceil(len(loads) / columns)

    def _paint(canvas: Canvas) -> None:
        panels = list(canvas.subplots(rows, columns, squeeze=False, sharey=True).flat)
        for panel, load in zip(panels, loads, strict=False):
            _panel(panel, kind, unit, [(i, cell) for i, cell in _by_arm(c) if cell.load == load])
            panel.set_title(clean(load) if len(loads) > 1 else "", loc="left")
            panel.set_xlabel(f"{kind.label}, {unit.name}")
        for panel in panels[len(loads) :]:
            panel.set_visible(False)
        panels[0].set_ylabel("share at or below" if kind.distribution else "requests")
        _name_arms(canvas, c)

    return Plot(kind.title, draw(2.9 * rows + LINE * (math.ceil(len({cell.arm for cell in c.cells}) / 4) - 1), _paint), _caption(c, kind))


def _caption(c: CampaignAnalysis, kind: _Kind) -> str:
    if not kind.distribution:
        return "One line a replicate."
    words = [
        "One line a replicate, never an average of them. Values at or below the left edge are drawn at it.",
        "A line ends where the next percentile would be withheld for too few requests (the grey band).",
    ]
    if kind.series == "ttft_offered_cdf":
        words.append("Requests that did not complete never have a value: the line stays below 1 by their share.")
    if any(limit.clock == kind.clock for cell in c.cells for limit in cell.limits):
        words.append("Dashed: the limit of the SLO.")
    empty = [(sum(not run.series[kind.series][0] for run in cell.runs if kind.series in run.series), cell) for cell in c.cells]
    if any(n for n, _ in empty):
        told = ", ".join(f"{n} of {len(cell.runs)} replicates of {clean(cell.cell)}" for n, cell in empty if n)
        words.append(f"Withheld or not known, so not drawn: {told}.")
    return " ".join(words)


def _panel(panel: Axes, kind: _Kind, unit: Unit, cells: Sequence[tuple[int, CellAnalysis]]) -> None:
    drawn = [(i, _points(cell, kind.series, unit)) for i, cell in cells]
    limits = list(dict.fromkeys(limit for _, cell in cells for limit in cell.limits if limit.clock == kind.clock))
    values = [x for _, lines in drawn for xs, _ in lines for x in xs if x > 0]
    floor = -math.inf
    if kind.distribution and values:
        floor, top = decades([*values, *(limit.seconds * unit.factor for limit in limits)])
        panel.set_xscale("log")
        panel.set_xlim(floor, top)
        panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: number(x)))
        panel.xaxis.set_minor_formatter(NullFormatter())
        _withheld(panel, [ys[-1] for _, lines in drawn for _, ys in lines])
        _draw_limits(panel, limits, unit)
    for index, lines in drawn:
        for xs, ys in lines:
            step = "steps-post" if kind.distribution else "default"
            panel.plot([max(x, floor) for x in xs], ys, color=_colour(index), linestyle=_dashes(index), drawstyle=step)
    panel.set_ylim(0, 1.02 if kind.distribution else None)
    if not kind.distribution:
        panel.set_xlim(left=0)


def _withheld(panel: Axes, ends: Sequence[float]) -> None:
    """The band above the lowest end of a line: no line says anything there that a percentile might say."""
    if ends and min(ends) < 1:
        panel.axhspan(min(ends), 1.0, color=FAINT, alpha=0.15, linewidth=0)


def _draw_limits(panel: Axes, limits: Sequence[Limit], unit: Unit) -> None:
    """Each limit as a line of its own with its number; names stand on different heights so that near ones can be read."""
    for k, limit in enumerate(limits):
        at = limit.seconds * unit.factor
        panel.axvline(at, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        text = f"limit {number(at)} {unit.name}" + (f" ({shorten(clean(limit.words), 30)})" if limit.words else "")
        panel.annotate(text, (at, 0.04 + 0.09 * (k % 6)), (-3, 0), textcoords="offset points", ha="right", fontsize=8)


def decades(xs: Sequence[float]) -> tuple[float, float]:
    """Limits that hold the data, below its top at most five decades: a stray zero must not press the rest into a corner."""
    high = max(xs) * 1.1
    return max(min(xs) * 0.9, high / 1e5), high


def _histograms(c: CampaignAnalysis, unit: Unit) -> tuple[Plot, ...]:
    """TTFT of each cell in columns: counts of all its replicates, which share one grid."""
    drawn = [(i, cell, _added(cell)) for i, cell in _by_arm(c)]
    drawn = [(i, cell, found) for i, cell, found in drawn if found[0]]
    if not drawn or len(drawn) > HISTOGRAMS:
        return ()
    columns = min(len(drawn), 3)
    rows = math.ceil(len(drawn) / columns)
    edges = [edge for _, _, found in drawn for edge in found[0]]
    wide = max(edges) / min(edges)  # over more than a decade and a bit, the labels of three to a decade touch in a narrow panel

    def _paint(canvas: Canvas) -> None:
        panels = list(canvas.subplots(rows, columns, squeeze=False, sharex=True).flat)
        for panel, (index, cell, found) in zip(panels, drawn, strict=False):
            _columns(panel, unit, cell, found, _colour(index))
            panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if columns < 3 or wide < 20 else (1.0,)))
        for panel in panels[len(drawn) :]:
            panel.set_visible(False)
        for panel in panels[(rows - 1) * columns :]:
            panel.set_xlabel(f"TTFT, {unit.name}")
        panels[0].set_ylabel("requests")

    caption = "Completed requests of each cell, all replicates added up; the largest value of each replicate is withheld."
    return (Plot("Time to first token in columns", draw(1.7 * rows + 0.3, _paint), caption),)


def _added(cell: CellAnalysis) -> Line:
    """Columns of all replicates on their common grid: lower ends, s, and counts."""
    counts: dict[float, float] = {}
    for run in cell.runs:
        for edge, count in zip(*run.series.get("ttft_histogram", ((), ())), strict=True):
            counts[edge] = counts.get(edge, 0.0) + count
    return sorted(counts), [counts[edge] for edge in sorted(counts)]


def _columns(panel: Axes, unit: Unit, cell: CellAnalysis, found: Line, colour: str) -> None:
    edges = [edge * unit.factor for edge in found[0]]
    panel.bar(edges, found[1], width=[edge * (10 ** (1 / COLUMNS_PER_DECADE) - 1) for edge in edges], align="edge", color=colour)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: number(x)))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_title(shorten(clean(cell.cell), 40), loc="left")
    for limit in cell.limits:
        if limit.clock == "ttft":
            panel.axvline(limit.seconds * unit.factor, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))


def _colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def _dashes(index: int) -> Any:
    return _DASHES[index // len(PALETTE) % len(_DASHES)]


def _by_arm(c: CampaignAnalysis) -> list[tuple[int, CellAnalysis]]:
    """The cells, each with the number of its arm: an arm keeps its colour over the panels of the loads."""
    arms = list(dict.fromkeys(cell.arm for cell in c.cells))
    return [(arms.index(cell.arm), cell) for cell in c.cells]


def _name_arms(canvas: Canvas, c: CampaignAnalysis) -> None:
    """Name the arms in their own colours above the panels, or the cells where that is the same.

    The leading space keeps names that begin with "_", which are else left out.
    """
    found = dict(_by_arm(c))
    alone = len(found) == len(c.cells)
    lines = [Line2D([], [], color=_colour(i), linestyle=_dashes(i), linewidth=2) for i in found]
    names = [f" {shorten(clean(cell.cell if alone else cell.arm), 40)}" for cell in found.values()]
    canvas.legend(lines, names, loc="outside upper left", ncols=min(len(names), 4), frameon=False, labelcolor="linecolor", handlelength=1.2)
