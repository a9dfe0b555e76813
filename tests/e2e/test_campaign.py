"""The whole way with real processes: a manifest starts servers, load is replayed, records are sealed, analysis decides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.cli.sides import analyze_campaign
from harness.record.reader import find_attempts, latest_sealed, read_run

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "manifests" / "traces"
SHA = "f5d8872be44645be3954c3ba753d24e6ae3d09d4db19b7ac99b8f6b21318ae6c"

pytestmark = pytest.mark.e2e


def manifest(folder: Path, name: str = "demo", **replace: str) -> Path:
    """Write a small campaign: two arms, two replicates of 5 s; ``replace`` swaps whole values."""
    text = f"""
trigpoint: 1
question: Does the sequence budget matter here?
pins:
  model: {{id: tiny, dtype: DTYPE}}
arms:
  few: {{runtime: reference, args: {{max-num-seqs: 2, cost-base: 5ms}}}}
  many: {{runtime: reference, args: {{max-num-seqs: 16, cost-base: 5ms}}}}
workload:
  trace: {{format: azure-2023, name: quickstart.csv, sha256: {SHA}, window: WINDOW}}
  output-length: CONTROL
  cache: cold
slo: {{ttft: 500ms, tbt: 100ms}}
window: {{warm-up: 1s, measured: 3s, drain: 1s}}
load: {{time-compression: [1.0]}}
replicates: {{count: 2, server-starts: 2, order: interleaved, vary: window, seed: 7}}
rank: {{metric: goodput, margin: 2%, percentile-rule: RULE}}
"""
    values = {"DTYPE": "float32", "WINDOW": "[0s, 20s]", "CONTROL": "forced", "RULE": "nearest_rank"} | replace
    for key, value in values.items():
        text = text.replace(key, value)
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "harness.cli", *map(str, args)]


def trigpoint(*args: str | Path, expect: int = 0) -> Any:
    """Run a command with --json and return its document."""
    done = subprocess.run(command(*args, "--json"), capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def run(path: Path, results: Path, *, expect: int = 0) -> Any:
    return trigpoint("run", path, "--results", results, "--traces", TRACES, expect=expect)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign run to its end once for all tests that only read it."""
    folder = tmp_path_factory.mktemp("finished")
    run(manifest(folder), folder / "results")
    return folder / "results" / "demo"


def test_every_planned_replicate_is_sealed_and_every_request_has_one_outcome(finished: Path) -> None:
    assert len(latest_sealed(finished)) == 4
    found = analyze_campaign(finished)
    for cell in found.cells:
        for one in cell.runs:
            assert one.outcomes.closes()
            codes = {c.code: c for c in one.checks}
            for code in (
                "partition_closes",
                "seal_intact",
                "server_survived",
                "delivered_load",
                "tokens_agree",
                "counts_agree",
                "pins_match",
            ):
                assert codes[code].verdict == "PASS", f"{code}: {codes[code].reason}"


def test_no_prompt_and_no_hidden_length_reaches_a_record_beside_truth(finished: Path) -> None:
    record = read_run(next(iter(latest_sealed(finished).values())))
    assert not {"prompt", "body"} & {n for t in (record.schedule, record.whole_requests()) for n in t.column_names}
    assert "output_tokens" not in record.schedule.column_names


def test_a_declared_arm_is_compared_and_a_run_again_keeps_everything(finished: Path) -> None:
    found = trigpoint("compare", finished / "few@x1", finished / "many@x1")
    assert found["comparable"] is True
    assert {d["coordinate"] for d in found["allowed"]} >= {"runtime.args"}
    again = run(finished.parent.parent / "demo.yaml", finished.parent)
    assert again["kept"] == 4
    assert len(find_attempts(finished)) == 4


def test_ranking_two_replicates_is_refused_with_every_reason(finished: Path) -> None:
    found = trigpoint("rank", finished, expect=1)
    assert found["refused"] is True
    codes = {r["code"] for r in found["reasons"]}
    assert "replicates" in codes
    assert all(r["remedy"] for r in found["reasons"])


def test_reports_are_byte_identical_when_made_again(finished: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        trigpoint("report", finished, "--out", tmp_path / folder)
    for name in ("report.html", "report.md", "analysis.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_dtype_trace_window_and_percentile_rule_are_refused_together(finished: Path, tmp_path: Path) -> None:
    other = manifest(tmp_path, "other", DTYPE="float16", WINDOW="[40s, 60s]", RULE="linear")
    run(other, tmp_path / "results")
    found = trigpoint("compare", finished / "few@x1", tmp_path / "results" / "other" / "few@x1", expect=1)
    assert found["comparable"] is False
    named = {d["coordinate"] for d in found["differences"]}
    assert {"model.dtype", "workload.window", "result.percentile_rule"} <= named
    assert all(d["remedy"] for d in found["differences"])


def test_killing_the_harness_keeps_finished_replicates_and_the_cut_one_runs_again(tmp_path: Path) -> None:
    path, results = manifest(tmp_path), tmp_path / "results"
    child = subprocess.Popen(command("run", path, "--results", results, "--traces", TRACES, "--json"), cwd=ROOT, stdout=subprocess.DEVNULL)
    campaign = results / "demo"
    wait_for(lambda: campaign.exists() and len(latest_sealed(campaign)) == 1 and len(find_attempts(campaign)) == 2, child)
    wait_for(lambda: any(p.glob("segments/requests-*")) if (p := find_cut(campaign)) else False, child)
    children = psutil.Process(child.pid).children(recursive=True)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(30)
    kept = next(iter(latest_sealed(campaign).values()))
    seal = (kept / "SEAL").read_bytes()
    assert read_run(kept).seal.intact is True
    assert trigpoint("status", campaign)["counts"] == {"sealed": 1, "cut": 1, "outstanding": 2}
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive, f"still running after the harness was killed: {alive}"
    again = run(path, results)
    assert again["kept"] == 1
    assert again["sealed"] == 4
    assert (kept / "SEAL").read_bytes() == seal
    assert len(find_attempts(campaign)) == 5


def test_killing_the_server_seals_a_readable_record_with_every_outcome_and_no_ranking(tmp_path: Path) -> None:
    path, results = manifest(tmp_path), tmp_path / "results"
    child = subprocess.Popen(command("run", path, "--results", results, "--traces", TRACES, "--json"), cwd=ROOT, stdout=subprocess.DEVNULL)
    campaign = results / "demo"
    wait_for(lambda: (p := find_cut(campaign)) is not None and any(p.glob("segments/requests-*")), child)
    time.sleep(1.0)  # into the measured window; the outcome of the test does not depend on where
    kill_server(child.pid)
    assert child.wait(240) == 0
    found = analyze_campaign(campaign)
    hit = [r for c in found.cells for r in c.runs if any(k.code == "server_survived" and k.verdict == "FAIL" for k in r.checks)]
    assert len(hit) == 1
    assert hit[0].outcomes.closes()
    assert next(c for c in hit[0].checks if c.code == "seal_intact").verdict == "PASS"
    refused = trigpoint("rank", campaign, expect=1)
    assert "server_survived" in {r["code"] for r in refused["reasons"]}


@pytest.mark.parametrize(
    ("control", "prompts"),
    [
        ("natural", "prompts: {source: random-ids}"),
        ("{control: capped, max-tokens: 8}", "prompts: {source: text}\n  api: chat"),
        ("{control: client_stop, max-tokens: 64}", "prompts: {source: text}"),
    ],
)
def test_every_length_control_and_prompt_source_agrees_with_what_the_server_counts(tmp_path: Path, control: str, prompts: str) -> None:
    path = manifest(tmp_path, CONTROL=f"{control}\n  {prompts}")
    # One arm and one replicate are enough to see what the server counted.
    text = path.read_text(encoding="utf-8").replace("count: 2, server-starts: 2", "count: 1, server-starts: 1")
    path.write_text("".join(line for line in text.splitlines(keepends=True) if "  many:" not in line), encoding="utf-8")
    run(path, tmp_path / "results")
    found = analyze_campaign(tmp_path / "results" / "demo")
    (only,) = found.cells[0].runs
    codes = {c.code: c for c in only.checks}
    for code in ("partition_closes", "requests_wellformed", "tokens_agree", "counts_agree", "output_length", "delivered_load"):
        assert codes[code].verdict == "PASS", f"{code}: {codes[code].reason}"
    record = read_run(next(iter(latest_sealed(tmp_path / "results" / "demo").values())))
    told = set(record.schedule.column("max_tokens").to_pylist())
    assert told == {"natural": {None}, "{control: capped, max-tokens: 8}": {8}}.get(control, {64})
    assert record.requests.column("usage_prompt_tokens").to_pylist() == record.schedule.column("input_tokens").to_pylist()


def find_cut(campaign: Path) -> Path | None:
    """The attempt that is being written."""
    return next((p for p in find_attempts(campaign) if not (p / "SEAL").exists()), None)


def kill_server(parent: int) -> None:
    servers = [p for p in psutil.Process(parent).children(recursive=True) if "harness.reference.server" in " ".join(p.cmdline())]
    assert servers
    for server in servers:
        server.kill()


def wait_for(condition: Any, child: subprocess.Popen[bytes]) -> None:
    """Poll until ``condition`` holds; fails when the child ends first or after two minutes."""
    for _ in range(1200):
        if condition():
            return
        assert child.poll() is None, "the command ended before the moment the test waits for"
        time.sleep(0.1)
    raise AssertionError("the moment the test waits for never came")
