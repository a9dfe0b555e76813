"""Public files with clients, sessions, failures or lengths alone, whole, against facts counted independently of these readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import UsageError
from workloads.schedule import Trace
from workloads.traces import guess_format, read_trace
from workloads.traces.servegen_profile import profile

ROOT = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = [pytest.mark.traces, pytest.mark.skipif(not ROOT.is_dir(), reason="the public traces are not beside the project")]

READ = ["burstgpt3_head105", "vtc_arena", "sharegpt_lengths", "arxiv_lengths", "bwb_lengths"]
SERVEGEN = ["servegen_m_small", "servegen_deepseek_r1", "servegen_mm_image", "servegen_datasets"]


def facts_of(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((ROOT / "facts.json").read_text())["facts"][name]
    return facts


@pytest.fixture(scope="module", params=READ)
def public(request: pytest.FixtureRequest) -> tuple[Trace, dict[str, Any]]:
    facts = facts_of(request.param)
    path = ROOT / facts["file"]
    return read_trace(guess_format(path), path), facts


def test_every_row_is_there_with_its_provenance(public: tuple[Trace, dict[str, Any]]) -> None:
    trace, facts = public
    assert len(trace) == facts["rows"]
    assert trace.skipped == {}
    manifest = {entry["sha256"]: entry["licence"] for entry in json.loads((ROOT / "manifest.json").read_text())}
    assert trace.licence == manifest[trace.sha256].split(" ")[0]


@pytest.mark.parametrize("side", ["input_tokens", "output_tokens"])
def test_lengths_agree(public: tuple[Trace, dict[str, Any]], side: str) -> None:
    trace, facts = public
    column, known = getattr(trace, side), facts[side]
    assert (column.min(), column.max(), column.sum()) == (known["min"], known["max"], known["sum"])
    for name in ("p50", "p90", "p99"):
        assert np.percentile(column, int(name[1:])) == pytest.approx(known[name], abs=0.005)
    assert (trace.output_tokens == 0).sum() == facts["zero_output_rows"]
    total = trace.input_tokens + trace.output_tokens
    assert total.max() == facts["total_tokens_max"]
    assert {str(limit): int((total > limit).sum()) for limit in (4096, 32768)} == {
        str(limit): facts[f"rows_total_over_{limit}"] for limit in (4096, 32768)
    }


def test_arrivals_agree_or_there_are_none(public: tuple[Trace, dict[str, Any]]) -> None:
    trace, facts = public
    if facts.get("no_arrivals"):
        assert trace.clock == "none"
        assert not trace.arrival_ns.any()
        return
    known, gaps = facts["arrivals"], np.diff(trace.arrival_ns) / 1e9
    assert trace.clock == "relative"
    assert trace.arrival_ns.max() / 1e9 == pytest.approx(known["span_s"], abs=1e-9)
    assert gaps.std() / gaps.mean() == pytest.approx(known["cv_interarrival"], abs=1e-4)
    assert gaps.max() == pytest.approx(known["max_gap_s"], abs=1e-6)
    assert (gaps < 0).sum() == known["file_order_inversions"]
    assert len(np.unique(trace.arrival_ns)) == known["distinct_timestamps"]


def test_vtc_clients_have_their_shares() -> None:
    facts = facts_of("vtc_arena")
    trace = read_trace("vtc-arena", ROOT / facts["file"])
    assert trace.client is not None
    sizes = np.sort(np.bincount(trace.client.codes))[::-1]
    assert len(sizes) == facts["clients"]
    assert sizes[-1] == facts["min_client_requests"]
    assert (sizes[:5] / len(trace)).round(4).tolist() == facts["top_client_share"]


def test_burstgpt_sessions_are_the_known_ones() -> None:
    facts = facts_of("burstgpt3_head105")
    trace = read_trace("burstgpt", ROOT / facts["file"])
    assert trace.turns is not None
    turns = np.bincount(trace.turns.session)
    assert (len(turns), turns.max(), (turns >= 2).sum()) == (facts["sessions"], facts["max_turns_in_session"], facts["sessions_with_2plus"])
    assert (np.diff(trace.turns.after.offsets) == (trace.turns.turn > 0)).all()
    assert trace.grid_ns == 10**9


def test_both_documented_headers_of_burstgpt_are_read() -> None:
    six, eight = (read_trace("burstgpt", ROOT / "burstgpt" / name) for name in ("BurstGPT_1.first3.csv", "BurstGPT_3.first4.csv"))
    assert six.arrival_ns.tolist() == [0, 40 * 10**9, 113 * 10**9]
    assert six.turns is None
    assert eight.input_tokens.tolist() == [906, 36, 1779, 935]
    assert eight.turns is not None
    converted = read_trace("burstgpt", ROOT / "burstgpt" / "burstgpt3_head105.converted.jsonl")
    assert eight.arrival_ns.tolist() == converted.arrival_ns[:4].tolist()
    assert eight.output_tokens.tolist() == converted.output_tokens[:4].tolist()


@pytest.mark.parametrize("name", SERVEGEN)
def test_servegen_archives_hold_what_is_known_of_them(name: str) -> None:
    facts = facts_of(name)
    path = ROOT / facts.pop("file")
    assert guess_format(path) == "servegen"
    assert profile(path) == facts


def test_servegen_refuses_the_whole_of_m_small_with_its_number_of_rows() -> None:
    with pytest.raises(UsageError, match=r"1,420,558,786 rows at factor 1"):
        read_trace("servegen", ROOT / facts_of("servegen_m_small")["file"])


def test_servegen_draws_ten_minutes_of_all_clients_at_their_rates() -> None:
    options = {"start-s": 36_000, "stop-s": 36_600, "lengths-of": 14}
    trace = read_trace("servegen", ROOT / facts_of("servegen_m_small")["file"], options, seed=1)
    assert trace.client is not None
    assert len(trace.client.names) == 43
    # 1,038.6 req/s are implied in this window; its clients' counts spread by a few percent at most.
    assert len(trace) == pytest.approx(623_137, rel=0.05)
    assert trace.licence == "Apache-2.0"


def test_servegen_silent_clients_of_deepseek_are_counted_and_not_invented() -> None:
    options = {"clients": [3, 13, 48, 54], "factor": 0.1}
    trace = read_trace("servegen", ROOT / facts_of("servegen_deepseek_r1")["file"], options, seed=1)
    assert trace.output_tokens.max() <= 32_768
    assert trace.client is not None
    assert set(trace.client.values()) <= {"3", "13", "48", "54"}
