"""Accumulated weighted service by client, one panel a cell: where a line stands still while the others rise, somebody waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from analysis.fairness_model import CellFairness
from analysis.fairness_words import identities, identity_words
from analysis.model import CampaignAnalysis, CellAnalysis
from analysis.report.svg import PALETTE, Plot, draw
from analysis.report.words import clean, shorten

SERVICE = "Accumulated service"
"""Title of the plot, by which the page places it beside the tables of fairness."""

COLUMNS = 4
PANELS = 16
"""Cells drawn: four rows of small panels; more are in the tables."""


def service_plots(c: CampaignAnalysis) -> tuple[Plot, ...]:
    """The plot, where some cell served two identities or more."""
    found = [(cell, cell.fairness) for cell in c.cells if cell.fairness is not None and len(cell.fairness.curves) > 1]
    if not found:
        return ()
    shown = found[:PANELS]
    names = list(dict.fromkeys(name for _, f in shown for name in f.curves))
    columns = min(len(shown), COLUMNS)
    rows = math.ceil(len(shown) / columns)

    def _paint(canvas: Canvas) -> None:
        panels = list(canvas.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
        for panel, (cell, fair) in zip(panels, shown, strict=False):
            _panel(panel, cell, fair, names)
        for panel in panels[len(shown) :]:
            panel.set_visible(False)
        panels[0].set_ylabel("weighted tokens")
        _legend(canvas, names)

    who, many = (name(shown[0][1].identity) for name in (identity_words, identities))
    left_out = f" {len(found) - len(shown)} more cells are in the tables." if len(found) > len(shown) else ""
    caption = (
        f"Completed work of each {who} since the start of the measured window, against time in s; one replicate a cell, the {many} that "
        f"asked for most.{left_out}"
    )
    return (Plot(SERVICE, draw(0.6 + 1.7 * rows, _paint), caption),)


def _panel(panel: Axes, cell: CellAnalysis, fair: CellFairness, names: Sequence[str]) -> None:
    for name, (x, y) in fair.curves.items():
        panel.plot(x, y, **_style(names.index(name)), drawstyle="steps-post")
    panel.set_title(shorten(clean(cell.cell), 28), loc="left", fontsize=8)
    panel.set_xlim(left=0)
    panel.set_ylim(bottom=0)


def _style(index: int) -> dict[str, Any]:
    """Colour of a name, and beyond the palette its dashes."""
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": ("solid", "dashed", "dotted")[index // len(PALETTE) % 3]}


def _legend(canvas: Canvas, names: Sequence[str]) -> None:
    lines = [Line2D([], [], **_style(i), linewidth=2) for i in range(len(names))]
    texts = [f" {shorten(clean(name), 30)}" for name in names]
    canvas.legend(lines, texts, loc="outside upper left", ncols=min(len(names), 6), frameon=False, labelcolor="linecolor", handlelength=1.2)
