"""The table of pins: every pin of every run, who says what was found, and the closed list of consequences."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from rich.console import Console

from analysis.model import CampaignAnalysis
from analysis.report import render_html, render_markdown, render_terminal
from analysis.report.markdown import escape
from analysis.report.pins import CONSEQUENCES_NOTE, attested_lines, attested_of, pin_tables
from harness.record.coordinates import CAUSES, Known
from harness.record.facts import PinResult
from tests.report_demo import campaign


def pin(name: str, result: Any = "matched", **changes: Any) -> dict[str, Any]:
    base = {"pin": name, "expected": "bfloat16", "observed": "bfloat16", "result": result, "source": "observed"}
    return PinResult(**base | changes).model_dump()


def held(**runs: list[dict[str, Any]]) -> CampaignAnalysis:
    return replace(campaign(refused=True), provenance={"pin_results": {name.replace("_", "/"): found for name, found in runs.items()}})


def test_runs_that_answer_alike_share_a_row_and_others_are_named() -> None:
    good, bad = pin("model.dtype"), pin("model.dtype", "mismatched", observed="float32", reason="server.dtype is 'float32'")
    told = pin("hardware.gpu", expected="none", observed="none", source="attested", reason="attested")
    blind = pin("hardware.driver", "unknown", observed=None, reason="no driver", source=None)
    (table,) = pin_tables(held(a_0=[good, told], a_1=[good, told], b_0=[bad, told], b_1=[good, told, blind]))
    assert table.rows == (
        ("model.dtype", "a, b/1", "bfloat16", "bfloat16", "matched", "observed", ""),
        ("model.dtype", "b/0", "bfloat16", "float32", "mismatched", "observed", "server.dtype is 'float32'"),
        ("hardware.gpu", "all runs", "none", "none", "matched", "attested", ""),
        ("hardware.driver", "b/1", "bfloat16", "", "unknown", "nobody", "no driver"),
    )
    assert table.note.startswith("Attested: ")


def test_without_pins_there_is_no_table() -> None:
    assert pin_tables(held()) == ()
    assert pin_tables(replace(campaign(refused=True), provenance={})) == ()


def test_the_note_names_every_consequence_and_no_other() -> None:
    assert [part.split(" (")[0].rpartition(" ")[2] for part in CONSEQUENCES_NOTE.split("; ")] == [
        n for n in CAUSES if n in CONSEQUENCES_NOTE
    ]
    assert len(CONSEQUENCES_NOTE.split("; ")) == len(CAUSES)


def test_what_is_attested_stands_beside_the_verdict_in_every_form() -> None:
    c = campaign(refused=False)
    told = {"hardware.host": Known(value="rack-7", source="attested"), "model.dtype": Known(value="bfloat16")}
    c = replace(c, cells=(replace(c.cells[0], coordinates={**c.cells[0].coordinates, **told}), *c.cells[1:]))
    line = f"{c.cells[0].arm}: hardware.host rack-7"
    assert attested_lines(c) == (line,)
    assert attested_of(c) == {c.cells[0].arm: {"hardware.host": "rack-7"}}
    printed = io.StringIO()
    render_terminal(c, Console(file=printed, width=200), verdict_only=True)
    assert f"attested {line}" in printed.getvalue()
    assert f"**Attested, not observed**: {escape(line)}" in render_markdown(c)
    assert "Attested, not observed." in render_html(c)
    assert attested_lines(campaign(refused=False)) == ()
