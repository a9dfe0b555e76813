"""Expansion: which runs, in which order, with which workload, and what is frozen of them."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.manifest import Campaign, expand, freeze, parse_manifest
from harness.manifest.slices import consecutive, equal_parts, needed_ns
from harness.manifest.workload import TimeCompressStep, WindowStep
from harness.record.coordinates import RUN_COORDINATES
from harness.record.spec import RunSpec
from tests.unit.test_manifest_load import GOOD, changed
from workloads.plan import PoissonArrivals, ScaleLengths, TimeCompress, TraceArrivals, WindowTransform
from workloads.seeds import derive

S = 10**9
SYNTHETIC = (
    GOOD[GOOD.index("  trace:") : GOOD.index("  output-length")],
    "  lengths: {input: {kind: constant, value: 8}, output: {kind: uniform, low: 1, high: 9}}\n  arrivals: {process: poisson}\n",
)
RATE = (("{time-compression: [1.0, 2.0]}", "{rate: [2/s, 90/m]}"), ("at: 2.0", "at: 90/m"))


def plan(*pairs: tuple[str, str]) -> Campaign:
    return expand(parse_manifest(changed(*pairs), "m.yaml"))


def codes(*pairs: tuple[str, str]) -> list[str]:
    with pytest.raises(UsageError) as caught:
        plan(*pairs)
    return [p.code for p in caught.value.problems]


def test_every_cell_has_every_replicate_once() -> None:
    campaign = plan()
    runs = Counter((r.cell, r.replicate) for r in campaign.runs)
    cells = {f"budget-{b}@x{x}" for b in (512, 8192) for x in (1, 2)}
    assert runs == Counter({(c, r): 1 for c in cells for r in range(5)})
    assert [r.index for r in campaign.runs] == list(range(20))
    assert (campaign.name, campaign.text) == ("m", changed())
    assert campaign.resolved["name"] == "m"
    assert campaign.resolved["replicates"]["server-starts"] == 5


def test_interleaved_blocks_are_whole_and_drawn() -> None:
    runs = plan().runs
    blocks = [runs[i : i + 4] for i in range(0, 20, 4)]
    assert [{r.replicate for r in block} for block in blocks] == [{b} for b in range(5)]
    assert all(len({r.cell for r in block}) == 4 for block in blocks)
    assert len({tuple(r.cell for r in block) for block in blocks}) > 1
    assert [r.cell for r in runs] == [r.cell for r in plan().runs]
    assert [r.cell for r in runs] != [r.cell for r in plan(("seed: 1", "seed: 2")).runs]


def test_sequential_goes_cell_by_cell() -> None:
    runs = plan(("count: 5", "count: 5, order: sequential")).runs
    assert [r.replicate for r in runs] == list(range(5)) * 4
    assert len(list(dict.fromkeys(r.cell for r in runs))) == 4


def test_order_of_arms_in_the_file_changes_nothing() -> None:
    lines = GOOD.splitlines(keepends=True)
    arms = [i for i, line in enumerate(lines) if line.startswith("  budget")]
    lines[arms[0]], lines[arms[1]] = lines[arms[1]], lines[arms[0]]
    swapped = expand(parse_manifest("".join(lines), "m.yaml"))
    assert swapped.digest == plan().digest
    assert swapped.runs == plan().runs


def test_every_replicate_has_its_own_start_and_no_start_serves_two_loads() -> None:
    runs = plan().runs
    assert len({(r.arm.name, r.server_start) for r in runs}) == len(runs)
    assert {r.server_start for r in runs if r.arm.name == "budget-512"} == set(range(10))


@settings(max_examples=25)
@given(st.integers(1, 12), st.integers(1, 12))
def test_fewer_starts_are_shared_by_neighbours_and_stay_together(count: int, starts: int) -> None:
    starts = min(count, starts)
    left_alone = ("workload:", "workload:\n  cache: as_trace")
    runs = plan(left_alone, ("count: 5, vary: window", f"count: {count}, server-starts: {starts}, vary: none")).runs
    for cell in {r.cell for r in runs}:
        own = [(r.replicate, r.server_start) for r in runs if r.cell == cell]
        assert own == sorted(own)
        sizes = Counter(s for _, s in own)
        assert len(sizes) == starts
        assert max(sizes.values()) - min(sizes.values()) <= 1
    # A server is started once: its runs follow each other.
    keys = [(r.arm.name, r.server_start) for r in runs]
    assert len([k for i, k in enumerate(keys) if i == 0 or keys[i - 1] != k]) == len(set(keys))


@pytest.mark.parametrize(("policy", "starts"), [("cold", 5), ("warm", 5), ("as_trace", 2)])
def test_a_runtime_that_cannot_flush_gets_a_process_where_the_policy_wants_an_empty_cache(policy: str, starts: int) -> None:
    fewer = ("count: 5, vary: window", "count: 5, server-starts: 2, vary: none")
    flushes = ("{runtime: vllm, version: 0.32.0, args: {max-num-batched-tokens: 8192}}", "{runtime: reference}")
    runs = plan(("workload:", f"workload:\n  cache: {policy}"), fewer, flushes).runs
    found = {arm: {r.server_start for r in runs if r.arm.name == arm} for arm in ("budget-512", "budget-8192")}
    assert (len(found["budget-512"]), len(found["budget-8192"])) == (2 * starts, 2 * 2)  # two loads
    assert {r.replication.server_starts for r in runs} == {2}


def test_vary_none_is_one_workload_and_e1() -> None:
    runs = plan(("vary: window", "vary: none")).runs
    assert {r.estimand for r in runs} == {"E1"}
    assert len({r.workload for r in runs if r.load.value == 1}) == 1
    assert {r.window_s for r in runs if r.load.value == 2} == {(600.0, 760.0)}
    assert {r.workload.seed for r in runs} == {1}


def test_vary_window_gives_disjoint_slices_that_pair_over_arms_and_loads() -> None:
    runs = plan().runs
    assert {r.estimand for r in runs} == {"E2"}
    fast = {r.replicate: r.window_s for r in runs if r.load.value == 2}
    slow = {r.replicate: r.window_s for r in runs if r.load.value == 1}
    assert fast == {r: (600.0 + 160 * r, 760.0 + 160 * r) for r in range(5)}
    assert slow == {r: (600.0 + 160 * r, 680.0 + 160 * r) for r in range(5)}
    for load in (1, 2):
        for r in range(5):
            assert len({x.workload for x in runs if (x.load.value, x.replicate) == (load, r)}) == 1
    assert {r.workload.seed for r in runs} == {derive(1, "replicate", r) for r in range(5)}


def test_vary_seed_keeps_the_window_and_changes_the_draws() -> None:
    thinned = ("  output-length", "    - {transform: thin, keep: 50%}\n  output-length")
    runs = plan(("vary: window", "vary: seed"), thinned).runs
    assert {r.estimand for r in runs} == {"E2"}
    assert {r.window_s for r in runs if r.load.value == 2} == {(600.0, 760.0)}
    assert len({r.workload.seed for r in runs}) == 5


def test_the_chain_is_window_then_steps_then_load() -> None:
    run = next(r for r in plan().runs if r.load.value == 2 and r.replicate == 1)
    assert run.workload.chain == (
        WindowTransform(start_s=760, stop_s=920),
        ScaleLengths(input_factor=0.5),
        TimeCompress(factor=2.0),
    )
    assert run.workload.horizon_s == 80.0
    assert run.workload.arrivals == TraceArrivals()
    assert run.workload.trace is not None
    assert run.workload.trace.name == "conv"


def test_a_window_too_short_says_what_is_needed_and_what_is_there() -> None:
    with pytest.raises(UsageError) as caught:
        plan(("[600s, 1600s]", "[600s, 1399s]"))
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("window_too_short", "m.yaml:10")
    assert "799 s" in problem.what
    assert "800 s are needed" in problem.what
    assert plan(("[600s, 1600s]", "[600s, 1400s]"))


def test_a_step_of_the_chain_counts_in_what_is_needed() -> None:
    faster = ("  output-length", "    - {transform: time-compress, factor: 1.25}\n  output-length")
    assert plan(faster).runs[0].window_s is not None
    assert {r.window_s for r in plan(faster).runs if r.replicate == 4 and r.load.value == 2} == {(1400.0, 1600.0)}
    assert codes(("factor: 0.5}", "factor: 0.5}\n    - {transform: time-compress, factor: 1.26}")) == ["window_too_short"]
    assert codes(("factor: 0.5}", "factor: 0.5}\n    - {transform: window, from: 0s, to: 159s}")) == ["window_too_short"]


def test_synthetic_workload_at_rates() -> None:
    runs = plan(SYNTHETIC, *RATE, ("vary: window", "vary: seed")).runs
    assert {r.cell for r in runs} == {f"budget-{b}@rate-{x}" for b in (512, 8192) for x in ("2", "1.5")}
    assert {r.workload.arrivals for r in runs} == {PoissonArrivals(rate=2.0), PoissonArrivals(rate=1.5)}
    assert {r.window_s for r in runs} == {None}
    assert runs[0].rank is not None
    assert runs[0].rank.at == 1.5
    assert runs[0].workload.chain == ()


def test_own_arrivals_take_lengths_from_equal_parts_of_the_window() -> None:
    runs = plan(*RATE, ("  transforms", "  arrivals: {process: poisson}\n  transforms")).runs
    assert {r.window_s for r in runs} == {(600.0 + 200 * i, 800.0 + 200 * i) for i in range(5)}
    assert not any(isinstance(t, TimeCompress) for r in runs for t in r.workload.chain)


@pytest.mark.parametrize(
    ("arm", "names"),
    [
        ("{runtime: vllm, version: 0.32.0, args: {max-num-batched-tokens: 8192}}", ("runtime.args",)),
        ("{runtime: vllm, version: 0.33.0, args: {max-num-batched-tokens: 512}}", ("runtime.version",)),
        ("{runtime: vllm, version: 0.32.0, args: {max-num-batched-tokens: 512}, env: {A: b}}", ("runtime.env",)),
        ("{runtime: vllm, version: 0.32.0, args: {max-num-batched-tokens: 512}, pins: {model: {dtype: float8}}}", ("model.dtype",)),
        ("{runtime: vllm, version: 0.32.0, args: {max-num-batched-tokens: 512}, pins: {hardware: {count: 2}}}", ("hardware.gpu_count",)),
        (
            "{runtime: vllm, version: 0.32.0, args: {max-num-batched-tokens: 512}, pins: {parallelism: {tensor: 2}}}",
            ("parallelism.tensor",),
        ),
        ("{runtime: vllm, version: 0.32.0, args: {max-num-batched-tokens: 512}, pins: {model: {dtype: bfloat16}}}", ()),
        ("{runtime: vllm, version: 0.32.0, args: {max-num-batched-tokens: '512'}}", ("runtime.args",)),
        ("{runtime: reference}", ("runtime.args", "runtime.name", "runtime.version")),
    ],
)
def test_declared_differences_are_what_arms_say_differently(arm: str, names: tuple[str, ...]) -> None:
    runs = plan(("{runtime: vllm, version: 0.32.0, args: {max-num-batched-tokens: 8192}}", arm)).runs
    assert {r.arm.declared for r in runs if r.arm.name == "budget-8192"} == {names}
    assert {r.arm.declared for r in runs if r.arm.name == "budget-512"} == {()}
    assert set(names) <= RUN_COORDINATES.keys()


def test_what_a_third_arm_changes_excuses_no_difference_between_the_others() -> None:
    third = "  third: {runtime: vllm, version: 0.33.0, args: {max-num-batched-tokens: 512}}\nworkload:"
    declared = {r.arm.name: r.arm.declared for r in plan(("workload:", third)).runs}
    assert declared == {"budget-512": (), "budget-8192": ("runtime.args",), "third": ("runtime.version",)}


def test_an_override_reaches_the_pins_of_its_arm_only() -> None:
    arm = ("args: {max-num-batched-tokens: 8192}", "args: {max-num-batched-tokens: 512}, pins: {model: {dtype: float8}}")
    dtypes = {r.arm.name: r.pins.model.dtype for r in plan(arm).runs}
    assert dtypes == {"budget-512": "bfloat16", "budget-8192": "float8"}


def frozen(campaign: Campaign, **changes: Any) -> RunSpec:
    given: dict[str, Any] = {
        "attempt": 1,
        "trace": None,
        "schedule_digest": "a" * 64,
        "transforms": [{"name": "window", "start_s": 0.0}],
        "tokenizer_digest": "b" * 64,
        "evidence_class": "measured",
        "certificate": None,
        "source_digest": "c" * 64,
        "version": "0",
    }
    return freeze(campaign.runs[0], campaign, **(given | changes))


def test_freeze_says_how_many_workers_share_the_load() -> None:
    assert frozen(plan(("question", "client: {fleet: {workers: 3}}\nquestion"))).workers == 3
    assert (frozen(plan()).workers, frozen(plan()).fleet) == (1, "processes")


def test_a_ray_fleet_and_the_memory_of_its_workers_are_planned_and_the_fleet_is_frozen() -> None:
    campaign = plan(("question", "client: {fleet: {mode: ray, workers: 4, memory: 2GiB}}\nquestion"))
    assert (campaign.runs[0].fleet, campaign.runs[0].worker_memory) == ("ray", 2 * 2**30)
    assert (frozen(campaign).workers, frozen(campaign).fleet) == (4, "ray")


def test_freeze_carries_everything_over() -> None:
    client = "client: {concurrency-cap: 9, request-timeout: 30s, cpus: [0], server-cpus: [1, 2]}"
    waivers = "waivers: [{gate: backlog, reason: known and written down}]"
    more = f"{client}\n{waivers}\nhost-profile: gpu\nquestion"
    campaign = plan(("question", more))
    run, spec = campaign.runs[0], frozen(campaign, attempt=3)
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec
    assert (spec.campaign, spec.campaign_digest, spec.cell, spec.attempt) == ("m", campaign.digest, run.cell, 3)
    assert (spec.concurrency_cap, spec.request_timeout_ns, spec.placement) == (9, 30 * S, {"client": [0], "server": [1, 2]})
    assert (spec.slo.ttft_ns, spec.slo.tbt_ns, spec.slo.tbt_rule, spec.slo.e2e_ns) == (2 * S, S // 10, "every", None)
    assert (spec.window.warm_up_ns, spec.window.measured_ns, spec.window.drain_ns) == (10 * S, 60 * S, 10 * S)
    assert (spec.workload.output_length, spec.workload.max_tokens, spec.workload.window_s) == ("client_stop", 64, run.window_s)
    assert spec.workload.transforms == ({"name": "window", "start_s": 0.0},)
    assert spec.waivers[0].gate == "backlog"
    assert (spec.host_profile, spec.estimand, spec.replication.count) == ("gpu", "E2", 5)
    assert spec.workload.failed_pause_ns is None
    assert spec.rank is not None
    assert (spec.rank.at, spec.rank.margin) == (2.0, 0.02)


def test_a_closed_loop_says_when_its_users_go_on_after_a_failure() -> None:
    campaign = plan(("  output-length:", "  loop: closed\n  users: 2\n  output-length:"))
    assert frozen(campaign).workload.failed_pause_ns == S


def compress(factor: float) -> TimeCompressStep:
    return TimeCompressStep(transform="time-compress", factor=factor)


@given(st.integers(1, 10**12), st.lists(st.integers(1, 400).map(lambda n: n / 100), max_size=4), st.integers(1, 400).map(lambda n: n / 100))
def test_needed_time_is_the_product_of_the_compressions(horizon: int, factors: list[float], load: float) -> None:
    need = needed_ns(horizon, [compress(f) for f in factors], load)
    exact = Fraction(horizon) * Fraction(str(load))
    for f in factors:
        exact *= Fraction(str(f))
    assert need is not None
    assert exact <= need < exact + 1


def test_needed_time_reaches_back_over_a_window_step() -> None:
    step = WindowStep.model_validate({"transform": "window", "from": "10s", "to": "40s"})
    assert needed_ns(10 * S, [compress(2), step, compress(3)], 1.0) == 2 * (10 + 30) * S
    assert needed_ns(11 * S, [compress(2), step, compress(3)], 1.0) is None


def test_a_slice_holds_all_of_a_window_step_however_short_the_run() -> None:
    step = WindowStep.model_validate({"transform": "window", "from": "10s", "to": "40s"})
    assert needed_ns(S, [compress(2), step], 1.0) == 80 * S
    campaign = plan(("    - {transform: scale-lengths, input-factor: 0.5}", "    - {transform: window, from: 0s, to: 170s}"))
    assert [(t.start_s, t.stop_s) for t in campaign.runs[0].workload.chain if isinstance(t, WindowTransform)] == [(600, 770), (0, 170)]


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 10**4), st.integers(1, 50))
def test_slices_are_disjoint_and_inside(start: int, span: int, length: int, count: int) -> None:
    found = consecutive((start, start + span), length, count)
    if found is None:
        assert length * count > span
        return
    assert all(s.stop_ns - s.start_ns == length for s in found)
    assert all(a.stop_ns <= b.start_ns for a, b in pairwise(found))
    assert found[0].start_ns == start
    assert found[-1].stop_ns <= start + span
    assert consecutive((start, start + span), length, 1) == found[:1]


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 50))
def test_equal_parts_cover_the_window(start: int, span: int, count: int) -> None:
    parts = equal_parts((start, start + span), count)
    assert (parts[0].start_ns, parts[-1].stop_ns, len(parts)) == (start, start + span, count)
    assert all(a.stop_ns == b.start_ns for a, b in pairwise(parts))


def test_paths_are_kept_for_errors() -> None:
    assert plan().path == Path("m.yaml")


def test_what_no_server_and_no_trace_could_mend_is_refused_at_its_line() -> None:
    chat = ("  output-length:", "  prompts: {source: random-ids}\n  api: chat\n  output-length:")
    closed = ("  output-length:", "  loop: closed\n  users: 2\n  sessions:\n    think-limit: 1s\n  output-length:")
    for pair, code, key in ((chat, "workload.chat_ids", "prompts"), (closed, "workload.pause_unused", "sessions")):
        with pytest.raises(UsageError) as caught:
            plan(pair)
        (problem,) = caught.value.problems
        line = next(i for i, text in enumerate(changed(pair).splitlines(), 1) if text.strip().startswith(f"{key}:"))
        assert (problem.code, problem.where) == (code, f"m.yaml:{line}")
