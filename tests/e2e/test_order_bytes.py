"""No output byte hangs on the order of arms, of files on disk, of a hash table, or on what an arm is called."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from harness.cli.app import main

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
NARROW = {"runtime": "reference", "args": {"max-num-seqs": 2, "max-num-batched-tokens": 512, "cost-base": "6ms"}}
WIDE = {"runtime": "reference", "args": {"max-num-seqs": 16, "max-num-batched-tokens": 512, "cost-base": "6ms"}}
SEAL = re.compile(r"[0-9a-f]{64}")


def simulate(folder: Path, arms: dict[str, Any]) -> Path:
    """Five replicates a cell at two loads, in virtual time."""
    text = yaml.safe_load((ROOT / "manifests" / "quickstart.yaml").read_text(encoding="utf-8"))
    text |= {"arms": arms, "window": {"warm-up": "1s", "measured": "8s", "drain": "1s"}, "load": {"time-compression": [1.5, 1.0]}}
    text["rank"] |= {"metric": "ttft_p50", "against": "token_throughput", "at": 1.5}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "order.yaml"
    path.write_text(yaml.safe_dump(text, sort_keys=False), encoding="utf-8")
    found = CliRunner().invoke(
        main, ["simulate", str(path), "--results", str(folder), "--traces", str(ROOT / "manifests" / "traces"), "--json"]
    )
    assert found.exit_code == 0, found.output
    return folder / "order"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("order"), {"narrow": NARROW, "wide": WIDE})


SCRIPT = """
import json, sys
from pathlib import Path
from click.testing import CliRunner
from harness.cli.app import main

found = {}
for key, words in json.loads(sys.argv[1]).items():
    done = CliRunner().invoke(main, words)
    assert done.stderr == "" and not isinstance(done.exception, Exception), (key, done.stderr, done.exception)
    found[key] = done.stdout
print(json.dumps(found | {p.name: p.read_text(encoding="utf-8") for p in Path("written").iterdir()}))
"""


def outputs(folder: Path, seed: str = "0") -> dict[str, str]:
    """Everything that is printed or written about a campaign, by a process of its own."""
    here, name = folder.parent, folder.name
    shutil.rmtree(here / "written", ignore_errors=True)
    pair = (f"{name}/narrow@x1.5", f"{name}/wide@x1.5")
    commands = {
        "analyze": ("analyze", name),
        "rank.json": ("rank", name, "--json"),
        "compare": ("compare", *pair),
        "compare.json": ("compare", *pair, "--json"),
        "refused.json": ("compare", pair[0], f"{name}/wide@x1", "--json"),
        "gate": ("gate", *pair),
        "gate.json": ("gate", *reversed(pair), "--json"),
        "report": ("report", name, "--out", "written"),  # analysis.json is what `analyze --json` prints, on one line
    }
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, json.dumps(commands)]
    done = subprocess.run(command, env=environment, cwd=here, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def first(campaign: Path) -> dict[str, str]:
    return outputs(campaign)


def test_there_is_something_to_hold(first: dict[str, str]) -> None:
    assert json.loads(first["rank.json"])["refused"] is False
    assert json.loads(first["compare.json"])["effect"]["verdict"] == "better"
    assert json.loads(first["refused.json"])["comparable"] is False
    assert {p["standing"] for p in json.loads(first["analysis.json"])["front"]["points"]} >= {"front"}


@pytest.mark.parametrize("seed", ["1", "4242"])
def test_no_byte_hangs_on_the_hash_seed(campaign: Path, first: dict[str, str], seed: str) -> None:
    again = outputs(campaign, seed)
    assert [name for name in first if first[name] != again[name]] == []


def test_no_byte_hangs_on_the_order_of_files_on_disk(campaign: Path, first: dict[str, str], tmp_path: Path) -> None:
    copy = tmp_path / campaign.name
    for path in sorted(campaign.rglob("*"), reverse=True):  # children before parents, the last name first
        if path.is_file():
            (copy / path.relative_to(campaign)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy / path.relative_to(campaign))
    again = outputs(copy)
    assert [name for name in first if first[name] != again[name]] == []


def test_no_byte_hangs_on_the_order_of_arms_in_the_manifest(campaign: Path, first: dict[str, str], tmp_path: Path) -> None:
    """But for the seals: a record keeps the manifest as it was typed."""
    again = outputs(simulate(tmp_path, {"wide": WIDE, "narrow": NARROW}))
    digest = json.loads(first["analysis.json"])["digest"]
    assert json.loads(again["analysis.json"])["digest"] == digest

    def unsealed(found: dict[str, str]) -> dict[str, str]:
        return {name: SEAL.sub("SEAL", text) for name, text in found.items()}

    one, two = unsealed(first), unsealed(again)
    assert [name for name in one if one[name] != two[name]] == []


def test_a_name_that_sorts_elsewhere_changes_the_order_of_a_pair_and_nothing_it_says(first: dict[str, str], tmp_path: Path) -> None:
    """`narrow` becomes `zero`, so that the pair is turned round: ratios are inverted, verdicts mirrored, figures and ranks the same."""
    other = simulate(tmp_path, {"zero": NARROW, "wide": WIDE})
    found = CliRunner().invoke(main, ["rank", str(other), "--json"])
    one, two = json.loads(first["rank.json"]), json.loads(found.stdout)

    def standings(answer: Any) -> list[tuple[Any, ...]]:
        return [(r["rank"], r["arm"].replace("zero", "narrow"), r["value"], r["low"], r["high"]) for r in answer["ranking"]]

    assert standings(one) == standings(two)
    (mine,), (turned,) = one["effects"], two["effects"]
    assert (turned["a"], turned["b"]) == (mine["b"], mine["a"].replace("narrow", "zero"))
    assert {mine["verdict"], turned["verdict"]} == {"better", "worse"}
    ends = [mine["low"], mine["estimate"], mine["high"]]
    assert [turned["high"], turned["estimate"], turned["low"]] == pytest.approx([1 / x for x in ends])
