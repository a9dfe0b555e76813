"""One way to draw bare inline SVG, the same bytes every time. Colours are CSS variables: a page may be light, dark or printed."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

INK, FAINT, GRID = "#010203", "#040506", "#070809"
"""Stand-ins that occur in no palette; each is replaced by a CSS variable once the SVG is drawn."""

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Okabe and Ito's colours, told apart under every common form of colour blindness; beyond six cells the dashes tell them apart."""

_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "trigpoint", "svg.fonttype": "none", "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9.0,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "xtick.color": FAINT, "ytick.color": FAINT,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": GRID, "grid.linewidth": 0.6, "axes.axisbelow": True, "axes.titlesize": 9.0, "text.parse_math": False,
    "axes.unicode_minus": False, "lines.linewidth": 1.1,
}  # fmt: skip
_VARIABLES = {INK: "var(--ink)", FAINT: "var(--faint)", GRID: "var(--grid)"} | {c: f"var(--c{i})" for i, c in enumerate(PALETTE)}
WIDTH_IN = 9.0
"""Drawn width; the page scales it to its column."""

LINE = 0.22
"""Height of a line of a legend above the panels, inches: many names must not squeeze what they name."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure with the sentence that says what is drawn and over whom."""

    title: str
    svg: str
    caption: str


def draw(height: float, paint: Callable[[Canvas], None]) -> str:
    """Draw on a canvas of its own (no global state) and return bare <svg> text."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # the reader's own matplotlibrc must not change a report
        mpl.rcParams.update(_STYLE)
        # Text is set by the reader's browser, in its fonts; ours need not have the glyph.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        canvas = Canvas(figsize=(WIDTH_IN, height), layout="constrained")
        FigureCanvasSVG(canvas)
        paint(canvas)
        out = io.StringIO()
        canvas.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(out.getvalue())


def _inline(svg: str) -> str:
    bare = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    for colour, variable in _VARIABLES.items():
        bare = bare.replace(colour, variable)
    # Sized by the page, not by points.
    head = re.sub(r' (width|height)="[^"]*pt"', "", bare[: bare.index(">")])
    return head + bare[bare.index(">") :]
