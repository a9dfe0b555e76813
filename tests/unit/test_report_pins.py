"""The table of pins: every pin of every run, who says what was found, and the closed list of consequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from analysis.model import CampaignAnalysis
from analysis.report.pins import CONSEQUENCES_NOTE, pin_tables
from harness.record.coordinates import CAUSES
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
