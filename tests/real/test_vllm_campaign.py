"""A public trace against real vLLM on this machine's CPU, cut short: the server is killed in the middle of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from analysis.model import Outcome, Verdict
from harness.cli.sides import analyze_campaign
from harness.record.reader import find_attempts

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared" / "traces"

pytestmark = [
    pytest.mark.real,
    pytest.mark.traces,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside the project"),
]


def one_run(folder: Path) -> Path:
    """The committed manifest with one arm, once, and windows of seconds."""
    text = (ROOT / "manifests" / "vllm-cpu-azure-conv.yaml").read_text(encoding="utf-8")
    for old, new in (
        (r"  seqs-64: .*\n", ""),
        ("warm-up: 10s, measured: 30s, drain: 10s", "warm-up: 3s, measured: 12s, drain: 3s"),
        ("count: 5, server-starts: 5", "count: 1, server-starts: 1"),
    ):
        text, found = re.subn(old, new, text)
        assert found == 1
    path = folder / "killed.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "harness.cli", *map(str, args)]


def rank(folder: Path) -> Any:
    done = subprocess.run(command("rank", folder, "--json"), capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout)


def test_vllm_killed_in_the_middle_leaves_a_sealed_record_with_every_outcome_and_no_ranking(tmp_path: Path) -> None:
    results = tmp_path / "results"
    child = subprocess.Popen(
        command("run", one_run(tmp_path), "--results", results, "--traces", TRACES, "--json"), cwd=ROOT, stdout=subprocess.DEVNULL
    )
    folder = results / "killed"
    try:
        for _ in range(3000):
            if any(any(p.glob("segments/requests-*")) and not (p / "SEAL").exists() for p in find_attempts(folder)):
                break
            assert child.poll() is None, "the campaign ended before its server could be killed"
            time.sleep(0.1)
        time.sleep(7.0)  # into the measured window: 3 s of warm-up and the wait for the epoch lie before it
        engines = [p for p in psutil.Process(child.pid).children(recursive=True) if "vllm" in " ".join(p.cmdline())]
        assert engines
        for process in engines:
            process.kill()
        assert child.wait(600) == 0
    finally:
        child.kill()
        child.wait()
    (cell,) = analyze_campaign(folder).cells
    (hit,) = cell.runs
    checks = {k.code: k.verdict for k in hit.checks}
    assert (checks["server_survived"], checks["seal_intact"], checks["requests_wellformed"]) == (Verdict.FAIL, Verdict.PASS, Verdict.PASS)
    assert hit.outcomes.closes()
    assert hit.outcomes.counts[Outcome.FAILED] > 0
    assert "server_survived" in {r["code"] for r in rank(folder)["reasons"]}
