"""The one shape that every renderer lays out: a titled table of text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Header and rows of plain text. ``numeric``: columns set flush right. ``folded``: shown on demand where the medium can."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    note: str = ""
    folded: bool = False

    def without_shared(self, column: int, words: str) -> Table:
        """Move a column whose text is the same in all rows (two at least) into the note, as ``words`` and that text.

        A column of empty text goes without a word; any other column stays.
        """
        found = {row[column] for row in self.rows}
        if len(found) != 1 or (len(self.rows) < 2 and found != {""}):
            return self
        text = found.pop()
        note = " ".join(filter(None, [f"{words} {text}." if text else "", self.note]))
        return Table(
            title=self.title,
            header=_less(self.header, column),
            rows=tuple(_less(row, column) for row in self.rows),
            numeric=frozenset(i - (i > column) for i in self.numeric if i != column),
            note=note,
            folded=self.folded,
        )


def _less(cells: tuple[str, ...], column: int) -> tuple[str, ...]:
    return (*cells[:column], *cells[column + 1 :])
