"""The report as Markdown (GitHub's tables), with every string from a file escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from analysis.model import CampaignAnalysis
from analysis.report.table import Table
from analysis.report.view import VerdictView, View, build_view

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~$@])")
_AUTOLINK = re.compile(r"(?i)(https?|ftp|mailto|www)([:.])")


def render_markdown(c: CampaignAnalysis) -> str:
    """Return the whole report as Markdown text, without figures."""
    return "\n".join(_lines(build_view(c))).rstrip() + "\n"


def escape(text: str) -> str:
    """Make text mean itself: no markup, no HTML, no table border, no link that a reader did not ask for."""
    safe = _SPECIAL.sub(r"\\\1", text.replace("&", "&amp;"))
    # A zero-width joiner would hide in copies; an entity shows the same and breaks the automatic link.
    return _AUTOLINK.sub(lambda m: f"{m[1]}{'&#58;' if m[2] == ':' else '&#46;'}", safe)


def _lines(view: View) -> Iterator[str]:
    yield f"# {escape(view.verdict.headline)}"
    yield ""
    yield f"Campaign **{escape(view.campaign)}**. {escape(view.question)}"
    yield ""
    yield from (escape(view.verdict.answer), "", escape(view.evidence), "")
    yield from _verdict(view.verdict)
    yield from _section("Capacity", view.capacity)
    yield from _table(view.outcomes)
    for table in view.glance:
        yield from _table(table)
    for title, tables in (
        ("Clients and classes", view.groups),
        ("Fairness", view.fairness),
        ("What was sent", view.sent),
        ("What the server did", view.server),
        ("Every figure", view.numbers),
        ("Gates", view.gates),
        ("Gates by run", view.gates_by_run),
        ("Coordinates", view.coordinates),
        ("Provenance", view.provenance),
    ):
        yield from _section(title, tables)


def _verdict(verdict: VerdictView) -> Iterator[str]:
    for table in verdict.tables:
        yield from _table(table)
    if verdict.reasons:
        yield from ("Reasons, all of them:", "")
    for reason in verdict.reasons:
        yield f"- **{escape(reason.code)}**"
        yield from (f"  - {escape(text)}" for text in reason.texts)
        yield f"  - Remedy: {escape(reason.remedy)}"
    for gate, why in verdict.waivers:
        yield f"- **Waived: {escape(gate)}**. Reason given: {escape(why)}"
    for vouched in verdict.attested:
        yield f"- **Attested, not observed**: {escape(vouched)}"
    for missing in verdict.incomplete:
        yield f"- **Incomplete**: {escape(missing)}"
    yield ""


def _section(title: str, tables: tuple[Table, ...]) -> Iterator[str]:
    if tables:
        yield f"## {title}"
        yield ""
    for table in tables:
        yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    yield f"### {escape(table.title)}"
    yield ""
    if table.folded:
        yield from ("<details><summary>show</summary>", "")
    yield _row(table.header)
    yield "|" + "|".join(" ---: " if i in table.numeric else " --- " for i in range(len(table.header))) + "|"
    for row in table.rows:
        yield _row(row)
    yield ""
    if table.note:
        yield from (escape(table.note), "")
    if table.folded:
        yield from ("</details>", "")


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"
