"""Plans over a counted cache: each rule about promises and suspensions has a plan that keeps it and one that breaks it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from harness.reference import table as t
from harness.reference.admission import Rule, make_admission, reservations
from harness.reference.contract import END, Budgets, IterationPlan, Moves, SchedulerState, WorkloadManifest, moves
from harness.reference.engine import online_workload
from harness.reference.owner import MemoryRules
from harness.reference.passes import Draft, admit_known, seal
from harness.reference.policies.vllm import VllmShapedFcfs
from harness.reference.registry import POLICIES, make_policy
from harness.reference.room import COUNTED_CODES
from harness.reference.table import Table
from harness.reference.validate import validate_plan
from tests.unit.test_reference_contract import member, table

POLICY = VllmShapedFcfs()
POINT = make_admission("point", {"learn": 0, "class.0": 3, "class.1": 8})
"""Three outputs for priority 0 (four prompt rows: 6 in all), eight for priority 1 (11 in all)."""
GROWN = member(0, emitted=2, computed=5, committed=5, resident=5, reserved=6, last_ns=0)
OUTGROWS = member(1, emitted=3, computed=6, committed=6, resident=6, reserved=6, last_ns=0)
NEW, LONG = member(2), member(3, priority=1)
KEPT = member(4, emitted=2, computed=5, committed=5, preserved=5, epoch=1)
MOVING = member(5, emitted=2, computed=5, committed=5, resident=5, ready=0, epoch=1)


def state_of(
    *running: dict[int, int], waiting: tuple[dict[int, int], ...] = (), suspended: tuple[dict[int, int], ...] = ()
) -> SchedulerState:
    held = sum(row.get(t.RESIDENT, 0) for row in (*running, *suspended))
    service = np.zeros((2, 2), np.int64)
    return SchedulerState(5, 7, 0, table(*running), table(*suspended), table(*waiting), table(), service, held)


def workload_of(capacity: int = 40, watermark: int = 0, rules: MemoryRules | None = None) -> WorkloadManifest:
    return online_workload(POLICY, Budgets(16, 4, capacity, watermark), rules=rules or MemoryRules(POINT, tier_rows=50))


def planned(state: SchedulerState, workload: WorkloadManifest) -> IterationPlan:
    return POLICY.plan(workload, state)


def codes(plan: IterationPlan, state: SchedulerState, workload: WorkloadManifest) -> set[str]:
    return {problem.code for problem in validate_plan(POLICY, workload, state, plan)}


def everyone_in(state: SchedulerState, workload: WorkloadManifest) -> IterationPlan:
    """All that run and all that wait get their next interval, whatever fits."""
    members = Table(np.concatenate((state.running.cells, state.waiting.cells), axis=1))
    at = np.arange(len(members))
    admit = moves(state.waiting, np.arange(len(state.waiting)))
    return seal(POLICY, workload, state, members, at, members.limit - members.resident, admit=admit)


def suspended_move(state: SchedulerState, workload: WorkloadManifest, *, promote: bool) -> IterationPlan:
    """Bring the only suspended member back, or call its rows back, by decree."""
    move = moves(state.suspended, np.array([0]))
    nobody = np.zeros(0, np.int64)
    if promote:
        return seal(POLICY, workload, state, state.running, nobody, nobody, promote=move)
    members = Table(np.concatenate((state.running.cells, state.suspended.cells), axis=1))
    return seal(POLICY, workload, state, members, nobody, nobody, resume=move)


def changed(plan: IterationPlan, rows: int) -> IterationPlan:
    reserve = plan.reserve.copy()
    reserve[2, 0] = rows
    return plan._replace(reserve=reserve)


def unpromised(state: SchedulerState, workload: WorkloadManifest) -> IterationPlan:
    return planned(state, workload)._replace(reserve=np.zeros((3, 0), np.int64))


Case = tuple[SchedulerState, WorkloadManifest, Callable[[SchedulerState, WorkloadManifest], IterationPlan]]
TWO_NEW = state_of(GROWN, waiting=(NEW, LONG))
BAD: dict[str, tuple[str, Case]] = {
    "a promise below the forecast": ("reservation_drift", (TWO_NEW, workload_of(), lambda s, w: changed(planned(s, w), 5))),
    "a promise above the forecast": ("reservation_drift", (TWO_NEW, workload_of(), lambda s, w: changed(planned(s, w), 7))),
    "no promise at all": ("reservation_drift", (TWO_NEW, workload_of(), unpromised)),
    "work beyond its promise without an extension": (
        "reservation_drift", (state_of(OUTGROWS), workload_of(), unpromised),
    ),
    "a promise where no rule makes any": (
        "reservation_drift",
        (state_of(GROWN), workload_of(rules=MemoryRules()), lambda s, w: planned(s, w)._replace(reserve=np.array([[0], [0], [9]]))),
    ),
    "promises beyond the cache": ("hard_ceiling", (TWO_NEW, workload_of(capacity=22), everyone_in)),
    "an extension beyond the cache": ("hard_ceiling", (state_of(OUTGROWS), workload_of(capacity=6), everyone_in)),
    "a newcomer in the rows held back": ("soft_ceiling", (TWO_NEW, workload_of(watermark=18), everyone_in)),
    "back before its rows are": (
        "no_ticket", (state_of(GROWN, suspended=(MOVING,)), workload_of(), lambda s, w: suspended_move(s, w, promote=False)),
    ),
    "back while its rows are elsewhere": (
        "no_ticket", (state_of(GROWN, suspended=(KEPT,)), workload_of(), lambda s, w: suspended_move(s, w, promote=False)),
    ),
    "rows called back that nobody keeps": (
        "nothing_preserved", (state_of(GROWN, suspended=(MOVING,)), workload_of(), lambda s, w: suspended_move(s, w, promote=True)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_one_broken_rule_refuses_the_plan(name: str) -> None:
    code, (state, workload, build) = BAD[name]
    assert code in codes(build(state, workload), state, workload)


GOOD: dict[str, Case] = {
    "newcomers with their promises": (TWO_NEW, workload_of(), planned),
    "promises that fill the cache": (TWO_NEW, workload_of(capacity=23), everyone_in),
    "an extension that fills the cache": (state_of(OUTGROWS), workload_of(capacity=7), everyone_in),
    "an extension into the rows held back": (state_of(OUTGROWS), workload_of(capacity=7, watermark=6), planned),
    "newcomers above the rows held back": (TWO_NEW, workload_of(watermark=17), everyone_in),
    "one alone in the rows held back": (state_of(waiting=(LONG,)), workload_of(capacity=11, watermark=10), planned),
    "rows called back": (state_of(GROWN, suspended=(KEPT,)), workload_of(), lambda s, w: suspended_move(s, w, promote=True)),
    "rows called back by the policy": (state_of(GROWN, suspended=(KEPT,)), workload_of(), planned),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_plan_that_keeps_the_rules_passes(name: str) -> None:
    state, workload, build = GOOD[name]
    assert codes(build(state, workload), state, workload) == set()


def test_every_code_has_a_fixture() -> None:
    assert {code for code, _ in BAD.values()} == set(COUNTED_CODES)


def test_who_is_called_back_runs_when_it_is_back_and_not_before() -> None:
    state, workload = state_of(GROWN, suspended=(KEPT,)), workload_of()
    plan = planned(state, workload)
    assert plan.promote.keys.tolist() == [[4], [0]]
    assert len(plan.resume.at) == 0
    assert plan.work.cells[t.HANDLE].tolist() == [0]
    assert plan.ledger.kv_rows == 5 + 1 + 5  # its rows take room from now on
    assert plan.reserve.T.tolist() == [[4, 0, 6]]


def test_an_extension_asks_for_the_end_of_the_interval_and_nobody_else_does() -> None:
    plan = planned(state_of(GROWN, OUTGROWS), workload_of())
    assert plan.reserve.T.tolist() == [[1, 0, 7]]


def test_who_cannot_be_extended_gives_way() -> None:
    state, workload = state_of(GROWN, OUTGROWS), workload_of(capacity=12)
    plan = planned(state, workload)
    assert plan.preempt.keys[0].tolist() == [1]
    assert codes(plan, state, workload) == set()


def test_a_move_of_a_stale_generation_is_no_promotion() -> None:
    state, workload = state_of(GROWN, suspended=(KEPT,)), workload_of()
    plan = planned(state, workload)._replace(promote=Moves(np.array([0]), np.array([[4], [1]])))
    assert "queue_intent" in codes(plan, state, workload)


def test_promises_are_in_whole_blocks() -> None:
    state = state_of(waiting=(NEW, LONG))
    rule = make_admission("point", {"learn": 0, "class.0": 3, "class.1": 8})
    found = reservations(rule, None, state.waiting, np.array([0]), np.array([4]), 8)
    assert found.T.tolist() == [[2, 0, 8], [3, 0, 16]]


def test_without_a_rule_nothing_is_promised() -> None:
    own = make_admission(Rule.OWN, {})
    assert reservations(own, None, state_of(NEW).running, np.array([0]), np.array([4]), 1).shape == (3, 0)
    workload = workload_of(rules=MemoryRules())
    draft = Draft(POLICY, workload, state_of(waiting=(NEW,)))
    admit_known(draft, draft.queue())
    plan = draft.finish()
    assert draft.room is None
    assert plan.work.cells[END].tolist() == [4]
    assert plan.reserve.shape == (3, 0)


@pytest.mark.parametrize("policy_id", sorted(name for name, policy in POLICIES.items() if "preemption" in policy.engine_rules))
def test_who_is_back_on_the_device_does_not_wait_behind_one_whose_room_it_holds(policy_id: str) -> None:
    policy = make_policy(policy_id)
    back = member(6, emitted=2, computed=5, committed=5, resident=5, reserved=6, epoch=1)
    state = state_of(suspended=(KEPT, back), waiting=(NEW,))._replace(memory=policy.initial_memory())
    workload = online_workload(policy, Budgets(16, 4, 10), rules=MemoryRules(POINT, tier_rows=50))  # KEPT would need 6 of 10, 6 are held
    plan = policy.plan(workload, state)
    assert plan.resume.keys[0].tolist() == [6]
    assert plan.work.cells[0].tolist() == [6]
    assert len(plan.promote.at) == 0
    assert len(plan.admit.at) == 0
    assert validate_plan(policy, workload, state, plan) == []


@pytest.mark.parametrize("policy_id", sorted(name for name, policy in POLICIES.items() if "admission" in policy.engine_rules))
def test_rows_are_held_back_for_who_is_back_on_the_device_though_nobody_runs(policy_id: str) -> None:
    policy = make_policy(policy_id)
    back = member(6, emitted=2, computed=5, committed=5, resident=5, reserved=6, epoch=1)
    state = state_of(suspended=(back,), waiting=(NEW,))._replace(memory=policy.initial_memory())  # NEW comes first by priority and order
    workload = online_workload(policy, Budgets(16, 4, 12, 1), rules=MemoryRules(POINT, tier_rows=50))  # 12 rows for both, 11 for newcomers
    plan = policy.plan(workload, state)
    assert validate_plan(policy, workload, state, plan) == []
    assert (plan.resume.keys[0].tolist(), len(plan.admit.at)) == ([6], 0)
    alone = state_of(waiting=(NEW,))._replace(memory=policy.initial_memory())
    tight = online_workload(policy, Budgets(16, 4, 6, 1), rules=MemoryRules(POINT, tier_rows=50))
    plan = policy.plan(tight, alone)
    assert validate_plan(policy, tight, alone, plan) == []
    assert len(plan.admit.at) == 1, "with nobody inside, the rows held back could block it for ever"
