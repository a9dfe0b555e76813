"""Both public Azure 2023 files, whole, against facts counted independently of this reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads.plan import TraceSource
from workloads.schedule import Trace
from workloads.traces import load_trace, read_trace

ROOT = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = [pytest.mark.traces, pytest.mark.skipif(not ROOT.is_dir(), reason="the public traces are not beside the project")]

FILES = {
    "azure2023_code": "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
    "azure2023_conv": "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
}


@pytest.fixture(scope="module", params=sorted(FILES))
def public(request: pytest.FixtureRequest) -> tuple[Trace, dict[str, Any]]:
    facts = json.loads((ROOT / "facts.json").read_text())["facts"][request.param]
    source = TraceSource(format="azure-2023", name=Path(facts["file"]).stem, sha256=FILES[request.param])
    return load_trace(source, [ROOT]), facts


def ticks(stamp: str) -> int:
    """Time of day in ns, by hand."""
    clock, fraction = stamp.split(" ")[1].split(".")
    hour, minute, second = (int(part) for part in clock.split(":"))
    return ((hour * 60 + minute) * 60 + second) * 10**9 + int(fraction) * 100


def test_rows_and_span_are_exact(public: tuple[Trace, dict[str, Any]]) -> None:
    trace, facts = public
    assert len(trace) == facts["rows"]
    assert trace.arrival_ns[0] == 0
    assert int(trace.arrival_ns[-1]) == ticks(facts["last_timestamp"]) - ticks(facts["first_timestamp"])
    assert trace.arrival_ns[-1] / 1e9 == pytest.approx(facts["arrivals"]["span_s"], abs=1e-6)
    assert len(np.unique(trace.arrival_ns)) == facts["arrivals"]["distinct_timestamps"]


def test_arrivals_have_the_known_burstiness(public: tuple[Trace, dict[str, Any]]) -> None:
    trace, facts = public
    gaps = np.diff(trace.arrival_ns) / 1e9
    assert (len(trace) - 1) / gaps.sum() == pytest.approx(facts["arrivals"]["mean_rate_rps"], abs=1e-6)
    assert gaps.std() / gaps.mean() == pytest.approx(facts["arrivals"]["cv_interarrival"], abs=1e-4)
    assert gaps.max() == pytest.approx(facts["arrivals"]["max_gap_s"], abs=1e-6)


@pytest.mark.parametrize("side", ["input_tokens", "output_tokens"])
def test_lengths_agree(public: tuple[Trace, dict[str, Any]], side: str) -> None:
    trace, facts = public
    column = getattr(trace, side)
    known = facts[side]
    assert (int(column.min()), int(column.max()), int(column.sum())) == (known["min"], known["max"], known["sum"])
    for percent in (50, 90, 99):
        assert np.percentile(column, percent) == pytest.approx(known[f"p{percent}"], abs=0.01)


def test_totals_and_credit(public: tuple[Trace, dict[str, Any]]) -> None:
    trace, facts = public
    total = trace.input_tokens + trace.output_tokens
    assert (int(total.max()), int((total > 4096).sum())) == (facts["total_tokens_max"], facts["rows_total_over_4096"])
    assert trace.licence == "CC-BY-4.0"
    assert "Microsoft" in trace.attribution
    assert "Splitwise" in trace.attribution


def test_the_sample_others_ship_is_the_head_of_conv() -> None:
    sample = read_trace("azure-2023", ROOT / "azure-llm-2023" / "inference-perf_trace_sample.csv")
    whole = read_trace("azure-2023", ROOT / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv")
    assert len(sample) == 20
    assert sample.arrival_ns.tolist() == whole.arrival_ns[:20].tolist()
    assert sample.output_tokens.tolist() == whole.output_tokens[:20].tolist()
    assert sample.licence == "CC-BY-4.0"
