"""A run on real processes, seen from all sides: the host, the server's own page, the client, in one record and one report."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.report import render_markdown
from harness.cli.sides import analyze_campaign
from tests.e2e.test_workload_campaigns import QUICKSTART, manifest, run, the_record

pytestmark = pytest.mark.e2e

PREEMPTING = "{max-num-seqs: 16, cost-base: 4ms, max-model-len: 256, kv-cache-tokens: 256}"
"""Room for one longest request: several at once outgrow it, and the youngest gives way."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("observed")
    controls = ("prompts: {source: random-ids}", "output-length: forced")
    lengths = "{transform: scale-lengths, input-factor: 0.5, output-factor: 1, input-maximum: 128, output-maximum: 64}"
    return run(manifest(root, "observed", QUICKSTART, f"transforms: [{lengths}]", *controls, arm=PREEMPTING))


def test_the_page_and_the_client_tell_one_story(folder: Path) -> None:
    (cell,) = analyze_campaign(folder).cells
    assert cell.server is not None
    found = cell.server.figures
    value = {name: figure.value for name, figure in found.items() if figure.value is not None}
    assert value["iteration_tokens"] * value["iteration_rate"] == pytest.approx(
        value["prompt_rate"] + value["output_rate"] + value["recomputed"] / 3.5, rel=0.2
    )
    assert value["preemptions"] > 0
    assert value["recomputed"] > 0
    assert value["kv_usage_max"] > 0.5
    assert 0 < value["outside_ttft"] < value["client_ttft"]
    assert sum(cell.server.iterations.values()) == pytest.approx(value["iteration_rate"] * 3.5, rel=0.3)
    assert found["queue_time"].status == "unknown"
    assert value["server_cpu"] > 0
    assert value["server_memory_max"] > value["client_cpu"]


def test_the_host_is_told_before_and_after_and_no_accelerator_is_made_up(folder: Path) -> None:
    record = the_record(folder)
    for facts in (record.facts.before, record.facts.after):
        for name, fact in facts.items():
            assert fact.value is not None or fact.reason, name
        for name in ("host.numa", "host.smt", "host.cgroup_memory_max", "host.virtualisation", "host.load", "instrument.dirty"):
            assert name in facts
    gpu = record.facts.before["host.gpu"]
    if gpu.value == "none":
        assert "no accelerator" in (gpu.reason or "")
        assert "gpu" not in set(record.host["source"].to_pylist())
        assert "GPU power" not in render_markdown(analyze_campaign(folder))
