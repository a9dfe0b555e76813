"""What the cache cost, as tables: promises against use where an admission rule made any, preemptions and what became of the rows."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.memory import MemoryUse, add_memory
from analysis.model import CampaignAnalysis, CellAnalysis
from analysis.report.table import Table
from analysis.report.words import clean

_PROMISES = (
    ("Requests", "reservations_total"), ("Reserved", "reserved_rows_total"), ("Used", "used_rows_total"), ("Unused", "unused_rows_total"),
    ("Under", "under_rows_total"), ("Breach", "breach_rows_total"), ("Extensions", "extensions_total"),
)  # fmt: skip
_PREEMPTIONS = (
    ("All", "preemptions_total"), ("Recompute", "preemptions_recompute_total"), ("Preserve", "preemptions_preserve_total"),
    ("Abort", "preemptions_abort_total"), ("Rows recomputed", "recomputed_rows_total"), ("Rows preserved", "preserved_rows_total"),
    ("Rows promoted", "promoted_rows_total"),
)  # fmt: skip
_PROMISE_NOTE = (
    "KV rows, all replicates of a cell added up, of requests that ended by themselves. Reserved: what was first set aside for them, by"
    " forecast; unused: beyond what they came to; under: what they came to beyond it (never netted; reserved - unused + under = used)."
    " Breach: rows by which the next step of all passed the cache, added up over every time that somebody had to give way."
)
_PREEMPTION_NOTE = (
    "Whole runs, all replicates of a cell added up. Rows recomputed: work that was done before and counts as no service; unknown where the"
    " engine does not say what became of the rows."
)


def memory_tables(c: CampaignAnalysis) -> tuple[Table, ...]:
    """Promises and preemptions by cell; no table where no engine had anything to tell."""
    cells = [(cell, _of(cell)) for cell in c.cells]
    told = [(cell, use) for cell, use in cells if use is not None]
    if not any(use.happened for _, use in told):
        return ()
    promises = [(cell, use) for cell, use in told if use.counts.get("reservations_total")]
    return tuple(
        table
        for table in (
            _table("Rows promised against rows used", promises, _PROMISES, _PROMISE_NOTE, idle=False),
            _table("Preemptions", told, _PREEMPTIONS, _PREEMPTION_NOTE, idle=True),
        )
        if table.rows
    )


def _of(cell: CellAnalysis) -> MemoryUse | None:
    uses = [run.memory for run in cell.runs if run.memory is not None]
    return add_memory(uses) if uses else None


def _table(
    title: str, cells: Sequence[tuple[CellAnalysis, MemoryUse]], columns: Sequence[tuple[str, str]], note: str, *, idle: bool
) -> Table:
    idle = idle and any(use.idle_rows for _, use in cells)
    header = ("Cell", *(words for words, _ in columns), *(("Idle rows of last blocks (mean)",) if idle else ()))
    rows = tuple((clean(cell.cell), *_texts(use, columns), *((_mean(use.idle_rows),) if idle else ())) for cell, use in cells)
    if any(use.closes is False for _, use in cells):
        note = f"The ledger does not close: reserved - unused + under is not what was used. {note}"
    table = Table(title, header, rows, frozenset(range(1, len(header))), note)
    for column in range(len(columns), 0, -1):  # what no engine of the campaign has is no column
        if rows and all(row[column] == "unknown" for row in rows):
            table = Table(title, _less(table.header, column), tuple(_less(row, column) for row in table.rows), table.numeric, note)
    return Table(table.title, table.header, table.rows, frozenset(range(1, len(table.header))), table.note)


def _texts(use: MemoryUse, columns: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(str(use.counts[name]) if name in use.counts else "unknown" for _, name in columns)


def _mean(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f}"


def _less(cells: tuple[str, ...], column: int) -> tuple[str, ...]:
    return (*cells[:column], *cells[column + 1 :])
