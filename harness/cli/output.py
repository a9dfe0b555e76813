"""How commands answer: text for people, one JSON document with ``--json``, and the exit codes of DESIGN 12."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import click
from rich.console import Console

from harness.errors import Problem, TrigpointError
from harness.record.canonical import canonical_json

P = ParamSpec("P")

OK, REFUSED, USAGE, ENVIRONMENT, INCONCLUSIVE = range(5)


FILE_WIDTH = 120
"""Columns where no terminal gives a width (a pipe, a file): two arms with intervals side by side; never the machine's own COLUMNS."""


def console() -> Console:
    """Standard output for people; no markup or emoji, since names come from manifests."""
    terminal = sys.stdout.isatty()
    return Console(markup=False, emoji=False, highlight=False, soft_wrap=not terminal, width=None if terminal else FILE_WIDTH)


def emit_json(document: Any) -> None:
    """Print one JSON document in canonical form, so that equal answers are equal bytes."""
    click.echo(canonical_json(document, indent=2))


def problem_dict(problem: Problem) -> dict[str, str]:
    """One problem as the JSON answers give it."""
    return {"code": problem.code, "text": problem.what, "remedy": problem.remedy, "where": problem.where}


def answers(command: Callable[P, int | None]) -> Callable[P, None]:
    """Wrap a command: its return value is the exit code, expected errors print as instructions without a traceback."""

    @wraps(command)
    def _wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except TrigpointError as error:
            if kwargs.get("as_json"):
                emit_json({"error": [problem_dict(p) for p in error.problems]})
            for problem in error.problems:
                click.echo(printable(str(problem)), err=True)
            code = error.exit_code
        except KeyboardInterrupt:
            click.echo("interrupted: finished replicates are sealed; the same command goes on from here", err=True)
            code = 130
        raise SystemExit(code or OK)

    return _wrapped


def printable(text: str) -> str:
    """Drop control characters (but newlines), so that no name from a file can drive the terminal."""
    return "".join(c for c in text if c == "\n" or c.isprintable())


json_option = click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document.")
