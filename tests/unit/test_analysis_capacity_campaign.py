"""Campaigns of searches, from records to a verdict: finished and unfinished ones, arms without a number, gates, pairs."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from rich.console import Console

from analysis.campaign import analyze
from analysis.capacity import ProbeRun, Search, Stages, coordinate
from analysis.capacity_answers import answer_of, mean_watts
from analysis.capacity_frame import search_coordinates
from analysis.devices import POWER
from analysis.model import CampaignAnalysis, Ranking, Refusal
from analysis.report import render_html, render_markdown, render_terminal, to_json
from harness.errors import UsageError
from harness.record.canonical import canonical_json
from harness.record.coordinates import Known, Unknown
from harness.record.facts import Fact
from harness.record.reader import RunRecord
from harness.record.spec import Arm, LoadPoint, Probe, Rank, Replication, Waiver
from tests.builders import MS, S, make_coordinates, make_facts, make_host_samples, make_request, make_sample, make_spec, make_workload
from tests.capacity_worlds import World, drive, falling, make_run, make_search
from tests.gates.cases import GPU_CALM, GPU_SET, NO_EVENTS, healthy

SEARCH = make_search(start=8.0, limit=32.0, replicates=5, resolution=0.2, grid=3, step=0.1, widen=1)
RANK = Rank(metric="capacity", margin=0.01, attainment=0.9)
REJECTED = {**NO_EVENTS, "end_kind": "http_error", "http_status": 429}
"""A miss that leaves clocks alone, so that only attainment tells loads apart."""

A, B = falling(12.0, (-0.02, -0.01, 0.0, 0.01, 0.02)), falling(15.0, (-0.02, -0.01, 0.0, 0.01, 0.02))


def record(arm: str, run: ProbeRun, search: Search = SEARCH, rank: Rank | None = RANK, **changes: Any) -> RunRecord:
    """A healthy run of 200 requests in its cohort, of which as many in a hundred are served as ``run`` has valid in a thousand."""
    lost = {40 + (73 * k) % 200 for k in range(200 - round(run.valid / 5))}
    rows = [make_request(i, i * 50 * MS) | (REJECTED if i in lost else {}) for i in range(280)]
    named = {
        "client_host": Known(value="m:b"),
        "runtime_args": Known(value=arm),
        "workload_arrivals": Known(value={"process": "poisson", "rate": run.rate}),
        "workload_digests": Known(value=f"{run.rate}/{run.replicate}"),
        "workload_window": Known(value=[0.0, 9.0]),
    } | changes.pop("coordinates", {})
    spec = make_spec(
        cell=f"{arm}@rate-{run.rate:g}{'' if run.phase == 'grid' else '+locate'}",
        arm=Arm(name=arm, runtime="reference", version="1", declared=("runtime.args",)),
        load=LoadPoint(kind="rate", value=run.rate),
        replicate=run.replicate,
        server_start=run.server_start,
        workload=make_workload(seed=run.seed, digest=f"{run.replicate:064d}"),
        replication=Replication(count=search.replicates, server_starts=search.replicates),
        rank=rank,
        probe=Probe(phase=run.phase, search=search),
        **changes,
    )
    return healthy(rows, spec=spec, coordinates=make_coordinates(**named))


@cache
def runs_of(world: World, search: Search = SEARCH) -> tuple[ProbeRun, ...]:
    history, _ = drive(search, world)
    return history.runs


def campaign(
    arms: dict[str, World], most: dict[str, int] | None = None, change: Callable[[str, ProbeRun], dict[str, Any]] | None = None, **more: Any
) -> list[RunRecord]:
    search = more.get("search", SEARCH)
    return [
        record(arm, run, **(more | (change(arm, run) if change else {})))
        for arm, world in arms.items()
        for run in runs_of(world, search)[: (most or {}).get(arm)]
    ]


def censored(probe: Any) -> ProbeRun:
    return falling(300.0)(probe)


def rising(probe: Any) -> ProbeRun:
    """Attainment falls through the target and comes back beyond it, in the grid."""
    found = falling(12.0, (0.0,))(probe)
    return found if probe.phase == "locate" or probe.rate < 12.5 else ProbeRun(**(fields(found) | {"valid": 990}))


def elsewhere(probe: Any) -> ProbeRun:
    """The arm b, on draws of its own."""
    return ProbeRun(**(fields(B(probe)) | {"seed": 50 + probe.replicate}))


def fields(run: ProbeRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in ProbeRun.__slots__}


@pytest.fixture(scope="module")
def finished() -> CampaignAnalysis:
    """Two arms with a capacity, one that passes at the top of the range, one that more load does good."""
    return analyze(campaign({"a": A, "b": B, "c": censored, "d": rising}), incomplete=())


@pytest.fixture(scope="module")
def unfinished() -> CampaignAnalysis:
    """One arm still locates, one is in the middle of its grid, one has not begun."""
    return analyze(campaign({"a": A, "b": B}, {"a": 3, "b": 10}), incomplete=("c: its search has no sealed run",))


def pages(found: CampaignAnalysis) -> str:
    """Every renderer takes it; return the page without figures."""
    console = Console(record=True, width=160, file=io.StringIO())
    render_terminal(found, console)
    assert '<h2 id="capacity">' in render_html(found)
    canonical_json(to_json(found))
    assert "Capacity by arm" in console.export_text()
    return render_markdown(found)


def codes(refusal: object) -> set[str]:
    assert isinstance(refusal, Refusal), refusal
    return {reason.code for reason in refusal.reasons}


def test_finished_searches_are_ranked_by_the_ratio_of_their_replicates(finished: CampaignAnalysis) -> None:
    verdict = finished.verdict
    assert isinstance(verdict, Ranking), verdict
    assert [(s.rank, s.arm) for s in verdict.standings] == [(1, "b"), (2, "a")]
    (effect,) = verdict.effects
    assert (effect.scale, effect.pairs, effect.verdict) == ("ratio", 5, "better")
    assert effect.estimate == pytest.approx(15 / 12, rel=0.02)
    assert effect.level == pytest.approx(1 - 0.05 / 6), "arms without a number stay in the family"
    assert verdict.title.endswith("at 90% of requests, searched from 8 to 32 req/s")


def test_arms_without_a_number_are_listed_unranked_with_their_reasons(finished: CampaignAnalysis) -> None:
    assert isinstance(finished.verdict, Ranking)
    assert [(arm, [r.code for r in reasons]) for arm, reasons in finished.verdict.unranked] == [
        ("c", ["censored"]),
        ("d", ["non_monotone"]),
    ]
    assert [one.estimate.status for one in finished.capacities] == ["resolved", "resolved", "censored", "non_monotone"]
    assert finished.capacities[2].estimate.at_least == 32.0


def test_each_capacity_is_found_with_bracket_rates_and_what_was_discarded(finished: CampaignAnalysis) -> None:
    for one, truth in zip(finished.capacities[:2], (12.0, 15.0), strict=True):
        e = one.estimate
        assert (e.status, e.estimand, one.unit, one.reasons) == ("resolved", "E2", "req/s", ())
        assert e.figures["capacity"].value == pytest.approx(truth, rel=0.02)
        assert e.discarded == sum(run.phase == "locate" for run in one.runs) > 0
        assert {row.offered for row in e.rows} == {1000}
        assert e.figures["capacity_per_gpu"].reason == "the number of GPUs is not known, or there is none"
        assert e.figures["capacity_per_watt"].reason == "power was not measured in every run"
    assert not any("+locate" in cell.cell for cell in finished.cells)


def test_the_load_coordinate_is_the_search_and_rates_are_no_coordinate(finished: CampaignAnalysis) -> None:
    pair = finished.comparisons[0]
    assert pair.comparable
    assert {d.coordinate: d.answer for d in pair.differences} == {"runtime.args": "differs_by_declaration"}
    assert coordinate(SEARCH).startswith('capacity={"attainment":0.9')


def test_a_finished_search_is_told_on_every_page(finished: CampaignAnalysis) -> None:
    page = pages(finished)
    for words in (
        "Capacity by arm",
        "resolved",
        "Attainment by load",
        "Capacity by trace replicate",
        "locate (discarded)",
        "per GPU unknown",
    ):
        assert words in page
    assert "\\>= 32" in page
    assert "What stands against a capacity" not in page, "the verdict says it already"


def test_an_unfinished_search_renders_and_is_refused(unfinished: CampaignAnalysis) -> None:
    assert codes(unfinished.verdict) == {"search_unfinished", "run_incomplete"}
    for one, phase in zip(unfinished.capacities, ("locate", "grid"), strict=True):
        assert one.estimate.status == "unresolved"
        assert one.estimate.figures["capacity"].value is None
        assert one.reasons[0].text.startswith(f"the next run is {phase}")
    page = pages(unfinished)
    assert "search\\_unfinished" in page
    assert "No grid is complete yet" in page


def test_one_unfinished_search_refuses_the_ranking_of_the_others() -> None:
    """Stopping the search that looks bad would choose who is ranked."""
    arms = {"a": A, "b": B, "c": A}
    whole, cut = (analyze(campaign(arms, upto), incomplete=()) for upto in (None, {"c": 10}))
    assert isinstance(whole.verdict, Ranking)
    assert codes(cut.verdict) == {"search_unfinished"}


def test_searches_that_only_located_have_no_cell_and_still_a_page() -> None:
    found = analyze(campaign({"a": A, "b": B}, {"a": 2, "b": 1}), incomplete=())
    assert found.cells == ()
    assert codes(found.verdict) == {"search_unfinished"}
    assert "locate (discarded)" in pages(found)


def test_the_order_of_records_changes_no_byte(unfinished: CampaignAnalysis) -> None:
    records = campaign({"a": A, "b": B}, {"a": 3, "b": 10})[::-1]
    again = analyze(records, incomplete=("c: its search has no sealed run",))
    assert canonical_json(to_json(again)) == canonical_json(to_json(unfinished))


OTHER_HOST = {"client_host": Known(value="other:b")}


def test_a_run_that_is_no_evidence_ends_the_search_with_the_gate_named() -> None:
    def spoil(_arm: str, run: ProbeRun) -> dict[str, Any]:
        return {"coordinates": OTHER_HOST} if run.key == runs_of(B)[-1].key else {}

    found = analyze(campaign({"b": B}, change=spoil), incomplete=())
    assert {"no_evidence", "client_headroom"} <= codes(found.verdict)
    assert found.capacities[0].estimate.status == "unresolved"


def test_a_waived_gate_is_no_objection_and_is_printed() -> None:
    waiver = Waiver(gate="client_headroom", reason="another host by intention")
    found = analyze(campaign({"a": A}, change=lambda *_: {"coordinates": OTHER_HOST, "waivers": (waiver,)}), incomplete=())
    assert (found.capacities[0].estimate.status, found.capacities[0].reasons) == ("resolved", ())
    assert found.waivers == (("client_headroom", waiver.reason),)
    assert codes(found.verdict) == {"too_few_arms"}


def test_three_replicates_without_a_claim_are_shown_and_say_what_stands_against_one() -> None:
    three = make_search(start=8.0, limit=32.0, replicates=3, resolution=0.2, grid=3, step=0.1, widen=1)
    found = analyze(campaign({"a": A}, search=three, rank=None), incomplete=())
    assert codes(found.verdict) == {"rank_undeclared"}
    assert found.capacities[0].estimate.status == "resolved"
    assert {r.code for r in found.capacities[0].reasons} == {"replicates"}
    assert "What stands against a capacity" in pages(found)


def breaking(edge: float) -> World:
    """A system that serves everything up to a load and two in five beyond it, the same in every replicate."""
    return lambda probe: make_run(probe, 1.0 if probe.rate <= edge else 0.4)


@pytest.mark.parametrize(("edges", "verdict"), [((11.0, 11.6), "unresolved"), ((12.0, 12.6), "unresolved"), ((11.0, 16.0), "better")])
def test_arms_that_fall_off_cliffs_differ_by_no_less_than_the_grid_resolves(edges: tuple[float, float], verdict: str) -> None:
    """Replicates that agree to a hair would make any difference of interpolated capacities a certain one."""
    found = analyze(campaign({"a": breaking(edges[0]), "b": breaking(edges[1])}), incomplete=())
    assert isinstance(found.verdict, Ranking), found.verdict
    (effect,) = found.verdict.effects
    assert effect.low <= edges[1] / edges[0] <= effect.high
    assert (effect.verdict, effect.method) == (verdict, "t over 5 pairs, no narrower than the grids resolve")


def test_draws_that_differ_between_arms_are_refused() -> None:
    found = analyze(campaign({"a": A, "b": elsewhere}, {"a": 9, "b": 9}), incomplete=())
    assert codes(found.verdict) == {"coordinate_different", "search_unfinished"}
    assert isinstance(found.verdict, Refusal)
    assert "workload.digests" in found.verdict.reasons[0].text


def test_other_procedures_and_other_runs_are_refused() -> None:
    other = make_search(start=8.0, limit=64.0, replicates=5, resolution=0.2, grid=3, step=0.1, widen=1)
    with pytest.raises(UsageError, match="searches=2"):
        analyze(campaign({"a": A}, {"a": 1}) + campaign({"b": B}, {"b": 1}, search=other), incomplete=())
    with pytest.raises(UsageError, match="answers no probe"):
        answer_of(healthy())


def test_a_second_stage_pairs_only_the_replicates_of_the_first() -> None:
    staged = make_search(start=8.0, limit=32.0, replicates=5, resolution=0.2, grid=3, step=0.1, widen=2, stages=Stages(0.015, 7))
    found = analyze(campaign({"a": A, "b": B}, search=staged), incomplete=())
    assert isinstance(found.verdict, Ranking), found.verdict
    assert max(len(one.estimate.by_replicate) for one in found.capacities) > 5
    assert found.verdict.effects[0].pairs == 5


def test_a_record_answers_the_probe_that_asked_for_it() -> None:
    for run in runs_of(A)[:2] + runs_of(A)[-2:]:
        read = answer_of(record("a", run))
        assert (read.key, read.server_start, read.seed, read.overloaded) == (run.key, run.server_start, run.seed, False)
        assert (read.valid, read.offered, read.objections, read.sent_share) == (round(run.valid / 5), 200, (), 1.0)
        assert read.offered_rate == pytest.approx(20.0)


def test_gates_that_protect_no_integrity_do_not_spoil_what_locates() -> None:
    first, last = runs_of(A)[0], runs_of(A)[-1]
    assert answer_of(record("a", first, coordinates=OTHER_HOST)).objections == ()
    assert answer_of(record("a", last, coordinates=OTHER_HOST)).objections == ("client_headroom",)


def test_compressions_of_one_trace_share_a_frame_without_their_factor() -> None:
    """The slice of a draw begins where it does at every load; only its end, its own compression and the bytes follow the load."""
    search = make_search(unit="time_compression", start=1.0, limit=4.0, replicates=2)
    found = []
    for factor in (2.0, 3.0):
        for draw in range(2):
            chain = [{"name": "time_compress", "factor": 3.0}, {"name": "scale_lengths"}, {"name": "time_compress", "factor": factor}]
            coordinates = make_coordinates(
                workload_transforms=Known(value=chain),
                workload_window=Known(value=[100.0 * draw, 100.0 * draw + 20 * factor]),
                workload_digests=Known(value=f"{factor}/{draw}"),
            )
            load, workload = LoadPoint(kind="time_compression", value=factor), make_workload(seed=draw)
            found.append(healthy(spec=make_spec(replicate=draw, load=load, workload=workload), coordinates=coordinates))
    frame = search_coordinates(found, search, frozenset({0, 1}))
    assert frame["workload.transforms"] == Known(value=[{"name": "time_compress", "factor": 3.0}, {"name": "scale_lengths"}])
    assert frame["workload.window"] == Known(value={"0": {"start_s": 0.0}, "1": {"start_s": 100.0}}, source="declared")
    assert frame["workload.digests"] == Known(value={"0": {"draw_seed": 0}, "1": {"draw_seed": 1}}, source="declared")
    assert frame["result.unit"] == Known(value="x", source="derived")
    moved = healthy(spec=found[0].spec, coordinates=make_coordinates(workload_window=Known(value=[7.0, 9.0])))
    assert isinstance(search_coordinates([*found[2:], moved], search, frozenset({0, 1}))["workload.window"], Unknown)


def test_watts_are_the_devices_means_over_the_window_and_unknown_when_one_is_silent() -> None:
    def powered(told: bool = True, **devices: tuple[int, ...]) -> RunRecord:
        used = [make_sample(3 * S, "gpu", "gpu_processes_server", 1.0, label) for label in devices] if told else []
        samples = [make_sample(s * S, "gpu", POWER, 100.0 * s, label) for label, at in devices.items() for s in at]
        return healthy(host=[*make_host_samples(), *samples, *used])

    assert mean_watts(healthy()) is None
    assert mean_watts(powered(a=(1, 2, 3, 8, 13))) == 500.0  # the window is [2, 12) s; power rises evenly from 200 to 800 W in it
    assert mean_watts(powered(a=(2, 8), b=(5, 11))) == 1300.0
    assert mean_watts(powered(a=(2, 8), b=(1, 13))) is None
    assert mean_watts(powered(a=(2, 4))) is None
    assert mean_watts(powered(False, a=(2, 8))) == 500.0
    assert mean_watts(powered(False, a=(2, 8), b=(5, 11))) is None  # one of them may be somebody else's


def test_a_capacity_per_watt_and_per_gpu_where_both_are_known() -> None:
    def equipped(arm: str, run: ProbeRun) -> RunRecord:
        host = [*make_host_samples(), *GPU_CALM, *(make_sample(s * S, "gpu", POWER, 250.0, "0") for s in range(14))]
        facts = make_facts(before=GPU_SET | {"host.gpu": Fact(value="H200", source="test")}, after=GPU_SET)
        plain = record(arm, run)
        spec = plain.spec.model_copy(update={"host_profile": "gpu"})
        return replace(plain, facts=facts, spec=spec, host=healthy(host=host).host)

    found = analyze([equipped("a", run) for run in runs_of(A)], incomplete=())
    figures = found.capacities[0].estimate.figures
    assert figures["capacity_per_gpu"].value == figures["capacity"].value
    assert figures["capacity_per_watt"].unit == "req/J"
    assert figures["capacity_per_watt"].value == pytest.approx((figures["capacity"].value or 0) / 250.0)
