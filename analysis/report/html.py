"""The report as one HTML file: no network, no script, everything escaped by the template engine, figures inline."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.model import CampaignAnalysis
from analysis.report.plots import plots
from analysis.report.view import build_view

ENVIRONMENT = Environment(
    loader=PackageLoader("analysis.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def render_html(c: CampaignAnalysis) -> str:
    """Return the whole report as one HTML document; the same analysis gives the same bytes."""
    # The SVG is safe to mark: matplotlib writes the SVG and escapes every text it sets.
    view = build_view(c)
    figures = [(p.title, Markup(p.svg), p.caption) for p in plots(c, view.unit)]  # noqa: S704 - see the line above
    return ENVIRONMENT.get_template("report.html.j2").render(view=view, figures=figures, style=style())


def style() -> Markup:
    """Our pages' style sheet, safe to put into a page as it is."""
    return Markup(ENVIRONMENT.get_template("report.css").render())  # noqa: S704 - our own file
