"""The report on a terminal. Strings from files are plain text here: no markup, no control characters."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from analysis.model import CampaignAnalysis
from analysis.report.fairness import fairness_glance
from analysis.report.sent import REUSE, group_glance, reuse_matters
from analysis.report.table import Table
from analysis.report.view import NOT_PASSED, VerdictView, build_view

_STYLES = {"PASS": "green", "FAIL": "bold red", "UNKNOWN": "bold yellow", "better": "green", "worse": "red"}
_BRIEF = 90
"""A reason column beyond this turns a terminal table into a ribbon; the reports have the whole text."""

_PLACES = 3
"""Runs named beside a gate's reason; when it is more, their number is what a reader of a terminal needs."""


_TEXTS = 3
"""Reasons of one gate told one by one: the fourth says nothing new, and the pages have them all."""

_NAME = 30
"""Columns that the first cell of a row, which names it, gets at least when it needs them."""

_ROWS = 30
"""Rows of one table: what a terminal shows at once."""


def render_terminal(c: CampaignAnalysis, console: Console, *, verdict_only: bool = False) -> None:
    """Print verdict, outcomes, the numbers at a glance, clients and classes, fairness, reuse if there was any to be had, and what stands
    against a claim; with ``verdict_only`` just the verdict.
    """
    view = build_view(c)
    console.print(Text(view.verdict.headline, style="bold green" if view.verdict.ranked else "bold red"))
    console.print(Text(f"{view.campaign}: {view.question}"))
    console.print(Text(view.verdict.answer))
    console.print(Text(view.evidence, style="dim"))
    _verdict(view.verdict, console)
    if verdict_only:
        return
    for table in view.capacity:
        if not table.folded:
            _print(table, console)
    for table in (view.outcomes, *(() if view.capacity else view.glance), *group_glance(c, view.unit), *fairness_glance(c, view.unit)):
        if not table.folded:
            _print(table, console)
    for table in view.sent:
        if table.title == REUSE and reuse_matters(c):
            _print(table, console)
    told = {reason.code for reason in view.verdict.reasons}
    for table in view.gates:
        if table.title == NOT_PASSED:
            _gates(table, told, console)
    console.print()
    console.print(Text(view.sealed, style="dim"))


def _verdict(verdict: VerdictView, console: Console) -> None:
    for table in verdict.tables:
        if not table.folded:
            _print(table, console)
    for reason in verdict.reasons:
        console.print(Text.assemble("  ", (reason.code, "bold")))
        for text in reason.texts:
            console.print(Text(f"      {text}"))
        console.print(Text(f"      -> {reason.remedy}"))
    for gate, why in verdict.waivers:
        console.print(Text.assemble("  ", ("waived ", "bold yellow"), f"{gate}: {why}"))
    for vouched in verdict.attested:
        console.print(Text.assemble("  ", ("attested ", "bold yellow"), vouched))
    told = {text for reason in verdict.reasons for text in reason.texts}
    for missing in (m for m in verdict.incomplete if m not in told):
        console.print(Text.assemble("  ", ("incomplete ", "bold yellow"), missing))


def _gates(table: Table, told: set[str], console: Console) -> None:
    """One entry a gate and verdict; ``told``: gates whose reasons and remedies the refusal has given already."""
    console.print()
    console.print(Text(table.title, style="bold"))
    entries: dict[tuple[str, str, str, str], list[tuple[str, str]]] = {}
    for code, verdict, reason, _, protects, remedy, where in table.rows:
        entries.setdefault((verdict.split(":")[0], code, protects, remedy), []).append((reason, where))
    for (verdict, code, protects, remedy), found in entries.items():
        runs = [place for _, where in found for place in where.split(", ")]
        above = "; reasons above" if code in told else ""
        line = f" in {_places(runs)} (protects {protects}){above}"
        console.print(Text.assemble("  ", (verdict, _STYLES.get(verdict.split(",")[0], "")), " ", (code, "bold"), line))
        if not above:
            _explain(found, remedy, console)


def _explain(found: list[tuple[str, str]], remedy: str, console: Console) -> None:
    for reason, where in found[:_TEXTS]:
        console.print(Text(f"      {reason}" + (f" ({_places(where.split(', '))})" if len(found) > 1 else "")))
    if len(found) > _TEXTS:
        console.print(Text(f"      and {len(found) - _TEXTS} more like these"))
    if remedy:
        console.print(Text(f"      -> {remedy}"))


def _places(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= _PLACES else f"{len(names)} places"


def _print(table: Table, console: Console) -> None:
    grid = Grid(title=Text(table.title, style="bold"), title_justify="left", pad_edge=False, box=None, padding=(0, 2, 0, 0))
    for i, name in enumerate(table.header):
        named = min(_NAME, max((len(row[0]) for row in table.rows), default=0)) if i == 0 else None  # broken names are no names
        grid.add_column(Text(name, style="dim"), justify="right" if i in table.numeric else "left", overflow="fold", min_width=named)
    for row in table.rows[:_ROWS]:
        grid.add_row(*(Text(_brief(cell), style=_STYLES.get(cell.split(",")[0], "")) for cell in row))
    console.print()
    # A line that is left to wrap by itself tears a table apart: the grid is laid out for the width there is.
    console.print(grid, soft_wrap=False)
    if len(table.rows) > _ROWS:
        console.print(Text(f"{len(table.rows) - _ROWS} more rows in the report's files.", style="dim"))
    if table.note:
        console.print(Text(table.note, style="dim"))


def _brief(cell: str) -> str:
    return cell if len(cell) <= _BRIEF else f"{cell[: _BRIEF - 1]}…"
