"""Gates: every check of DESIGN 8, registered in its order. Import from here; importing this package fills the registry."""

from __future__ import annotations

# isort: off
from analysis.gates import integrity, tokens, counters, prefix, client, steady, window, cache, fairness, environment  # noqa: F401 - importing registers, in this order

# isort: on
from analysis.gates.registry import (
    GATES,
    UNWAIVABLE,
    CellContext,
    Finding,
    Gate,
    PairContext,
    RunContext,
    cell_checks,
    pair_checks,
    run_checks,
    standing_against,
)
from analysis.samples import AbsentError

__all__ = [
    "GATES",
    "UNWAIVABLE",
    "AbsentError",
    "CellContext",
    "Finding",
    "Gate",
    "PairContext",
    "RunContext",
    "cell_checks",
    "pair_checks",
    "run_checks",
    "standing_against",
]
