"""The walls of the house: a room imports only from floors below, functions and modules keep their size, nothing names a machine."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = {
    "harness.cli": 4,
    "harness.campaign": 3,
    "harness.calibrate": 3,
    "analysis": 2,
    "harness.manifest": 2,
    "harness.observe": 2,
    "harness.replay": 2,
    "harness.record": 1,
    "harness.runtimes": 1,
    "harness.wire": 1,
    "harness.reference": 1,
    "workloads": 1,
    "harness.errors": 0,
    "harness.clock": 0,
    "harness.burstiness": 0,
}
MODULES = sorted(p for d in ("harness", "analysis", "workloads") for p in (ROOT / d).rglob("*.py"))


def room_of(module: str) -> str | None:
    return next((r for r in FLOORS if module == r or module.startswith(r + ".")), None)


def imports_of(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    here = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    for name in imports_of(path):
        there = room_of(name)
        if here is None or there is None or there == here:
            continue
        allowed = FLOORS[there] < FLOORS[here] and (
            here != "analysis" or there in ("harness.record", "harness.errors", "harness.clock", "harness.burstiness")
        )
        assert allowed, f"{path.relative_to(ROOT)} imports {name}: floor {FLOORS[there]} from floor {FLOORS[here]}"


def test_functions_and_modules_keep_the_house_numbers() -> None:
    lengths = []
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 400, f"{path.relative_to(ROOT)} has more than 400 lines"
        functions = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
        lengths += [(f.end_lineno or 0) - f.lineno + 1 for f in functions]
    lengths.sort()
    assert statistics.median(lengths) <= 10
    assert lengths[int(0.9 * len(lengths))] <= 30
    assert lengths[-1] <= 60


def test_no_two_test_files_share_a_name() -> None:
    """They are collected without packages: two of one name cannot be run together."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
