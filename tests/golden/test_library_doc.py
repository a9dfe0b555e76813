"""docs/library.md, run: what a page shows of a library that changed is worse than no page."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "library.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytest.importorskip("pandas")


def test_every_block_runs_in_order_and_says_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    blocks, names = BLOCK.findall(PAGE.read_text(encoding="utf-8")), dict[str, Any]()
    assert len(blocks) >= 8
    printed = []
    for number, block in enumerate(blocks):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)  # noqa: S102 - our own page is what is tested
        printed.append(out.getvalue())
    assert printed[0] == "seqs-8@x1.5 synthetic E1\n"
    assert names["of_the_cell"].loc["ttft_p99", "status"] == "withheld"
    assert names["outcomes_frame"](names["campaign"])["offered"].tolist() == [86, 86]
    own = names["own"]
    assert own.loc["tbt_p95", "status"] == "unknown"
    assert own.loc["attainment", "value"] == 248 / 250
    assert "imported\n['rank_undeclared']\n" in printed
    assert "True None REFUSED\nTrue\n" in printed
    assert names["advice"].replicates > 5


def test_the_page_names_every_public_name_of_the_notebook_that_is_a_function() -> None:
    import analysis.notebook as notebook

    text = PAGE.read_text(encoding="utf-8")
    functions = [name for name in notebook.__all__ if name.endswith("_frame") or name.startswith(("read_", "replicates_"))]
    assert [name for name in functions if name not in text] == []
