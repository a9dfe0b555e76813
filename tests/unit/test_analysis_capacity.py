"""Every answer a capacity search can give, and what must not change it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.capacity import CapacityEstimate, History, Probe, ProbeRun, Search, Stages, estimate, probe_run
from analysis.capacity_rows import Bracket, bracket, rises
from analysis.capacity_runs import lost_turns
from analysis.model import CheckResult, Claim, Verdict
from analysis.run import measure_run
from tests.builders import MS, make_never_due, make_record, make_request, make_spec
from tests.capacity_worlds import World, drive, falling, make_run, make_search


def answer(world: World, search: Search | None = None, gpus: int | None = None) -> CapacityEstimate:
    return estimate(drive(search or make_search(), world)[0], gpus)


def codes(found: CapacityEstimate) -> list[str]:
    return [reason.code for reason in found.reasons]


def changed(world: World, **changes: Callable[[Probe], object]) -> World:
    return lambda probe: replace(world(probe), **{name: make(probe) for name, make in changes.items()})  # type: ignore[arg-type]


def test_resolved_by_hand() -> None:
    found = answer(falling(10.0))
    assert (found.status, found.reasons, found.estimand) == ("resolved", (), "E2")
    own = [10 * math.exp(x) for x in (-0.02, 0.0, 0.02)]
    assert [c for _, c in found.by_replicate] == pytest.approx(own, rel=2e-3)
    capacity = found.figures["capacity"]
    assert (capacity.unit, capacity.status, capacity.n) == ("req/s", "ok", 3)
    assert capacity.value == pytest.approx(10.0, rel=2e-3)
    assert capacity.interval is not None
    half = 4.302653 * 0.02 / math.sqrt(3)  # t(2), spread of the logs .02
    assert (capacity.interval.low, capacity.interval.high) == pytest.approx((10 * math.exp(-half), 10 * math.exp(half)), rel=5e-3)
    assert found.figures["capacity_pooled"].diagnostic
    assert found.figures["capacity_pooled"].value == pytest.approx(10.0, rel=5e-3)


def test_the_bracket_holds_the_certified_ends_and_not_the_middle() -> None:
    found = answer(falling(10.0))
    assert found.bracket.low is not None
    assert found.bracket.high is not None
    assert found.bracket.low < 10.0 < found.bracket.high
    verdicts = [row.verdict for row in found.rows]
    assert verdicts == sorted(verdicts, key=["pass", "inconclusive", "fail"].index)
    assert set(verdicts) == {"pass", "inconclusive", "fail"}
    assert {row.rate: row.verdict for row in found.rows}[found.bracket.low] == "pass"


def test_a_certificate_behind_a_gap_sets_no_end() -> None:
    found = answer(falling(10.0))
    by_verdict = {row.verdict: row for row in found.rows}
    good, open_, bad = (by_verdict[v] for v in ("pass", "inconclusive", "fail"))
    rows = [replace(row, rate=float(i)) for i, row in enumerate((good, good, open_, good, bad, open_, bad))]
    assert bracket(rows) == Bracket(1.0, 6.0)
    assert bracket(rows[2:6]) == Bracket(None, None)


def test_censored_when_the_limit_still_passes() -> None:
    found = answer(falling(50.0), make_search(limit=8.0))
    assert (found.status, found.at_least, found.at_most, codes(found)) == ("censored", 8.0, None, ["censored"])
    assert found.figures["capacity"].value is None
    assert found.bracket.low == 8.0


def test_censored_when_the_lowest_load_already_fails() -> None:
    found = answer(falling(1e-3), make_search(halvings=1))
    assert (found.status, found.at_least, found.at_most) == ("censored", None, 0.5)
    assert found.bracket.high == 0.5


@pytest.mark.parametrize("method", ["isotonic", "logit"])
@pytest.mark.parametrize("edge", [9.7, 9.9, 10.1])
def test_a_cliff_is_known_to_lie_between_two_rates_and_no_closer(method: str, edge: float) -> None:
    """Replicates that agree to a hair agree on where the line was drawn through the gap: an interval over them alone has no width."""
    found = answer(lambda probe: make_run(probe, 1.0 if probe.rate < edge else 0.0, offered=1000), make_search(method=method))
    figure = found.figures["capacity"]
    assert found.status == "resolved"
    assert figure.interval is not None
    assert figure.value is not None
    assert figure.interval.low <= edge <= figure.interval.high
    assert figure.interval.low <= figure.value <= figure.interval.high
    assert figure.interval.method.endswith("no narrower than the grid resolves a cliff of attainment")
    assert figure.interval.high / figure.interval.low >= 1.049


def test_an_interval_over_replicates_that_differ_more_than_the_grid_steps_is_left_alone() -> None:
    found = answer(falling(10.0, (-0.04, 0.0, 0.04), slope=1000.0)).figures["capacity"].interval
    assert found is not None
    assert found.method == "t over replicates, log scale"
    gentle = answer(falling(10.0, (0.0,))).figures["capacity"].interval
    assert gentle is not None
    assert gentle.method == "t over replicates, log scale"


def test_a_bound_says_what_would_lift_it() -> None:
    """The end of the declared range, or the end of what may be added to a grid that was located elsewhere."""

    def elsewhere(capacity: float) -> World:
        return lambda probe: falling(10.0 if probe.phase == "locate" else capacity)(probe)

    remedies = {
        "raise load.capacity.limit": answer(falling(50.0), make_search(limit=8.0)),
        "lower load.capacity.start or relax the SLO": answer(falling(1e-3), make_search(halvings=1)),
    }
    found = list(remedies.items())
    found += [("raise load.capacity.widen", answer(elsewhere(capacity), make_search(widen=1))) for capacity in (1.0, 60.0)]
    for words, one in found:
        assert (one.status, [reason.remedy for reason in one.reasons]) == ("censored", [words])


def test_too_few_requests_to_show_a_strict_target_are_named() -> None:
    """20 requests without a miss count as 20.5/21 = 0.976, so no capacity at 99% can be read off such runs."""
    found = answer(lambda probe: make_run(probe, 1.0, valid=20 if probe.rate < 10 else 0, offered=20), make_search(attainment=0.99))
    assert (found.status, codes(found)) == ("unresolved", ["not_all_cross", "too_few_requests"])
    assert found.reasons[1].text.startswith("20 requests in a run, which counts as 0.976")
    assert "too_few_requests" not in codes(answer(falling(50.0, spread=(0.0, 0.3, -0.3)), make_search(limit=60.0, widen=0)))


def test_a_top_rate_that_passes_without_a_certificate_is_no_bound() -> None:
    shares = {0: 0.901, 1: 0.98, 2: 0.902}
    found = answer(lambda probe: make_run(probe, shares.get(probe.replicate, 0.95)), make_search(limit=2.0))
    assert (found.status, codes(found), found.at_least) == ("unresolved", ["not_all_cross"], None)


def test_non_monotone_when_more_load_does_better() -> None:
    fine = falling(10.0)

    def scales_up(probe: Probe) -> ProbeRun:
        faster = 1.2 if probe.rate > 10.1 and probe.phase == "grid" else 1.0
        return replace(fine(replace(probe, rate=probe.rate / faster)), rate=probe.rate)

    found = answer(scales_up, make_search(replicates=5))
    assert (found.status, set(codes(found))) == ("non_monotone", {"non_monotone"})
    assert found.figures["capacity"].value is None


def test_a_rise_within_noise_is_no_finding() -> None:
    bumps = falling(10.0)

    def bumpy(probe: Probe) -> ProbeRun:
        run = bumps(probe)
        sign = 1 if (probe.replicate + int(probe.rate * 3)) % 2 else -1
        return replace(run, valid=min(run.offered, max(0, run.valid + 8 * sign)))

    assert answer(bumpy).status == "resolved"


def test_a_gain_that_is_alike_in_every_replicate_is_still_held_against_chance() -> None:
    cells = [("grid", rate, r, k) for rate, k in ((1.0, 900), (2.0, 903)) for r in range(5)]
    runs = {(p, rate, r): ProbeRun(p, rate, r, r, r, k, 1000, overloaded=False) for p, rate, r, k in cells}
    assert list(rises((1.0, 2.0), range(5), runs)) == []


def test_unresolved_when_replicates_do_not_cross_inside_the_grid() -> None:
    found = answer(falling(10.0, spread=(0.0, 0.0, 0.5)), make_search(widen=0))
    assert (found.status, codes(found)) == ("unresolved", ["not_all_cross"])
    assert "1 above" in found.reasons[0].text
    assert [r for r, _ in found.by_replicate] == [0, 1]  # shown, but no mean is taken of those that happen to cross


def test_unresolved_when_work_piles_up_before_the_limits_break() -> None:
    overloaded = changed(falling(10.0), overloaded=lambda probe: probe.phase == "grid" and probe.rate > 9.0)
    found = answer(overloaded)
    assert (found.status, codes(found)) == ("unresolved", ["overloaded_below_crossing"])
    assert all(row.verdict != "pass" for row in found.rows if row.rate > 9.0)


def test_one_false_alarm_of_overload_changes_nothing() -> None:
    one = changed(falling(10.0), overloaded=lambda probe: probe.replicate == 1)
    assert answer(one).figures["capacity"].value == answer(falling(10.0)).figures["capacity"].value


def test_overload_above_the_crossing_is_what_one_expects() -> None:
    found = answer(changed(falling(10.0), overloaded=lambda probe: probe.rate > 10.4))
    assert found.status == "resolved"
    assert found.rows[-1].overloaded == 3


def test_an_unfinished_search_is_not_read() -> None:
    history, _ = drive(make_search(), falling(10.0))
    found = estimate(replace(history, runs=history.runs[:-1]))
    assert (found.status, codes(found)) == ("unresolved", ["search_unfinished"])


def test_a_blocked_run_leaves_no_number() -> None:
    found = answer(changed(falling(10.0), blocked=lambda probe: ("client_slip",) if probe.phase == "grid" and probe.rate > 10 else ()))
    assert (found.status, codes(found)) == ("unresolved", ["no_evidence"])
    assert "client_slip" in found.reasons[0].text


def test_runs_that_were_not_asked_for_are_not_added() -> None:
    history, _ = drive(make_search(), falling(10.0))
    extra = make_run(Probe("grid", 10.123, 0), 0.9)
    found = estimate(replace(history, runs=(*history.runs, extra)))
    assert (found.status, codes(found)) == ("unresolved", ["runs_not_asked_for"])


@pytest.mark.parametrize(
    ("seed", "code"),
    [
        (lambda probe: int(probe.rate * 1e6), "draws_differ"),
        (lambda probe: 1 if probe.replicate < 2 else 2 + probe.replicate, "draws_repeat"),
        (lambda probe: probe.replicate % 3, "search_data_reused"),
    ],
)
def test_draws_must_be_fresh_and_the_same_at_every_rate(seed: Callable[[Probe], int], code: str) -> None:
    found = answer(changed(falling(10.0), seed=seed))
    assert found.status == "unresolved"
    assert code in codes(found)


def test_one_draw_for_all_is_a_statement_about_this_trace() -> None:
    found = answer(changed(falling(10.0), seed=lambda probe: 5))
    assert (found.status, found.estimand) == ("resolved", "E1")


def test_replicates_that_share_servers_count_once() -> None:
    search, spread = make_search(replicates=6), (-0.02, 0.0, 0.02, -0.02, 0.0, 0.02)
    own = answer(falling(10.0, spread), search).figures["capacity"].interval
    shared = answer(changed(falling(10.0, spread), server_start=lambda p: p.replicate % 3), search).figures["capacity"].interval
    assert own is not None
    assert shared is not None
    assert (own.unit_of_inference, shared.unit_of_inference) == ("replicate", "hierarchical")
    assert (own.n, shared.n) == (6, 3)
    assert shared.high / shared.low > own.high / own.low


def test_replicates_linked_through_a_third_count_as_one() -> None:
    linked = changed(falling(10.0), server_start=lambda p: p.replicate if p.replicate < 2 else int(p.rate > 10))
    assert codes(answer(linked)) == ["one_server_start"]


def test_one_server_for_all_gives_no_interval_and_so_no_number() -> None:
    found = answer(changed(falling(10.0), server_start=lambda probe: 0))
    assert (found.status, codes(found)) == ("unresolved", ["one_server_start"])


def test_a_second_stage_keeps_the_spread_of_the_first() -> None:
    search = make_search(stages=Stages(half_width=0.05, most=6))
    found = answer(falling(10.0, spread=(-0.05, 0.0, 0.05, 0.01, -0.01, 0.0)), search)
    interval = found.figures["capacity"].interval
    assert interval is not None
    assert "first 3" in interval.method
    assert interval.n == 6
    assert math.log(interval.high / interval.low) / 2 == pytest.approx(4.302653 * 0.05 / math.sqrt(6), rel=0.01)


def test_a_second_stage_needs_servers_of_its_own() -> None:
    search = make_search(stages=Stages(half_width=0.05, most=6))
    found = answer(changed(falling(10.0), server_start=lambda probe: probe.replicate % 2), search)
    assert (found.status, codes(found)) == ("unresolved", ["stages_share_starts"])


def test_per_gpu_and_per_watt_where_there_are_inputs() -> None:
    powered = changed(falling(10.0), watts=lambda probe: 50 * probe.rate)
    found = answer(powered, gpus=4).figures
    assert found["capacity_per_gpu"].value == pytest.approx(2.5, rel=2e-3)
    assert found["capacity_per_watt"].value == pytest.approx(1 / 50, rel=1e-6)
    bare = answer(falling(10.0)).figures
    for name, word in (("capacity_per_gpu", "GPUs"), ("capacity_per_watt", "power")):
        assert (bare[name].value, bare[name].status) == (None, "unknown")
        assert word in bare[name].reason


def test_power_that_one_run_lacks_is_not_known() -> None:
    found = answer(changed(falling(10.0), watts=lambda probe: None if probe.rate > 11 else 500.0)).figures
    assert found["capacity_per_watt"].value is None


def test_a_compression_becomes_a_rate_only_through_what_was_offered() -> None:
    search = make_search(unit="time_compression")
    offered = changed(falling(10.0), offered_rate=lambda probe: 3 * probe.rate)
    with_rate, without = answer(offered, search, gpus=2).figures, answer(falling(10.0), search, gpus=2).figures
    assert with_rate["capacity"].unit == "x"
    assert with_rate["capacity_rate"].value == pytest.approx(30.0, rel=2e-3)
    assert with_rate["capacity_per_gpu"].value == pytest.approx(15.0, rel=2e-3)
    assert (without["capacity_rate"].value, without["capacity_per_gpu"].value) == (None, None)


def test_the_attained_share_stands_beside_every_rate() -> None:
    some = changed(falling(10.0), sent_share=lambda probe: 0.999 if probe.replicate else 1.0)
    assert {row.sent_share for row in answer(some).rows} == {0.999}
    assert {row.sent_share for row in answer(falling(10.0)).rows} == {None}


def noisy(seed: int, factor: float = 1.0, slope: float = 15.0) -> World:
    """Curves of replicates that differ, counted in 400 requests, seeded."""
    spread = tuple(np.random.default_rng(seed).normal(0.0, 0.04, 40))
    fine = falling(10.0, spread, slope)

    def world(probe: Probe) -> ProbeRun:
        run = fine(replace(probe, rate=probe.rate / factor))
        own = make_run(probe, 0.5)
        return replace(own, valid=run.valid * 2 // 5, offered=400)

    return world


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_the_order_of_the_runs_changes_no_answer(seed: int, shuffler: object) -> None:
    history, _ = drive(make_search(), noisy(seed))
    runs = list(history.runs)
    shuffler.shuffle(runs)  # type: ignore[attr-defined]
    assert estimate(History(history.search, tuple(runs))) == estimate(history)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.01, 0.1, 10.0, 1000.0]), st.sampled_from(["isotonic", "logit"]))
def test_scaling_all_rates_scales_the_answer(seed: int, factor: float, method: str) -> None:
    found = answer(noisy(seed), make_search(method=method))
    scaled = answer(noisy(seed, factor), make_search(method=method, start=factor, limit=64 * factor))
    assert scaled.status == found.status
    if found.status == "resolved":
        a, b = found.figures["capacity"], scaled.figures["capacity"]
        assert a.value is not None
        assert b.value is not None
        assert b.value / factor == pytest.approx(a.value, rel=2e-3)  # counts are whole, rates have six digits
        assert [c / factor for _, c in scaled.by_replicate] == pytest.approx([c for _, c in found.by_replicate], rel=5e-3)


def test_a_measured_run_becomes_what_a_search_needs() -> None:
    slow = [make_request(i, i * 100 * MS, ttft_ns=600 * MS) if i % 10 == 0 else make_request(i, i * 100 * MS) for i in range(140)]
    record = make_record(slow, spec=make_spec(replicate=3, server_start=8))
    standing = (CheckResult("client_slip", Verdict.UNKNOWN, "no certificate", (Claim.CAPACITY,), "calibrate"),)
    run = probe_run("grid", record, measure_run(record), standing, watts=210.0)
    assert run.key == ("grid", record.spec.load.value, 3)
    assert (run.server_start, run.seed) == (8, record.spec.workload.seed)
    assert (run.valid, run.offered, run.overloaded) == (90, 100, False)
    assert (run.sent_share, run.offered_rate, run.watts) == (1.0, 10.0, 210.0)
    assert run.objections == ("client_slip",)


def test_turns_lost_with_the_turn_before_them_are_offered_and_not_valid() -> None:
    """Half of the first turns are turned away, each with one turn after it: 50 of 100 is met, not the 50 of 75 that arrived."""
    nothing: dict[str, list[int]] = {name: [] for name in ("event_ns", "event_tokens", "event_bytes", "event_kind")}
    refused = {"end_kind": "http_error", "http_status": 429} | nothing
    first = [make_request(i, 2000 * MS + i * 200 * MS) | (refused if i % 2 else {}) for i in range(50)]
    later = [make_never_due(50 + i) if i % 2 else make_request(50 + i, 2100 * MS + i * 200 * MS) for i in range(50)]
    plan = {50 + i: {"arrival_ns": 2100 * MS + i * 200 * MS, "after": [i], "think_ns": 0} for i in range(50)}
    record = make_record([*first, *later], plan=plan)
    run = probe_run("grid", record, measure_run(record), ())
    assert (run.valid, run.offered) == (50, 100)
    early = {row: changes | {"arrival_ns": 1000 * MS} for row, changes in plan.items()}  # in the warm-up: of no window
    assert lost_turns(make_record([*first, *later], plan=early)) == 0


def test_an_attainment_that_is_not_known_is_an_objection() -> None:
    window = 2000 * MS + 10_000 * MS
    rows = [make_request(i, i * 100 * MS) for i in range(120)]
    rows[-1] |= {"end_kind": "drain_end", "end_ns": window, "event_ns": [], "event_tokens": [], "event_bytes": [], "event_kind": []}
    record = make_record(rows)
    run = probe_run("grid", record, measure_run(record), ())
    assert any("could still have become valid" in why for why in run.objections)
