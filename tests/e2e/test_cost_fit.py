"""From a server that runs in real time to a cost model with its error, and to an arm in virtual time that says where its costs are from."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.record.reader import latest_sealed, read_run
from tests.e2e.test_campaign import manifest, run, trigpoint

pytestmark = pytest.mark.e2e

DECLARED = {"base_ns": 5_000_000, "prefill_token_ns": 20_000, "decode_row_ns": 400_000, "context_token_ns": 3_000}


def timed(folder: Path, name: str, costs: dict[str, str]) -> Path:
    """The small campaign with one arm at these costs."""
    path = manifest(folder, name)
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["arms"] = {"a": {"runtime": "reference", "args": {"max-num-seqs": 8, "max-num-batched-tokens": 256} | costs}}
    document["load"] = {"time-compression": [2.0]}
    del document["rank"]
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_the_costs_of_a_real_time_server_come_back_and_an_arm_that_uses_them_says_so(tmp_path: Path) -> None:
    declared = {"cost-base": "5ms", "cost-prefill-token": "20us", "cost-decode-row": "400us", "cost-context-token": "3us"}
    run(timed(tmp_path, "served", declared), tmp_path / "results")
    (fit,) = trigpoint("policies", "fit-cost", tmp_path / "results" / "served")["fits"]
    assert (fit["cost"], fit["evidence_class"], fit["replicates"]) == ("fitted", "synthetic", 2)
    # What the fit says of itself. On a host that is busy with other things client and server are some ms late, now and then, and iterations
    # take 6 ms and more: single ones are far off, their sum is not. Without lateness costs come back exactly (test_analysis_cost_fit).
    assert fit["held_out"]["time_error"] < 0.2
    assert fit["held_out"]["median_error"] > 0
    found = {name: fit["parameters"][name]["value"] for name in DECLARED}
    typical = {"base_ns": 1, "prefill_token_ns": 0, "decode_row_ns": 2, "context_token_ns": 400}
    predicted, true = (sum(costs[name] * rows for name, rows in typical.items()) for costs in (found, DECLARED))
    assert abs(predicted / true - 1) < 0.2, "of an iteration of two decodes"

    trigpoint("simulate", timed(tmp_path, "imitated", fit["args"]), "--results", tmp_path / "results", "--traces", "manifests/traces")
    record = read_run(next(iter(latest_sealed(tmp_path / "results" / "imitated").values())))
    source = fit["args"]["cost-source"]
    assert source.startswith(f"fitted:{fit['source'][:16]}:")
    assert record.spec.evidence_class == "synthetic"
    assert record.facts.before["server.effective_config"].value["cost_source"] == source
    assert source in record.coordinates.model_dump_json()
    trigpoint("report", tmp_path / "results" / "imitated", expect=0)
    assert source in (tmp_path / "results" / "imitated" / "report" / "report.html").read_text(encoding="utf-8")
