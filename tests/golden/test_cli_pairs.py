"""What `compare` and `gate` print about cells with replicates, from a campaign that virtual time makes the same everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from harness.cli.app import main
from tests.golden.test_cli_answers import ROOT, hold

pytestmark = pytest.mark.e2e

SEQUENCES = {"one": 2, "again": 2, "wide": 16}
"""`one` and `again` are identical: they are the noise floor."""

PAIR, TURNED = "pairs/one@x1.5 pairs/wide@x1.5", "pairs/wide@x1.5 pairs/one@x1.5"
ANSWERS = {
    "pair-compare.txt": (0, f"compare {PAIR}"),
    "pair-compare.json": (0, f"compare {PAIR} --json"),
    "pair-post-hoc.txt": (0, f"compare {PAIR} --metric e2e_p50"),
    "pair-refused.txt": (1, "compare pairs/one@x1.5 other/wide@x1.5"),
    "pair-factor.txt": (0, "compare pairs/one@x1.5 other/wide@x1.5 --factor runtime.args --noise pairs"),
    "gate-pass.txt": (0, f"gate {PAIR}"),
    "gate-fail.txt": (1, f"gate {TURNED}"),
    "gate-inconclusive.txt": (4, f"gate {TURNED} --metric e2e_p95 --margin 0.9"),
    "gate-inconclusive.json": (4, f"gate {TURNED} --metric e2e_p95 --margin 0.9 --json"),
    "gate-refused.txt": (1, "gate pairs/one@x1.5 other/wide@x1.5"),
    "gate-post-hoc.txt": (1, f"gate {PAIR} --metric e2e_p50"),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for name, arms in (("pairs", SEQUENCES), ("other", {"wide": 16})):
        text: dict[str, Any] = yaml.safe_load((ROOT / "manifests" / "quickstart.yaml").read_text(encoding="utf-8"))
        args = {"max-num-batched-tokens": 512, "cost-base": "6ms"}
        text["arms"] = {arm: {"runtime": "reference", "args": {"max-num-seqs": n} | args} for arm, n in arms.items()}
        text |= {"window": {"warm-up": "1s", "measured": "8s", "drain": "1s"}, "rank": {"metric": "ttft_p50", "margin": "5%"}}
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(text), encoding="utf-8")
        done = CliRunner().invoke(main, ["simulate", str(path), "--results", str(folder), "--traces", str(ROOT / "manifests" / "traces")])
        assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(autouse=True)
def there(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(results)


def invoke(line: str) -> Result:
    return CliRunner().invoke(main, line.split(), prog_name="trigpoint")


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name: str) -> None:
    code, line = ANSWERS[name]
    result = invoke(line)
    assert (result.stderr, result.exit_code) == ("", code), result.output
    hold(name, result.stdout)


def test_a_pipeline_reads_the_decision_its_error_rates_and_every_reason() -> None:
    found = json.loads(invoke(f"gate {TURNED} --json").stdout)
    assert found["decision"] == "FAIL"
    assert found["error_rates"] == {"applies": False, "published": None}  # these pairs differ by far more than those that were simulated
    refused = json.loads(invoke("gate pairs/one@x1.5 other/wide@x1.5 --json").stdout)
    assert (refused["decision"], refused["effect"]) == ("REFUSED", None)
    assert {r["code"] for r in refused["reasons"]} == {"coordinate_different"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"compare {PAIR} --factor runtime.vers", "factor=runtime.vers"),
        (f"compare {PAIR} --metric speed", "metric=speed"),
        ("gate pairs pairs/wide@x1.5", "a side of a comparison is one cell"),
        ("compare nowhere pairs/wide@x1.5", "nowhere"),
        (f"gate {PAIR} --margin 2", "--margin"),
        (f"compare {PAIR} --noise {Path('missing')}", "missing"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error_with_a_way_out(line: str, words: str) -> None:
    result = invoke(line)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr
