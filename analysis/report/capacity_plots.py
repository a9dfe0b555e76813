"""Attainment against load with target and bracket, and how tight an SLO each load would hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.capacity_campaign import ArmCapacity
from analysis.model import CampaignAnalysis, CellAnalysis
from analysis.report.svg import FAINT, LINE, PALETTE, Plot, draw
from analysis.report.words import clean, number, percent, shorten

_MARKS: dict[str, Any] = {"marker": "o", "markersize": 4}

INSIDE = 6
"""Names that fit into a panel without lying on its lines."""


def capacity_plots(c: CampaignAnalysis) -> tuple[Plot, ...]:
    """Return attainment against load where a search completed a grid."""
    return (_attainment(c.capacities),) if any(one.estimate.rows for one in c.capacities) else ()


def scale_plots(c: CampaignAnalysis) -> tuple[Plot, ...]:
    """Return how tight an SLO each load would hold, for every campaign that has one."""
    return (_scales(c),) if any("slo_scale" in run.series for cell in c.cells for run in cell.runs) else ()


def _scales(c: CampaignAnalysis) -> Plot:
    """A panel for each arm of a search, a line a load; otherwise a panel for each load, a line an arm."""
    by_arm = bool(c.capacities)
    groups: dict[str, list[tuple[str, CellAnalysis]]] = {}
    for cell in c.cells:
        panel, line = (cell.arm, cell.load) if by_arm else (cell.load, cell.arm)
        groups.setdefault(panel, []).append((line, cell))
    columns = min(len(groups), 2)
    rows = math.ceil(len(groups) / columns)
    longest = max(len(lines) for lines in groups.values())
    # One legend for all panels is true only where each draws the same lines in the same order.
    above = longest > INSIDE and len({tuple(name for name, _ in lines) for lines in groups.values()}) == 1

    def _paint(canvas: Canvas) -> None:
        panels = list(canvas.subplots(rows, columns, squeeze=False, sharey=True).flat)
        for panel, (title, lines) in zip(panels, groups.items(), strict=False):
            _scale_panel(panel, lines, named=not above)
            panel.set_title(shorten(clean(title), 50), loc="left")
        for panel in panels[len(groups) :]:
            panel.set_visible(False)
        panels[0].set_ylabel("share within the scaled SLO")
        if above:
            names, labels = panels[0].get_legend_handles_labels()
            canvas.legend(names, labels, loc="outside upper left", ncols=4, frameon=False, labelcolor="linecolor", handlelength=1.2)

    caption = (
        "All limits of the SLO multiplied by one scale, as DistServe draws it, read off the sealed runs: mean over replicates."
        " Nothing is drawn where a request that was open at the end could still have met the scaled limits."
    )
    return Plot("SLO scale", draw(3.0 * rows + (LINE * math.ceil(longest / 4) if above else 0), _paint), caption)


def _scale_panel(panel: Axes, lines: Sequence[tuple[str, CellAnalysis]], *, named: bool) -> None:
    for index, (name, cell) in enumerate(lines):
        shares: dict[float, list[float]] = {}
        for run in cell.runs:
            for scale, share in zip(*run.series.get("slo_scale", ((), ())), strict=True):
                shares.setdefault(scale, []).append(share)
        whole = sorted((x, sum(ys) / len(ys)) for x, ys in shares.items() if len(ys) == len(cell.runs))
        colour, dashes = PALETTE[index % len(PALETTE)], ("solid", "dashed", "dotted")[index // len(PALETTE) % 3]
        panel.plot([x for x, _ in whole], [y for _, y in whole], color=colour, linestyle=dashes, label=f" {shorten(clean(name), 30)}")
    panel.axvline(1.0, color=FAINT, linewidth=0.8)
    panel.set_xscale("log", base=2)
    panel.set_xlim(0.25, 4)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: number(x)))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_ylim(-0.02, 1.02)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: percent(y)))
    panel.set_xlabel("SLO scale")
    if named:
        panel.legend(loc="lower right", frameon=False, labelcolor="linecolor", handlelength=1.2, fontsize=8)


def _attainment(found: Sequence[ArmCapacity]) -> Plot:
    def _paint(canvas: Canvas) -> None:
        panel = canvas.subplots()
        for index, one in enumerate(found):
            _arm(panel, one, PALETTE[index % len(PALETTE)])
        target = found[0].estimate.target
        panel.axhline(target, color=FAINT, linewidth=1, linestyle=(0, (4, 2)))
        panel.annotate(f"target {percent(target)}", (0.0, target), (4, 3), xycoords=("axes fraction", "data"), textcoords="offset points")
        _axes(panel, found)
        canvas.legend(loc="outside upper left", ncols=min(len(found), 4), frameon=False, labelcolor="linecolor", handlelength=1.2)

    caption = (
        "Points: mean over replicates with its interval; thin lines: each replicate. Band: from the largest load certified to pass to the"
        " smallest certified to fail. The dot on the target is the capacity with its interval."
    )
    return Plot("Attainment against load", draw(3.4, _paint), caption)


def _arm(panel: Axes, one: ArmCapacity, colour: str) -> None:
    e, rows = one.estimate, one.estimate.rows
    label = f" {shorten(clean(one.arm), 40)}"
    panel.plot([row.rate for row in rows], [row.attainment for row in rows], color=colour, label=label, **_MARKS)
    for row in rows:
        if row.interval is not None:
            panel.plot([row.rate] * 2, [max(row.interval.low, 0.0), min(row.interval.high, 1.0)], color=colour, linewidth=1)
    for replicate in sorted({run.replicate for run in one.runs if run.phase == "grid"}):
        runs = sorted((r for r in one.runs if r.phase == "grid" and r.replicate == replicate and r.offered), key=lambda r: r.rate)
        panel.plot([r.rate for r in runs], [r.valid / r.offered for r in runs], color=colour, linewidth=0.5, alpha=0.5)
    if e.bracket.low is not None and e.bracket.high is not None:
        panel.axvspan(e.bracket.low, e.bracket.high, color=colour, alpha=0.1, linewidth=0)
    capacity = e.figures["capacity"]
    if capacity.value is not None:
        panel.plot([capacity.value], [e.target], "o", color=colour, markersize=7)
        if capacity.interval is not None:
            panel.plot([capacity.interval.low, capacity.interval.high], [e.target] * 2, color=colour, linewidth=2.5)


def _axes(panel: Axes, found: Sequence[ArmCapacity]) -> None:
    rates = [row.rate for one in found for row in one.estimate.rows]
    panel.set_xscale("log")
    panel.set_xlim(min(rates) / 1.05, max(rates) * 1.05)
    ticks = [min(rates) * (max(rates) / min(rates)) ** (i / 6) for i in range(7)]
    panel.set_xticks(ticks if max(rates) > min(rates) else rates[:1])
    panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: number(float(f"{x:.3g}"))))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_ylim(-0.02, 1.02)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: percent(y)))
    panel.set_xlabel(f"offered load, {clean(found[0].unit)}")
    panel.set_ylabel("share of requests within the SLO")
