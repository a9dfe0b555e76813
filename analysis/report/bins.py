"""Rates over the measured window, bin by bin: what was offered, what ended, what became valid."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from analysis.bins import TimeBins
from analysis.model import CampaignAnalysis, CellAnalysis
from analysis.report.svg import PALETTE, Plot, draw
from analysis.report.words import clean, shorten

COUNTS = ("offered", "completed", "valid")
MOST = 12
"""Panels that a reader compares at a glance; every cell's bins are in the JSON output."""


def bin_plots(c: CampaignAnalysis) -> tuple[Plot, ...]:
    """One panel a cell, one line a replicate and count; nothing without bins."""
    cells = [cell for cell in c.cells if _bins(cell)][:MOST]
    if not cells:
        return ()
    columns = min(len(cells), 3)
    rows = math.ceil(len(cells) / columns)

    def _paint(canvas: Canvas) -> None:
        panels = list(canvas.subplots(rows, columns, squeeze=False, sharey=True).flat)
        for panel, cell in zip(panels, cells, strict=False):
            _panel(panel, cell)
        for panel in panels[len(cells) :]:
            panel.set_visible(False)
        panels[0].set_ylabel("requests per second")
        for name, colour in zip(COUNTS, PALETTE, strict=False):
            panels[0].plot([], [], color=colour, label=name)
        canvas.legend(loc="outside upper left", ncols=len(COUNTS), frameon=False)

    return (Plot("Rates over the measured window", draw(0.6 + 2.6 * rows, _paint), _caption(cells, len(c.cells))),)


def _bins(cell: CellAnalysis) -> list[TimeBins]:
    return [run.bins for run in cell.runs if run.bins is not None]


def _panel(panel: Axes, cell: CellAnalysis) -> None:
    for found in _bins(cell):
        for name, colour in zip(COUNTS, PALETTE, strict=False):
            counts: tuple[int, ...] = getattr(found, name)
            edges = [*found.start_s, found.start_s[-1] + found.width_s]
            panel.stairs([n / found.width_s for n in counts], edges, color=colour, linewidth=1.2)
    panel.set_title(shorten(clean(cell.cell), 40), loc="left")
    panel.set_xlabel("time since the run's epoch, s")
    panel.set_ylim(bottom=0)


def _caption(cells: Sequence[CellAnalysis], of: int) -> str:
    found = [b for cell in cells for b in _bins(cell)]
    per = ", ".join(sorted({b.denominator for b in found}))
    open_ = sum(n for b in found for n in b.undecided)
    words = [
        f"Requests per {per}, divided by its length; one line a replicate. Offered and valid by their arrival, completed by their end.",
        f"Of {open_} requests still open when the drain ended it is not known whether they would have become valid." if open_ else "",
        f"{len(cells)} of {of} cells are shown." if len(cells) < of else "",
    ]
    return " ".join(filter(None, words))
