"""Every published value of every trace kept beside the project, through the command a user would type."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli.app import main

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
FACTS: dict[str, Any] = json.loads((TRACES / "facts.json").read_text())["facts"] if TRACES.is_dir() else {}

CONVERTED = ["--format", "jsonl", "--option", "columns={arrival: arrival_ms, input-tokens: input_length, output-tokens: output_length,"]
OPTIONS: dict[str, list[str]] = {}
"""What a file needs to be told that its content does not say."""

SENTENCES = {"timestamp_unit", "columns"}
"""Keys that hold a sentence about a file instead of a value read from it, where that is so."""

LOOSE = 6e-5
"""Facts are rounded to four or six places."""

pytestmark = [pytest.mark.traces, pytest.mark.skipif(not FACTS, reason="the public traces are not beside the project")]


def inspect(name: str) -> dict[str, Any]:
    file = TRACES / FACTS[name]["file"]
    done = CliRunner().invoke(main, ["traces", "inspect", str(file), "--json", *OPTIONS.get(name, [])])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def differences(want: dict[str, Any], got: dict[str, Any], place: str = "") -> Iterator[str]:
    for key, value in want.items():
        here = got.get(key, "missing")
        if isinstance(value, dict) and isinstance(here, dict):
            yield from differences(value, here, f"{place}{key}.")
        elif not same(key, value, here):
            yield f"{place}{key}: {value!r} published, {here!r} printed"


def same(key: str, want: Any, got: Any) -> bool:
    if key == "file":
        return Path(str(want)).name == got
    if key in SENTENCES and isinstance(want, str) and " " in want:
        return True
    if key == "keys":  # published in the file's order for some files, sorted for others
        return sorted(want) == sorted(got)
    if isinstance(want, list) and isinstance(got, list):
        return len(want) == len(got) and all(same("", a, b) for a, b in zip(want, got, strict=True))
    if isinstance(want, int | float) and not isinstance(want, bool) and isinstance(got, int | float):
        return math.isclose(want, got, rel_tol=LOOSE, abs_tol=LOOSE)
    if isinstance(want, dict) and isinstance(got, dict):
        return want.keys() <= got.keys() and all(same(k, v, got[k]) for k, v in want.items())
    return bool(want == got)


@pytest.mark.parametrize("name", FACTS)
def test_every_published_value_is_printed(name: str) -> None:
    assert not list(differences(FACTS[name], inspect(name)))


def test_the_comparison_can_fail() -> None:
    assert list(differences({"rows": 8819, "arrivals": {"span_s": 1.0}}, {"rows": 8819, "arrivals": {"span_s": 1.001}}))
    assert list(differences({"rows": 1}, {}))
