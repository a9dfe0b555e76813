"""Gates: every check of DESIGN 8, registered in its order. Import from here; importing this package fills the registry."""

from __future__ import annotations

# isort: off
from analysis.gates import integrity, tokens, counters, client, steady, window, environment  # noqa: F401 - importing registers, in this order

# isort: on
from analysis.gates.registry import (
    GATES,
    UNWAIVABLE,
    AbsentError,
    CellContext,
    Finding,
    Gate,
    RunContext,
    cell_checks,
    run_checks,
    standing_against,
)
from analysis.gates.tokens import output_length_agree

__all__ = [
    "GATES",
    "UNWAIVABLE",
    "AbsentError",
    "CellContext",
    "Finding",
    "Gate",
    "RunContext",
    "cell_checks",
    "output_length_agree",
    "run_checks",
    "standing_against",
]
