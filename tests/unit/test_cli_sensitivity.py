from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from analysis.sensitivity import CONTROLS, OUTPUTS
from harness.cli.sensitivity import sensitivity


def run(*arguments: str) -> Result:
    return CliRunner().invoke(sensitivity, arguments)


def test_the_table_shows_the_base_and_every_case() -> None:
    result = run()
    assert result.exit_code == 0
    for words in (
        "136",
        "3145728",
        "2/3",
        "chunks 4 -> 8",
        "piggyback_rows 4 -> 0",
        "aging_crossover 8 -> 4",
        "realized-outputs (hidden)",
        "no latencies",
    ):
        assert words in result.output
    assert result.output.count("unknown -> 42") == 1


def test_json_holds_every_reading_of_every_case() -> None:
    document = json.loads(run("--vary", "chunk-rows=2,8", "--vary", "foreign-ready=false", "--json").output)
    assert document["evidence_class"] == "synthetic"
    assert document["base"]["offered_events"] == [8, 4]
    assert [(c["control"], c["value"]) for c in document["cases"]] == [("chunk_rows", 2), ("chunk_rows", 8), ("foreign_ready", False)]
    assert all([r["output"] for r in case["readings"]] == [o.name for o in OUTPUTS] for case in document["cases"])
    assert [r["output"] for r in document["cases"][2]["readings"] if r["moved"]] == ["eligible"]
    assert all(r["may_move"] for c in document["cases"] for r in c["readings"] if r["moved"])


def test_a_base_of_ones_own() -> None:
    arguments = ("--base", "prompt-rows=8192", "--base", "offered-events=3:3:3", "--vary", "chunk-rows=512", "--json")
    document = json.loads(run(*arguments).output)
    value = {r["output"]: r["value"] for r in document["cases"][0]["readings"]}
    assert (value["chunks"], value["history_rows"], value["largest_offered_share"]) == (16, 512 * 16 * 15 // 2, 0.333333333)


def test_cases_the_base_does_not_permit_are_named() -> None:
    assert "left out: prefix_hit=8: above 4" in run("--base", "prompt-rows=4").output
    assert [p["code"] for p in json.loads(run("--base", "prompt-rows=4", "--json").output)["left_out"]] == ["value_too_large"]


@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        (
            ("--base", "chunk-rows=x", "--base", "colour=1", "--base", "foreign-ready=1"),
            ["control_mistyped", "control_unknown", "control_mistyped"],
        ),
        (("--base", "chunk-rows=2", "--base", "chunk_rows=8"), ["control_twice"]),
        (("--vary", "chunk-rows"), ["option"]),
        (("--vary", "chunk-rows=4,0,2"), ["case_is_base", "value_too_small"]),
        (("--vary", "offered-events=8;4"), ["control_mistyped"]),
        (("--base", "chunk-rows=0", "--base", "prefix-hit=17"), ["value_too_small", "value_too_large"]),
        (("--base", f"chunk-rows={'9' * 5000}"), ["control_mistyped"]),
    ],
)
def test_what_is_refused_comes_as_instructions(arguments: tuple[str, ...], codes: list[str]) -> None:
    result = run(*arguments, "--json")
    assert result.exit_code == 2
    assert [p["code"] for p in json.loads(result.stdout)["error"]] == codes
    assert "Traceback" not in result.output


@given(st.sampled_from((*CONTROLS, "x")), st.text(max_size=8))
def test_no_text_of_a_value_ends_in_a_traceback(control: str, text: str) -> None:
    result = run("--base", f"{control}={text}", "--json")
    assert result.exit_code in (0, 2)
    assert isinstance(result.exception, SystemExit | None)
    json.loads(result.stdout)
