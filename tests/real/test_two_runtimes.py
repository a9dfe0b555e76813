"""Two real engines as arms of one manifest, cut short: same model, trace and prompts, every pin matched, every coordinate comparable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.model import CampaignAnalysis, Verdict
from harness.cli.sides import analyze_campaign
from harness.record.coordinates import CONSEQUENCES, Known
from harness.record.reader import RunRecord, latest_sealed, read_run

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared" / "traces"

pytestmark = [
    pytest.mark.real,
    pytest.mark.traces,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside the project"),
]

SOUND = (
    "pins_match", "flags_known", "partition_closes", "requests_wellformed", "tokens_agree", "counts_agree", "delivered_load",
    "server_survived", "seal_intact", "output_length", "prefix_realised", "cache_state",
)  # fmt: skip
"""Gates that no busy host can fail: for both engines they pass, or something is wrong with what we do."""

DECLARED = {"runtime.name", "runtime.version", "runtime.args"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed manifest with windows of seconds and two replicates, run on both engines."""
    text = (ROOT / "manifests" / "vllm-sglang-cpu.yaml").read_text(encoding="utf-8")
    for old, new in (
        ("warm-up: 10s, measured: 45s, drain: 5s", "warm-up: 3s, measured: 18s, drain: 4s"),
        ("count: 5, server-starts: 5", "count: 2, server-starts: 2"),
    ):
        assert old in text
        text = text.replace(old, new)
    home = tmp_path_factory.mktemp("two")
    (home / "short.yaml").write_text(text, encoding="utf-8")
    args = ("run", home / "short.yaml", "--results", home / "results", "--traces", TRACES)
    subprocess.run([sys.executable, "-m", "harness.cli", *map(str, args)], timeout=900, cwd=ROOT, check=True)
    return home / "results" / "short"


@pytest.fixture(scope="module")
def found(folder: Path) -> CampaignAnalysis:
    return analyze_campaign(folder)


@pytest.fixture(scope="module")
def records(folder: Path) -> dict[tuple[str, int], RunRecord]:
    return {(path.parent.parent.name.partition("@")[0], index): read_run(path) for (_, index), path in latest_sealed(folder).items()}


def verdicts(found: CampaignAnalysis) -> dict[str, set[Verdict]]:
    """Every gate's answers over all runs and cells."""
    checks = [c for cell in found.cells for c in (*cell.checks, *(k for run in cell.runs for k in run.checks))]
    return {code: {c.verdict for c in checks if c.code == code} for code in {c.code for c in checks}}


def test_two_engines_compare_and_only_what_was_measured_of_a_busy_host_refuses(found: CampaignAnalysis, folder: Path) -> None:
    (pair,) = found.comparisons
    assert pair.comparable, pair.differences
    answers = {d.coordinate: d.answer for d in pair.differences}
    assert {name for name, answer in answers.items() if answer == "differs_by_declaration"} == DECLARED
    assert {name for name, answer in answers.items() if answer == "differs_by_consequence"} == CONSEQUENCES
    gates = verdicts(found)
    assert {code: gates[code] for code in SOUND} == {code: {Verdict.PASS} for code in SOUND}
    assert [c.verdict for c in pair.checks] == [Verdict.PASS] * len(pair.checks)
    # A trend needs more requests than 18 s have, and a host may be too busy to certify; everything else must have been measured.
    certified = bool(found.provenance["certificates"])
    unknown = {code for code, given in gates.items() if Verdict.UNKNOWN in given}
    assert unknown <= {"steady_state", *(() if certified else ("client_headroom",))}, unknown
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", "rank", str(folder), "--json"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 1
    assert found.waivers == ()
    assert "replicates" in {r["code"] for r in json.loads(done.stdout)["reasons"]}  # two never rank


def test_every_pin_is_matched_by_what_each_engine_says(records: dict[tuple[str, int], RunRecord]) -> None:
    assert sorted(records) == [("sglang", 0), ("sglang", 1), ("vllm", 0), ("vllm", 1)]
    for record in records.values():
        pins = {p.pin: (p.result, p.source) for p in record.facts.pins}
        assert set(pins.values()) == {("matched", "observed")}
        assert {"model.id", "model.dtype", "model.quantization", "hardware.gpu", "parallelism.tensor"} <= pins.keys()
    files = {str(r.coordinates.coordinates[name]) for r in records.values() for name in ("model.digest", "tokenizer.digest")}
    assert len(files) == 2  # one model, one tokenizer


def test_both_engines_get_the_same_bytes_at_the_same_instants(records: dict[tuple[str, int], RunRecord]) -> None:
    for index in (0, 1):
        one, two = (records[arm, index].spec.workload for arm in ("vllm", "sglang"))
        assert one.digest == two.digest
        assert one.bodies_digest == two.bodies_digest
    assert records["vllm", 0].spec.workload.digest != records["vllm", 1].spec.workload.digest


def test_each_engine_is_brought_to_a_cold_cache_in_the_way_it_has(records: dict[tuple[str, int], RunRecord]) -> None:
    told = {
        arm: [o for (a, _), r in records.items() if a == arm for o in r.observations if o["kind"] == "cache_prepared"]
        for arm in ("vllm", "sglang")
    }
    assert [o["emptied"] for o in told["vllm"]] == ["start", "start"]
    assert [o["emptied"] for o in told["sglang"]] == ["flush", "flush"]
    assert {o["woken"] for several in told.values() for o in several} == {2}
    assert all(isinstance(r.coordinates.coordinates["runtime.kv_capacity_tokens"], Known) for r in records.values())
