"""The plan validator: one valid mixed iteration (the seed's fixture), then one invariant broken at a time, every code of the list."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.reference import contract as c
from harness.reference import table as t
from harness.reference.contract import Budgets, IterationPlan, Ledger, Moves, SchedulerState, WorkloadManifest
from harness.reference.engine import online_workload
from harness.reference.foreign_rules import FOREIGN_CODES
from harness.reference.keys import first_descent, order_keys
from harness.reference.passes import seal
from harness.reference.policies.sarathi import SarathiServeShaped
from harness.reference.projection import HIDDEN, online_projection
from harness.reference.room import COUNTED_CODES
from harness.reference.table import Phase, Table
from harness.reference.transition import cancel
from harness.reference.validate import PLAN_CODES, ContractError, authorize, validate_plan

POLICY = SarathiServeShaped()
BUDGETS = Budgets(tokens=4, sequences=3, kv_capacity=100)
WORKLOAD = online_workload(POLICY, BUDGETS)

# Numbers of the requests A, B, C, D of the seed's iteration 5. Its table did not survive: prompts of A (4) and B (3) and all intervals are
# stated in its text; D's and E's lengths and the order of arrival (A, B, C, D) are reconstructed from the stated plan order B, C, A.
A, B, C, D, E = range(5)


def member(handle: int, **facts: int) -> dict[int, int]:
    cells = {t.HANDLE: handle, t.ORDER: handle, t.PROMPT: 4, t.MAXIMUM: 8, t.READY: 1, t.LAST_NS: -1, t.TTFT_NS: -1, t.TBT_NS: -1}
    return cells | {getattr(t, name.upper()): value for name, value in facts.items()}


def table(*members: dict[int, int]) -> Table:
    cells = np.zeros((t.COLUMNS, len(members)), np.int64)
    for at, facts in enumerate(members):
        for column, value in facts.items():
            cells[column, at] = value
    return Table(cells)


ROW_A = member(A, snapshot=3)
ROW_B = member(B, generation=2, snapshot=9, prompt=3, emitted=1, computed=3, committed=3, resident=3, last_ns=0)
ROW_C = member(C, generation=1, snapshot=6, prompt=3, emitted=1, computed=3, committed=3, resident=3, client=1, last_ns=0)
ROW_D = member(D, ready=0)
ROW_E = member(E, generation=4)


def make_state(*running: dict[int, int], waiting: tuple[dict[int, int], ...] = (ROW_D,), held: int = 6) -> SchedulerState:
    rows = running or (ROW_A, ROW_B, ROW_C)
    service = np.zeros((2, 2), np.int64)
    return SchedulerState(5, 7, 0, table(*rows), table(), table(*waiting), table(ROW_E), service, held)


STATE = make_state()


def make_plan(state: SchedulerState = STATE, at: tuple[int, ...] = (1, 2, 0), widths: tuple[int, ...] = (1, 1, 2)) -> IterationPlan:
    """Intervals by position among the running; listed as given, not sorted."""
    plan = seal(POLICY, WORKLOAD, state, state.running, np.array(at), np.array(widths))
    order = order_keys(POLICY.tie_break, state.running, len(state.running), np.array(at), {})
    return plan._replace(work=c.make_work(state.running, np.array(at), np.array(widths)), order=order)


PLAN = make_plan()


def codes(plan: IterationPlan, state: SchedulerState = STATE, workload: WorkloadManifest = WORKLOAD) -> set[str]:
    return {problem.code for problem in validate_plan(POLICY, workload, state, plan)}


def changed(column: int, at: int, value: int) -> IterationPlan:
    cells = PLAN.work.cells.copy()
    cells[column, at] = value
    return PLAN._replace(work=PLAN.work._replace(cells=cells))


def admits(at: int, handle: int, generation: int) -> IterationPlan:
    return PLAN._replace(admit=Moves(np.array([at]), np.array([[handle], [generation]])))


def test_the_seed_fixture_is_the_plan_of_its_policy_and_spends_both_budgets_exactly() -> None:
    plan = POLICY.plan(WORKLOAD, STATE)
    assert codes(plan) == set()
    assert [(h, g, s) for h, g, s in zip(*plan.work.cells[:3].tolist(), strict=True)] == [(B, 2, 9), (C, 1, 6), (A, 0, 3)]
    assert list(zip(plan.work.cells[t.RESIDENT].tolist(), plan.work.cells[c.END].tolist(), strict=True)) == [(3, 4), (3, 4), (0, 2)]
    assert [Phase(p) for p in plan.work.cells[c.PHASE]] == [Phase.DECODE, Phase.DECODE, Phase.PREFILL]
    assert plan.ledger[:2] == (4, 3)
    assert plan.order.T.tolist() == [[0, 0, B, B, 2], [0, 0, C, C, 1], [1, 0, A, A, 0]]
    assert plan.work.cells.tobytes() == PLAN.work.cells.tobytes()


BAD_PLANS: dict[str, tuple[str, Callable[[], IterationPlan]]] = {
    "interval before the frontier": ("illegal_interval", lambda: changed(t.RESIDENT, 0, 2)),
    "interval beyond the prompt": ("illegal_interval", lambda: changed(c.END, 2, 5)),
    "empty interval": ("illegal_interval", lambda: changed(c.END, 2, 0)),
    "two rows of one decode": ("multi_row_decode", lambda: changed(c.END, 0, 5)),
    "stale generation": ("stale_generation", lambda: changed(t.GENERATION, 0, 1)),
    "another request's place": ("unknown_request", lambda: changed(t.HANDLE, 0, 99)),
    "terminal generation": ("terminal_request", lambda: changed(t.HANDLE, 0, E)),
    "duplicate request": ("duplicate_member", lambda: changed(t.HANDLE, 0, A)),
    "stale snapshot": ("stale_snapshot", lambda: changed(t.SNAPSHOT, 1, 5)),
    "stale suspension": ("stale_suspension", lambda: changed(t.EPOCH, 1, 1)),
    "stale state": ("stale_state", lambda: PLAN._replace(input_state_version=6)),
    "stale decision": ("stale_decision", lambda: PLAN._replace(decision_id=4)),
    "other policy version": ("policy_identity", lambda: PLAN._replace(policy_version="2")),
    "other policy": ("policy_identity", lambda: PLAN._replace(policy_id="q")),
    "forged phase": ("forged_phase", lambda: changed(c.PHASE, 2, Phase.DECODE)),
    "forged positions": ("forged_positions", lambda: changed(c.POSITION, 2, 1)),
    "token ledger drift": ("ledger_drift", lambda: PLAN._replace(ledger=PLAN.ledger._replace(tokens=3))),
    "sequence ledger drift": ("ledger_drift", lambda: PLAN._replace(ledger=PLAN.ledger._replace(sequences=2))),
    "kv ledger drift": ("ledger_drift", lambda: PLAN._replace(ledger=PLAN.ledger._replace(kv_rows=0))),
    "forged tie-break": ("tie_break_evidence", lambda: PLAN._replace(order=PLAN.order[:, ::-1])),
    "too few tie-break fields": ("tie_break_evidence", lambda: PLAN._replace(order=PLAN.order[:2])),
    "not in tie-break order": ("tie_break_order", lambda: make_plan(at=(2, 1, 0))),
    "a position nobody holds": ("not_admitted", lambda: PLAN._replace(work=PLAN.work._replace(at=np.array([1, 2, 3])))),
    "preempt and run": ("not_admitted", lambda: PLAN._replace(preempt=Moves(np.array([0]), np.array([[A], [0]])))),
    "admit a stale generation": ("queue_intent", lambda: admits(0, D, 1)),
    "admit from nowhere": ("queue_intent", lambda: admits(1, D, 0)),
    "change places without work": (
        "queue_intent",
        lambda: admits(0, D, 0)._replace(
            preempt=Moves(np.array([0]), np.array([[A], [0]])),
            work=c.make_work(STATE.running, np.zeros(0, np.int64), np.zeros(0, np.int64)),
        ),
    ),
    "preempt twice": ("duplicate_member", lambda: PLAN._replace(preempt=Moves(np.array([0, 0]), np.array([[A, A], [0, 0]])))),
    "physical block in the plan": ("physical_block_leak", lambda: PLAN._replace(notes=(("block_ids", 7),))),
    "realized length in the plan": ("hidden_truth_leak", lambda: PLAN._replace(notes=(("realized_output_tokens", 7),))),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_one_broken_invariant_refuses_the_plan(name: str) -> None:
    code, build = BAD_PLANS[name]
    assert code in codes(build())


BAD_BUDGETS = {"token_budget": Budgets(3, 3, 100), "sequence_budget": Budgets(4, 2, 100), "kv_capacity": Budgets(4, 3, 9)}


@pytest.mark.parametrize("code", BAD_BUDGETS)
def test_each_budget_is_a_limit_of_its_own(code: str) -> None:
    assert codes(PLAN, workload=dataclasses.replace(WORKLOAD, budgets=BAD_BUDGETS[code])) == {code}


BAD_STATES: dict[str, tuple[str, SchedulerState]] = {
    "dependency not ready": ("unready_request", make_state(ROW_A, ROW_B | {t.READY: 0}, ROW_C)),
    "committed behind computed": ("view_frontiers", make_state(ROW_A, ROW_B | {t.COMMITTED: 2}, ROW_C)),
    "resident beyond computed": ("view_frontiers", make_state(ROW_A | {t.RESIDENT: 1}, ROW_B, ROW_C)),
    "outputs without rows": ("decode_clock", make_state(ROW_A, ROW_B | {t.EMITTED: 2}, ROW_C)),
    "prompt done without output": ("decode_clock", make_state(ROW_A, ROW_B | {t.EMITTED: 0}, ROW_C)),
}


@pytest.mark.parametrize("name", BAD_STATES)
def test_a_state_that_lies_is_refused(name: str) -> None:
    code, state = BAD_STATES[name]
    assert code in codes(PLAN, state)


def test_every_code_has_a_fixture_it_refuses_and_the_valid_plan_has_none() -> None:
    refused = {code for code, _ in BAD_PLANS.values()} | set(BAD_BUDGETS) | {code for code, _ in BAD_STATES.values()}
    elsewhere = {*FOREIGN_CODES, *COUNTED_CODES}  # those have theirs in test_reference_deployment and test_reference_room
    assert refused == set(PLAN_CODES) - elsewhere
    assert codes(PLAN) == set()


def test_an_unready_request_that_waits_is_not_let_in() -> None:
    assert len(POLICY.plan(WORKLOAD, make_state(ROW_B, ROW_C)).admit.at) == 0
    ready = make_state(ROW_B, ROW_C, waiting=(ROW_D | {t.READY: 1},))
    assert POLICY.plan(WORKLOAD, ready).admit.keys.tolist() == [[D], [0]]


def test_all_problems_are_raised_at_once() -> None:
    bad = PLAN._replace(decision_id=4, policy_id="q")
    with pytest.raises(ContractError) as caught:
        authorize(POLICY, WORKLOAD, STATE, bad)
    assert {problem.code for problem in caught.value.problems} == {"stale_decision", "policy_identity"}


def test_planning_advances_nothing_and_tables_cannot_be_written() -> None:
    before = STATE.running.cells.copy()
    POLICY.plan(WORKLOAD, STATE)
    assert np.array_equal(STATE.running.cells, before)
    with pytest.raises(ValueError, match="read-only"):
        STATE.running.emitted[0] = 3
    with pytest.raises(ValueError, match="read-only"):
        PLAN.work.cells[0, 0] = 3


def test_cancellation_wins_by_generation() -> None:
    after = cancel(STATE, [B, 99])
    assert after.finished.cells[:3, 0].tolist() == [B, 3, 10]
    assert after.running.handle.tolist() == [A, C]
    assert after.held_rows == 3
    assert codes(PLAN, after) == {"stale_state"}
    assert codes(PLAN._replace(input_state_version=after.state_version), after) >= {"not_admitted"}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(-2, 2)), max_size=6))
def test_descent_is_lexicographic(columns: list[tuple[int, int, int]]) -> None:
    keys = np.array(columns, np.int64).reshape(-1, 3).T
    assert (first_descent(keys) < 0) == (columns == sorted(columns))


def test_an_undeclared_tie_break_field_is_an_error() -> None:
    with pytest.raises(KeyError):
        order_keys(("luck",), STATE.running, 3, np.array([0]), {})


def document() -> dict[str, Any]:
    requests = [{"request_id": "A", "arrival_order": 0, "prompt_tokens": 4, "max_output_tokens": 8, HIDDEN: {"realized_output_tokens": 3}}]
    return {
        "workload_id": "w", "clock": "ns", "policy_id": "p", "policy_version": "1", "tie_break": ["arrival_order"],
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
        ("physical_block_leak", {"physical_blocks": [1]}),
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


def test_no_record_a_policy_sees_has_a_place_for_the_truth() -> None:
    seen = {name for record in (SchedulerState, IterationPlan, c.Declaration, Ledger) for name in record._fields}
    columns = {name.lower() for module in (c, t) for name in dir(module) if name.isupper() and isinstance(getattr(module, name), int)}
    assert not {name for name in seen | columns if "natural" in name or "realized" in name or "truth" in name or "block" in name}
