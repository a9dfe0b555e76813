"""The page of a trace: one HTML file, no network, no script, everything escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from analysis.cautions import Caution
from analysis.describe import TraceColumns
from analysis.report.html import ENVIRONMENT, style
from analysis.report.trace_plots import trace_plots
from analysis.report.words import clean, compact, number, shorten


def render_trace(name: str, trace: TraceColumns, found: Mapping[str, Any], warnings: Sequence[Caution]) -> str:
    """Return the page of one trace; ``found`` is everything said of it, in the order it is shown. Equal input gives equal bytes."""
    figures = [(p.title, Markup(p.svg), p.caption) for p in trace_plots(trace)]  # noqa: S704 - matplotlib escapes every text it sets
    return ENVIRONMENT.get_template("trace.html.j2").render(
        name=clean(name),
        notes=[clean(n) for n in found.get("notes", ())],
        facts=rows_of(found),
        warnings=warnings,
        figures=figures,
        style=style(),
    )


def rows_of(found: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Return (dotted key, value as text) of everything but the notes; what is not defined says so."""
    rows: list[tuple[str, str]] = []
    for key, value in found.items():
        if isinstance(value, Mapping) and value:
            rows += rows_of(value, f"{before}{key}.")
        elif f"{before}{key}" != "notes":
            rows.append((clean(f"{before}{key}"), _text(value)))
    return rows


def _text(value: Any) -> str:
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else shorten(compact(value))
