"""Declines, two pools and KV by layers: what the validator refuses of plans for them, and what owners of transfers publish."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from harness.reference import contract as c
from harness.reference import table as t
from harness.reference.contract import Budgets, IterationPlan, Moves, SchedulerState, WorkloadManifest
from harness.reference.cost import CostModel
from harness.reference.deployment import HOPELESS, NOT_MOVING, Foreign, Layered, Pools
from harness.reference.engine import Core, online_workload
from harness.reference.execute import Truths, execute
from harness.reference.foreign import device_rows, next_receipt_ns, price_ns
from harness.reference.foreign_rules import FOREIGN_CODES
from harness.reference.policies.distserve import DistServeLike
from harness.reference.policies.layerkv import LayerKvLike
from harness.reference.policies.scorpio import ScorpioLike
from harness.reference.policy import Policy
from harness.reference.table import Phase
from harness.reference.tokens import Truth
from harness.reference.transition import cancel
from harness.reference.validate import validate_plan
from tests.unit.test_reference_contract import make_state, member

MS = 1_000_000
COSTS = CostModel(10 * MS, MS, MS, 0, transfer_base_ns=5 * MS, transfer_row_ns=2 * MS)
DECODING = {"prompt": 3, "emitted": 1, "computed": 3, "committed": 3, "resident": 3, "last_ns": 0}
A, B, C, D = range(4)


def codes(policy: Policy, workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan) -> set[str]:
    return {problem.code for problem in validate_plan(policy, workload, state, plan)}


def facts(*rows: tuple[int, int, int, int]) -> Foreign:
    """Handle, epoch, layers, due instant."""
    return Foreign(np.array(rows, np.int64).reshape(-1, 4).T)


def asks(*layers: tuple[int, int]) -> np.ndarray:
    return np.array(layers, np.int64).reshape(-1, 2).T


# Declines: B decodes, C and D wait.
SCORPIO = ScorpioLike()
ALONE = online_workload(SCORPIO, Budgets(8, 2, 100))
QUEUED = make_state(member(B, **DECODING), waiting=(member(C), member(D, generation=2)), held=3)._replace(memory=SCORPIO.initial_memory())
SERVING = SCORPIO.plan(ALONE, QUEUED)._replace(admit=c.NO_MOVES)


def declining(
    at: tuple[int, ...] = (1,), keys: tuple[tuple[int, int], ...] = ((D, 2),), reasons: tuple[int, ...] = (HOPELESS,)
) -> IterationPlan:
    work = c.make_work(QUEUED.running, np.array([0]), np.array([1]))
    plan = SERVING._replace(work=work, order=np.array([[0]]), ledger=c.Ledger(1, 1, 4))
    return plan._replace(decline=Moves(np.array(at), np.array(keys).T.reshape(2, -1)), reasons=np.array(reasons, np.int64))


def answered() -> tuple[SchedulerState, IterationPlan]:
    spoke = member(D, generation=2, emitted=1)
    return make_state(member(B, **DECODING), waiting=(member(C), spoke), held=3)._replace(memory=QUEUED.memory), declining()


BAD_DECLINES: dict[str, tuple[str, Callable[[], tuple[SchedulerState, IterationPlan]]]] = {
    "no reason": ("decline_reason", lambda: (QUEUED, declining(reasons=()))),
    "an unknown reason": ("decline_reason", lambda: (QUEUED, declining(reasons=(99,)))),
    "a reason for nobody": ("decline_reason", lambda: (QUEUED, declining()._replace(reasons=np.array([HOPELESS, HOPELESS])))),
    "after an output": ("decline_after_output", answered),
    "a reason alone": ("decline_reason", lambda: (QUEUED, declining()._replace(decline=c.NO_MOVES))),
    "an earlier generation": ("queue_intent", lambda: (QUEUED, declining(keys=((D, 1),)))),
    "somebody who runs": ("queue_intent", lambda: (QUEUED, declining(at=(0,), keys=((B, 0),)))),
    "beyond the queue": ("queue_intent", lambda: (QUEUED, declining(at=(2,)))),
    "twice": ("duplicate_member", lambda: (QUEUED, declining((1, 1), ((D, 2), (D, 2)), (HOPELESS, HOPELESS)))),
    "let in as well": ("duplicate_member", lambda: (QUEUED, declining()._replace(admit=Moves(np.array([1]), np.array([[D], [2]]))))),
    "of an earlier state": ("stale_state", lambda: (QUEUED, declining()._replace(input_state_version=6))),
}


@pytest.mark.parametrize("name", BAD_DECLINES)
def test_a_decline_names_a_waiting_request_once_and_says_why(name: str) -> None:
    code, build = BAD_DECLINES[name]
    state, plan = build()
    assert code in codes(SCORPIO, ALONE, state, plan)
    assert codes(SCORPIO, ALONE, QUEUED, declining()) == set()


UNDECLARED = "decline_undeclared"


def test_only_a_policy_that_says_so_declines() -> None:
    class Silent(ScorpioLike):
        declines = False

    assert codes(Silent(), ALONE, QUEUED, declining()) == {UNDECLARED}


def test_who_is_declined_ends_without_output_under_a_generation_of_its_own() -> None:
    core = Core(ALONE, SCORPIO, COSTS)
    truths = Truths()
    for number in range(4):
        truths.add(number, Truth(0, None))
    after = core.publish(
        QUEUED, c.Authorized.of(declining(), QUEUED.running), execute(QUEUED, _authorized(declining()), truths, tokens=True), 9
    )
    assert (after.waiting.handle.tolist(), after.declined.tolist()) == ([C], [[D], [HOPELESS]])
    assert (after.finished.handle.tolist(), after.finished.generation.tolist(), after.finished.emitted.tolist()) == ([D], [3], [0])
    assert after.running.emitted.tolist() == [2]


def _authorized(plan: IterationPlan) -> c.Authorized:
    return c.Authorized.of(plan, QUEUED.running)


# Two pools of two requests and twenty rows each: A computes its prompt, B decodes, C is on the way, D waits.
SPLIT = DistServeLike(prefill_row_ns=MS, decode_row_ns=10 * MS, base_ns=MS)
PAIR = online_workload(SPLIT, Budgets(8, 4, 40))
MOVING = make_state(
    member(A), member(B, **DECODING), member(C, ready=0, **DECODING), waiting=(member(D),), held=6
)._replace(foreign=facts((C, 0, 0, 50 * MS)))  # fmt: skip
STEP = SPLIT.plan(PAIR, MOVING)


def smaller(**limits: int) -> WorkloadManifest:
    pools = PAIR.deployment
    assert isinstance(pools, Pools)
    return dataclasses.replace(PAIR, deployment=pools._replace(**limits))


def test_a_step_of_both_pools_keeps_prompts_and_decodes_apart_and_is_valid() -> None:
    assert PAIR.deployment == Pools(6, 2, 20, 2, 20)
    assert codes(SPLIT, PAIR, MOVING, STEP) == set()
    phases = dict(zip(STEP.work.cells[t.HANDLE].tolist(), STEP.work.cells[c.PHASE].tolist(), strict=True))
    assert phases == {B: Phase.DECODE, A: Phase.PREFILL, D: Phase.PREFILL}  # C is not here yet


BAD_STEPS = {
    "rows of prompts": ("pool_budget", smaller(prefill_tokens=3)),
    "requests in prefill": ("pool_budget", smaller(prefill_sequences=1)),
    "decodes": ("pool_budget", smaller(decode_sequences=0)),
    "rows held for prompts": ("pool_capacity", smaller(prefill_kv=8)),  # three on the way, four and two computed
    "rows held for decodes": ("pool_capacity", smaller(decode_kv=6)),  # three each of B and C, and B's next
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_each_pool_has_limits_of_its_own(name: str) -> None:
    code, workload = BAD_STEPS[name]
    assert codes(SPLIT, workload, MOVING, STEP) == {code}


def test_who_is_on_the_way_may_not_run() -> None:
    every = c.make_work(MOVING.running, np.array([1, 2]), np.array([1, 1]))
    plan = STEP._replace(work=every, order=np.array([[0, 0], [1, 2]]), ledger=c.Ledger(2, 2, 8), admit=c.NO_MOVES)
    assert codes(SPLIT, PAIR, MOVING, plan) == {"unready_request"}


def test_the_longer_pool_decides_how_long_a_step_takes() -> None:
    # One decode: base and a row. Six rows of prompts that begin: base and six rows.
    assert price_ns(PAIR, COSTS, STEP) == 10 * MS + 6 * MS
    one = MOVING._replace(running=MOVING.running.take(np.array([1])), waiting=t.EMPTY)
    assert price_ns(PAIR, COSTS, SPLIT.plan(PAIR, one)) == 10 * MS + MS


# Four layers, twenty rows: B runs with all layers, C has one of its four on the device, D waits.
LAYERED = LayerKvLike(layers=4, least_layers=1, host_percent=100, base_ns=MS, prefill_row_ns=MS)
TIERS = online_workload(LAYERED, Budgets(16, 4, 20))
HALF = make_state(member(B, **DECODING), member(C, ready=0, **DECODING), waiting=(member(D),), held=6)._replace(
    foreign=facts((C, 0, 1, NOT_MOVING))
)
FETCHING = LAYERED.plan(TIERS, HALF)


def test_the_plan_fetches_what_is_missing_and_is_valid() -> None:
    assert TIERS.deployment == Layered(4, 20)
    assert codes(LAYERED, TIERS, HALF, FETCHING) == set()
    assert FETCHING.layers.T.tolist() == [[C, 4]]
    assert device_rows(Layered(4, 20), HALF.running, HALF.foreign) == 3 * 4 + 3 * 1  # F64
    assert FETCHING.admit.keys[0].tolist() == [D]


def partly(width: int) -> IterationPlan:
    """D comes in with two layers and ``width`` rows beside a row of B."""
    admit = Moves(np.array([0]), np.array([[D], [0]]))
    members = t.join((HALF.running, HALF.waiting))
    work = c.make_work(members, np.array([0, 2]), np.array([1, width]))
    ledger = c.Ledger(1 + width, 2, 7 + width)
    return FETCHING._replace(work=work, order=np.array([[0, 2]]), ledger=ledger, admit=admit, layers=asks((D, 2)))


def wanting(*layers: tuple[int, int]) -> IterationPlan:
    return FETCHING._replace(layers=asks(*layers))


def running_halves() -> tuple[SchedulerState, IterationPlan]:
    """An owner that says ready of one whose layers are not there, and a policy that believes it."""
    lie = HALF._replace(running=t.join((HALF.running.take(np.array([0])), make_state(member(C, **DECODING)).running)), waiting=t.EMPTY)
    work = c.make_work(lie.running, np.array([0, 1]), np.array([1, 1]))
    plan = FETCHING._replace(work=work, order=np.array([[0, 1]]), ledger=c.Ledger(2, 2, 8), admit=c.NO_MOVES, layers=c.NO_LAYERS)
    return lie, plan


BAD_LAYERS: dict[str, tuple[str, Callable[[], tuple[SchedulerState, IterationPlan]]]] = {
    "for nobody": ("layer_intent", lambda: (HALF, wanting((9, 4)))),
    "more layers than there are": ("layer_intent", lambda: (HALF, wanting((C, 5)))),
    "fewer than none": ("layer_intent", lambda: (HALF, wanting((C, -1)))),
    "twice": ("layer_intent", lambda: (HALF, wanting((C, 4), (C, 0)))),
    "as they are": ("layer_intent", lambda: (HALF, wanting((C, 1)))),
    "while they move": ("layer_intent", lambda: (HALF._replace(foreign=facts((C, 0, 4, 9 * MS))), wanting((C, 0)))),
    "part of a prompt": ("layer_intent", lambda: (HALF, partly(3))),
    "history that is not there": ("layer_not_resident", running_halves),
    "history that leaves": ("layer_not_resident", lambda: (HALF, wanting((B, 0)))),
}


@pytest.mark.parametrize("name", BAD_LAYERS)
def test_layers_are_moved_for_members_and_before_they_are_read(name: str) -> None:
    code, build = BAD_LAYERS[name]
    state, plan = build()
    assert codes(LAYERED, TIERS, state, plan) == {code}
    assert codes(LAYERED, TIERS, HALF, partly(4)) == set()


def test_the_device_holds_so_many_rows_of_a_layer_and_no_more() -> None:
    # B with four rows and D with four, all layers, and C's three rows fetched: forty-four rows of a layer, of eleven rows a layer.
    room = dataclasses.replace(TIERS, budgets=dataclasses.replace(TIERS.budgets, kv_capacity=11))
    assert codes(LAYERED, room, HALF, FETCHING) == set()
    tight = dataclasses.replace(TIERS, budgets=dataclasses.replace(TIERS.budgets, kv_capacity=10))
    assert codes(LAYERED, tight, HALF, FETCHING) == {"layer_capacity"}
    none = dataclasses.replace(TIERS, budgets=dataclasses.replace(TIERS.budgets, kv_capacity=10), deployment=Layered(4, 0))
    assert codes(LAYERED, none, HALF, FETCHING) == {"layer_capacity", "kv_capacity"}


def test_without_a_tier_nobody_moves_layers() -> None:
    assert codes(SCORPIO, ALONE, QUEUED, declining()._replace(layers=asks((B, 0)))) == {"layer_intent"}


def test_every_code_of_this_part_has_a_fixture_that_it_refuses() -> None:
    refused = {code for code, _ in (*BAD_DECLINES.values(), *BAD_STEPS.values(), *BAD_LAYERS.values())} | {"layer_capacity"}
    assert refused | {UNDECLARED} >= set(FOREIGN_CODES)


def advanced(policy: Policy, workload: WorkloadManifest, state: SchedulerState, now_ns: int) -> SchedulerState:
    core, truths = Core(workload, policy, COSTS), Truths()
    for number in range(4):
        truths.add(number, Truth(0, None))
    authorized, _ = core.decide(state)
    return core.publish(state, authorized, execute(state, authorized, truths, tokens=False), now_ns)


def test_a_fetch_begins_with_the_plan_and_its_receipt_makes_the_request_ready() -> None:
    after = advanced(LAYERED, TIERS, HALF, 10 * MS)
    # Five ms and two for each of three rows, of which three layers of four move: 9.5 ms from instant 0, over before the iteration ends.
    assert (after.running.handle.tolist(), after.running.ready.tolist()) == ([B, C, D], [1, 1, 1])
    slow = advanced(LAYERED, TIERS, HALF, 9 * MS)
    assert (slow.running.ready.tolist(), next_receipt_ns(slow)) == ([1, 0, 1], 9_500_000)
    assert device_rows(Layered(4, 20), slow.running, slow.foreign) == 4 * (4 + 3 + 4)
    core = Core(TIERS, LAYERED, COSTS)
    assert core.receive(slow, 9_499_999).running.ready.tolist() == [1, 0, 1]
    ready = core.receive(slow, 9_500_000)
    assert (ready.running.ready.tolist(), next_receipt_ns(ready)) == ([1, 1, 1], NOT_MOVING)


def test_rows_move_to_the_decode_pool_when_the_prompt_is_whole_and_there_is_room() -> None:
    after = advanced(SPLIT, PAIR, MOVING, 16 * MS)
    # A's four rows are computed; D's two are not all. C arrives at 50 ms; A follows at once, the pool has room for it.
    assert after.running.handle.tolist() == [A, B, C, D]
    assert after.running.ready.tolist() == [0, 1, 0, 1]
    assert after.foreign.cells[:, 1].tolist() == [A, 0, 0, 16 * MS + 5 * MS + 4 * 2 * MS]
    full = dataclasses.replace(PAIR, deployment=Pools(6, 2, 20, 2, 11))
    waits = advanced(SPLIT, full, MOVING, 16 * MS)
    assert waits.foreign.cells[3].tolist() == [50 * MS, NOT_MOVING]  # 4 + 3 rows there, five more wanted, eleven in all
    gone = Core(full, SPLIT, COSTS).receive(cancel(waits, [B])._replace(now_ns=20 * MS), 20 * MS)
    assert gone.foreign.cells[3].tolist() == [50 * MS, 33 * MS]


def test_a_receipt_after_a_cancellation_changes_nothing() -> None:
    core = Core(TIERS, LAYERED, COSTS)
    slow = advanced(LAYERED, TIERS, HALF, 9 * MS)
    gone = cancel(slow, [C])
    after = core.receive(gone, 20 * MS)
    assert (after.running.handle.tolist(), after.foreign.cells.shape[1]) == ([B, D], 0)
    assert next_receipt_ns(after) == NOT_MOVING


def test_one_that_lost_its_rows_on_the_way_waits_for_no_transfer() -> None:
    core = Core(PAIR, SPLIT, COSTS)
    lost = MOVING._replace(suspended=make_state(member(C, epoch=1, ready=0, **(DECODING | {"resident": 0}))).running)
    lost = lost._replace(running=MOVING.running.take(np.array([0, 1])), held_rows=3)
    after = core.receive(lost, 1)
    assert (after.suspended.ready.tolist(), after.foreign.cells.shape[1]) == ([1], 0)
