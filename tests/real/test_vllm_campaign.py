"""A public trace against real vLLM on this machine's CPU, cut short: the whole way, and the server killed in the middle of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from analysis.model import CampaignAnalysis, Verdict
from harness.cli.sides import analyze_campaign
from harness.record.reader import find_attempts, latest_sealed

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared" / "traces"

pytestmark = [
    pytest.mark.real,
    pytest.mark.traces,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside the project"),
]

INTEGRITY = {
    "pins_match", "flags_known", "partition_closes", "requests_wellformed", "tokens_agree", "counts_agree", "delivered_load",
    "server_survived", "seal_intact", "output_length", "prefix_realised", "cache_state",
}  # fmt: skip


def manifest(folder: Path, name: str, replicates: int) -> Path:
    """The committed manifest with windows of seconds and fewer replicates."""
    text = (ROOT / "manifests" / "vllm-cpu-azure-conv.yaml").read_text(encoding="utf-8")
    for old, new in (
        ("warm-up: 10s, measured: 30s, drain: 10s", "warm-up: 4s, measured: 16s, drain: 4s"),
        ("count: 5, server-starts: 5", f"count: {replicates}, server-starts: {replicates}"),
    ):
        assert old in text
        text = text.replace(old, new)
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "harness.cli", *map(str, args)]


def rank(folder: Path) -> Any:
    done = subprocess.run(command("rank", folder, "--json"), capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout)


def verdicts(found: CampaignAnalysis) -> dict[str, set[Verdict]]:
    """Every gate's answers over all runs and cells."""
    checks = [c for cell in found.cells for c in (*cell.checks, *(k for run in cell.runs for k in run.checks))]
    return {code: {c.verdict for c in checks if c.code == code} for code in {c.code for c in checks}}


def test_two_arms_are_served_audited_and_compared_and_only_measured_failures_refuse(tmp_path: Path) -> None:
    path = manifest(tmp_path, "short", replicates=2)
    subprocess.run(command("run", path, "--results", tmp_path / "results", "--traces", TRACES), timeout=900, cwd=ROOT, check=True)
    folder = tmp_path / "results" / "short"
    found = analyze_campaign(folder)
    assert [len(c.runs) for c in found.cells] == [2, 2]
    assert all(c.comparable for c in found.comparisons), found.comparisons
    answers = verdicts(found)
    assert {code: answers[code] for code in INTEGRITY} == {code: {Verdict.PASS} for code in INTEGRITY}
    # Two replicates never rank; whatever else refuses must have been measured, not missing.
    assert "replicates" in {r["code"] for r in rank(folder)["reasons"]}
    unknown = {code for code, given in answers.items() if Verdict.UNKNOWN in given}
    # 16 s are short for a trend test, and a host may have been too busy to certify: both are said instead of passed.
    certified = bool(found.provenance["certificates"])
    assert unknown <= {"steady_state", *(() if certified else ("client_headroom",))}, unknown


def test_vllm_killed_in_the_middle_leaves_a_sealed_record_with_every_outcome_and_no_ranking(tmp_path: Path) -> None:
    path = manifest(tmp_path, "killed", replicates=1)
    results = tmp_path / "results"
    child = subprocess.Popen(command("run", path, "--results", results, "--traces", TRACES, "--json"), cwd=ROOT, stdout=subprocess.DEVNULL)
    folder = results / "killed"
    try:
        for _ in range(3000):
            if any(any(p.glob("segments/requests-*")) and not (p / "SEAL").exists() for p in find_attempts(folder)):
                break
            assert child.poll() is None, "the campaign ended before its server could be killed"
            time.sleep(0.1)
        time.sleep(8.0)  # into the measured window: 4 s of warm-up and the wait for the epoch lie before it
        engines = [p for p in psutil.Process(child.pid).children(recursive=True) if "vllm" in " ".join(p.cmdline())]
        assert engines
        for process in engines:
            process.kill()
        assert child.wait(600) == 0
    finally:
        child.kill()
        child.wait()
    assert len(latest_sealed(folder)) == 2
    found = analyze_campaign(folder)
    hit = [r for c in found.cells for r in c.runs if {k.code: k.verdict for k in r.checks}["server_survived"] is Verdict.FAIL]
    assert len(hit) == 1
    assert hit[0].outcomes.closes()
    assert {k.code: k.verdict for k in hit[0].checks}["seal_intact"] is Verdict.PASS
    assert "server_survived" in {r["code"] for r in rank(folder)["reasons"]}
