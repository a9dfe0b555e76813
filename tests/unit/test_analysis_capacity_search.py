"""What a search asks for: it ends, repeats nothing, stays below its limit, and does not mind the order of what it is told."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.capacity import Done, History, Probe, ProbeRun, Search, Stages, coordinate, next_probe
from analysis.capacity_search import crossings, first_grid, planned_replicates
from harness.errors import UsageError
from tests.capacity_worlds import World, drive, falling, make_run, make_search


@st.composite
def declarations(draw: st.DrawFn) -> Search:
    start = draw(st.floats(1e-3, 1e3))
    resolution = draw(st.floats(0.001, 1.0))
    grid = draw(st.integers(3, 6))
    least = (1 + resolution) ** (1 / (grid - 1)) - 1
    replicates = draw(st.integers(2, 3))
    return Search(
        unit="rate",
        start=start,
        limit=start * draw(st.floats(1.0, 100.0)),
        attainment=draw(st.floats(0.01, 0.99)),
        resolution=resolution,
        grid=grid,
        step=min(0.5, max(0.001, least * 1.001)),
        replicates=replicates,
        widen=draw(st.integers(0, 4)),
        halvings=draw(st.integers(0, 4)),
        spare=draw(st.integers(0, 2)),
        method=draw(st.sampled_from(["isotonic", "logit"])),
        stages=draw(st.none() | st.builds(Stages, st.floats(0.01, 0.5), st.just(replicates + 4))),
    )


def anything(seed: int, mean: float, lost: float) -> World:
    """Answers without any sense: any share, any overload, some runs without evidence; at ``mean`` 0 or 1 none or all pass."""

    def world(probe: Probe) -> ProbeRun:
        rng = np.random.default_rng([seed, int(probe.rate * 1e6), probe.replicate])
        share = mean if mean in (0.0, 1.0) else rng.random()
        blocked = ("steady_state",) if rng.random() < lost else ()
        return make_run(probe, share, overloaded=share < 1 and rng.random() < 0.3, blocked=blocked)

    return world


@settings(max_examples=60, deadline=None)
@given(declarations(), st.integers(0, 10**6), st.sampled_from([0.5, 0.0, 1.0]), st.sampled_from([0.0, 0.02, 0.5]))
def test_any_history_ends_in_time_repeats_nothing_and_stays_below_the_limit(search: Search, seed: int, mean: float, lost: float) -> None:
    history, done = drive(search, anything(seed, mean, lost))
    assert len(history.runs) <= search.most_probes
    assert max(run.rate for run in history.runs) <= search.limit
    assert min(run.rate for run in history.runs) >= 0.999 * search.start / 2**search.halvings / (1 + search.step) ** (
        search.grid + search.widen
    )
    assert len({(run.rate, run.replicate) for run in history.runs}) == len(history.runs)
    locating = [run.replicate for run in history.runs if run.phase == "locate"]
    grid = {run.replicate for run in history.runs if run.phase == "grid"}
    assert len(set(locating)) == len(locating) <= search.most_locating
    assert not set(locating) & grid
    assert done.reason is not None or {(r, i) for r in done.rates for i in range(done.replicates)} == {
        (run.rate, run.replicate) for run in history.runs if run.phase == "grid"
    }


@settings(max_examples=40, deadline=None)
@given(declarations(), st.integers(0, 10**6), st.data())
def test_the_order_of_runs_changes_nothing_and_a_lost_run_is_asked_for_again(search: Search, seed: int, data: st.DataObject) -> None:
    history, _ = drive(search, anything(seed, 0.5, 0.0))
    made = history.runs[: data.draw(st.integers(0, len(history.runs)))]
    order = np.random.default_rng(seed).permutation(len(made))
    assert next_probe(History(search, tuple(made[i] for i in order))) == next_probe(History(search, made))
    if made:
        lost = data.draw(st.integers(0, len(made) - 1))
        asked = next_probe(History(search, made[:lost] + made[lost + 1 :]))
        assert asked == Probe(*made[lost].key)


def test_locating_doubles_then_bisects_to_the_resolution() -> None:
    history, done = drive(make_search(), falling(10.0, spread=(0.0,)))
    located = [run.rate for run in history.runs if run.phase == "locate"]
    assert located[:5] == [1, 2, 4, 8, 16]
    assert located[5] == pytest.approx(math.sqrt(8 * 16), rel=1e-5)
    passed, failed = max(r for r in located if r <= 10), min(r for r in located if r > 10)
    assert failed / passed <= 1.05
    assert done.rates[0] < passed < failed < done.rates[-1]


def test_locating_halves_a_start_that_fails() -> None:
    history, _ = drive(make_search(), falling(0.3))
    assert [run.rate for run in history.runs][:3] == [1, 0.5, 0.25]


def test_a_light_load_without_a_miss_passes_a_strict_target() -> None:
    """Eight requests of which none is missed count as 0.944 smoothed; the search must not go down from there for ever."""

    def world(probe: Probe) -> ProbeRun:
        offered = round(16 * probe.rate)
        return make_run(probe, 1.0, valid=offered if probe.rate < 20 else 0, offered=offered)

    history, _ = drive(make_search(start=0.5, attainment=0.99), world)
    assert [run.rate for run in history.runs][:7] == [0.5, 1, 2, 4, 8, 16, 32]


def test_the_grid_is_blocks_of_one_replicate_in_drawn_order() -> None:
    history, done = drive(make_search(), falling(10.0, spread=(0.0,)))
    grid = [run for run in history.runs if run.phase == "grid"]
    size = len(done.rates)
    assert [run.replicate for run in grid] == [r for r in range(3) for _ in range(size)]
    orders = [tuple(run.rate for run in grid[r * size : (r + 1) * size]) for r in range(3)]
    assert all(sorted(order) == list(done.rates) for order in orders)
    assert len(set(orders)) > 1
    other, _ = drive(make_search(order_seed=1), falling(10.0, spread=(0.0,)))
    assert [run.key for run in other.runs] != [run.key for run in history.runs]
    assert sorted(run.key for run in other.runs) == sorted(run.key for run in history.runs)


def test_arms_that_locate_elsewhere_share_the_draws_of_the_grid() -> None:
    draws = [{run.replicate for run in drive(make_search(), falling(c))[0].runs if run.phase == "grid"} for c in (0.3, 10.0, 50.0)]
    assert draws == [{0, 1, 2}] * 3


def test_the_grid_widens_where_a_replicate_does_not_cross() -> None:
    _, narrow = drive(make_search(), falling(10.0, spread=(0.0,)))
    _, up = drive(make_search(), falling(10.0, spread=(0.0, 0.0, 0.2)))
    _, none = drive(make_search(widen=0), falling(10.0, spread=(0.0, 0.0, 0.2)))
    assert len(narrow.rates) == len(none.rates) == 5
    assert len(up.rates) > 5
    assert all(b / a == pytest.approx(1.05, rel=1e-4) for a, b in zip(up.rates, up.rates[1:], strict=False))


def test_a_grid_does_not_widen_into_overload() -> None:
    def world(probe: Probe) -> ProbeRun:
        return make_run(probe, 1.0, overloaded=probe.rate > 10.0)

    _, done = drive(make_search(), world)
    assert len(done.rates) == 5
    assert done.rates[-1] > 10.0


def test_a_second_stage_once_begun_is_completed_at_every_rate() -> None:
    """A later rate may shrink the spread of the first stage; replicates that were made stay in."""

    fine = falling(10.0, spread=(-0.04, 0.04, 0.0, 0.0, 0.0, 0.0, 0.35))

    def converging(probe: Probe) -> ProbeRun:
        return make_run(probe, 0.5) if probe.phase == "grid" and probe.rate > 11.3 and probe.replicate < 3 else fine(probe)

    search = make_search(method="logit", replicates=3, stages=Stages(0.06, 7))
    history, done = drive(search, converging)
    assert done.replicates == 7
    runs = {run.key: run for run in history.runs}
    assert planned_replicates(search, crossings(search, done.rates, 7, runs)) < 7
    assert len(done.rates) > 5
    assert {(r, i) for r in done.rates for i in range(done.replicates)} == {run.key[1:] for run in history.runs if run.phase == "grid"}


def test_at_the_limit_one_rate_is_measured() -> None:
    _, done = drive(make_search(limit=8.0), falling(50.0))
    assert done.rates == (8.0,)


@pytest.mark.parametrize("limit", [7.1234567, 7.1234561])
def test_a_limit_of_many_digits_is_reached_and_not_passed(limit: float) -> None:
    _, done = drive(make_search(limit=limit), falling(50.0))
    assert done.rates == (pytest.approx(limit, rel=1e-6),)
    assert done.rates[0] <= limit


def test_a_grid_never_passes_the_limit() -> None:
    assert max(first_grid(make_search(limit=10.0), 9.6, 10.0)) <= 10.0


def test_a_spoiled_locating_run_is_made_again_on_a_new_draw() -> None:
    history = History(make_search())
    first = next_probe(history)
    assert isinstance(first, Probe)
    again = next_probe(History(make_search(), (make_run(first, 1.0, blocked=("client_slip",)),)))
    assert again == replace(first, replicate=first.replicate + 1)


@pytest.mark.parametrize("phase", ["locate", "grid"])
def test_runs_without_evidence_end_the_search(phase: str) -> None:
    fine = falling(10.0)

    def world(probe: Probe) -> ProbeRun:
        run = fine(probe)
        return replace(run, overloaded=None) if probe.phase == phase else run

    history, done = drive(make_search(), world)
    assert done.reason is not None
    assert done.reason.code == "no_evidence"
    assert "overload unknown" in done.reason.text
    assert sum(run.overloaded is None for run in history.runs) == (
        3 if phase == "locate" else 1
    )  # two may be lost to locating, none to the grid


def test_overload_explains_the_gates_it_breaks_and_no_other() -> None:
    probe = Probe("grid", 5.0, 0)
    codes = ("steady_state", "window_length", "client_slip")
    assert make_run(probe, 0.1, overloaded=True, blocked=codes).objections == ("client_slip",)
    assert make_run(probe, 0.1, overloaded=False, blocked=codes).objections == codes
    assert make_run(probe, 0.0, valid=0, offered=0).objections == ("offered=0",)


def test_an_overloaded_run_is_a_fail_whatever_its_attainment() -> None:
    def world(probe: Probe) -> ProbeRun:
        return make_run(probe, 1.0, overloaded=probe.rate > 3)

    history, _ = drive(make_search(), world)
    assert max(run.rate for run in history.runs if run.phase == "locate") == 4


def test_a_second_stage_is_asked_for_only_if_declared_and_needed() -> None:
    wide, narrow = falling(10.0, spread=(-0.05, 0.0, 0.05)), falling(10.0, spread=(-0.001, 0.0, 0.001))
    assert drive(make_search(), wide)[1].replicates == 3
    stages = Stages(half_width=0.05, most=9)
    assert drive(make_search(stages=stages), narrow)[1].replicates == 3
    assert drive(make_search(stages=stages), wide)[1].replicates == 9


def test_two_answers_to_one_probe_are_refused() -> None:
    run = make_run(Probe("grid", 5.0, 0), 0.5)
    with pytest.raises(UsageError, match="probe_answered_twice"):
        History(make_search(), (run, replace(run, valid=1)))


def test_a_run_of_another_search_is_refused() -> None:
    run = make_run(Probe("locate", 5.0, 3), 0.5)
    with pytest.raises(UsageError, match="run_of_another_search"):
        next_probe(History(make_search(), (run,)))


@pytest.mark.parametrize("changes", [{"valid": 1001}, {"valid": -1}, {"rate": 0.0}, {"rate": math.inf}, {"rate": math.nan}])
def test_impossible_counts_and_rates_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="bad_probe_run"):
        make_run(Probe("grid", 5.0, 0), 0.5, **changes)


def test_every_problem_of_a_declaration_is_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        Search(
            unit="rate",
            start=math.nan,
            limit=1.0,
            attainment=1.0,
            resolution=2.0,
            grid=2,
            step=0.0,
            replicates=1,
            widen=-1,
            halvings=-1,
            spare=-1,
            confidence=0.5,
            stages=Stages(0.0, 1),
        )
    assert len(caught.value.problems) == 12


def test_a_grid_that_cannot_span_the_bracket_is_refused() -> None:
    with pytest.raises(UsageError, match="must span the bracket"):
        make_search(resolution=0.5)
    assert make_search(resolution=0.5, step=0.15)


def test_the_load_coordinate_is_the_procedure_and_not_its_seed() -> None:
    base = make_search()
    assert coordinate(base) == coordinate(make_search(order_seed=5))
    changes = (
        {"start": 2.0},
        {"limit": 32.0},
        {"attainment": 0.8},
        {"step": 0.04},
        {"method": "logit"},
        {"confidence": 0.9},
        {"stages": Stages(0.05, 9)},
    )
    lines = {coordinate(make_search(**c)) for c in changes} | {coordinate(base)}
    assert len(lines) == len(changes) + 1


def test_done_says_what_was_measured() -> None:
    _, done = drive(make_search(), falling(10.0))
    assert done == Done(done.rates, 3)
