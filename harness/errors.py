"""Errors that tell the reader what to do next. Floor 0: every room may raise them, none is needed to catch them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input, written as an instruction.

    ``where`` names the place (``manifest.yaml:12`` or ``trace.csv:7``), ``what`` gives name=value and the constraint, ``remedy`` what to
    change. ``code`` is stable and machine-readable.
    """

    code: str
    what: str
    remedy: str
    where: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what} [{self.code}]\n    -> {self.remedy}"


class TrigpointError(Exception):
    """Base of every expected failure; carries all problems at once and the exit code of the command line.

    Exit codes (DESIGN 12): 1 refused, 2 usage, 3 environment, 4 inconclusive.
    """

    exit_code = 2

    def __init__(self, *problems: Problem) -> None:
        if not problems:
            raise ValueError("an error needs at least one problem")
        self.problems: tuple[Problem, ...] = problems
        super().__init__(*problems)

    def __str__(self) -> str:
        return "\n".join(str(p) for p in self.problems)

    @classmethod
    def single(cls, code: str, what: str, remedy: str, where: str = "") -> Self:
        """Build the error for one problem."""
        return cls(Problem(code, what, remedy, where))


class RefusedError(TrigpointError):
    """A claim was refused (exit 1)."""

    exit_code = 1


class UsageError(TrigpointError):
    """The input is wrong: manifest, trace, arguments (exit 2)."""

    exit_code = 2


class HostError(TrigpointError):
    """The environment is wrong: server, port, disk, pins, missing runtime (exit 3)."""

    exit_code = 3


class InconclusiveError(TrigpointError):
    """The measurement cannot answer (exit 4)."""

    exit_code = 4
