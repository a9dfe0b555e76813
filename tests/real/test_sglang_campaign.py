"""A public trace against real SGLang whose server dies of a token id that somebody else sends it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from analysis.model import Outcome, Verdict
from harness.cli.sides import analyze_campaign
from harness.record.reader import find_attempts
from harness.runtimes.asking import ask

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared" / "traces"

pytestmark = [
    pytest.mark.real,
    pytest.mark.traces,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside the project"),
]

MANIFEST = """
trigpoint: 1
question: What does the record say of a server that died of one request?
pins: {model: {id: tiny, dtype: bfloat16}, hardware: {gpu: none, count: 0}}
arms:
  a: {runtime: sglang, version: 0.5.23, args: {max-running-requests: 16, context-length: 2048}}
workload:
  trace:
    format: azure-2023
    name: AzureLLMInferenceTrace_conv
    sha256: 2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8
    window: [600s, 650s]
  transforms:
    - transform: scale-lengths
      input-factor: 0.06
      output-factor: 0.1
      input-minimum: 4
      input-maximum: 128
      output-minimum: 2
      output-maximum: 24
  prompts: {source: random-ids}
  output-length: {control: client_stop, max-tokens: 32}
  cache: cold
slo: {ttft: 500ms, tbt: {limit: 150ms, rule: every}}
window: {warm-up: 3s, measured: 12s, drain: 4s}
client: {cpus: [0], server-cpus: [1]}
load: {time-compression: [1.0]}
replicates: {count: 1, server-starts: 1, vary: window, seed: 20261130}
rank: {metric: e2e_p50, margin: 5%}
"""


def poison(child: psutil.Process, vocabulary: int) -> None:
    """Send the campaign's server one id beyond its vocabulary, from outside."""
    command = next(c for p in child.children(recursive=True) if "sglang.launch_server" in (c := p.cmdline()))
    url = f"http://127.0.0.1:{command[command.index('--port') + 1]}"
    ask(url, "/generate", timeout_s=10, post={"input_ids": [vocabulary], "sampling_params": {"max_new_tokens": 1}})


def test_a_death_is_the_server_s_and_its_record_is_sealed_with_every_outcome(tmp_path: Path) -> None:
    manifest, results = tmp_path / "poisoned.yaml", tmp_path / "results"
    manifest.write_text(MANIFEST, encoding="utf-8")
    argv = [sys.executable, "-m", "harness.cli", "run", str(manifest), "--results", str(results), "--traces", str(TRACES), "--json"]
    child = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        for _ in range(4000):
            if any(any(p.glob("segments/requests-*")) for p in find_attempts(results / "poisoned")):
                break
            assert child.poll() is None, "the campaign ended before its server could be killed"
            time.sleep(0.1)
        time.sleep(7.0)  # into the measured window: 3 s of warm-up and the wait for the epoch lie before it
        poison(psutil.Process(child.pid), 4096)
        assert child.wait(120) == 0
    finally:
        child.kill()
        child.wait()
    (hit,) = analyze_campaign(results / "poisoned").cells[0].runs
    verdicts = {check.code: check.verdict for check in hit.checks}
    assert verdicts["server_survived"] is Verdict.FAIL
    assert hit.outcomes.closes()
    assert hit.outcomes.counts[Outcome.FAILED] > 0
    assert hit.outcomes.counts[Outcome.VALID] + hit.outcomes.counts[Outcome.MISS] > 0
    # Nothing that we sent is to blame, and the record can be trusted: only its server cannot.
    assert {verdicts[code] for code in ("requests_wellformed", "partition_closes", "delivered_load", "seal_intact")} == {Verdict.PASS}
