"""Ramps: the rate in a line, the mean and the order untouched, and where a ramp means nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.manifest import expand
from harness.manifest import workload as said
from harness.manifest.ramp_rules import WINDOW_SLACK, check_ramp_window
from harness.manifest.schema import Window
from tests.tracefiles import jsonl
from tests.unit.test_manifest_load import changed, fault, parse
from workloads import ByteTokenizer, Schedule, WorkloadPlan, build_schedule, content_digest
from workloads.arrivals import NS_PER_S, draw
from workloads.plan import ConstantArrivals, PoissonArrivals, Ramp
from workloads.ramps import ramped
from workloads.traces.find import file_digest

H = 100 * NS_PER_S
RAMPS = st.floats(0, 2).map(lambda start: Ramp(start=start, stop=2 - start))


def synthetic(**changes: Any) -> WorkloadPlan:
    base: dict[str, Any] = {
        "trace": None,
        "lengths": {"input": {"kind": "constant", "value": 8}, "output": {"kind": "constant", "value": 2}},
        "arrivals": {"process": "constant", "rate": 10},
        "output": {"control": "forced"},
        "horizon_s": 100,
        "seed": 3,
    }
    return WorkloadPlan.model_validate(base | changes)


def build(plan: WorkloadPlan, *folders: Path) -> Schedule:
    return build_schedule(plan=plan, tokens=ByteTokenizer(), search_path=folders, max_model_len=4096)


@given(st.lists(st.integers(0, 2 * H), max_size=50).map(sorted), RAMPS)
def test_order_and_number_stay_and_nothing_leaves_the_horizon(arrivals: list[int], ramp: Ramp) -> None:
    before = np.array(arrivals, dtype=np.int64)
    after = ramped(before, ramp, H)
    assert (np.diff(after) >= 0).all()
    assert ((after < H) == (before < H)).all()
    assert (after[before >= H] == before[before >= H]).all()
    assert (after >= 0).all()


@given(st.lists(st.integers(0, H - 1), max_size=50), RAMPS)
def test_the_area_under_the_line_up_to_an_arrival_is_where_it_was(arrivals: list[int], ramp: Ramp) -> None:
    before = np.array(arrivals, dtype=np.int64)
    y = ramped(before, ramp, H) / H
    area = ramp.start * y + (ramp.stop - ramp.start) * y**2 / 2
    assert np.abs(area - before / H).max(initial=0) <= 2 * 2.0 / H + 1e-12  # a nanosecond of rounding under a line of at most 2


def test_no_slope_changes_nothing() -> None:
    before = draw(PoissonArrivals(rate=30), H, 1)
    assert ramped(before, Ramp(start=1, stop=1), H).tolist() == before.tolist()


@pytest.mark.parametrize(("start", "stop"), [(0.0, 2.0), (0.5, 1.5), (2.0, 0.0)])
def test_constant_arrivals_come_at_the_rate_of_the_line(start: float, stop: float) -> None:
    after = ramped(draw(ConstantArrivals(rate=100), H, 1), Ramp(start=start, stop=stop), H)
    counts, edges = np.histogram(after, bins=10, range=(0, H))
    middle = (edges[:-1] + edges[1:]) / 2 / H
    assert counts == pytest.approx(1000 * (start + (stop - start) * middle), abs=1.5)
    assert counts.sum() == 10_000


def test_a_poisson_process_stays_one_of_a_changing_rate() -> None:
    """In each part counts vary over seeds as much as their mean, for which nothing was fitted."""
    ramp = Ramp(start=0.2, stop=1.8)
    counts = np.array([np.histogram(ramped(draw(PoissonArrivals(rate=5), H, s), ramp, H), bins=4, range=(0, H))[0] for s in range(300)])
    expected = 125 * (0.2 + 1.6 * (np.arange(4) + 0.5) / 4)
    assert np.abs(counts.mean(axis=0) - expected).max() <= 5 * math.sqrt(expected.max() / 300)
    assert (counts.var(axis=0, ddof=1) / counts.mean(axis=0)) == pytest.approx([1] * 4, abs=0.4)  # five standard errors at n = 300


def test_a_drawn_workload_ramps_and_sends_what_it_would_have_sent() -> None:
    steady, rising = build(synthetic()), build(synthetic(ramp={"start": 0.5, "stop": 1.5}))
    assert len(steady) == len(rising) == 1000
    assert (rising.arrival_ns <= H).all()
    assert (rising.arrival_ns > steady.arrival_ns)[1:-1].all()  # slower at first, and never ahead of the steady one
    assert content_digest(rising) != content_digest(steady)


def test_a_traces_own_times_ramp_within_the_run_and_the_log_says_so(tmp_path: Path) -> None:
    rows = [{"timestamp": 1000 * k, "input_length": 4, "output_length": 1, "hash_ids": [k]} for k in range(200)]
    path = tmp_path / "m.jsonl"
    path.write_bytes(jsonl(rows))
    trace = {"format": "mooncake", "name": "m.jsonl", "sha256": file_digest(path)}
    falling = build(synthetic(trace=trace, lengths=None, arrivals={"process": "trace"}, ramp={"start": 1.5, "stop": 0.5}), tmp_path)
    assert len(falling) == 100  # the first hundred seconds of the trace, as without a ramp
    assert np.diff(falling.arrival_ns)[0] < NS_PER_S < np.diff(falling.arrival_ns)[-1]
    assert ("ramp", 1.5, 0.5) in [(entry["name"], entry.get("start"), entry.get("stop")) for entry in falling.transforms]


def test_users_of_a_closed_loop_have_no_rate_to_ramp() -> None:
    with pytest.raises(UsageError, match="closed_ramp"):
        build(synthetic(loop="closed", users=2, ramp={"start": 1, "stop": 1}))


RAMP = ("  output-length", "  arrivals: {process: trace, ramp: {from: 0.5, to: %s}}\n  output-length")


def test_a_manifest_says_both_ends_and_the_record_keeps_them() -> None:
    runs = expand(parse(changed((RAMP[0], RAMP[1] % 1.5)))).runs
    assert {(run.workload.ramp.start, run.workload.ramp.stop) for run in runs if run.workload.ramp} == {(0.5, 1.5)}
    assert {run.workload.ramp for run in expand(parse()).runs} == {None}


def test_a_ramp_that_would_add_load_is_refused_with_the_right_end() -> None:
    problem = fault((RAMP[0], RAMP[1] % 2))
    assert (problem.code, problem.remedy) == ("bad_ramp", "write to: 1.5; the load itself sets the mean")


def test_a_measured_window_beside_the_middle_of_the_line_is_refused_with_its_mean() -> None:
    """What is measured is printed as of the load: it must not be measured at three fifths of it."""
    ramp = (RAMP[0], RAMP[1].replace("0.5", "0") % 2)
    problem = fault(ramp, ("drain: 10s", "drain: 60s"))
    assert problem.code == "bad_ramp"
    assert "0.615 times the load" in problem.what
    assert problem.remedy == "make warm-up and drain equally long, e.g. 1m each"
    parse(changed((RAMP[0], RAMP[1].replace("0.5", "1") % 1), ("drain: 10s", "drain: 60s")))  # no slope, no matter


@given(st.floats(0, 2), st.integers(0, 300), st.integers(1, 300), st.integers(0, 300))
def test_the_mean_that_is_refused_is_that_of_the_arrivals(start: float, warm_up: int, measured: int, drain: int) -> None:
    end = warm_up + measured + drain
    after = ramped(draw(ConstantArrivals(rate=50), end * NS_PER_S, 1), Ramp(start=start, stop=2 - start), end * NS_PER_S)
    seen = int(((after >= warm_up * NS_PER_S) & (after < (warm_up + measured) * NS_PER_S)).sum()) / (50 * measured)
    arrivals = said.Arrivals.model_validate({"process": "constant", "ramp": {"from": start, "to": 2 - start}})
    window = Window.model_construct(warm_up=warm_up * NS_PER_S, measured=measured * NS_PER_S, drain=drain * NS_PER_S)
    found = list(check_ramp_window(window, said.Workload.model_construct(arrivals=arrivals)))
    if abs(seen - 1) > WINDOW_SLACK + 2 / (50 * measured):
        assert found
    elif abs(seen - 1) < WINDOW_SLACK - 2 / (50 * measured):
        assert not found


def test_a_search_asks_for_one_rate() -> None:
    search = ("load: {time-compression: [1.0, 2.0]}", "load: {capacity: {start: 1.0, limit: 4.0, attainment: 0.9}}")
    goal = ("metric: goodput, at: 2.0, margin: 2%", "metric: capacity, margin: 2%")
    assert "bad_ramp" in {p.code for p in faults_of((RAMP[0], RAMP[1] % 1.5), search, goal)}


def faults_of(*pairs: tuple[str, str]) -> list[Any]:
    with pytest.raises(UsageError) as caught:
        parse(changed(*pairs))
    return list(caught.value.problems)
