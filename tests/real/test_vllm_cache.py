"""Cache policies on real vLLM: a cache warmed with the prompts to come, and one that lives on from replicate to replicate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from analysis.model import Verdict
from harness.cli.sides import analyze_campaign
from harness.record.reader import RunRecord, latest_sealed, read_run

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
BLOCK = 32
MANIFEST = """
trigpoint: 1
question: What does a prefix cache hold when a replicate begins?
pins:
  model: {id: tiny, dtype: bfloat16}
  hardware: {gpu: none, count: 0}
arms:
  caching:
    runtime: vllm
    version: 0.32.0
    args: {max-num-seqs: 8, max-model-len: 1024, block-size: 32, enforce-eager: true, enable-prefix-caching: true}
workload:
  lengths: {input: {kind: constant, value: 200}, output: {kind: constant, value: 4}}
  arrivals: {process: constant}
  prompts: {source: random-ids}
  output-length: forced
  cache: POLICY
window: {warm-up: 1s, measured: 5s, drain: 2s}
client: {cpus: [0], server-cpus: [1]}
load: {rate: [4/s]}
replicates: {count: COUNT, server-starts: 1, vary: none, seed: 20261130}
"""


def runs_under(folder: Path, policy: str, count: int) -> list[RunRecord]:
    """Replicates of one server start under a policy, in order; ``cache_state`` must hold for them."""
    path = folder / f"{policy}.yaml"
    path.write_text(MANIFEST.replace("POLICY", policy).replace("COUNT", str(count)), encoding="utf-8")
    command = ("run", path, "--results", folder / "results")
    subprocess.run([sys.executable, "-m", "harness.cli", *map(str, command)], timeout=600, cwd=ROOT, check=True)
    results = folder / "results" / policy
    (cell,) = analyze_campaign(results).cells
    (check,) = [check for check in cell.checks if check.code == "cache_state"]
    assert check.verdict is Verdict.PASS, check.reason
    return [read_run(path) for _, path in sorted(latest_sealed(results).items())]


def hits(record: RunRecord) -> float:
    """Tokens that the server's cache served while the run lasted."""
    rows = [row["value"] for row in record.server_metrics.to_pylist() if row["metric"] == "cached_tokens_total" and row["labels"] is None]
    return float(rows[-1] - rows[0])


def whole_blocks(record: RunRecord) -> int:
    """Tokens of the prompts sent that whole blocks hold; the last token of a prompt is always computed."""
    sent = sum(send is not None for send in record.requests["send_ns"].to_pylist())
    return sent * (199 // BLOCK * BLOCK)


def test_a_warmed_cache_holds_every_prompt_when_the_load_begins(tmp_path: Path) -> None:
    (only,) = runs_under(tmp_path, "warm", 1)
    (told,) = [o for o in only.observations if o["kind"] == "cache_prepared"]
    assert told["policy"] == "warm"
    assert hits(only) == whole_blocks(only) > 0


def test_a_cache_that_is_left_alone_serves_the_next_replicate(tmp_path: Path) -> None:
    first, second = runs_under(tmp_path, "as_trace", 2)
    assert hits(first) == 0
    assert hits(second) == whole_blocks(second) > 0
