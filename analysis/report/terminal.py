"""The report on a terminal. Strings from files are plain text here: no markup, no control characters."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from analysis.model import CampaignAnalysis
from analysis.report.view import NOT_PASSED, Table, VerdictView, build_view

_STYLES = {"PASS": "green", "FAIL": "bold red", "UNKNOWN": "bold yellow", "better": "green", "worse": "red"}
_BRIEF = 90
"""A reason column beyond this turns a terminal table into a ribbon; the reports have the whole text."""


def render_terminal(c: CampaignAnalysis, console: Console, *, verdict_only: bool = False) -> None:
    """Print verdict, outcomes, numbers and what stands against a claim; with ``verdict_only`` just the verdict."""
    view = build_view(c)
    console.print(Text(view.verdict.headline, style="bold green" if view.verdict.ranked else "bold red"))
    console.print(Text(f"{view.campaign}: {view.question}"))
    console.print(Text(view.evidence, style="dim"))
    _verdict(view.verdict, console)
    if verdict_only:
        return
    for table in (view.outcomes, *(t for t in view.numbers if not t.folded)):
        _print(table, console)
    for table in view.gates:
        if table.title == NOT_PASSED:
            _gates(table, console)


def _verdict(verdict: VerdictView, console: Console) -> None:
    for table in verdict.tables:
        _print(table, console)
    for reason in verdict.reasons:
        console.print(Text.assemble("  ", (reason.code, "bold")))
        for text in reason.texts:
            console.print(Text(f"      {text}"))
        console.print(Text(f"      -> {reason.remedy}"))
    for gate, why in verdict.waivers:
        console.print(Text.assemble("  ", ("waived ", "bold yellow"), f"{gate}: {why}"))
    for missing in verdict.incomplete:
        console.print(Text.assemble("  ", ("incomplete ", "bold yellow"), missing))


def _gates(table: Table, console: Console) -> None:
    """As a list: seven columns of prose do not fit a terminal."""
    console.print()
    console.print(Text(table.title, style="bold"))
    for code, verdict, reason, measured, protects, remedy, where in table.rows:
        style = _STYLES.get(verdict.split(",")[0], "")
        console.print(Text.assemble("  ", (verdict, style), " ", (code, "bold"), f" (protects {protects}): {reason}"))
        for line in (measured, f"in {where}", f"-> {remedy}" if remedy else ""):
            if line:
                console.print(Text(f"      {line}"))


def _print(table: Table, console: Console) -> None:
    grid = Grid(title=Text(table.title, style="bold"), title_justify="left", pad_edge=False, box=None, padding=(0, 2, 0, 0))
    for i, name in enumerate(table.header):
        grid.add_column(Text(name, style="dim"), justify="right" if i in table.numeric else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(_brief(cell), style=_STYLES.get(cell.split(",")[0], "")) for cell in row))
    console.print()
    # A line that is left to wrap by itself tears a table apart: the grid is laid out for the width there is.
    console.print(grid, soft_wrap=False)
    if table.note:
        console.print(Text(table.note, style="dim"))


def _brief(cell: str) -> str:
    return cell if len(cell) <= _BRIEF else f"{cell[: _BRIEF - 1]}…"
