"""The scheduler contract: one valid mixed iteration (the seed's fixture), then one invariant broken at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.errors import UsageError
from harness.reference.contract import (
    Budgets,
    Debit,
    Declaration,
    IterationPlan,
    IterationResult,
    Key,
    Ledger,
    Phase,
    RequestView,
    Row,
    SchedulerState,
    WorkloadManifest,
    frozen_map,
    make_work,
    order_key,
    packed_offsets,
    phase_of,
)
from harness.reference.projection import HIDDEN, online_projection
from harness.reference.transition import advance, arrive, cancel, initial_state
from harness.reference.validate import ContractError, kv_after, require, service_of, validate_plan, validate_result

TIE_BREAK = ("phase_rank", "priority_rank", "arrival_order", "request_id", "request_generation")
WORKLOAD = WorkloadManifest("w", "ns", "p", "1", TIE_BREAK, Budgets(tokens=4, sequences=3, kv_capacity=100))

A = RequestView(Declaration("A", 0, 0, 4, 8, client="alpha"), snapshot_version=3)
B = RequestView(Declaration("B", 2, 1, 3, 8, client="alpha"), snapshot_version=9, emitted=1, computed=3, committed=3, resident=3)
C = RequestView(Declaration("C", 1, 2, 3, 8, client="beta"), snapshot_version=6, emitted=1, computed=3, committed=3, resident=3)
D = RequestView(Declaration("D", 0, 3, 4, 8), ready=False)


def make_state(**views: RequestView) -> SchedulerState:
    merged = {"A": A, "B": B, "C": C, "D": D} | views
    return SchedulerState(5, 7, 0, ("D",), ("A", "B", "C"), (), (), frozen_map(merged), frozen_map({}))


STATE = make_state()


def make_plan(state: SchedulerState = STATE, widths: tuple[tuple[str, int], ...] = (("B", 1), ("C", 1), ("A", 2))) -> IterationPlan:
    work = tuple(make_work(state.views[name], width) for name, width in widths)
    order = tuple(order_key(TIE_BREAK, state.views[name], running=name in state.running) for name, _ in widths)
    ledger = Ledger(sum(w.width for w in work), len(work), kv_after(state, (), work))
    return IterationPlan(state.decision_id, state.state_version, "p", "1", work, order, (), (), ledger)


PLAN = make_plan()


def make_row(name: str, **changes: Any) -> Row:
    rows = {
        "B": Row("B", 2, 9, 3, 4, 4, 1, 2, 3, 4, 4, 4, token=65, terminal="stop"),
        "C": Row("C", 1, 6, 3, 4, 4, 1, 2, 3, 4, 4, 4, token=66),
        "A": Row("A", 0, 3, 0, 2, 2, 0, 0, 0, 2, 2, 2),
    }
    return rows[name]._replace(**changes)


def make_result(**changes: Row | None) -> IterationResult:
    rows = tuple(row for name in "BCA" if (row := changes.get(name, make_row(name))) is not None)
    return IterationResult(5, 7, rows, *service_of(STATE, PLAN, rows))


RESULT = make_result()


def codes(problems: list[Any]) -> set[str]:
    return {problem.code for problem in problems}


def test_the_seed_fixture_is_valid_and_spends_both_budgets_exactly() -> None:
    assert validate_plan(WORKLOAD, STATE, PLAN) == []
    assert PLAN.ledger[:2] == (4, 3)
    assert [w.phase for w in PLAN.work] == [Phase.DECODE, Phase.DECODE, Phase.PREFILL]
    assert packed_offsets(PLAN) == (0, 1, 2, 4)


def test_the_seed_result_moves_only_what_completed() -> None:
    assert validate_result(STATE, PLAN, RESULT) == []
    after = advance(STATE, PLAN, RESULT, 10)
    assert (after.state_version, after.decision_id, after.now_ns) == (8, 6, 10)
    assert after.running == ("A", "C")
    assert after.finished == ("B",)
    assert after.views["A"].computed == 2
    assert after.views["A"].emitted == 0
    # B's stream is five tokens long while its cache holds four: the last output was never an input row.
    assert (after.views["B"].emitted + 3, after.views["B"].committed) == (5, 4)
    assert RESULT.debits == (Debit("alpha", 2, 1), Debit("beta", 0, 1))


def test_planning_advances_nothing() -> None:
    state = make_state()
    make_plan(state)
    assert state == make_state()


def mutated(index: int, **changes: Any) -> IterationPlan:
    work = list(PLAN.work)
    work[index] = work[index]._replace(**changes)
    return replace(PLAN, work=tuple(work))


BAD_PLANS: dict[str, tuple[str, Callable[[], IterationPlan]]] = {
    "interval before the frontier": ("illegal_interval", lambda: mutated(0, start=2, positions=range(2, 4))),
    "interval beyond the prompt": ("illegal_interval", lambda: mutated(2, end=5, positions=range(5))),
    "empty interval": ("illegal_interval", lambda: mutated(2, end=0, positions=range(0))),
    "two rows of one decode": ("illegal_interval", lambda: mutated(0, end=5, positions=range(3, 5))),
    "stale generation": ("stale_generation", lambda: mutated(0, generation=1)),
    "unknown request": ("stale_generation", lambda: mutated(0, request_id="Z")),
    "duplicate request": ("duplicate_member", lambda: replace(PLAN, work=(*PLAN.work[:2], PLAN.work[0]))),
    "stale snapshot": ("stale_snapshot", lambda: mutated(1, snapshot_version=5)),
    "stale suspension": ("stale_snapshot", lambda: mutated(1, suspension_epoch=1)),
    "stale state": ("stale_state", lambda: replace(PLAN, input_state_version=6)),
    "stale decision": ("stale_decision", lambda: replace(PLAN, decision_id=4)),
    "other policy version": ("policy_identity", lambda: replace(PLAN, policy_version="2")),
    "other policy": ("policy_identity", lambda: replace(PLAN, policy_id="q")),
    "forged phase": ("forged_phase", lambda: mutated(2, phase=Phase.DECODE)),
    "forged positions": ("forged_positions", lambda: mutated(2, positions=range(1, 3))),
    "token ledger drift": ("ledger_drift", lambda: replace(PLAN, ledger=PLAN.ledger._replace(tokens=3))),
    "sequence ledger drift": ("ledger_drift", lambda: replace(PLAN, ledger=PLAN.ledger._replace(sequences=2))),
    "kv ledger drift": ("ledger_drift", lambda: replace(PLAN, ledger=PLAN.ledger._replace(kv_rows=0))),
    "tie-break evidence": ("tie_break_evidence", lambda: replace(PLAN, order=PLAN.order[::-1])),
    "tie-break order": ("tie_break_order", lambda: make_plan(widths=(("C", 1), ("B", 1), ("A", 2)))),
    "not admitted": ("not_admitted", lambda: make_plan(widths=(("B", 1), ("D", 1)))),
    "unready": ("unready_request", lambda: make_plan(widths=(("B", 1), ("D", 1)))),
    "admit what runs": ("queue_intent", lambda: replace(PLAN, admit=(Key("A", 0),))),
    "admit a stale generation": ("queue_intent", lambda: replace(PLAN, admit=(Key("D", 1),))),
    "preempt what waits": ("queue_intent", lambda: replace(PLAN, preempt=(Key("D", 0),))),
    "preempt and run": ("not_admitted", lambda: replace(PLAN, preempt=(Key("A", 0),))),
    "too many running": ("sequence_budget", lambda: replace(PLAN, admit=(Key("D", 0),))),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_one_broken_invariant_refuses_the_plan(name: str) -> None:
    code, build = BAD_PLANS[name]
    assert code in codes(validate_plan(WORKLOAD, STATE, build()))


@pytest.mark.parametrize(
    ("code", "budgets"),
    [
        ("token_budget", Budgets(3, 3, 100)),
        ("sequence_budget", Budgets(4, 2, 100)),
        ("kv_capacity", Budgets(4, 3, 9)),
    ],
)
def test_each_budget_is_a_limit_of_its_own(code: str, budgets: Budgets) -> None:
    assert codes(validate_plan(replace(WORKLOAD, budgets=budgets), STATE, PLAN)) == {code}


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("terminal_request", make_state(B=B._replace(terminal="abort"))),
        ("view_frontiers", make_state(B=B._replace(committed=2))),
        ("view_frontiers", make_state(A=A._replace(resident=1))),
        ("decode_clock", make_state(B=B._replace(emitted=2))),
        ("queue_partition", replace(STATE, waiting=("D", "A"))),
        ("queue_partition", replace(STATE, waiting=())),
    ],
)
def test_a_state_that_lies_is_refused(code: str, state: SchedulerState) -> None:
    assert code in codes(validate_plan(WORKLOAD, state, PLAN))


BAD_RESULTS: dict[str, tuple[str, Callable[[], IterationResult]]] = {
    "another decision": ("stale_result", lambda: replace(RESULT, decision_id=4)),
    "another state": ("stale_result", lambda: replace(RESULT, input_state_version=6)),
    "another generation": ("stale_result", lambda: make_result(B=make_row("B", generation=1))),
    "unplanned request": ("unplanned_completion", lambda: replace(RESULT, rows=(*RESULT.rows, make_row("A", request_id="D")))),
    "row reported twice": ("unplanned_completion", lambda: replace(RESULT, rows=(*RESULT.rows, make_row("A")))),
    "more than planned": ("unplanned_completion", lambda: make_result(A=make_row("A", completed_end=3))),
    "row missing": ("missing_row", lambda: make_result(A=None)),
    "prompt chunk emits early": ("output_clock", lambda: make_result(A=make_row("A", emitted_after=1, token=65))),
    "decode emits nothing": ("output_clock", lambda: make_result(C=make_row("C", emitted_after=1, token=None))),
    "token without a clock": ("output_clock", lambda: make_result(A=make_row("A", token=65))),
    "computed clock": ("computed_clock", lambda: make_result(A=make_row("A", computed_after=4))),
    "committed clock": ("computed_clock", lambda: make_result(A=make_row("A", committed_after=0))),
    "resident clock": ("resident_clock", lambda: make_result(A=make_row("A", resident_after=3))),
    "shortfall without a failure": (
        "unexplained_shortfall",
        lambda: make_result(A=make_row("A", completed_end=1, computed_after=1, committed_after=1, resident_after=1)),
    ),
    "end without a token": ("terminal_without_token", lambda: make_result(A=make_row("A", terminal="stop"))),
    "planned-service debit": ("service_debit", lambda: replace(RESULT, debits=(Debit("alpha", 4, 1), Debit("beta", 0, 1)))),
    "rebuild as service": ("rebuild_ledger", lambda: replace(RESULT, recomputed_rows=2)),
}


@pytest.mark.parametrize("name", BAD_RESULTS)
def test_one_broken_invariant_refuses_the_result(name: str) -> None:
    code, build = BAD_RESULTS[name]
    assert code in codes(validate_result(STATE, PLAN, build()))


def test_output_beyond_the_declared_maximum_is_refused() -> None:
    short = make_state(C=C._replace(declared=C.declared._replace(max_output_tokens=2)))
    assert codes(validate_result(short, PLAN, RESULT)) == {"declared_maximum"}
    ended = make_result(C=make_row("C", terminal="length"))
    assert validate_result(short, PLAN, ended) == []


def test_a_failed_row_debits_only_what_it_completed() -> None:
    part = make_row("A", completed_end=1, computed_after=1, committed_after=1, resident_after=1, failure="lost")
    result = make_result(A=part)
    assert validate_result(STATE, PLAN, result) == []
    assert result.debits[0] == Debit("alpha", 1, 1)


def test_require_raises_all_problems_at_once() -> None:
    bad = replace(PLAN, decision_id=4, policy_id="q")
    with pytest.raises(ContractError) as caught:
        require(validate_plan(WORKLOAD, STATE, bad))
    assert {p.code for p in caught.value.problems} == {"stale_decision", "policy_identity"}


def test_a_suspended_decode_rebuilds_without_new_output() -> None:
    gone = B._replace(resident=0, suspension_epoch=1)
    assert phase_of(gone) is Phase.REBUILD
    state = make_state(B=gone)
    plan = make_plan(state, (("A", 1), ("B", 3)))
    assert validate_plan(WORKLOAD, state, plan) == []
    rows = (make_row("A", planned_end=1, completed_end=1, computed_after=1, committed_after=1, resident_after=1),
            Row("B", 2, 9, 0, 3, 3, 1, 1, 3, 3, 3, 3))  # fmt: skip
    debits, rebuilt = service_of(state, plan, rows)
    result = IterationResult(5, 7, rows, debits, rebuilt)
    assert validate_result(state, plan, result) == []
    assert (debits, rebuilt) == ((Debit("alpha", 1, 0),), 3)


def test_cancellation_wins_by_generation() -> None:
    after = cancel(STATE, ["B", "unknown"])
    assert after.views["B"].key == Key("B", 3)
    assert after.views["B"].terminal == "abort"
    assert after.running == ("A", "C")
    assert "stale_state" in codes(validate_plan(WORKLOAD, after, PLAN))
    rebound = replace(PLAN, input_state_version=after.state_version)
    assert "stale_generation" in codes(validate_plan(WORKLOAD, after, rebound))
    with pytest.raises(ValueError, match="the state is at"):
        advance(after, PLAN, RESULT, 0)


def test_ids_are_used_once() -> None:
    state = arrive(initial_state(), [A.declared])
    with pytest.raises(ValueError, match="already live"):
        arrive(state, [A.declared])


def document() -> dict[str, Any]:
    requests = [{"request_id": "A", "arrival_order": 0, "prompt_tokens": 4, "max_output_tokens": 8, HIDDEN: {"realized_output_tokens": 3}}]
    return {
        "workload_id": "w", "clock": "ns", "policy_id": "p", "policy_version": "1", "tie_break": list(TIE_BREAK),
        "budgets": {"tokens": 4, "sequences": 3, "kv_capacity": 100}, "requests": requests,
    }  # fmt: skip


def test_the_online_projection_is_blind_to_the_truth() -> None:
    one, other = document(), document()
    other["requests"][0][HIDDEN] = {"realized_output_tokens": 8}
    assert online_projection(one)[0] == online_projection(other)[0]
    assert online_projection(other)[1] == {"A": {"realized_output_tokens": 8}}


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("hidden_truth_leak", {"realized_output_tokens": 3}),
        ("hidden_truth_leak", {"physical_blocks": [1]}),
        ("unknown_field", {"color": "red"}),
        ("bad_count", {"prompt_tokens": 0}),
        ("bad_count", {"max_output_tokens": "8"}),
    ],
)
def test_the_projection_refuses_leaks_and_nonsense(code: str, change: dict[str, Any]) -> None:
    bad = document()
    bad["requests"][0] |= change
    with pytest.raises(UsageError) as caught:
        online_projection(bad)
    assert [p.code for p in caught.value.problems] == [code]


def test_the_projection_names_missing_fields_and_duplicates() -> None:
    bad = document()
    del bad["requests"][0]["prompt_tokens"]
    with pytest.raises(UsageError, match="missing_field"):
        online_projection(bad)
    twice = document()
    twice["requests"] *= 2
    with pytest.raises(UsageError, match="duplicate_request"):
        online_projection(twice)
