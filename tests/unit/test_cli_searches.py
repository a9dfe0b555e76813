"""What validate and plan say of the shipped searches for capacity, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli.app import main

MANIFESTS = Path(__file__).parents[2] / "manifests"


def answer(*words: str) -> str:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def planned() -> Any:
    return json.loads(answer("plan", str(MANIFESTS / "capacity-virtual.yaml"), "--json"))


def test_a_plan_states_the_most_that_a_search_can_come_to(planned: Any) -> None:
    search = planned["search"]
    assert planned["runs"] == []
    assert search["most_runs"] == 2 * (search["locating"]["most_runs"] + search["grid"]["most_loads"] * search["grid"]["replicates"])
    assert planned["load_s"] == search["most_load_s"] == search["most_runs"] * 75.0
    assert search["most_starts"] == search["most_runs"]
    assert search["locating"]["discarded"]
    assert search["draws"] == {"grid": 5, "locating": 15, "window_s": None}


def test_a_plan_for_people_says_the_same(planned: Any) -> None:
    text = answer("plan", str(MANIFESTS / "capacity-virtual.yaml"))
    assert f"at most {planned['search']['most_runs']} runs, {planned['load_s']:g} s of load" in text
    assert "locate: from 1 req/s, doubled up to 64 req/s and bisected to 5%; at most 15 runs an arm, all of them discarded" in text
    assert "5 for the grid, 15 for locating, none used by both" in text


@pytest.mark.parametrize("name", ["capacity-virtual", "vllm-cpu-capacity"])
def test_the_shipped_searches_are_valid(name: str) -> None:
    path = str(MANIFESTS / f"{name}.yaml")
    told = json.loads(answer("validate", path, "--json"))
    assert f"at most {told['search']['most_runs']} runs" in answer("validate", path)


def test_the_search_on_vllm_shares_servers_and_fits_twenty_minutes() -> None:
    """Seven runs to locate and a grid without another load, at 25 s a run and 40 s a start (both seen on two cores)."""
    search = json.loads(answer("validate", str(MANIFESTS / "vllm-cpu-capacity.yaml"), "--json"))["search"]
    grid = search["grid"]["loads"] * search["grid"]["replicates"]
    assert search["servers"] == "replicate"
    assert (7 + grid) * 25 + (1 + search["grid"]["replicates"]) * 40 <= 20 * 60
