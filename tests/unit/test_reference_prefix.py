"""The prefix store against a brute-force model, and the credit it gives: what it adds to a plan, and that no plan may forget it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.reference.contract import Budgets, Declaration, declared_table
from harness.reference.cost import CostModel
from harness.reference.deployment import NOT_MOVING, Pools
from harness.reference.engine import Engine
from harness.reference.passes import Draft
from harness.reference.policy import Policy
from harness.reference.prefix import LOOKED_AT, PrefixStore, Reuse, chain_of
from harness.reference.registry import POLICIES, make_policy
from harness.reference.tokens import Truth
from harness.reference.transition import arrive, cancel, initial_state, set_reused
from harness.reference.validate import authorize, validate_plan
from tests.unit.test_policies_contract import SMALL
from tests.unit.test_reference_engine import run, tokens_of

COSTS = CostModel(1_000_000, 1_000, 10_000, 1, transfer_base_ns=400_000, transfer_row_ns=300_000)
PROMPTS = st.binary(min_size=1, max_size=9).map(lambda raw: bytes(b % 2 for b in raw))
BLOCK = 2


class Model:
    """The store as one would write it without caring for time: beginnings in order of use, the oldest that nothing continues goes first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used: dict[bytes, int] = {}
        self.clock = 0

    def match(self, prompt: bytes) -> int:
        blocks = 0
        while (blocks + 1) * BLOCK <= len(prompt) and prompt[: (blocks + 1) * BLOCK] in self.used:
            blocks += 1
        return blocks

    def touch(self, prompt: bytes, blocks: int) -> None:
        for count in range(min(blocks, len(prompt) // BLOCK), 0, -1):
            if prompt[: count * BLOCK] in self.used:
                self.clock += 1
                self.used[prompt[: count * BLOCK]] = self.clock

    def insert(self, prompt: bytes) -> None:
        for count in range(min(self.most, len(prompt) // BLOCK), 0, -1):
            self.clock += 1
            self.used[prompt[: count * BLOCK]] = self.clock
        while len(self.used) > self.most:
            leaves = [key for key in self.used if not any(len(o) > len(key) and o.startswith(key) for o in self.used)]
            del self.used[min(leaves, key=self.used.__getitem__)]


STEPS = st.lists(st.tuples(st.sampled_from(["insert", "touch", "match"]), PROMPTS, st.integers(0, 5)), max_size=40)


@given(st.integers(1, 8), STEPS)
def test_the_store_does_what_a_model_without_tricks_does(most: int, steps: list[tuple[str, bytes, int]]) -> None:
    store, model = PrefixStore(BLOCK, most * BLOCK + 1), Model(most)
    for what, prompt, blocks in steps:
        chain, version, matches = chain_of(prompt, BLOCK), store.version, dict(model.used)
        if what == "insert":
            store.insert(chain)
            model.insert(prompt)
        elif what == "touch":
            store.touch(chain, blocks)
            model.touch(prompt, blocks)
        assert store.match(chain) == model.match(prompt)
        assert store.match(chain, blocks) == min(blocks, model.match(prompt))
        assert len(store) == len(model.used)
        assert store.version != version or matches.keys() == model.used.keys()


@given(PROMPTS, PROMPTS, st.integers(1, 4))
def test_chains_agree_exactly_as_far_as_prompts_do(one: bytes, other: bytes, block: int) -> None:
    ours, theirs = chain_of(one, block), chain_of(other, block)
    assert len(ours) == len(one) // block
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        assert (a == b) == (one[: (index + 1) * block] == other[: (index + 1) * block])


def test_a_store_needs_room_for_a_block() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        PrefixStore(16, 15)


def engine_of(policy_id: str, tokens: int, sequences: int, kv: int, store: PrefixStore | None) -> Engine:
    parameters = {name: value for name, value in SMALL.items() if name in POLICIES[policy_id].card.parameters}
    made = make_policy(policy_id, parameters | {name: 3600 * 10**9 for name in ("ttft_ns",) if name in parameters})
    workers = 2 if isinstance(made.deployment(Budgets(tokens, sequences, kv)), Pools) else 1  # ``kv`` rows for each of two pools
    return Engine(made, Budgets(tokens, sequences, workers * kv), COSTS, prefix=store)


REQUESTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 30), st.integers(1, 9), st.integers(0, 2), st.booleans()), min_size=1, max_size=10
)


@pytest.mark.parametrize("policy_id", POLICIES)
@settings(max_examples=15, deadline=None)
@given(REQUESTS, st.integers(2, 20), st.integers(1, 6), st.integers(42, 80), st.integers(1, 20), st.booleans())
def test_held_rows_are_those_of_running_members_under_any_policy(
    policy_id: str, requests: list[tuple[int, int, int, int, bool]], tokens: int, sequences: int, kv: int, most: int, remote: bool
) -> None:
    """Prompts begin like one of three; some are given up on the way. Validation runs inside begin and complete."""
    engine = engine_of(policy_id, tokens, sequences, kv, PrefixStore(BLOCK, most * BLOCK, remote=remote))
    left, now, live = list(enumerate(requests)), 0, set()
    while left or live:
        if left:
            index, (family, prompt, maximum, priority, stays) = left.pop(0)
            ids = bytes([family]) * prompt
            engine.submit(f"r{index}", prompt, maximum, Truth(index, None), priority=priority, chain=chain_of(ids, BLOCK))
            live.add(f"r{index}")
        begun = engine.begin(now)
        assert engine.state.held_rows == int(engine.state.running.resident.sum())
        assert engine.kv_rows <= engine.core.workload.budgets.kv_capacity
        assert not len(engine.state.suspended) or not engine.state.suspended.resident.any()
        if begun is None:
            assert not live or engine.next_receipt_ns != NOT_MOVING
            now = engine.next_receipt_ns if live else now
            continue
        now += begun[1]
        for published in engine.tokens_of(engine.complete(now)):
            assert published.cached_tokens % BLOCK == 0
            assert published.cached_tokens < max(published.prompt_tokens, 1)
            if published.finish:
                live.discard(published.request_id)
        if left and not stays:
            engine.abort(f"r{index}")
            live.discard(f"r{index}")
    run(engine)
    assert engine.kv_rows == 0


@pytest.mark.parametrize("policy_id", POLICIES)
def test_a_second_prompt_computes_what_the_first_left(policy_id: str) -> None:
    out, computed = [], []
    for store in (None, PrefixStore(4, 400), PrefixStore(4, 400, remote=True)):
        engine = engine_of(policy_id, 64, 4, 100, store)
        for index in range(2):
            engine.submit(f"r{index}", 20, 3, Truth(index, None), chain=chain_of(bytes(20), 4))
            steps = run(engine)
            out.append(tokens_of(steps)[f"r{index}"])
            computed.append(int(sum(step.plan.ledger.tokens for step in steps)))
            cached = [p.cached_tokens for step in steps for p in step.published]
            assert cached == [16 if store and index else 0, 0, 0]  # floor(19 / 4) blocks: the last row is computed
        assert int(engine.state.service.sum()) == sum(computed[-2:])
    assert out[:2] == out[2:4] == out[4:]
    assert computed == [22, 22, 22, 6, 22, 6]


@pytest.mark.parametrize("policy_id", POLICIES)
def test_rows_of_the_store_take_room_when_a_request_is_let_in(policy_id: str) -> None:
    """Two prompts of 20 rows do not fit 30 at once, though each computes only 4 of them."""
    engine = engine_of(policy_id, 64, 4, 30, PrefixStore(4, 400))
    engine.submit("first", 20, 1, Truth(0, None), chain=chain_of(bytes(20), 4))
    run(engine)
    for name in ("a", "b"):
        engine.submit(name, 20, 4, Truth(1, None), chain=chain_of(bytes(20), 4))
    begun = engine.begin(0)
    assert begun is not None
    assert begun[0].ledger[::2] == (4, 20)
    assert len(begun[0].admit.at) == 1
    assert engine.kv_rows == 0
    engine.complete(1)
    assert engine.kv_rows == 20


def test_what_left_the_store_while_a_request_waits_is_no_credit_any_more() -> None:
    store = PrefixStore(4, 8)
    reuse, state = Reuse(store), initial_state()
    store.insert(chain_of(bytes(8), 4))
    reuse.declare(0, chain_of(bytes(9), 4))
    state = arrive(state, declared_table([Declaration(0, 0, 9, 5)]))
    for expected, after in ((8, bytes([1]) * 4), (4, bytes([2]) * 8), (0, b"")):
        found = reuse.credits(state.waiting)
        assert found is not None
        state = set_reused(state, *found)
        assert reuse.credits(state.waiting) is None
        assert state.waiting.resident.tolist() == state.waiting.computed.tolist() == state.waiting.committed.tolist() == [expected]
        store.insert(chain_of(after, 4))


def test_a_request_that_is_let_in_uses_what_it_takes() -> None:
    store = PrefixStore(4, 16)
    reuse, ours, others = Reuse(store), chain_of(bytes(8), 4), chain_of(bytes([1]) * 8, 4)
    store.insert(ours)
    store.insert(others)
    reuse.declare(0, ours)
    reuse.take(0, 8)
    store.insert(chain_of(bytes([2]) * 4, 4))
    assert (store.match(ours), store.match(others)) == (2, 1)


def test_only_the_head_of_a_deep_queue_is_looked_up() -> None:
    store, count = PrefixStore(4, 8), LOOKED_AT + 3
    reuse = Reuse(store)
    store.insert(chain_of(bytes(8), 4))
    for number in range(count):
        reuse.declare(number, chain_of(bytes(9), 4))
    waiting = declared_table([Declaration(number, number, 9, 5) for number in range(count)])
    found = reuse.credits(waiting)
    assert found is not None
    assert found[0].tolist() == list(range(LOOKED_AT))
    later = reuse.credits(waiting.without(np.arange(2)))  # two were let in, two more stand among the first
    assert later is not None
    assert later[0].tolist() == [LOOKED_AT, LOOKED_AT + 1]


@pytest.mark.parametrize(("handles", "rows"), [([7], [4]), ([0], [9]), ([0], [-1])])
def test_a_credit_belongs_to_a_waiting_request_and_is_less_than_its_prompt(handles: list[int], rows: list[int]) -> None:
    state = arrive(initial_state(), declared_table([Declaration(0, 0, 9, 5)]))
    with pytest.raises(ValueError, match=r"handles|rows"):
        set_reused(state, np.array(handles), np.array(rows))


@pytest.fixture
def credited() -> tuple[Policy, Engine]:
    """One request that waits with 16 of 20 rows."""
    engine = engine_of("vllm-shaped-fcfs", 64, 4, 30, PrefixStore(4, 400))
    engine.submit("first", 20, 1, Truth(0, None), chain=chain_of(bytes(20), 4))
    run(engine)
    engine.submit("second", 20, 5, Truth(1, None), chain=chain_of(bytes(20), 4))
    engine._cut(0)
    assert engine.state.waiting.resident.tolist() == [16]
    return engine.core.policy, engine


def test_the_validator_refuses_a_plan_that_forgets_the_credit(credited: tuple[Policy, Engine]) -> None:
    policy, engine = credited
    plan, workload = policy.plan(engine.core.workload, engine.state), engine.core.workload
    assert plan.ledger == (4, 1, 20)
    authorize(policy, workload, engine.state, plan)
    forgets = plan._replace(ledger=plan.ledger._replace(kv_rows=4))
    assert [p.code for p in validate_plan(policy, workload, engine.state, forgets)] == ["ledger_drift"]


def test_the_validator_refuses_a_plan_whose_credit_does_not_fit(credited: tuple[Policy, Engine]) -> None:
    policy, engine = credited
    workload = engine.core.workload
    small = Draft(policy, workload, engine.state)
    small.let_in((1, 0), 4)
    assert small.held == 20
    tight = replace(workload, budgets=Budgets(64, 4, 19))
    assert [p.code for p in validate_plan(policy, tight, engine.state, small.finish())] == ["kv_capacity"]


def test_a_cancelled_credit_frees_nothing(credited: tuple[Policy, Engine]) -> None:
    _, engine = credited
    assert cancel(engine.state, engine.state.waiting.handle.tolist()).held_rows == 0
