"""The report: it prints what analysis decided, verdict first, and decides nothing."""

from analysis.report.data import to_json
from analysis.report.html import render_html
from analysis.report.markdown import render_markdown
from analysis.report.terminal import render_terminal
from analysis.report.trace_page import render_trace, rows_of

__all__ = ["render_html", "render_markdown", "render_terminal", "render_trace", "rows_of", "to_json"]
