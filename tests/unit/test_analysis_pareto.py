"""Fronts: only among cells that compare, dominated only where intervals resolve it, everything else listed or kept."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.effect_model import Front
from analysis.gates import GATES, CellContext
from analysis.model import CellAnalysis, CheckResult, Claim, Figure, Interval, Outcome, Outcomes, RunAnalysis, Verdict
from analysis.pareto import front_of
from analysis.report.front import front_plots, front_tables
from analysis.report.words import Unit
from harness.record.coordinates import Coordinate, Known
from harness.record.spec import Rank
from tests.builders import make_coordinates, make_spec, make_workload
from tests.report_demo import campaign
from tests.unit.test_analysis_compare import side

RANK = Rank(metric="token_throughput", against="ttft_p95", margin=0.05)
NO_OUTCOMES = Outcomes(1, {o: int(o is Outcome.VALID) for o in Outcome})
SPREAD = (0.99, 1.0, 1.01, 1.0, 1.0)


def figure(metric: str, value: float) -> Figure:
    unit = "s" if metric.startswith("ttft") else "tok/s"
    return Figure(metric, unit, value, "ok", 9, "cohort", interval=Interval(0.9 * value, 1.1 * value, 0.95, "t", 5, "replicate"))


def passed(scope: str) -> tuple[CheckResult, ...]:
    return tuple(CheckResult(g.code, Verdict.PASS, "fine", g.protects, "") for g in GATES.values() if g.scope == scope)


def cell(
    arm: str, throughput: float, ttft: float, *, load: float = 1.0, spread: tuple[float, ...] = SPREAD, **changes: Any
) -> CellAnalysis:
    name, found = f"{arm}@x{load:g}", {"token_throughput": throughput, "ttft_p95": ttft}
    runs = tuple(
        RunAnalysis(
            f"{name}/{i}", name, arm, i, i, f"{name}{i}", NO_OUTCOMES, {m: figure(m, v * f) for m, v in found.items()}, passed("run")
        )
        for i, f in enumerate(spread)
    )
    base = side().coordinates
    frame: dict[str, Coordinate] = dict(base) | make_coordinates(
        runtime_args=Known(value=arm),
        workload_digests=Known(value={str(i): f"{load}/{i}" for i in range(len(spread))}),
        workload_window=Known(value={str(i): [load, i] for i in range(len(spread))}),
    )
    frame["result.load"] = Known(value=f"time_compression={load:g}")
    whole = CellAnalysis(
        cell=name,
        arm=arm,
        load=f"time_compression={load:g}",
        estimand="E2",
        evidence_class="synthetic",
        runs=runs,
        outcomes=NO_OUTCOMES,
        figures={m: figure(m, v) for m, v in found.items()},
        checks=passed("cell"),
        coordinates=frame,
        declared=("runtime.args",),
        design_effect=None,
    )
    return replace(whole, **changes)


def front(cells: list[CellAnalysis], rank: Rank | None = RANK, control: str = "forced") -> Front:
    contexts = {c.cell: CellContext((), make_spec(workload=make_workload(output_length=control))) for c in cells}
    found = front_of(rank, cells, contexts)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def no_pair_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells here have figures and no requests, so the gate of lengths has nothing to look at; it has its own tests."""
    monkeypatch.setattr("analysis.pareto.pair_checks", lambda _context: ())


def standings(found: Front) -> dict[str, str]:
    return {p.cell: p.standing for p in found.points}


def test_a_point_that_another_beats_in_both_is_dominated_and_names_it() -> None:
    found = front([cell("a", 100, 1.0), cell("b", 200, 0.5), cell("c", 300, 2.0)])
    assert standings(found) == {"a@x1": "dominated", "b@x1": "front", "c@x1": "front"}
    assert found.points[0].dominated_by == ("b@x1",)
    assert found.level == pytest.approx(1 - 0.05 / 6)  # three pairs, two figures


def test_better_in_one_and_equivalent_in_the_other_dominates_and_ties_stay() -> None:
    found = front([cell("a", 100, 1.0), cell("b", 200, 1.001), cell("c", 200, 1.0)])
    assert standings(found) == {"a@x1": "dominated", "b@x1": "front", "c@x1": "front"}


def test_what_intervals_do_not_resolve_stays_on_the_front() -> None:
    noisy = (0.3, 1.9, 0.5, 1.7, 0.6)
    found = front([cell("a", 100, 1.0, spread=noisy), cell("b", 120, 0.9, spread=tuple(reversed(noisy))), cell("c", 130, 0.8)])
    assert standings(found)["a@x1"] == "front"


def test_loads_may_differ_as_the_axis_and_are_not_paired() -> None:
    cells = [cell(arm, 100 * load * k, load / k, load=load) for arm, k in (("a", 1.0), ("b", 2.0)) for load in (1.0, 2.0)]
    assert standings(front(cells)) == {"a@x1": "dominated", "a@x2": "dominated", "b@x1": "front", "b@x2": "front"}


def test_at_another_load_lengths_that_nobody_planned_cannot_be_held_together() -> None:
    cells = [cell("a", 100, 1.0), cell("b", 100, 1.0), cell("a", 200, 1.0, load=2.0)]
    found = front(cells, control="natural")
    assert standings(found)["a@x2"] == "excluded"
    assert [r.code for r in found.points[2].reasons] == ["output_length_agree"]


def test_cells_that_do_not_compare_are_listed_with_the_coordinate() -> None:
    odd = cell("c", 900, 0.1)
    odd = replace(odd, coordinates={**odd.coordinates, "model.dtype": Known(value="int4")})
    found = front([cell("a", 100, 1.0), cell("b", 200, 2.0), odd])
    assert standings(found) == {"a@x1": "front", "b@x1": "front", "c@x1": "excluded"}
    assert "model.dtype" in found.points[2].reasons[0].text


def test_an_arm_that_its_gates_exclude_is_listed_and_stays_in_the_family() -> None:
    bad = CheckResult("delivered_load", Verdict.FAIL, "late", (Claim.INTEGRITY,), "again")
    sick = cell("c", 900, 0.1)
    runs = tuple(replace(r, checks=tuple(bad if c.code == bad.code else c for c in r.checks)) for r in sick.runs)
    found = front([cell("a", 100, 1.0), cell("b", 200, 2.0), replace(sick, runs=runs)])
    assert standings(found)["c@x1"] == "excluded"
    assert {r.code for r in found.points[2].reasons} == {"delivered_load"}
    assert found.level == pytest.approx(1 - 0.05 / 6)


@pytest.mark.parametrize("rank", [None, Rank(metric="token_throughput", margin=0.05)])
def test_an_undeclared_plane_is_shown_and_no_front_is_claimed(rank: Rank | None) -> None:
    cells = [
        replace(c, figures={**c.figures, "goodput": figure("goodput", 1.0)})
        for c in (cell("a", 1, 9.0), cell("b", 2, 1.0), cell("c", 3, 0.5))
    ]
    found = front(cells, rank)
    assert found.declaration == "post_hoc"
    assert set(standings(found).values()) == {"shown"}


def test_while_runs_are_missing_nobody_is_on_a_front_and_a_plane_is_still_shown() -> None:
    cells = [cell("a", 100, 1.0), cell("b", 200, 0.5), cell("c", 300, 2.0)]
    contexts = {c.cell: CellContext((), make_spec(workload=make_workload(output_length="forced"))) for c in cells}
    found = front_of(RANK, cells, contexts, ("d@x1 replicate 0: not run",))
    assert found is not None
    assert set(standings(found).values()) == {"excluded"}
    assert {r.code for p in found.points for r in p.reasons} == {"run_incomplete"}
    shown = front_of(RANK.model_copy(update={"against": None}), cells, contexts, ("d@x1 replicate 0: not run",))
    assert shown is not None
    assert set(standings(shown).values()) == {"shown"}


@pytest.mark.parametrize(("ttft", "codes"), [(1.0, set()), (1.5, {"noise_floor"})])
def test_identical_arms_that_differ_leave_no_front(ttft: float, codes: set[str]) -> None:
    one = cell("a", 100, 1.0)
    twin = replace(cell("a2", 100, ttft), coordinates=one.coordinates)
    found = front([one, twin, cell("b", 200, 0.5)])
    assert {r.code for p in found.points for r in p.reasons} == codes
    assert standings(found)["b@x1"] == ("excluded" if codes else "front")


def test_two_arms_at_one_load_have_no_plane() -> None:
    assert front_of(RANK, [cell("a", 1, 1), cell("b", 2, 2)], {}) is None


@settings(max_examples=25)
@given(st.permutations([("a", 100.0, 1.0), ("b", 200.0, 0.5), ("c", 300.0, 2.0), ("d", 150.0, 1.5)]))
def test_the_order_of_cells_changes_no_standing(order: list[tuple[str, float, float]]) -> None:
    assert standings(front([cell(*c) for c in order])) == {"a@x1": "dominated", "b@x1": "front", "c@x1": "front", "d@x1": "dominated"}


@settings(max_examples=25)
@given(st.lists(st.tuples(st.floats(1, 1000), st.floats(0.01, 10)), min_size=3, max_size=6))
def test_no_point_dominates_in_a_circle_and_somebody_is_always_on_the_front(values: list[tuple[float, float]]) -> None:
    found = front([cell(f"arm{i}", x, y) for i, (x, y) in enumerate(values)])
    assert "front" in standings(found).values()
    beaten = {p.cell: set(p.dominated_by) for p in found.points}
    assert all(a not in beaten[b] for a, others in beaten.items() for b in others)


def test_the_report_shows_the_plane_and_its_reasons() -> None:
    odd = cell("c", 900, 0.1)
    odd = replace(odd, coordinates={**odd.coordinates, "model.dtype": Known(value="int4")})
    found = front([cell("a", 100, 1.0), cell("b", 200, 0.5), odd])
    analysis = replace(campaign(), front=found)
    (table,) = front_tables(analysis, Unit("ms", 1000.0))
    assert [row[5] for row in table.rows] == ["dominated by 1", "on the front", "left out"]
    assert "model.dtype" in table.rows[2][6]
    (plot,) = front_plots(analysis, Unit("ms", 1000.0))
    assert "a@x1" in plot.svg
    assert "c@x1" not in plot.svg
    assert front_tables(campaign(), Unit("s")) == front_plots(campaign(), Unit("s")) == ()
    widths = {len(row) for row in table.rows} | {len(table.header)}
    assert all(a == b for a, b in pairwise(widths))
