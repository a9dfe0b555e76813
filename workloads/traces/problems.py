"""Collect what is wrong with a trace file, so that one run of the reader tells everything worth telling."""

from __future__ import annotations

from harness.errors import Problem, UsageError

CAP = 20
"""Problems listed in full. A file of the wrong kind is wrong on every row; a screenful shows the pattern, the count shows the extent."""


TOKEN_LIMIT = 1 << 24
"""Largest believable token count of one request, 16,777,216: above every published context window (10 M), and small enough that a sum over
any trace that fits in memory stays exact in int64. A larger number is a wrong column or a wrong unit."""


class ProblemList:
    """Problems of one file, the first ``CAP`` in full and the rest as a count."""

    __slots__ = ("_name", "_problems", "_total")

    def __init__(self, name: str) -> None:
        self._name = name
        self._problems: list[Problem] = []
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def add(self, code: str, what: str, remedy: str, line: int | None = None) -> None:
        """Record one problem; ``line`` is the one-based line of the file, None for the file as a whole."""
        self._total += 1
        if len(self._problems) < CAP:
            where = self._name if line is None else f"{self._name}:{line}"
            self._problems.append(Problem(code, what, remedy, where))

    def raise_if_any(self) -> None:
        """Raise one UsageError with everything recorded, or return when nothing was."""
        if not self._total:
            return
        rest = self._total - len(self._problems)
        if rest:
            what = f"problems_not_listed={rest}: this file has {self._total} problems, of which the first {CAP} are shown"
            remedy = "mend the ones above first; the rest are often the same"
            self._problems.append(Problem("trace.more_problems", what, remedy, self._name))
        raise UsageError(*self._problems)
