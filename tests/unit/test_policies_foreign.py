"""Rejection, credits, layers and pools by hand: what the last three policies do that the others cannot, in virtual and in real time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.errors import UsageError
from harness.reference.contract import Budgets, Declaration, declared_table
from harness.reference.cost import CostModel
from harness.reference.deployment import FACT_LAYERS, Foreign
from harness.reference.engine import Core, Engine, online_workload
from harness.reference.execute import Truths, execute
from harness.reference.prefix import PrefixStore, chain_of
from harness.reference.registry import make_policy
from harness.reference.table import HANDLE, Terminal
from harness.reference.tokens import Truth
from harness.reference.transition import set_ready
from harness.simulate import Door, Simulated, simulate
from tests.unit.test_reference_contract import make_state, member
from tests.unit.test_reference_driver import MS, START, Stage, metrics
from tests.unit.test_reference_engine import run
from tests.unit.test_simulate_virtual import offered, stamps


def core(policy: str, budgets: Budgets, costs: CostModel, **parameters: int) -> Core:
    made = make_policy(policy, parameters)
    return Core(online_workload(made, budgets), made, costs)


def play(policy: str, budgets: Budgets, costs: CostModel, load: Any, door: Door | None = None, **parameters: int) -> Simulated:
    return simulate(core(policy, budgets, costs, **parameters), load, until_ns=10_000 * MS, door=door)


# SCORPIO-like: 10 ms an iteration, nothing for rows, so a request alone needs 10 ms for its first token.
TEN = CostModel(10 * MS, 0, 0, 0)
LINEAR = {"base_ns": 10 * MS, "prefill_row_ns": 1, "decode_row_ns": 1}


def test_who_cannot_make_its_first_token_is_declined_and_nobody_waits_behind_it() -> None:
    """One slot, TTFT 25 ms. The first holds the slot for 30 ms; the second, come at 1 ms, has 6 ms left at cut 20: too few."""
    load = offered((0, 4, 3), (1, 4, 3), (16, 4, 1), ttft_ns=25 * MS)
    run = play("scorpio-like-deadline", Budgets(8, 1, 100), TEN, load, Door(status=429), **LINEAR)
    assert run.kinds() == ["complete", "http_error", "complete"]
    # Declined by the plan made at 20 ms, which is published with that iteration's result.
    assert (run.end_ns.tolist(), run.terminal.tolist()) == ([30 * MS, 30 * MS, 40 * MS], [Terminal.STOP, Terminal.REJECTED, Terminal.STOP])
    assert [stamps(run, request) for request in range(3)] == [[10, 20, 30], [], [40]]
    patient = play("vllm-shaped-fcfs", Budgets(8, 1, 100), TEN, load)
    assert stamps(patient, 2) == [70]  # served behind the one that was late anyway


def test_with_nobody_running_a_decline_takes_no_time() -> None:
    load = offered((0, 4, 1), ttft_ns=5 * MS)
    run = play("scorpio-like-deadline", Budgets(8, 1, 100), TEN, load, **LINEAR)
    assert (run.kinds(), run.end_ns.tolist(), run.counts.iterations) == (["http_error"], [0], 0)


def test_a_turn_after_one_that_was_declined_never_comes_due() -> None:
    load = offered((0, 4, 1), (0, 4, 1), ttft_ns=5 * MS, waits_for={1: [0]}, think_ns=np.array([-1, 0]))
    assert play("scorpio-like-deadline", Budgets(8, 1, 100), TEN, load, **LINEAR).kinds() == ["http_error", "never_due"]


def test_a_client_that_may_wait_twice_as_long_decodes_in_every_second_iteration() -> None:
    """Gap limits 50 and 100 ms: gains 1 and 1/2. Both prompts run at 0; then the loose one has half a credit at 10, a whole one at 20."""
    made, truths = core("scorpio-like-deadline", Budgets(8, 4, 100), TEN, **LINEAR), Truths()
    rows = [Declaration(0, 0, 2, 9, tbt_ns=50 * MS), Declaration(1, 1, 2, 9, tbt_ns=100 * MS)]
    for row in rows:
        truths.add(row.handle, Truth(0, None))
    state, ran = made.cut(made.start(), 0, declared_table(rows), []), []
    for _ in range(6):
        authorized, cost = made.decide(state)
        ran.append(authorized.plan.work.cells[HANDLE].tolist())
        state = made.publish(state, authorized, execute(state, authorized, truths, tokens=False), state.now_ns + cost)
    assert ran == [[0, 1], [0], [0, 1], [0], [0, 1], [0]]


def test_a_virtual_batch_counts_who_decodes_half_the_time_as_half() -> None:
    """Base 10 ms, 4 ms a decode. A limit of 20 ms bears two and a half: two tight ones and one loose at 40 ms, but no third tight one."""
    tight, loose = member(0, tbt_ns=20 * MS), member(1, tbt_ns=40 * MS)
    decoding = {"prompt": 4, "emitted": 1, "computed": 4, "committed": 4, "resident": 4, "last_ns": 0}
    made = core("scorpio-like-deadline", Budgets(99, 9, 100), TEN, **(LINEAR | {"decode_row_ns": 4 * MS}))
    state = make_state(member(5, tbt_ns=20 * MS, **decoding), waiting=(tight, loose), held=4)._replace(memory=made.policy.initial_memory())
    assert made.decide(state)[0].plan.admit.keys[0].tolist() == [0, 1]
    second = make_state(member(5, tbt_ns=20 * MS, **decoding), waiting=(tight, member(1, tbt_ns=20 * MS)), held=4)
    assert made.decide(second._replace(memory=state.memory))[0].plan.admit.keys[0].tolist() == [0]


# LayerKV-like: four layers, a device of twenty rows, 10 ms an iteration, 1 ms for each row that moves with all its layers.
SHUTTLE = CostModel(10 * MS, 0, 0, 0, transfer_base_ns=0, transfer_row_ns=MS)
LAYERS = {"layers": 4, "least_layers": 1, "base_ns": 10 * MS, "prefill_row_ns": 1}


def test_a_prompt_starts_with_part_of_its_layers_and_goes_on_when_the_rest_is_back() -> None:
    """Fourteen rows run to sixteen; 4 * (20 - 15) = 20 row-layers are left for a prompt of twelve: one layer fits, two would need 24."""
    load = offered((0, 14, 3), (5, 12, 2))
    run = play("layerkv-like", Budgets(64, 4, 20), SHUTTLE, load, **LAYERS)
    whole = play("vllm-shaped-fcfs", Budgets(64, 4, 20), SHUTTLE, load)
    assert (stamps(run, 0), stamps(whole, 0)) == ([10, 20, 30], [10, 20, 30])
    assert stamps(whole, 1) == [40, 50]  # waits for the room of the other
    # First token at 20 with one layer of four on the device. Room at 30, when the first is done; 3/4 of twelve rows take 9 ms.
    assert stamps(run, 1) == [20, 30 + 9 + 10]


def test_the_youngest_gives_up_its_layers_when_nobody_could_run() -> None:
    """Two of twelve rows with three and two layers of four on a device of twenty: neither fits whole beside the other."""
    decoding = {"prompt": 12, "emitted": 1, "computed": 12, "committed": 12, "resident": 12, "last_ns": 0, "ready": 0}
    made, far = core("layerkv-like", Budgets(64, 4, 20), SHUTTLE, **LAYERS), np.iinfo(np.int64).max
    facts = Foreign(np.array([[0, 0, 3, far], [1, 0, 2, far]]).T)
    stuck = make_state(member(0, **decoding), member(1, **decoding), waiting=(), held=24)._replace(foreign=facts)
    plan = made.decide(stuck)[0].plan
    assert (plan.layers.T.tolist(), len(plan.work.at)) == ([[0, 4]], 0)  # twelve rows of one layer, and the next row, fit: 60 + 16 <= 80
    tighter = core("layerkv-like", Budgets(64, 4, 16), SHUTTLE, **LAYERS)
    plan = tighter.decide(stuck)[0].plan
    assert plan.layers.T.tolist() == [[1, 0], [0, 4]]
    after = tighter.settle(stuck)[0]
    assert after.foreign.cells[FACT_LAYERS].tolist() == [0, 4]
    assert after.running.ready.tolist() == [0, 0]


def test_layers_of_who_waits_leave_before_anybody_who_runs_gives_way() -> None:
    """Fifteen whole rows and one layer of twelve fill a device of eighteen; the next row of the first needs four row-layers."""
    runs = {"prompt": 14, "emitted": 2, "computed": 15, "committed": 15, "resident": 15, "last_ns": 0}
    half = {"prompt": 12, "emitted": 1, "computed": 12, "committed": 12, "resident": 12, "last_ns": 0, "ready": 0}
    made = core("layerkv-like", Budgets(64, 4, 18), SHUTTLE, **LAYERS)
    facts = Foreign(np.array([[1, 0, 1, np.iinfo(np.int64).max]]).T)
    state = make_state(member(0, **runs), member(1, **half), waiting=(), held=27)._replace(foreign=facts)
    plan = made.decide(state)[0].plan
    assert (plan.layers.T.tolist(), plan.work.cells[HANDLE].tolist(), len(plan.preempt.at)) == ([[1, 0]], [0], 0)


def test_while_somebody_waits_for_layers_prompts_come_in_with_the_fewest() -> None:
    """Nine of twenty rows run, twelve wait for room: ten are free, too few for them; a prompt of four would fit, and keeps one layer."""
    half = {"prompt": 12, "emitted": 1, "computed": 12, "committed": 12, "resident": 12, "last_ns": 0, "ready": 0}
    runs = {"prompt": 9, "emitted": 1, "computed": 9, "committed": 9, "resident": 9, "last_ns": 0}
    made = core("layerkv-like", Budgets(64, 4, 20), SHUTTLE, **LAYERS)
    facts = Foreign(np.array([[1, 0, 0, np.iinfo(np.int64).max]]).T)
    state = make_state(member(0, **runs), member(1, **half), waiting=(member(2),), held=21)._replace(foreign=facts)
    plan = made.decide(state)[0].plan
    assert (plan.layers.T.tolist(), plan.admit.keys[0].tolist()) == ([[2, 1]], [2])


def test_a_prompt_longer_than_the_budget_comes_in_with_all_layers_or_not_at_all() -> None:
    """Its later pieces read what the earlier ones wrote, in every layer."""
    load = offered((0, 14, 3), (5, 12, 2))
    run = play("layerkv-like", Budgets(14, 4, 20), SHUTTLE, load, **(LAYERS | {"least_layers": 1}))
    chunked = play("layerkv-like", Budgets(8, 4, 20), SHUTTLE, load, **LAYERS)
    assert stamps(run, 1)[0] == 20
    assert stamps(chunked, 1)[0] == 60  # 14 rows in two pieces, three tokens at 20, 30 and 40, then 12 rows in two pieces


# DistServe-like: 10 ms a decode step, 1 ms a prompt row, 2 ms a row that moves; pools of two requests and fifty rows each.
PAIR = CostModel(10 * MS, MS, 0, 0, transfer_base_ns=0, transfer_row_ns=2 * MS)
PARTS = {"base_ns": 10 * MS, "prefill_row_ns": MS, "decode_row_ns": 1}


def test_a_long_prompt_holds_no_decode_up() -> None:
    """The decode keeps its step of 10 ms while forty prompt rows run beside it; in one pool it waits for all of them."""
    load = offered((0, 2, 12), (35, 40, 2))
    split = play("distserve-like-split", Budgets(64, 4, 200), PAIR, load, **PARTS)
    # 12 ms to the first token, 4 ms until its rows have moved, then a step every 10 ms; the prompt begins at 36 and is one row in that
    # step, ten in each of the four following ones but the last. Eleven tokens after the first.
    assert stamps(split, 0)[:6] == [12, 26, 36, 47, 57, 67]
    assert set(np.diff(stamps(split, 0)[1:]).tolist()) == {10, 11}
    one = play("vllm-shaped-fcfs", Budgets(64, 4, 200), PAIR, load)
    assert max(np.diff(stamps(one, 0)).tolist()) == 50  # base and forty rows


def test_rows_move_before_the_second_token_and_a_single_token_needs_no_move() -> None:
    load = offered((0, 5, 2), (100, 5, 1))
    run = play("distserve-like-split", Budgets(64, 4, 100), PAIR, load, **PARTS)
    assert stamps(run, 0) == [15, 15 + 5 * 2 + 10]
    assert stamps(run, 1) == [115]
    assert run.state.foreign.cells.shape[1] == 0


def test_a_full_decode_pool_makes_the_next_one_wait_where_it_is() -> None:
    """Pools of twelve rows: the first grows from five to eight there, so the second's seven find room only when it has ended."""
    load = offered((0, 5, 4), (0, 7, 2))
    run = play("distserve-like-split", Budgets(64, 4, 24), PAIR, load, **PARTS)
    assert stamps(run, 0) == [22, 42, 52, 62]
    assert stamps(run, 1) == [22, 62 + 14 + 10]


def test_who_came_last_gives_way_in_the_decode_pool_even_on_its_way_there() -> None:
    """Pools of fifty rows: nine and forty fit with the next row, ten and forty do not; the younger one's rows are computed again."""
    run = play("distserve-like-split", Budgets(64, 4, 100), PAIR, offered((0, 2, 12), (35, 40, 2)), **PARTS)
    assert set(np.diff(stamps(run, 0)[1:]).tolist()) == {10, 11}
    assert (run.counts.preemptions, run.state.recomputed_rows) == (1, 40)
    # Preempted at 97, back at 107: a row until 118, ten until 128, when the older one ends, and the other 29 until 157.
    assert stamps(run, 1) == [87, 157 + 2 * 40 + 10]


def test_the_declared_share_splits_what_there_is() -> None:
    pools = make_policy("distserve-like-split").deployment(Budgets(64, 4, 101))
    assert pools == (62, 2, 50, 2, 51)


@pytest.mark.parametrize(("policy", "wrong"), [("distserve-like-split", {"prefill_percent": 100}), ("layerkv-like", {"layers": 3})])
def test_parameters_that_leave_nothing_are_refused(policy: str, wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="policy_parameter"):
        make_policy(policy, wrong)


# vLLM-shaped: requests that wait for remote rows (0x0C, 0x0D).
@pytest.mark.parametrize("policy", ["vllm-shaped-fcfs", "vllm-shaped-priority"])
def test_who_waits_for_remote_rows_is_skipped_and_keeps_its_place(policy: str) -> None:
    made, truths = core(policy, Budgets(8, 2, 100), TEN), Truths()
    for number in range(4):
        truths.add(number, Truth(0, None))
    state = made.cut(made.start(), 0, declared_table([Declaration(n, n, 2, 3) for n in range(4)]), [])
    state = set_ready(state, [0, 1], ready=False)
    let_in = []
    for step in range(7):
        authorized, cost = made.decide(state)
        let_in.append(authorized.plan.admit.keys[0].tolist())
        state = made.publish(state, authorized, execute(state, authorized, truths, tokens=False), state.now_ns + cost)
        if step == 1:
            assert state.waiting.handle.tolist() == [0, 1]
            state = set_ready(state, [1], ready=True)
        if step == 3:
            state = set_ready(state, [0], ready=True)
    # Two and three pass those that wait; the later promoted one, although first in the queue, comes when its rows are there.
    assert let_in == [[2, 3], [], [], [1], [0], [], []]


# In real time, played by hand.
def test_the_client_of_a_declined_request_is_told_at_the_cut_and_counted() -> None:
    stage = Stage("scorpio-like-deadline", **(LINEAR | {"ttft_ns": 5 * MS}))
    stage.submit(arrival_ns=START)
    assert stage.got == [(0, "deadline_hopeless")]
    assert (stage.driver.counters.declined, stage.driver.counters.aborted, stage.armed) == (1, 0, None)
    assert stage.driver.engine.waiting == 0
    assert (metrics(stage)["requests_aborted_total"], metrics(stage)["requests_declined_total"]) == (0, 1)


def test_an_idle_engine_wakes_when_rows_have_arrived() -> None:
    stage = Stage("distserve-like-split", PAIR)
    stage.submit(tokens=2)
    stage.fire()
    assert stage.got == [(14 * MS, None)]
    assert stage.armed == START + (14 + 8) * MS  # four rows move, nothing runs
    stage.fire()
    assert stage.armed == START + (22 + 10) * MS
    stage.fire()
    assert (stage.got[-1], stage.armed) == ((32 * MS, "length"), None)


# A prefix store on another host: what waits for it is skipped.
def remote_engine(policy: str) -> Engine:
    engine = Engine(make_policy(policy), Budgets(16, 4, 200), SHUTTLE, prefix=PrefixStore(2, 64, remote=True))
    engine.submit("first", 6, 1, Truth(0, None), chain=chain_of(b"abcdef", 2))
    assert [step.widths for step in run(engine)] == [[6]]
    return engine


@pytest.mark.parametrize("policy", ["vllm-shaped-fcfs", "vllm-shaped-priority"])
def test_rows_of_a_prefix_elsewhere_are_fetched_while_others_run(policy: str) -> None:
    engine = remote_engine(policy)
    engine.submit("known", 8, 2, Truth(1, None), chain=chain_of(b"abcdefgh", 2))
    engine.submit("new", 5, 2, Truth(2, None), chain=chain_of(b"zyxwv", 2))
    steps = run(engine, start_ns=100 * MS)
    # Six of its eight rows lie elsewhere, a millisecond each: not there at 100, there at 106, let in at the next cut.
    assert [(step.handles, step.widths) for step in steps] == [([2], [5]), ([2, 1], [1, 2]), ([1], [1])]
    assert [step.end_ns // MS for step in steps] == [110, 120, 130]
    assert [p.cached_tokens for step in steps for p in step.published if p.request_id == "known"] == [6, 0]


def test_an_idle_engine_waits_for_the_rows_and_a_cancelled_one_for_nothing() -> None:
    engine = remote_engine("vllm-shaped-fcfs")
    for name in ("gone", "known"):
        engine.submit(name, 8, 1, Truth(1, None), chain=chain_of(b"abcdefgh", 2))
    assert engine.begin(100 * MS) is None
    assert engine.next_receipt_ns == 106 * MS
    engine.abort("gone")
    steps = run(engine, start_ns=101 * MS)
    assert [(step.handles, step.widths, step.end_ns // MS) for step in steps] == [([2], [2], 116)]
    assert engine.state.foreign.cells.shape[1] == 0
