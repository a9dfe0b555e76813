"""Public traces with prefixes and sessions, whole, against facts counted independently of these readers."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from harness.errors import UsageError
from tests.tracefiles import check_sound
from workloads.schedule import Blocks, Trace, Turns
from workloads.traces import guess_format, read_trace

ROOT = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = [pytest.mark.traces, pytest.mark.skipif(not ROOT.is_dir(), reason="the public traces are not beside the project")]

FACTS = json.loads((ROOT / "facts.json").read_text())["facts"] if ROOT.is_dir() else {}
TABLES = ("mooncake_conversation", "mooncake_synthetic", "ragpulse")
SESSIONS = ("weka_agentic_15", "weka_agentic_120", "tracelab_example", "tracelab_replay_csv")
LICENCES = {"mooncake": "Apache-2.0", "ragpulse": "MIT", "weka-agentic": "Apache-2.0", "tracelab": "CC-BY-4.0"}


def loaded(name: str) -> tuple[Trace, dict[str, Any]]:
    path = ROOT / FACTS[name]["file"]
    return read_trace(guess_format(path), path), FACTS[name]


@pytest.fixture(scope="module", params=TABLES)
def table(request: pytest.FixtureRequest) -> tuple[Trace, dict[str, Any]]:
    return loaded(request.param)


@pytest.fixture(scope="module", params=(*TABLES, *SESSIONS))
def public(request: pytest.FixtureRequest) -> tuple[Trace, dict[str, Any]]:
    return loaded(request.param)


@pytest.fixture(scope="module", params=SESSIONS[:2])
def weka(request: pytest.FixtureRequest) -> tuple[Trace, dict[str, Any]]:
    return loaded(request.param)


def blocks_of(trace: Trace) -> Blocks:
    assert trace.blocks is not None
    return trace.blocks


def turns_of(trace: Trace) -> Turns:
    assert trace.turns is not None
    return trace.turns


def agrees(column: npt.NDArray[np.generic], known: dict[str, float], rest: float = 0.006) -> None:
    """Facts are rounded to at most four digits behind the point, some to two."""
    values = column.astype(np.float64)
    found = {"min": values.min(), "max": values.max(), "mean": values.mean(), "sum": values.sum()}
    found |= {f"p{p}": np.percentile(values, p) for p in (50, 90, 99)}
    assert {key: found[key] for key in known} == pytest.approx(known, abs=rest)


def test_rows_and_lengths(public: tuple[Trace, dict[str, Any]]) -> None:
    trace, facts = public
    assert len(trace) == facts.get("rows", facts.get("requests_incl_subagents"))
    agrees(trace.input_tokens, facts["input_tokens"])
    agrees(trace.output_tokens, facts["output_tokens"])
    total = trace.input_tokens + trace.output_tokens
    assert int(total.max()) == facts["total_tokens_max"]
    for limit in (4096, 8192, 32768, 131072):
        assert int((total > limit).sum()) == facts[f"rows_total_over_{limit}"]
    assert int((trace.output_tokens == 0).sum()) == facts["zero_output_rows"]


def test_every_trace_is_sound_and_credited(public: tuple[Trace, dict[str, Any]]) -> None:
    trace, facts = public
    check_sound(trace)
    assert trace.licence == ("Apache-2.0" if facts["file"].endswith(".csv") else LICENCES[trace.format])
    assert not trace.attribution.startswith("unknown")


def test_arrivals(table: tuple[Trace, dict[str, Any]]) -> None:
    trace, facts = table
    known, arrival = facts["arrivals"], np.sort(trace.arrival_ns, kind="stable") / 1e9
    gaps = np.diff(arrival)
    assert arrival[-1] - arrival[0] == pytest.approx(known["span_s"], abs=1e-6)
    assert (len(trace) - 1) / gaps.sum() == pytest.approx(known["mean_rate_rps"], abs=1e-6)
    assert gaps.std() / gaps.mean() == pytest.approx(known["cv_interarrival"], abs=1e-4)
    assert gaps.max() == pytest.approx(known["max_gap_s"], abs=1e-6)
    counts = np.unique(trace.arrival_ns, return_counts=True)[1]
    assert (len(counts), int(counts.max())) == (known["distinct_timestamps"], known["max_requests_at_one_timestamp"])
    assert int((np.diff(trace.arrival_ns) < 0).sum()) == known["file_order_inversions"]


@pytest.mark.parametrize("name", TABLES[:2])
def test_mooncake_blocks_and_their_ideal_reuse(name: str) -> None:
    trace, facts = loaded(name)
    blocks, known = blocks_of(trace), facts["prefix"]
    assert (blocks.size, blocks.rounding) == (known["block_size"], "ceil")
    assert len(blocks.ids.values) == known["total_blocks"]
    assert len(np.unique(blocks.ids.values)) == known["unique_blocks"]
    assert int(blocks.ids.values.max()) == known["max_hash_id"]
    assert int(np.diff(blocks.ids.offsets).max()) == known["max_blocks_in_row"]
    assert int((trace.input_tokens % 512 != 0).sum()) == known["rows_with_partial_last_block"]
    hits, tokens = reuse(trace)
    assert hits / len(blocks.ids.values) == pytest.approx(known["ideal_prefix_hit_blocks"], abs=1e-6)
    assert tokens / trace.input_tokens.sum() == pytest.approx(known["ideal_prefix_hit_tokens"], abs=1e-6)


def reuse(trace: Trace) -> tuple[int, int]:
    """Leading blocks that an earlier row had, and their tokens, with nothing ever evicted."""
    blocks, seen, hits, tokens = blocks_of(trace), set[int](), 0, 0
    for row in np.argsort(trace.arrival_ns, kind="stable").tolist():
        ids = blocks.ids.row(row).tolist()
        count = next((i for i, one in enumerate(ids) if one not in seen), len(ids))
        hits += count
        tokens += min(count * blocks.size, int(trace.input_tokens[row]))
        seen.update(ids)
    return hits, tokens


def test_mooncake_conversation_tells_its_grid_its_first_block_and_keeps_its_duplicate() -> None:
    trace, facts = loaded("mooncake_conversation")
    assert any("grid of about 3 s" in note and "90.2% of gaps are zero and up to 28 requests" in note for note in trace.notes)
    assert any("every row starts with block 0" in note for note in trace.notes)
    blocks = blocks_of(trace).ids
    columns = trace.arrival_ns.tolist(), trace.input_tokens.tolist(), trace.output_tokens.tolist()
    rows = {(*row, blocks.row(i).tobytes()) for i, row in enumerate(zip(*columns, strict=True))}
    assert len(trace) - len(rows) == facts["exact_duplicate_rows"]


def test_mooncake_synthetic_has_true_milliseconds() -> None:
    trace, facts = loaded("mooncake_synthetic")
    assert trace.notes == ()
    assert trace.grid_ns == 1_000_000
    first = [int(blocks_of(trace).ids.row(i)[0]) for i in range(len(trace))]
    assert first.count(0) / len(first) == pytest.approx(facts["share_rows_starting_with_block_0"], abs=1e-5)


def test_ragpulse_is_two_passes_with_sessions_and_components() -> None:
    trace, facts = loaded("ragpulse")
    turns = turns_of(trace)
    sizes = np.bincount(turns.session)
    assert (len(sizes), int(sizes.max()), int((sizes > 1).sum())) == (
        facts["sessions"],
        facts["max_turns_in_session"],
        facts["sessions_with_2plus"],
    )
    restart = facts["restart_rows_0based"][0]
    assert trace.arrival_ns[restart - 1] == facts["first_segment_last_t"] * 10**9
    assert trace.arrival_ns[restart] == facts["second_segment_first_t"] * 10**9
    glue = facts["input_minus_component_sum"]
    assert any(f"{glue['min']} to {glue['max']} tokens a row belong to no component" in note for note in trace.notes)
    with gzip.open(ROOT / facts["file"]) as lines:
        first = {json.loads(line)["hash_ids"]["sys_prompt"][0] for line in lines if line.strip()}
    assert len({int(blocks_of(trace).ids.row(i)[31]) for i in range(len(trace))}) == len(first)  # 512 tokens each


def test_weka_sessions_and_their_spans(weka: tuple[Trace, dict[str, Any]]) -> None:
    trace, facts = weka
    turns = turns_of(trace)
    sizes = np.bincount(turns.session)
    assert len(sizes) == facts["traces"]
    assert facts["rows_hash_len_eq_floor64"] == len(trace)
    if "per_trace" in facts:
        known = facts["per_trace"]
        assert sizes.tolist() == [one["requests_incl_subagents"] for one in known]
        for session, one in enumerate(known):
            mine = turns.session == session
            assert int(trace.input_tokens[mine].max()) == one["in_max"]
            assert int(trace.output_tokens[mine].sum()) == one["out_sum"]
    else:
        agrees(sizes, facts["requests_per_trace"])
        span = [(trace.arrival_ns[turns.session == s].max()) / 1e9 for s in range(len(sizes))]
        agrees(np.array(span), facts["session_span_s"])


def test_weka_sub_agents_all_branch_and_join() -> None:
    trace, facts = loaded("weka_agentic_15")
    turns = turns_of(trace)
    assert trace.kind is not None
    kinds = trace.kind.values()
    assert kinds.count("main") == facts["entry_types"]["n"] + facts["entry_types"]["s"]
    branches = [i for i in range(len(trace)) if kinds[i] == "subagent" and any(kinds[j] == "main" for j in turns.after.row(i).tolist())]
    assert len(branches) == facts["entry_types"]["subagent"]
    assert all(0 <= turns.think_ns[i] < 2 * 10**9 for i in branches)  # an agent starts right after the request that launched it
    joins = [i for i in range(len(trace)) if kinds[i] == "main" and any(kinds[j] == "subagent" for j in turns.after.row(i).tolist())]
    assert sum(len(turns.after.row(i)) - 1 for i in joins) == facts["entry_types"]["subagent"]
    assert all(turns.think_ns[i] >= 0 for i in joins)


def strands(name: str) -> Iterator[list[dict[str, Any]]]:
    """Requests of each agent in order, straight from the archive."""
    with tarfile.open(ROOT / FACTS[name]["file"]) as archive:
        for member in archive:
            handle = archive.extractfile(member)
            assert handle is not None
            entries = json.load(handle)["requests"]
            yield [entry for entry in entries if entry["type"] != "subagent"]
            yield from (entry["requests"] for entry in entries if entry["type"] == "subagent")


@pytest.mark.parametrize("name", SESSIONS[:2])
def test_weka_pauses_count_from_the_last_known_end_which_is_why_some_are_unknown(name: str) -> None:
    direct = skipping = unknown = 0
    for requests in strands(name):
        end = None
        for before, here in pairwise(requests):
            end = before["t"] + before["api_time"] if "api_time" in before else end
            if "think_time" in here and end is not None:
                assert abs(here["t"] - end - here["think_time"]) <= 1.5
                direct += "api_time" in before
                skipping += "api_time" not in before
            unknown += "api_time" not in before or "think_time" not in here
    trace, _ = loaded(name)
    turns = turns_of(trace)
    waits = np.diff(turns.after.offsets) > 0
    assert int((waits & (turns.think_ns < 0)).sum()) == unknown
    assert direct > 300
    assert skipping > 30


@pytest.mark.parametrize("name", SESSIONS[:2])
def test_weka_recorded_times_follow_when_turns_wait_for_the_last_known_end(name: str) -> None:
    trace = read_trace("weka-agentic", ROOT / FACTS[name]["file"], {"waits-for": "last_known_end"})
    check_sound(trace)
    turns = turns_of(trace)
    assert ((np.diff(turns.after.offsets) > 0) == (turns.think_ns >= 0)).all()


def test_weka_two_files_alone_equal_themselves_in_the_archive() -> None:
    whole, _ = loaded("weka_agentic_15")
    names = [one["id"] for one in FACTS["weka_agentic_15"]["per_trace"]]
    for name in ("trace_0277", "trace_0624"):
        alone = read_trace("weka-agentic", ROOT / "weka-agentic" / f"{name}.json")
        rows = np.flatnonzero(turns_of(whole).session == names.index(name))
        part = whole.take(rows)
        assert part.arrival_ns.tolist() == alone.arrival_ns.tolist()
        assert turns_of(part).think_ns.tolist() == turns_of(alone).think_ns.tolist()
        assert turns_of(part).after.values.tolist() == turns_of(alone).after.values.tolist()
        ids = blocks_of(part).ids.values
        assert (ids - ids.min()).tolist() == blocks_of(alone).ids.values.tolist()


@pytest.mark.parametrize("name", SESSIONS[2:])
def test_tracelab_sessions(name: str) -> None:
    trace, facts = loaded(name)
    assert int(turns_of(trace).session.max()) + 1 == facts["sessions"]


def test_tracelab_tools_are_waited_for_and_service_is_not_counted_twice() -> None:
    trace, _ = loaded("tracelab_example")
    turns = turns_of(trace)
    # First session: a tool call at 05:40:31.647, the last result at 05:40:50.938.
    assert int(turns.think_ns[1]) == 19_291_000_000
    assert int(trace.arrival_ns[1] - trace.arrival_ns[0]) == 30_787_000_000
    assert (turns.think_ns >= 0).sum() == 17


def test_tracelab_workload_extends_every_round() -> None:
    trace, facts = loaded("tracelab_replay_csv")
    assert int((turns_of(trace).extends >= 0).sum()) == facts["rows"] - facts["sessions"]


SPANS = {
    "simple_chain": [[], [0], [1]],
    "parallel_requests": [[], [0], [0], [1, 2], [3]],
    "fan_in_dependencies": [[], [], [], [0, 1, 2]],
    "prefix_sharing_example": [[], [], [], [2], [3], [4], []],
}


@pytest.mark.parametrize("name", sorted(SPANS))
def test_example_spans_give_the_graph_they_were_made_to_show(name: str) -> None:
    path = ROOT / "otel-agent-examples" / f"{name}.json"
    assert guess_format(path) == "otel-genai"
    trace = read_trace("otel-genai", path, {"bytes_per_token": 4.0})
    check_sound(trace)
    turns = turns_of(trace)
    assert [turns.after.row(i).tolist() for i in range(len(trace))] == SPANS[name]
    assert trace.licence == "Apache-2.0"
    estimated = any("tokens are estimated" in note for note in trace.notes)
    assert estimated == (name != "prefix_sharing_example")


def test_the_component_files_of_ragpulse_can_be_pinned() -> None:
    path = ROOT / "ragpulse" / "0_trace.jsonl.gz"
    pin = read_trace("ragpulse", path).unpinned
    assert pin.keys() == {"components-sha256"}
    assert not read_trace("ragpulse", path, pin).unpinned
    with pytest.raises(UsageError, match=r"trace\.digest_mismatch"):
        read_trace("ragpulse", path, {"components-sha256": "none"})
