"""Every public name of analysis says what it is; what returns arrays says their shape or unit, what raises says so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(p for p in (ROOT / "analysis").rglob("*.py"))
ARRAYS = re.compile(r"\b(Floats|Int64|Bools|Strings|ndarray|NDArray|OutcomeArray)\b")
SHAPE = re.compile(r"\(\w+(?: [-+*] \w+)?,[^)]*\)|shape|\beach\b|\bevery\b|\bone a\b|(?:rows|values|columns)\b", re.IGNORECASE)
"""``(n,)`` or ``(k, 3)``, or words that say what an element stands for."""


def public(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield f"{path.relative_to(ROOT)}:{node.name}", node


NAMES = [pytest.param(node, id=name) for path in MODULES for name, node in public(path)]
FUNCTIONS = [p for p in NAMES if isinstance(p.values[0], ast.FunctionDef)]
RETURNING_ARRAYS = [
    p
    for p in FUNCTIONS
    if isinstance(p.values[0], ast.FunctionDef) and p.values[0].returns is not None and ARRAYS.search(ast.unparse(p.values[0].returns))
]


@pytest.mark.parametrize("node", NAMES)
def test_every_public_name_says_what_it_is(node: ast.FunctionDef | ast.ClassDef) -> None:
    text = ast.get_docstring(node) or ""
    assert len(text.split()) >= 3, "a docstring of a few words says nothing that the name does not"


@pytest.mark.parametrize("node", RETURNING_ARRAYS)
def test_what_returns_arrays_says_their_shape(node: ast.FunctionDef) -> None:
    assert SHAPE.search(ast.get_docstring(node) or ""), "say the shape, as in (n,), or what one element stands for"


@pytest.mark.parametrize("node", FUNCTIONS)
def test_what_raises_on_purpose_says_so(node: ast.FunctionDef) -> None:
    raised = {
        r.exc.func.id
        for r in ast.walk(node)
        if isinstance(r, ast.Raise) and isinstance(r.exc, ast.Call) and isinstance(r.exc.func, ast.Name)
    }
    text = ast.get_docstring(node) or ""
    assert [name for name in sorted(raised) if name not in text and "raise" not in text.lower()] == []


def test_the_rules_would_fail_on_what_breaks_them() -> None:
    assert not SHAPE.search("Return it.")
    assert SHAPE.search("Latency of each request (n,), s.")
    assert len(RETURNING_ARRAYS) > 40
