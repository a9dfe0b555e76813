"""Iterations of nothing but decodes are judged by whole columns: what that lets pass is exactly what the rules one by one let pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.reference import contract as c
from harness.reference import table as t
from harness.reference.contract import Authorized, Budgets, Declaration, IterationResult, Ledger, SchedulerState, Work, declared_table
from harness.reference.cost import CostModel
from harness.reference.engine import Core, online_workload
from harness.reference.execute import Truths, execute
from harness.reference.registry import make_policy
from harness.reference.results import _clocks, _sound_decode_clocks
from harness.reference.table import Table, all_ones, all_zero, ones
from harness.reference.tokens import Truth
from harness.reference.validate import _binding, _frontiers, _intervals, _sound_decodes, validate_plan

REQUESTS = 4
TRUTHS = Truths()
for _number in range(REQUESTS):
    TRUTHS.add(_number, Truth(_number, None))


def decoding(steps: int) -> tuple[Core, SchedulerState]:
    """Four requests of 1 to 4 prompt rows that all decode, some steps on."""
    policy = make_policy("vllm-shaped-fcfs")
    core = Core(online_workload(policy, Budgets(64, 8, 1000)), policy, CostModel(1, 1, 1, 1))
    declared = [Declaration(number, number, 1 + number, 50) for number in range(REQUESTS)]
    state = core.cut(core.start(), 0, declared_table(declared), [])
    for now in range(1 + steps):
        authorized, _ = core.decide(state)
        state = core.publish(state, authorized, execute(state, authorized, TRUTHS, tokens=False), now + 1)
    return core, state


CORE, STATE = decoding(3)
PLAN = CORE.policy.plan(CORE.workload, STATE)
AUTHORIZED = Authorized.of(PLAN, STATE.running)
RESULT = execute(STATE, AUTHORIZED, TRUTHS, tokens=False)


def forged(cells: np.ndarray, forgeries: list[tuple[int, int, int]]) -> np.ndarray:
    copy = cells.copy()
    for row, column, by in forgeries:
        copy[row % len(copy), column] += by
    return copy


FORGERIES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, REQUESTS - 1), st.integers(-2, 2)), max_size=3)
FACTS = st.lists(
    st.tuples(st.sampled_from([t.RESIDENT, t.COMPUTED, t.COMMITTED, t.EMITTED, t.READY]), st.integers(0, 3), st.integers(-1, 1)), max_size=3
)


@settings(max_examples=300, deadline=None)
@given(FORGERIES, FACTS)
def test_work_is_accepted_at_once_if_and_only_if_no_rule_refuses_it(
    in_work: list[tuple[int, int, int]], in_state: list[tuple[int, int, int]]
) -> None:
    members = Table(forged(STATE.running.cells, in_state))
    work = Work(PLAN.work.at, forged(c.make_work(members, PLAN.work.at, ones(REQUESTS)).cells, in_work))
    found = [*_binding(STATE, work, members.cells), *_frontiers(work, members.cells), *_intervals(members, work)]
    if members.decoding:
        assert _sound_decodes(members, work, members.cells) == (not found)


@settings(max_examples=300, deadline=None)
@given(FORGERIES)
def test_clocks_are_accepted_at_once_if_and_only_if_no_rule_refuses_them(forgeries: list[tuple[int, int, int]]) -> None:
    result = RESULT._replace(rows=forged(RESULT.rows, forgeries))
    if result.rows[c.COMPLETED_END].tobytes() == result.rows[c.PLANNED_END].tobytes() == PLAN.work.cells[c.END].tobytes():
        found = list(_clocks(PLAN, AUTHORIZED.picked, result))
        assert _sound_decode_clocks(PLAN, AUTHORIZED.picked, result) == (not found)


def test_a_result_with_tokens_goes_through_the_rules() -> None:
    told = IterationResult(*RESULT[:-1], tokens=np.full(REQUESTS, 5))
    assert not _sound_decode_clocks(PLAN, AUTHORIZED.picked, told)


def test_the_plan_the_shortcut_is_for_is_accepted_and_uses_it() -> None:
    assert STATE.running.decoding
    assert _sound_decodes(STATE.running, PLAN.work, STATE.running.cells)
    assert validate_plan(CORE.policy, CORE.workload, STATE, PLAN) == []


@given(st.lists(st.integers(0, 2), max_size=40))
def test_ones_and_zeros_are_recognised(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert all_ones(array) == all(value == 1 for value in values)
    assert all_zero(array) == all(value == 0 for value in values)


def test_more_members_than_are_kept_ready_cost_an_array_and_change_nothing() -> None:
    many = 4 * 4096 + 1
    assert all_ones(np.ones(many, np.int64))
    assert all_zero(np.zeros(many, np.int64))
    assert not all_ones(np.zeros(many, np.int64))
    assert not all_zero(np.ones(many, np.int64))
    assert len(ones(many)) == many


@pytest.mark.parametrize("kind", [np.int32, np.int16, np.int8])
def test_narrow_positions_do_not_pass_for_others(kind: type[np.signedinteger[Any]]) -> None:
    at = np.zeros(2, kind)  # two int32 zeros have the bytes of one 64-bit zero, the position of the first member
    work = Work(at, np.ascontiguousarray(PLAN.work.cells[:, [0, 0]]))
    twice = PLAN._replace(work=work, order=at.reshape(1, -1), ledger=Ledger(2, 2, STATE.held_rows + 2))
    assert {"duplicate_member"} == {problem.code for problem in validate_plan(CORE.policy, CORE.workload, STATE, twice)}
