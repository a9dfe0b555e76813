"""A search for capacity in a manifest: what contradicts itself or the rest, at its line, and which load every probe is given."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import Problem, UsageError
from harness.manifest import Campaign, ManifestError, Searches, expand, freeze, parse_manifest
from harness.manifest.capacity_rules import to_search
from harness.manifest.load import canonical_json, resolved_form
from harness.manifest.schema import CapacitySearch, Replicates
from harness.record.search import Search, Stages
from harness.record.spec import RunSpec

SHA = "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8"
GOOD = f"""\
trigpoint: 1
question: Which policy carries more of this trace?
pins: {{model: {{id: tiny, dtype: float32}}}}
arms:
  a: {{runtime: reference, args: {{policy: fixed-batch}}}}
  b: {{runtime: reference, args: {{policy: orca-shaped}}}}
workload:
  trace: {{format: azure-2023, name: conv, sha256: {SHA}, window: [600s, 3000s]}}
  output-length: {{control: forced}}
slo: {{ttft: 250ms}}
window: {{warm-up: 2s, measured: 15s, drain: 3s}}
load:
  capacity:
    start: 1.0
    limit: 4.0
    attainment: 0.9
replicates: {{count: 5, vary: window, seed: 7}}
rank: {{metric: capacity, margin: 2%}}
"""
LINE = {key: i for i, line in enumerate(GOOD.splitlines(), 1) if (key := line.strip().partition(":")[0])}
TRACE = f"  trace: {{format: azure-2023, name: conv, sha256: {SHA}, window: [600s, 3000s]}}\n"
DRAWN = """\
  arrivals: {process: poisson}
  lengths: {input: {kind: constant, value: 8}, output: {kind: constant, value: 4}}
"""
SYNTHETIC = ((TRACE, DRAWN), ("start: 1.0", "start: 1/s"), ("limit: 4.0", "limit: 90/m"), ("vary: window", "vary: seed"))


def changed(*pairs: tuple[str, str]) -> str:
    text = GOOD
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def plan(*pairs: tuple[str, str]) -> Campaign:
    return expand(parse_manifest(changed(*pairs), "m.yaml"))


def searches(*pairs: tuple[str, str]) -> Searches:
    found = plan(*pairs).searches
    assert found is not None
    return found


def faults(*pairs: tuple[str, str]) -> list[Problem]:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(changed(*pairs), "m.yaml")
    return list(caught.value.problems)


def test_every_field_of_the_procedure_can_be_said_and_has_a_default() -> None:
    assert searches().search == Search("time_compression", 1.0, 4.0, 0.9, order_seed=searches().search.order_seed)
    said = """\
    attainment: 0.9
    resolution: 10%
    grid: 7
    step: 4%
    widen: 1
    halvings: 2
    spare: 0
    method: logit
    confidence: 90%
    stages: {half-width: 3%, most: 9}
    servers: replicate
"""
    own = searches(("    attainment: 0.9\n", said)).search
    assert own == Search(
        "time_compression", 1.0, 4.0, 0.9, 0.1, 7, 0.04, 5, 1, 2, 0, "logit", 0.9, own.order_seed, Stages(0.03, 9), "replicate"
    )


@pytest.mark.parametrize(
    ("pairs", "code", "line", "words"),
    [
        ([("limit: 4.0", "limit: 0.5")], "bad_search", "limit", "no range"),
        ([("limit: 4.0", "limit: 4/s")], "bad_search", "limit", "other axis"),
        ([("limit: 4.0", "limit: 4.0000001")], "bad_search", "limit", "significant digits"),
        ([("start: 1.0", "start: 1.0000001")], "bad_search", "start", "significant digits"),
        ([("0.9\n", "0.9\n    resolution: 50%\n")], "bad_search", "resolution", "must span the bracket"),
        ([("0.9\n", "0.9\n    stages: {half-width: 3%, most: 5}\n")], "bad_search", "stages", "first stage"),
        ([("count: 5", "count: 1")], "bad_search", "replicates", "no known spread"),
        ([("count: 5", "count: 1000")], "too_many_runs", "capacity", "more than 10000"),
        ([("vary: window", "server-starts: 2, vary: window")], "bad_replicates", "replicates", "server start of its own"),
        ([("slo: {ttft: 250ms}\n", ""), ("rank: {metric: capacity, margin: 2%}\n", "")], "missing_key", "capacity", "SLO"),
        ([("start: 1.0", "start: 1/s"), ("limit: 4.0", "limit: 4/s")], "load_mismatch", "start", "no rate to set"),
        ([("metric: capacity", "metric: goodput")], "bad_rank", "rank", "other load points for every arm"),
        ([("margin: 2%", "margin: 2%, at: 2.0")], "bad_rank", "rank", "itself a load"),
        ([("margin: 2%", "margin: 2%, against: ttft_p99")], "bad_rank", "rank", "no second figure"),
        ([("margin: 2%", "margin: 2%, attainment: 0.8")], "bad_rank", "rank", "one claim has one target"),
        ([("  output-length", "  loop: closed\n  users: 4\n  output-length")], "load_mismatch", "loop", "closed loop"),
    ],
)  # fmt: skip
def test_contradictions_stand_at_their_line(pairs: list[tuple[str, str]], code: str, line: str, words: str) -> None:
    text = changed(*pairs)
    wanted = next(i for i, row in enumerate(text.splitlines(), 1) if row.strip().startswith(f"{'grid' if line == 'resolution' else line}:")
                  or (line == "resolution" and row.strip().startswith("capacity:")))  # fmt: skip
    found = [p for p in faults(*pairs) if p.code == code and words in p.what]
    assert len(found) == 1, faults(*pairs)
    assert found[0].where == f"m.yaml:{wanted}"
    assert found[0].remedy


@pytest.mark.parametrize(
    ("arm", "policy", "refused"),
    [
        ("runtime: reference", "cold", False),
        ("runtime: vllm, version: 0.32.0", "cold", True),
        ("runtime: vllm, version: 0.32.0", "warm", True),
        ("runtime: vllm, version: 0.32.0", "as_trace", False),
        ("runtime: vllm, version: 0.32.0, args: {enable-prefix-caching: true}", "cold", True),
        ("runtime: vllm, version: 0.32.0, args: {enable-prefix-caching: false}", "cold", False),
        ("runtime: vllm, version: 0.32.0, args: {no-enable-prefix-caching: true}", "cold", False),
    ],
)
def test_a_server_shared_by_loads_is_flushed_or_has_no_cache(arm: str, policy: str, refused: bool) -> None:
    pairs = (
        ("    attainment: 0.9\n", "    attainment: 0.9\n    servers: replicate\n"),
        ("runtime: reference, args: {policy: fixed-batch}", arm),
        ("workload:\n", f"workload:\n  cache: {policy}\n"),
    )
    if not refused:
        assert searches(*pairs).search.servers == "replicate"
        return
    (found,) = faults(*pairs)
    assert found.code == "cache_not_emptied"
    assert "arms.a" in found.what
    assert "cache: as_trace" in found.remedy


def test_rates_need_arrivals_that_obey_them() -> None:
    assert [p.code for p in faults(*SYNTHETIC[:1], ("vary: window", "vary: seed"))] == ["load_mismatch"]
    assert searches(*SYNTHETIC).search.limit == 1.5


def test_capacity_is_ranked_by_a_search_only() -> None:
    (problem,) = faults(("  capacity:\n    start: 1.0\n    limit: 4.0\n    attainment: 0.9\n", "  time-compression: [1.0]\n"))
    assert (problem.code, "found by a search" in problem.what) == ("bad_rank", True)


def test_a_search_without_a_claim_is_fine_and_the_claim_is_frozen() -> None:
    assert plan(("rank: {metric: capacity, margin: 2%}\n", "")).rank is None
    rank = plan().rank
    assert rank is not None
    assert (rank.metric, rank.attainment, rank.at) == ("capacity", 0.9, None)


def test_the_resolved_form_is_a_manifest_again() -> None:
    loaded = parse_manifest(GOOD, "m.yaml")
    again = parse_manifest(canonical_json(resolved_form(loaded.manifest) | {"name": "m"}), "m.yaml")
    assert again.digest == loaded.digest
    assert expand(again).searches is not None


def test_every_draw_has_its_own_part_of_the_trace_long_enough_for_the_limit() -> None:
    found = searches()
    search = found.search
    assert found.slices is not None
    assert len(found.slices) == search.most_replicates + search.most_locating
    assert all(a.stop_ns <= b.start_ns for a, b in pairwise(found.slices))
    assert {s.stop_ns - s.start_ns for s in found.slices} == {80 * 10**9}  # 20 s at four times the speed
    slow, fast = (found.run("a", "grid", rate, 2, server_start=0, index=0).window_s for rate in (1.0, 4.0))
    assert slow is not None
    assert fast is not None
    assert slow[0] == fast[0]
    assert (slow[1] - slow[0], fast[1] - fast[0]) == (20.0, 80.0)


def test_a_trace_too_short_for_the_largest_compression_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        plan(("[600s, 3000s]", "[600s, 1900s]"))
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("window_too_short", f"m.yaml:{LINE['trace']}")
    assert "19 disjoint slice(s) of 80 s" in problem.what


def test_the_second_stage_has_draws_of_its_own_too() -> None:
    two = searches(("0.9\n", "0.9\n    stages: {half-width: 3%, most: 9}\n"))
    assert two.slices is not None
    assert len(two.slices) == 9 + two.search.most_locating


@pytest.mark.parametrize("vary", ["window", "none"])
def test_locating_draws_nothing_that_the_grid_does(vary: str) -> None:
    found = searches(("vary: window", f"vary: {vary}"))
    grid = {found.run("a", "grid", 2.0, r, server_start=0, index=0).workload.seed for r in range(5)}
    locating = {found.run("a", "locate", 2.0, r, server_start=0, index=0).workload.seed for r in range(5, 19)}
    assert not grid & locating
    assert len(locating) == 14
    assert len(grid) == (1 if vary == "none" else 5)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4000), st.sampled_from(["a", "b"]), st.integers(0, 4))
def test_arms_meet_the_same_load_at_the_same_rate(thousandth: int, arm: str, draw: int) -> None:
    found = searches(*SYNTHETIC, ("limit: 90/m", "limit: 4/s"))
    rate = thousandth / 1000
    one, other = (found.run(name, "grid", rate, draw, server_start=0, index=0) for name in (arm, "a"))
    assert one.workload == other.workload
    assert (one.load.value, one.cell) == (rate, f"{arm}@rate-{rate:g}")


def test_examples_stand_for_every_arm_and_draw_at_both_ends() -> None:
    campaign = plan()
    found = {(run.arm.name, run.replicate, run.load.value) for run in campaign.examples}
    assert found == {(arm, draw, load) for arm in "ab" for draw in range(19) for load in (1.0, 4.0)}
    assert campaign.most_runs == 2 * (14 + 11 * 5)


def frozen(found: Searches, phase: Any) -> RunSpec:
    run = found.run("a", phase, 2.0, 0 if phase == "grid" else 5, server_start=3, index=0)
    return freeze(
        run, plan(), attempt=1, trace=None, schedule_digest="a" * 64, transforms=[], tokenizer_digest="b" * 64,
        evidence_class="synthetic", certificate=None, source_digest="c" * 64, version="1",
    )  # fmt: skip


def test_the_record_says_phase_load_and_search() -> None:
    for phase in ("locate", "grid"):
        spec = frozen(searches(), phase)
        again = RunSpec.model_validate_json(spec.model_dump_json())
        assert again == spec
        assert again.probe is not None
        assert (again.probe.phase, again.probe.discarded, again.load.value) == (phase, phase == "locate", 2.0)
        assert again.probe.search == searches().search
        assert again.cell == ("a@x2+locate" if phase == "locate" else "a@x2")


@settings(max_examples=200, deadline=None)
@given(
    st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-6, 1 - 1e-6), st.floats(1e-6, 1 - 1e-6), st.integers(3, 33),
    st.floats(1e-6, 1 - 1e-6), st.integers(1, 50), st.integers(3, 60),
)  # fmt: skip
def test_what_the_schema_lets_through_is_a_search_or_is_told(
    start: float, limit: float, attainment: float, resolution: float, grid: int, step: float, count: int, most: int
) -> None:
    capacity = CapacitySearch.model_validate(
        {"start": start, "limit": limit, "attainment": attainment, "resolution": resolution, "grid": grid, "step": step,
         "stages": {"half-width": 0.02, "most": most}}
    )  # fmt: skip
    told: tuple[Problem, ...] = ()
    search: Search | None = None
    try:
        search = to_search(capacity, Replicates(count=count, vary="seed", seed=1))
    except UsageError as error:
        told = error.problems
    assert (search is None) == bool(told)
    assert all(p.code == "bad_search" and p.where.startswith("load.capacity.") and p.remedy for p in told)
    assert search is None or search.most_probes >= search.most_locating + search.grid * search.replicates
