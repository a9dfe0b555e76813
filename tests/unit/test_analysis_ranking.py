"""Effects and the ranking decision: verdicts against the margin, ties as ties, refusals with every reason."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.compare import Side, compare
from analysis.effects import paired_effect
from analysis.gates import GATES
from analysis.model import (
    CellAnalysis,
    CheckResult,
    Claim,
    Comparison,
    Difference,
    Figure,
    Interval,
    Outcome,
    Outcomes,
    Ranking,
    Refusal,
    RunAnalysis,
    Verdict,
)
from analysis.ranking import decide
from analysis.significance import holm
from harness.record.coordinates import Known
from harness.record.spec import Rank, Slo
from tests.builders import make_coordinates

RANK = Rank(metric="goodput", margin=0.02)
SLO = Slo(ttft_ns=500_000_000)
NO_OUTCOMES = Outcomes(1, {o: int(o is Outcome.VALID) for o in Outcome})


def figure(value: float | None, metric: str = "goodput", status: str = "ok") -> Figure:
    interval = Interval(value - 0.1, value + 0.1, 0.95, "t", 5, "replicate") if value is not None else None
    return Figure(metric, "req/s", value, status, 5, "cohort", interval=interval)  # type: ignore[arg-type]


def check(
    verdict: Verdict = Verdict.PASS, code: str = "delivered_load", claim: Claim = Claim.INTEGRITY, waived: str | None = None
) -> CheckResult:
    return CheckResult(code, verdict, "measured 3, limit 2", (claim,), "do it again", scope="run", waived=waived)


def answers(scope: str, *changed: CheckResult) -> tuple[CheckResult, ...]:
    """Every registered gate of a scope passes, but for those given."""
    own = {c.code: c for c in changed}
    return tuple(own.get(g.code) or CheckResult(g.code, Verdict.PASS, "fine", g.protects, "") for g in GATES.values() if g.scope == scope)


def cell(arm: str, values: list[float], changed: tuple[CheckResult, ...] = (), metric: str = "goodput") -> CellAnalysis:
    checks = answers("run", *changed)
    runs = tuple(
        RunAnalysis(f"{arm}/{i}", f"{arm}@x1", arm, i, i, "0" * 64, NO_OUTCOMES, {metric: figure(v, metric)}, checks)
        for i, v in enumerate(values)
    )
    mean = sum(values) / len(values)
    return CellAnalysis(
        f"{arm}@x1",
        arm,
        "time_compression=1",
        "E2",
        "synthetic",
        runs,
        NO_OUTCOMES,
        {metric: figure(mean, metric)},
        answers("cell"),
        {},
        (),
        None,
    )


SAME = (Comparison("a", "b", True, (), 50),)


def test_a_clear_difference_ranks_and_names_metric_slo_and_load() -> None:
    found = decide(RANK, SLO, [cell("a", [5, 5.1, 4.9, 5, 5]), cell("b", [8, 8.1, 8, 7.9, 8])], SAME, ())
    assert isinstance(found, Ranking)
    assert [(s.rank, s.arm) for s in found.standings] == [(1, "b"), (2, "a")]
    assert "goodput" in found.title
    assert "TTFT <= 500 ms" in found.title
    assert "time_compression=1" in found.title
    assert found.effects[0].verdict == "better"


def test_equivalent_arms_tie_at_rank_one() -> None:
    found = decide(RANK, SLO, [cell("a", [5.0, 5.001, 4.999, 5, 5]), cell("b", [5.001, 5, 5, 5, 4.999])], SAME, ())
    assert isinstance(found, Ranking)
    assert {s.rank for s in found.standings} == {1}
    assert found.effects[0].verdict == "equivalent"


def test_noise_is_unresolved_and_ties() -> None:
    found = decide(RANK, SLO, [cell("a", [1, 9, 2, 8, 5]), cell("b", [9, 1, 8, 2, 5.5])], SAME, ())
    assert isinstance(found, Ranking)
    assert found.effects[0].verdict == "unresolved"
    assert {s.rank for s in found.standings} == {1}


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.UNKNOWN])
def test_a_gate_that_does_not_pass_refuses_and_names_the_arm(verdict: Verdict) -> None:
    cells = [cell("a", [5, 5, 5]), cell("b", [8, 8, 8], (check(verdict), check(verdict, "client_slip", Claim.GOODPUT)))]
    found = decide(RANK, SLO, cells, SAME, ())
    assert isinstance(found, Refusal)
    assert {r.code for r in found.reasons} == {"delivered_load", "client_slip"}
    assert all("arm b" in r.text and r.remedy for r in found.reasons)


def test_a_gate_that_was_never_asked_refuses() -> None:
    whole = cell("a", [5, 5.1, 4.9])
    runs = (replace(whole.runs[0], checks=whole.runs[0].checks[1:]), *whole.runs[1:])
    found = decide(RANK, SLO, [replace(whole, runs=runs), cell("b", [8, 8, 8])], SAME, ())
    assert isinstance(found, Refusal)
    assert [r.code for r in found.reasons] == [whole.runs[0].checks[0].code]
    assert isinstance(decide(RANK, SLO, [whole, cell("b", [8, 8, 8])], SAME, ()), Ranking)


def test_a_waived_gate_lets_through_and_a_gate_of_another_claim_does_not_matter() -> None:
    checks = (check(Verdict.FAIL, waived="measured by hand"), check(Verdict.FAIL, "backlog", Claim.LATENCY))
    assert isinstance(decide(RANK, SLO, [cell("a", [5, 5, 5], checks), cell("b", [8, 8, 8], checks)], SAME, ()), Ranking)
    latency = Rank(metric="ttft_p95", margin=0.02)
    found = decide(latency, SLO, [cell(n, [5, 5, 5], checks, "ttft_p95") for n in "ab"], SAME, ())
    assert isinstance(found, Refusal)
    assert {r.code for r in found.reasons} == {"backlog"}


def test_a_failed_arm_of_three_is_listed_unranked_and_stays_in_the_family() -> None:
    good = [cell("a", [5, 5.1, 4.9]), cell("b", [8, 8.1, 7.9])]
    found = decide(RANK, SLO, [*good, cell("c", [9, 9, 9], (check(Verdict.FAIL),))], SAME, ())
    assert isinstance(found, Ranking)
    assert [arm for arm, _ in found.unranked] == ["c"]
    assert found.effects[0].level == pytest.approx(1 - 0.05 / 3)


def test_refusal_lists_coordinates_gates_withheld_and_missing_runs_together() -> None:
    a = Side("a", make_coordinates())
    b = Side("b", make_coordinates(model_dtype=Known(value="int4")))
    withheld = replace(cell("b", [8, 8, 8], (check(Verdict.UNKNOWN),)), figures={"goodput": figure(None, status="withheld")})
    found = decide(RANK, SLO, [cell("a", [5, 5, 5]), withheld], (compare(a, b),), ("b@x1 replicate 4: cut",))
    assert isinstance(found, Refusal)
    codes = {r.code for r in found.reasons}
    assert {"coordinate_different", "coordinate_unknown", "run_incomplete", "delivered_load", "figure_withheld"} <= codes
    assert any("model.dtype" in r.text for r in found.reasons)


def test_no_declared_metric_no_ranking() -> None:
    found = decide(None, SLO, [], (), ())
    assert isinstance(found, Refusal)
    assert [r.code for r in found.reasons] == ["rank_undeclared"]


def test_linear_percentiles_never_carry_a_verdict() -> None:
    rank = Rank(metric="goodput", margin=0.02, percentile_rule="linear")
    found = decide(rank, SLO, [cell("a", [5, 5, 5]), cell("b", [8, 8, 8])], SAME, ())
    assert isinstance(found, Refusal)
    assert [r.code for r in found.reasons] == ["percentile_rule"]


def test_a_load_that_was_not_run_and_one_arm_alone_are_refused() -> None:
    elsewhere = decide(Rank(metric="goodput", margin=0.02, at=3.0), SLO, [cell("a", [5, 5])], SAME, ())
    assert isinstance(elsewhere, Refusal)
    assert elsewhere.reasons[0].code == "load_missing"
    alone = decide(RANK, SLO, [cell("a", [5, 5])], (), ())
    assert isinstance(alone, Refusal)
    assert [r.code for r in alone.reasons] == ["too_few_arms"]


def test_ratio_effect_is_the_geometric_mean_of_pairs() -> None:
    a, b = {0: 1.0, 1: 2.0, 2: 4.0}, {0: 2.0, 1: 4.0, 2: 8.0, 3: 99.0}
    effect = paired_effect("ttft_p95", ("a", "b"), (a, b), margin=0.1, confidence=0.95, family=1)
    assert effect is not None
    assert effect.pairs == 3
    assert effect.estimate == pytest.approx(2.0)
    assert effect.verdict == "worse"  # twice the latency


@given(st.lists(st.tuples(st.floats(0.5, 50), st.floats(0.5, 50)), min_size=2, max_size=8), st.sampled_from(["goodput", "ttft_p50"]))
def test_swapping_the_arms_mirrors_the_interval(pairs: list[tuple[float, float]], metric: str) -> None:
    a, b = dict(enumerate(p[0] for p in pairs)), dict(enumerate(p[1] for p in pairs))
    one = paired_effect(metric, ("a", "b"), (a, b), margin=0.02, confidence=0.95, family=1)
    two = paired_effect(metric, ("b", "a"), (b, a), margin=0.02, confidence=0.95, family=1)
    assert one is not None
    assert two is not None
    if metric == "goodput":
        assert one.low == pytest.approx(-two.high, abs=1e-9)
    else:
        assert math.log(one.low) == pytest.approx(-math.log(two.high), abs=1e-9)


@pytest.mark.parametrize("bad", [{0: 1.0}, {0: math.inf, 1: 1.0}, {0: 0.0, 1: 1.0}])
def test_no_effect_without_two_usable_pairs(bad: dict[int, float]) -> None:
    assert paired_effect("ttft_p50", ("a", "b"), (bad, {0: 1.0, 1: 2.0}), margin=0.02, confidence=0.95, family=1) is None


# what stands beside an effect


def test_an_arm_that_its_gates_exclude_stays_in_the_family_of_p_as_of_the_intervals() -> None:
    sick = cell("c", [8.1, 8, 8.1], changed=(check(Verdict.FAIL),))
    found = decide(RANK, SLO, [cell("a", [5, 5.1, 4.9]), cell("b", [5.1, 5.1, 5.2]), sick], SAME, ())
    assert isinstance(found, Ranking)
    (effect,) = found.effects
    assert effect.p is not None
    assert effect.level == pytest.approx(1 - 0.05 / 3)
    assert effect.p_holm == pytest.approx(min(1.0, 3 * effect.p))


def test_a_diagnostic_figure_ranks_no_arm() -> None:
    odd = cell("c", [8.1, 8, 8.1])
    odd = replace(odd, figures={"goodput": replace(odd.figures["goodput"], diagnostic=True)})
    found = decide(RANK, SLO, [cell("a", [5, 5.1, 4.9]), cell("b", [8, 8.1, 8.0]), odd], SAME, ())
    assert isinstance(found, Ranking)
    assert [(arm, [r.code for r in why]) for arm, why in found.unranked] == [("c", ["figure_diagnostic"])]


def twin_pair(one: str, two: str, *, alike: bool) -> Comparison:
    difference = Difference("runtime.args", one, two, "differs_by_declaration", "none needed")
    return Comparison(f"{one}@x1", f"{two}@x1", True, () if alike else (difference,), 50)


def three(twin: list[float]) -> Ranking | Refusal:
    """Arms a and a2 are identical, b is not."""
    cells = [cell("a", [5, 5.1, 4.9, 5.05, 5]), cell("a2", twin), cell("b", [8, 8.1, 8, 7.9, 8])]
    pairs = (twin_pair("a", "a2", alike=True), twin_pair("a", "b", alike=False), twin_pair("a2", "b", alike=False))
    return decide(RANK, SLO, cells, pairs, ())


def test_identical_arms_of_a_campaign_are_the_noise_floor_of_its_other_pairs() -> None:
    found = three([5.02, 5.08, 4.93, 5.04, 5.0])
    assert isinstance(found, Ranking)
    effects = {(e.a, e.b): e for e in found.effects}
    floor = effects["a", "b"].noise
    assert floor is not None
    assert (floor.effect.a, floor.effect.b, floor.effect.verdict) == ("a", "a2", "equivalent")
    assert effects["a", "a2"].noise is None


def test_a_ranking_in_which_identical_arms_differ_is_refused() -> None:
    found = three([6, 6.1, 5.9, 6.05, 6])
    assert isinstance(found, Refusal)
    assert [r.code for r in found.reasons] == ["noise_floor"]
    assert "a2 against a, which are identical, came out better" in found.reasons[0].text


def test_every_effect_has_its_p_adjusted_over_the_family_and_what_an_exact_test_can_say() -> None:
    found = decide(RANK, SLO, [cell("a", [5, 5.1, 4.9]), cell("b", [8, 8.1, 8.0]), cell("c", [8.1, 8, 8.1])], SAME, ())
    assert isinstance(found, Ranking)
    ps = [e.p for e in found.effects]
    assert [e.p_holm for e in found.effects] == pytest.approx(holm([p for p in ps if p is not None]))
    exact = found.effects[0].exact
    assert exact is not None
    assert (exact.least, exact.speaks) == (0.25, False)
    assert exact.alpha == pytest.approx(0.05 / 3)
