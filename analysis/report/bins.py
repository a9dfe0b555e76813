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
"""Panels that a reader compares at a glance. Of more none is drawn, for the first ones by name answer nothing; the JSON has all bins."""


def bin_plots(c: CampaignAnalysis) -> tuple[Plot, ...]:
    """One panel a cell, one line a replicate and count; nothing without bins."""
    cells = [cell for cell in c.cells if _bins(cell)]
    if not cells or len(cells) > MOST:
        return ()
    columns = min(len(cells), 3)
    rows = math.ceil(len(cells) / columns)

    def _paint(canvas: Canvas) -> None:
        panels = list(canvas.subplots(rows, columns, squeeze=False, sharey=True).flat)
        for panel, cell in zip(panels, cells, strict=False):
            _panel(panel, cell)
        panels[0].set_ylim(bottom=0)  # once, at the end: it stops the scaling of all panels, which share the axis
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
    runs = _bins(cell)
    for found in runs:
        for name, colour in zip(COUNTS, PALETTE, strict=False):
            _steps(panel, found, _rates(found, name), colour, 0.7, 0.25)
    if len({(b.start_s, b.width_s) for b in runs}) == 1:
        for name, colour in zip(COUNTS, PALETTE, strict=False):
            mean = [sum(rates) / len(runs) for rates in zip(*(_rates(b, name) for b in runs), strict=True)]
            _steps(panel, runs[0], mean, colour, 1.8, 1.0)
    panel.set_title(shorten(clean(cell.cell), 40), loc="left")
    panel.set_xlabel("time since the run's epoch, s")


def _rates(found: TimeBins, name: str) -> list[float]:
    counts: tuple[int, ...] = getattr(found, name)
    return [n / found.width_s for n in counts]


def _steps(panel: Axes, found: TimeBins, rates: Sequence[float], colour: str, width: float, alpha: float) -> None:
    edges = [*found.start_s, found.start_s[-1] + found.width_s]
    panel.stairs(rates, edges, baseline=None, color=colour, linewidth=width, alpha=alpha)


def _caption(cells: Sequence[CellAnalysis], of: int) -> str:
    found = [b for cell in cells for b in _bins(cell)]
    per = ", ".join(sorted({b.denominator for b in found}))
    open_ = sum(n for b in found for n in b.undecided)
    words = [
        f"Requests per {per}, divided by its length; bold: all replicates together, faint: each of them.",
        "Offered and valid by their arrival, completed by their end.",
        f"Of {open_} requests still open when the drain ended it is not known whether they would have become valid." if open_ else "",
        f"{len(cells)} of {of} cells are shown." if len(cells) < of else "",
    ]
    return " ".join(filter(None, words))
