"""A minute of the Mooncake conversations against real vLLM on this machine's CPU: what its prefix cache realised of what was possible."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.model import Verdict
from harness.cli.sides import analyze_campaign

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared" / "traces"
BLOCK = 32

pytestmark = [
    pytest.mark.real,
    pytest.mark.traces,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside the project"),
]


def one_run(folder: Path) -> Path:
    """The committed manifest with the caching arm alone, once."""
    text = (ROOT / "manifests" / "vllm-cpu-mooncake.yaml").read_text(encoding="utf-8")
    text, arms = re.subn(r"  no-caching: .*\n", "", text)
    text, counts = re.subn(r"count: \d+, server-starts: \d+", "count: 1, server-starts: 1", text)
    assert (arms, counts) == (1, 1)
    path = folder / "mooncake.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_reuse_is_planned_realised_and_no_more_than_possible(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.cli", "run", one_run(tmp_path), "--results", tmp_path / "results", "--traces", TRACES]
    subprocess.run([*map(str, command)], timeout=600, cwd=ROOT, check=True)
    (cell,) = analyze_campaign(tmp_path / "results" / "mooncake").cells
    (only,) = cell.runs
    checks = {c.code: c for c in only.checks}
    for code in ("partition_closes", "requests_wellformed", "tokens_agree", "delivered_load", "output_length", "prefix_realised"):
        assert checks[code].verdict is Verdict.PASS, f"{code}: {checks[code].reason}"
    measured = checks["prefix_realised"].measured
    realised, possible = measured["cached"]["value"], measured["possible"]["value"]
    assert realised % BLOCK == 0
    # A prompt that starts while the one before it is still being computed cannot hit yet, and a cache of finite size forgets.
    assert possible / 2 <= realised <= possible
