"""Gates are monotone: what is worse never passes where better failed, and the boundary lies where the threshold says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.gates import GATES
from analysis.gates.counters import area_error
from analysis.gates.registry import Finding, attempt, combine, failed, passed, unknown
from analysis.gates.steady import Series, trend
from analysis.gates.tables import in_flight, nearest_rank
from analysis.model import Verdict
from analysis.samples import AbsentError
from harness.record.coordinates import Known
from tests.builders import MS, make_coordinates, make_host_samples, make_request, make_server_samples, make_spec
from tests.gates.cases import TURN_NS, answering, healthy, pair_context, rows, run_context, sessions, sharing

BASE_ROWS = rows()
QUICK = settings(deadline=None, max_examples=40)
"""No time limit: what a shared core does is not what is tested."""

VERDICTS = st.lists(st.sampled_from(list(Verdict)), min_size=1, max_size=6)


def verdict(code: str, **parts: Any) -> Verdict:
    requests = parts.pop("requests", None)
    metrics = parts.pop("server_metrics", None)
    record = healthy(requests, server_metrics=[] if metrics is None else metrics, **parts)
    return attempt(GATES[code].check, run_context(record)).verdict


@QUICK
@given(VERDICTS)
def test_parts_combine_to_the_worst(parts: list[Verdict]) -> None:
    worst = next(v for v in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS) if v in parts)
    found = combine(Finding(v, f"part {i}") for i, v in enumerate(parts))
    assert found.verdict is worst
    shown = [i for i, v in enumerate(parts) if v is not Verdict.PASS] or range(len(parts))
    assert found.reason == "; ".join(f"part {i}" for i in shown)


def test_nothing_to_combine_is_unknown() -> None:
    assert combine([]).verdict is Verdict.UNKNOWN
    assert combine([passed("a"), unknown("b"), failed("c")]).reason == "b; c"


@QUICK
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=400), st.sampled_from([0.5, 0.95, 0.99]))
def test_nearest_rank_is_an_observed_value_with_the_share_below(values: list[int], p: float) -> None:
    if len(values) < max(2, round(1 / (1 - p))):
        with pytest.raises(AbsentError):
            nearest_rank(np.array(values), p)
        return
    found = nearest_rank(np.array(values), p)
    assert found in values
    assert sum(v <= found for v in values) >= p * len(values) - 1e-6
    assert sum(v < found for v in values) < p * len(values)


@QUICK
@given(st.integers(0, 100 * MS))
def test_slip_fails_exactly_beyond_its_limits(slip: int) -> None:
    found = verdict("client_slip", requests=[r | {"send_ns": r["arrival_ns"] + slip} for r in BASE_ROWS])
    assert (found is Verdict.PASS) == (slip <= 5 * MS)  # 1% of the TTFT limit of 500 ms


@QUICK
@given(st.floats(0, 0.01))
def test_lag_fails_exactly_beyond_two_percent_of_the_tbt_limit(lag: float) -> None:
    found = verdict("receive_lag", host=make_host_samples(loop_lag_s=lag))
    assert (found is Verdict.PASS) == (lag * 1e3 <= 2.0)


@QUICK
@given(st.lists(st.floats(0, 0.004), min_size=2, max_size=5))
def test_lag_is_that_of_the_worst_worker(lags: list[float]) -> None:
    probes = [s for s in make_host_samples() if s["metric"] == "loop_lag_s"]
    host = [s | {"labels": f"w{k}", "value": lag} for k, lag in enumerate(lags) for s in probes]
    found = verdict("receive_lag", host=host)
    assert (found is Verdict.PASS) == (max(lags) * 1e3 <= 2.0)
    assert verdict("receive_lag", host=host + [s | {"labels": "lost"} for s in probes[:50]]) is Verdict.UNKNOWN


@QUICK
@given(st.floats(0, 3))
def test_stamps_are_the_kernels_in_all_but_a_hundredth_of_the_reads(unstamped: float) -> None:
    host = make_host_samples(unstamped_reads_total=unstamped)
    by_kernel = make_coordinates(client_stamps=Known(value="kernel"))
    assert (verdict("receive_lag", host=host, coordinates=by_kernel) is Verdict.PASS) == (unstamped <= 1.0)
    assert verdict("receive_lag", host=host, coordinates=make_coordinates(client_stamps=Known(value="read"))) is Verdict.PASS
    unseen = [s for s in host if s["metric"] != "unstamped_reads_total"]
    assert verdict("receive_lag", host=unseen, coordinates=by_kernel) is Verdict.UNKNOWN


@QUICK
@given(st.floats(1, 100))
def test_headroom_needs_more_than_twice_the_rate(ceiling: float) -> None:
    paper = make_spec().certificate
    assert paper is not None
    found = verdict("client_headroom", spec=make_spec(certificate=paper.model_copy(update={"rate_ceiling": ceiling})))
    assert (found is Verdict.PASS) == (ceiling > 20.0)


@QUICK
@given(st.sampled_from(["cpu_steal_ratio", "foreign_cpu_ratio"]), st.floats(0, 0.5))
def test_host_ratios_fail_exactly_beyond_their_limit(metric: str, ratio: float) -> None:
    limit = {"cpu_steal_ratio": 0.02, "foreign_cpu_ratio": 0.10}[metric]
    if abs(ratio - limit) > 1e-9:
        assert (verdict("environment_stable", host=make_host_samples(**{metric: ratio})) is Verdict.PASS) == (ratio < limit)


@QUICK
@given(st.integers(-3, 3))
def test_counters_fail_on_any_difference(extra: int) -> None:
    found = verdict("counts_agree", server_metrics=make_server_samples(BASE_ROWS, generation_tokens_total=extra))
    assert (found is Verdict.PASS) == (extra == 0)


@QUICK
@given(st.integers(0, 200))
def test_cached_tokens_fail_from_one_block(cached: int) -> None:
    found = verdict("prefix_realised", requests=rows(usage_cached_tokens=cached))
    assert (found is Verdict.PASS) == (cached < 16)


@QUICK
@given(st.integers(0, 20))
def test_planned_reuse_fails_exactly_beyond_what_was_shared_in_whole_blocks(cached: int) -> None:
    found = attempt(GATES["prefix_realised"].check, run_context(sharing(cached)())).verdict  # 9 tokens shared, blocks of 4
    assert found is (Verdict.UNKNOWN if cached == 0 else Verdict.PASS if cached <= 8 else Verdict.FAIL)


@QUICK
@given(st.integers(-3 * MS, 3 * MS))
def test_a_turn_may_come_due_a_millisecond_off_and_no_more(shift: int) -> None:
    found = attempt(GATES["delivered_load"].check, run_context(sessions(arrival_ns=TURN_NS + shift)()))
    assert (found.verdict is Verdict.PASS) == (abs(shift) <= MS), found.reason


@QUICK
@given(st.lists(st.floats(-3, 3), min_size=8, max_size=60), st.floats(0.1, 1), st.floats(0, 20))
def test_area_error_moves_with_its_samples(differences: list[float], period: float, churn: float) -> None:
    d = np.array(differences)
    base, moved = area_error(d, period, churn), area_error(d + 5.0, period, churn)
    assert moved.difference == pytest.approx(base.difference + 5.0)
    assert moved.sampling == pytest.approx(base.sampling, abs=1e-9)
    assert moved.bias == pytest.approx(churn * period / 2, abs=1e-300)  # the smallest numbers are rounded after each step


def test_area_needs_samples() -> None:
    with pytest.raises(AbsentError, match="at least 8"):
        area_error(np.zeros(7), 1.0, 1.0)


@QUICK
@given(st.floats(-0.5, 1.5), st.integers(0, 2**32 - 1))
def test_trend_recovers_an_injected_drift(drift: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    t, company = np.sort(rng.uniform(0, 100, 400)), rng.normal(size=(400, 2))
    y = 0.3 + company @ [0.5, -0.2] + drift * (t - 50) / 100
    found = trend("TTFT", (t, y, company, np.ones(400)), 100.0, 0.99)
    assert found.drift == pytest.approx(drift, abs=1e-5)
    assert found.drifts == (abs(found.drift) > math.log(1.25))


def test_trend_needs_requests() -> None:
    few: Series = (np.arange(59.0), np.zeros(59), np.zeros((59, 1)), np.ones(59))
    with pytest.raises(AbsentError, match="at least 60"):
        trend("TBT", few, 59.0, 0.99)


def test_a_trend_that_cannot_be_fitted_is_absent_and_never_a_pass() -> None:
    broken: Series = (np.arange(100.0), np.full(100, np.nan), np.zeros((100, 1)), np.ones(100))
    with pytest.raises(AbsentError, match="cannot be fitted"):
        trend("TTFT", broken, 100.0, 0.99)


@QUICK
@given(st.floats(0, 1))
def test_backlog_fails_when_more_comes_than_goes(share: float) -> None:
    made = [make_request(i, i * 100 * MS, ttft_ns=50 * MS + int(share * max(0, i - 20) * 100 * MS)) for i in range(140)]
    expected = share / (1 + share)
    if abs(expected - 0.05) > 0.02:
        assert (verdict("backlog", requests=made) is Verdict.FAIL) == (expected > 0.05)


@QUICK
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), max_size=20), st.integers(-5, 160))
def test_in_flight_counts_half_open_intervals(intervals: list[tuple[int, int]], at: int) -> None:
    starts = np.array([s for s, _ in intervals], dtype=np.int64)
    ends = np.array([s + d for s, d in intervals], dtype=np.int64)
    assert in_flight(starts, ends, np.array([at]))[0] == sum(s <= at < s + d for s, d in intervals)


@QUICK
@given(st.integers(80, 120))
def test_mean_lengths_across_arms_agree_within_ten_percent(tokens: int) -> None:
    found = attempt(GATES["output_length_agree"].check, pair_context([answering(100), answering(tokens)]))
    assert (found.verdict is Verdict.PASS) == (90 <= tokens <= 110)
