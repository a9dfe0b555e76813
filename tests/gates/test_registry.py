"""Every gate has a passing, a failing and an unknown fixture; nothing passes on a record that says nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from analysis.gates import (
    GATES,
    UNWAIVABLE,
    CellContext,
    Finding,
    Gate,
    PairContext,
    RunContext,
    cell_checks,
    pair_checks,
    run_checks,
    standing_against,
)
from analysis.gates.registry import attempt, gate
from analysis.model import CheckResult, Claim, Verdict
from harness.record.spec import Waiver
from tests.builders import make_spec
from tests.gates.cases import FIXTURES, MORE, Factory, cell, cell_context, empty, facts_, healthy, pair_context, run_context

DESIGN_8 = (
    "pins_match flags_known partition_closes requests_wellformed delivered_load server_survived seal_intact tokens_agree output_length "
    "counts_agree prefix_realised client_slip receive_lag client_headroom steady_state backlog window_length replicates cache_state "
    "starvation environment_stable"
)
BESIDE = {"contention", "clock_sync"}
"""Beside DESIGN's list: what `starvation` presumes, that somebody competed; and what `client_slip` presumes of several hosts, one clock."""
PAIRWISE = {"output_length_agree"}
"""Gates of two cells, beside DESIGN's list: what `output_length` cannot see in one arm."""


def every_check(run: RunContext, cell_: CellContext) -> tuple[CheckResult, ...]:
    return (*run_checks(run), *cell_checks(cell_), *pair_checks(PairContext(cell_, cell_)))


def answer(code: str, factory: Factory) -> Finding:
    made = factory()
    contexts: dict[str, Callable[[Any], Any]] = {"run": run_context, "cell": cell_context, "pair": pair_context}
    return attempt(GATES[code].check, contexts[GATES[code].scope](made))


def test_the_registry_holds_the_gates_of_design_8() -> None:
    assert set(GATES) == set(DESIGN_8.split()) | PAIRWISE | BESIDE
    assert {code for code, one in GATES.items() if one.scope == "pair"} == PAIRWISE


@pytest.mark.parametrize("code", GATES)
def test_every_gate_has_fixtures_that_pass_fail_and_do_not_know(code: str) -> None:
    assert code in FIXTURES, f"gate {code} has no fixtures"
    case = FIXTURES[code]
    got = {v: answer(code, f) for v, f in (("PASS", case.passing), ("FAIL", case.failing), ("UNKNOWN", case.unknown))}
    assert {v: (c.verdict.value, c.reason) for v, c in got.items() if c.verdict != v} == {}
    assert got["FAIL"].measured


@pytest.mark.parametrize("code", GATES)
def test_every_gate_says_what_it_protects_why_its_number_and_what_to_do(code: str) -> None:
    one = GATES[code]
    assert one.protects
    assert len(one.threshold) > 40
    assert len(one.remedy) > 30
    assert one.waivable == (code not in UNWAIVABLE)


@pytest.mark.parametrize(("code", "what", "verdict", "factory"), MORE, ids=[f"{c}: {w}" for c, w, _, _ in MORE])
def test_other_branches(code: str, what: str, verdict: str, factory: Factory) -> None:
    found = answer(code, factory)
    assert found.verdict == verdict, found.reason


def test_a_healthy_run_passes_every_gate() -> None:
    checks = every_check(run_context(healthy()), cell_context(cell(5, 5)()))
    assert {c.code: c.reason for c in checks if c.verdict is not Verdict.PASS} == {}
    assert {c.code for c in checks} == set(GATES)


def test_nothing_passes_on_an_empty_record() -> None:
    nothing = cell_context([empty()])
    checks = (*run_checks(run_context(empty())), *cell_checks(nothing), *pair_checks(PairContext(nothing, nothing)))
    assert [c.code for c in checks if c.verdict is Verdict.PASS] == []


def test_no_reason_speaks_of_an_internal_error() -> None:
    for code, case in FIXTURES.items():
        for factory in (case.passing, case.failing, case.unknown):
            assert "internal error" not in answer(code, factory).reason
    for code, _, _, factory in MORE:
        assert "internal error" not in answer(code, factory).reason


def test_measured_values_stand_beside_limit_and_unit() -> None:
    for code, case in FIXTURES.items():
        for name, value in answer(code, case.failing).measured.items():
            assert set(value) == {"value", "limit", "unit"}, (code, name)


def test_an_exception_in_a_gate_is_unknown_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_context: Any) -> Any:
        raise ZeroDivisionError("x")

    first = next(iter(GATES))
    old = GATES[first]
    monkeypatch.setitem(GATES, first, Gate(first, old.protects, old.scope, old.threshold, old.remedy, old.waivable, broken))
    checks = run_checks(run_context(healthy()))
    assert checks[0].verdict is Verdict.UNKNOWN
    assert "ZeroDivisionError" in checks[0].reason
    assert len(checks) == sum(g.scope == "run" for g in GATES.values())


def test_a_code_registers_once() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        gate("seal_intact", protects=(Claim.INTEGRITY,), threshold="x", remedy="x")(lambda c: attempt(lambda _: c, c))


@pytest.mark.parametrize("code", GATES)
def test_a_waiver_lets_through_and_is_printed_unless_the_gate_cannot_be_waived(code: str) -> None:
    waiver = Waiver(gate=code, reason="we know about this one")
    base = healthy(spec=make_spec(waivers=(waiver,)))
    checks = every_check(run_context(base), cell_context([base]))
    given = {c.code: c.waived for c in checks if c.waived}
    assert given == ({} if code in UNWAIVABLE else {code: "we know about this one"})


def supported(claim: Claim, run: RunContext, cell_: CellContext) -> tuple[bool, tuple[str, ...]]:
    against = (
        *standing_against((claim,), run_checks(run), "run", "here"),
        *standing_against((claim,), cell_checks(cell_), "cell", "here"),
    )
    return not against, tuple(f"{c.code}: {c.verdict}" for c in against)


def test_a_claim_needs_integrity_and_what_protects_it() -> None:
    good = cell_context(cell(5, 5)())
    assert supported(Claim.GOODPUT, run_context(healthy()), good) == (True, ())
    dead = run_context(FIXTURES["server_survived"].failing())
    holds, reasons = supported(Claim.FAIRNESS, dead, good)
    assert not holds
    assert reasons[0].startswith("server_survived: FAIL")
    overloaded = run_context(FIXTURES["backlog"].failing())
    assert any(r.startswith("backlog") for r in supported(Claim.LATENCY, overloaded, good)[1])
    assert not any(r.startswith("backlog") for r in supported(Claim.GOODPUT, overloaded, good)[1])


def test_a_gate_without_an_answer_counts_against_the_claim() -> None:
    checks = run_checks(run_context(healthy()))
    assert standing_against((Claim.COMPARISON,), checks, "run", "here") == ()
    for lost in checks:
        (only,) = standing_against(lost.protects, [c for c in checks if c is not lost], "run", "here")
        assert (only.code, only.verdict, only.scope) == (lost.code, Verdict.UNKNOWN, "here")
    assert "replicates" in {c.code for c in standing_against((Claim.COMPARISON,), (), "cell", "here")}


def test_reasons_hold_the_measured_value_and_its_limit() -> None:
    lag = answer("receive_lag", FIXTURES["receive_lag"].failing)
    assert lag.reason == "loop lag p99 3 ms (limit 2 ms), n 100 probes"
    assert answer("pins_match", facts_(pins=())).reason == "no pin was held against a fact"
