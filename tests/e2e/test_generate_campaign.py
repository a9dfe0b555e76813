"""SGLang's own route under a whole campaign, with a load that rises: what is sent, what the record keeps, what analysis finds in order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.cli.sides import analyze_campaign
from harness.record.reader import latest_sealed, read_run
from tests.e2e.test_bad_servers import port, trigpoint, write_manifest

__all__ = ["port"]

pytestmark = pytest.mark.e2e

SAID = "  api: generate\n  arrivals: {process: trace, ramp: {from: 0.5, to: 1.5}}\n  output-length"

EVEN = ("warm-up: 0s, measured: 2s", "warm-up: 1s, measured: 1s")  # the measured window amid the ramp


@pytest.fixture(scope="module")
def campaign(port: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generate")
    path = write_manifest(folder, "own", f"http://127.0.0.1:{port}", ("good", "status_429", "bad_json"))
    text = path.read_text(encoding="utf-8").replace("  output-length", SAID).replace(*EVEN)
    path.write_text(text, encoding="utf-8")
    done = trigpoint(folder, "run", path, "--results", folder / "results")
    assert done.returncode == 0, done.stderr
    return folder / "results" / "own"


def test_tokens_of_cumulative_events_agree_with_what_was_wanted_and_counted(campaign: Path) -> None:
    (attempt,) = latest_sealed(campaign).values()
    record = read_run(attempt)
    wanted = dict(zip(record.truth["request_id"].to_pylist(), record.truth["output_tokens"].to_pylist(), strict=True))
    rows = record.whole_requests().to_pylist()
    assert {row["end_kind"] for row in rows} == {"complete"}
    assert all(row["client_tokens"] == row["usage_completion_tokens"] == wanted[row["request_id"]] for row in rows)
    assert {(row["usage_prompt_tokens"], row["usage_cached_tokens"], row["finish_reason"]) for row in rows} == {(8, 3, "length")}
    checks = {check.code: check.verdict for check in analyze_campaign(campaign).cells[0].runs[0].checks}
    assert [checks[code] for code in ("tokens_agree", "requests_wellformed", "partition_closes", "delivered_load")] == ["PASS"] * 4


def test_the_record_says_which_route_and_that_the_load_rose(campaign: Path) -> None:
    (attempt,) = latest_sealed(campaign).values()
    record = read_run(attempt)
    assert record.spec.workload.api == "generate"
    assert record.spec.workload.arrivals == {"process": "trace", "ramp": {"start": 0.5, "stop": 1.5}}
    arrivals = np.sort(record.schedule["arrival_ns"].to_numpy())
    thirds, _ = np.histogram(arrivals, bins=3, range=(0, 3 * 10**9))
    assert thirds[0] < thirds[1] < thirds[2]
