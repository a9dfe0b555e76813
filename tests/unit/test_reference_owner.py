"""Engines with an owner: whatever is declared, loads end within contract, nothing leaks, and service is what was computed once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.reference import table as t
from harness.reference.accounts import COUNTERS, GAUGES, NAMES, account_values
from harness.reference.admission import Rule, make_admission
from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.reference.engine import Engine
from harness.reference.owner import MemoryRules, Owner
from harness.reference.prefix import PrefixStore, chain_of
from harness.reference.registry import POLICIES, make_policy
from harness.reference.resume import Mode
from harness.reference.table import in_blocks
from harness.reference.tokens import Truth
from tests.unit.test_policies_contract import SMALL, plan_bytes
from tests.unit.test_reference_engine import Step, tokens_of

COSTS = CostModel(10_000_000, 1_000, 10_000, 1)
ANY = sorted(name for name, policy in POLICIES.items() if "admission" in policy.engine_rules)
COUNTED = sorted(name for name, policy in POLICIES.items() if "kv-block" in policy.engine_rules)

Asked = tuple[int, int, int, int, int]
"""Prompt, declared maximum, priority, natural length, iteration after which it is withdrawn (beyond 20: never)."""

REQUESTS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 2), st.integers(1, 12), st.integers(0, 60)), min_size=1, max_size=9
)
RULES = st.builds(
    lambda rule, learn, after, tier, speed, fallback: MemoryRules(
        make_admission(rule, {} if rule in (Rule.OWN, Rule.MAXIMUM) else {"learn": learn, "after": after, "default": 2}),
        tier, speed, speed // 2, fallback,
    ),
    st.sampled_from([r.value for r in Rule]), st.integers(0, 1), st.integers(1, 3), st.sampled_from([0, 20, 60, 500]),
    st.sampled_from([0, 100_000, 4_000_000]), st.sampled_from([Mode.RECOMPUTE, Mode.REMAIN_SUSPENDED, Mode.ABORT]),
)  # fmt: skip


def engine_with(rules: MemoryRules, policy_id: str = "vllm-shaped-fcfs", **budgets: int) -> Engine:
    parameters = {name: value for name, value in SMALL.items() if name in POLICIES[policy_id].card.parameters}
    limits = Budgets(**({"tokens": 16, "sequences": 4, "kv_capacity": 64} | budgets))
    return Engine(make_policy(policy_id, parameters), limits, COSTS, rules=rules)


def holds(engine: Engine) -> None:
    """What is true at every cut: rows, blocks and copies belong to requests that live, and add up."""
    owner, state = engine.owner, engine.state
    if owner is None:
        return
    block = engine.core.workload.budgets.kv_block
    rows = sum(int(in_blocks(queue.resident, block).sum()) for queue in (state.running, state.suspended))
    assert state.held_rows == rows <= engine.core.workload.budgets.kv_capacity
    live = {*state.running.handle.tolist(), *state.suspended.handle.tolist()}
    if owner.blocks is not None:
        assert owner.blocks.held_rows == rows
        assert owner.blocks.holders() <= live
    if owner.kept is not None:
        assert set(owner.kept.tier.held) <= set(state.suspended.handle.tolist())
        assert owner.kept.tier.rows <= owner.kept.tier.capacity
    if engine.core.workload.admission.reserves:
        promised = int(state.running.reserved.sum()) + int(state.suspended.reserved.sum())
        assert promised <= engine.core.workload.budgets.kv_capacity
        assert (state.running.reserved >= in_blocks(state.running.resident, block)).all()


def drive(engine: Engine, withdrawn: dict[int, list[str]], limit: int = 3_000) -> tuple[list[Step], set[str]]:
    """Run to the end; ``withdrawn``: names by the iteration during which their client leaves. Also: who was declined."""
    now, steps, declined = 0, list[Step](), set[str]()
    for turn in range(limit):
        begun = engine.begin(now)
        declined |= {name for name, _ in engine.take_declined()}
        for name in withdrawn.pop(turn, ()):
            engine.abort(name)
        if begun is None:
            holds(engine)
            if engine.next_receipt_ns == np.iinfo(np.int64).max:
                return steps, declined
            now = engine.next_receipt_ns
            continue
        now += begun[1]
        result = engine.complete(now)
        steps.append(Step(begun[0], result, now, list(engine.tokens_of(result))))
        holds(engine)
        declined |= {name for name, _ in engine.take_declined()}
    raise AssertionError("the engine does not come to an end")


def submit(engine: Engine, requests: Sequence[Asked]) -> dict[int, list[str]]:
    withdrawn: dict[int, list[str]] = {}
    for index, (prompt, maximum, priority, natural, leaves) in enumerate(requests):
        engine.submit(f"r{index}", prompt, maximum, Truth(index, natural), priority=priority, client=f"c{index % 2}")
        if leaves <= 20:
            withdrawn.setdefault(leaves, []).append(f"r{index}")
    return withdrawn


@pytest.mark.parametrize("policy_id", ANY)
@settings(max_examples=40, deadline=None)
@given(REQUESTS, RULES, st.integers(2, 20), st.integers(1, 6), st.integers(44, 90), st.sampled_from([1, 3, 4]), st.integers(0, 20))
def test_every_load_ends_and_nothing_leaks(
    policy_id: str, requests: list[Asked], rules: MemoryRules, tokens: int, sequences: int, kv: int, block: int, watermark: int
) -> None:
    engine = engine_with(
        rules, policy_id, tokens=tokens, sequences=sequences, kv_capacity=kv // block * block, kv_watermark=watermark, kv_block=block
    )
    steps, declined = drive(engine, submit(engine, requests))
    out = tokens_of(steps)
    whole = 0
    for index, (prompt, maximum, _, natural, leaves) in enumerate(requests):
        name, length = f"r{index}", min(maximum, natural)
        got = out.get(name, [])
        assert got == [Truth(index, natural).token(i) for i in range(len(got))]
        assert len(got) == length or leaves <= 20 or name in declined
        whole += prompt + length - 1
    assert not (declined and rules.fallback is not Mode.ABORT and policy_id != "scorpio-like-deadline")
    assert engine.kv_rows == len(engine.state.running) == len(engine.state.suspended) == len(engine.state.waiting) == 0
    done = int(engine.state.service.sum())
    assert done <= whole
    assert done == whole or declined or any(leaves <= 20 for *_, leaves in requests)  # rebuilds are no service
    nothing_left(engine.owner)


def nothing_left(owner: Owner | None) -> None:
    """Nothing is held for anybody when all have ended."""
    if owner is None:
        return
    assert owner.blocks is None or (owner.blocks.held_rows == 0 and not owner.blocks.holders())
    assert owner.kept is None or not owner.kept.tier.held
    ledger = owner.ledger
    assert ledger.reserved - ledger.unused + ledger.under == ledger.used


@pytest.mark.parametrize("policy_id", COUNTED)
@settings(max_examples=15, deadline=None)
@given(REQUESTS, st.integers(2, 20), st.integers(1, 6), st.integers(44, 90), st.integers(2, 5))
def test_every_policy_of_passes_keeps_to_whole_blocks(
    policy_id: str, requests: list[Asked], tokens: int, sequences: int, kv: int, block: int
) -> None:
    rules = MemoryRules()
    engine = engine_with(rules, policy_id, tokens=tokens, sequences=sequences, kv_capacity=kv // block * block, kv_block=block)
    drive(engine, submit(engine, requests))
    assert engine.kv_rows == 0
    nothing_left(engine.owner)


@settings(max_examples=40, deadline=None)
@given(REQUESTS, RULES, st.sampled_from([1, 3, 4]), st.integers(44, 90), st.integers(1, 8))
def test_rows_of_the_prefix_store_take_whole_blocks_too(requests: list[Asked], rules: MemoryRules, block: int, kv: int, most: int) -> None:
    """Prompts that begin alike: credits come in with admissions, under promises, blocks and preservation."""
    limits = Budgets(16, 4, kv // block * block, 0, block)
    engine = Engine(make_policy("vllm-shaped-fcfs"), limits, COSTS, prefix=PrefixStore(2, 2 * most), rules=rules)
    for index, (prompt, maximum, priority, natural, _) in enumerate(requests):
        chain = chain_of(bytes([priority] * prompt), 2)
        engine.submit(f"r{index}", prompt, maximum, Truth(index, natural), priority=priority, chain=chain)
    steps, declined = drive(engine, {5: ["r0"]})
    lengths = {name: len(tokens) for name, tokens in tokens_of(steps).items()}
    for index, (_, maximum, _, natural, _) in enumerate(requests[1:], 1):
        assert lengths.get(f"r{index}", 0) == min(maximum, natural) or f"r{index}" in declined
    nothing_left(engine.owner)
    assert engine.kv_rows == 0


@pytest.mark.parametrize("policy_id", ANY)
@settings(max_examples=15, deadline=None)
@given(REQUESTS, RULES, st.integers(1, 5))
def test_plans_are_blind_to_lengths_that_have_not_shown(policy_id: str, requests: list[Asked], rules: MemoryRules, longer: int) -> None:
    """Promises come of what ended, never of what will: all hidden lengths change, and plans are byte-equal until one shows."""
    histories = []
    for more in (0, longer):
        engine = engine_with(rules, policy_id, kv_watermark=4)
        submit(engine, [(prompt, 16, priority, natural + more, 99) for prompt, _, priority, natural, _ in requests])
        histories.append(drive(engine, {})[0])
    for ours, theirs in zip(*histories, strict=False):
        assert plan_bytes(ours.plan) == plan_bytes(theirs.plan)
        if ours.result.rows.tobytes() != theirs.result.rows.tobytes():
            break


@settings(max_examples=25, deadline=None)
@given(REQUESTS, st.integers(2, 20), st.integers(44, 90))
def test_without_any_rule_there_is_no_owner_and_blocks_of_one_row_change_nothing(requests: list[Asked], tokens: int, kv: int) -> None:
    plain = engine_with(MemoryRules(), tokens=tokens, kv_capacity=kv)
    assert plain.owner is None
    assert not plain.core.workload.counted
    # The nearest engine with an owner has a tier that refuses nothing and costs nothing; as long as nobody gives way, plans agree.
    owned = engine_with(MemoryRules(tier_rows=10_000), tokens=tokens, kv_capacity=kv)
    histories = [drive(engine, submit(engine, requests))[0] for engine in (plain, owned)]
    for ours, theirs in zip(*histories, strict=False):
        if len(ours.plan.preempt.at) or len(theirs.plan.preempt.at):
            break
        assert plan_bytes(ours.plan) == plan_bytes(theirs.plan)


# Preemption by the engine, step by step

TWO = ((8, 20, 0, 20, 99), (8, 20, 0, 20, 99))
"""Two requests of 27 rows each at their end: together they outgrow 40."""


def history(rules: MemoryRules, **budgets: int) -> tuple[Engine, list[Step]]:
    engine = engine_with(rules, tokens=64, kv_capacity=40, **budgets)
    return engine, drive(engine, submit(engine, TWO))[0]


def counts(engine: Engine) -> dict[str, float]:
    assert engine.owner is not None
    return dict(zip(NAMES, account_values(engine.state, engine.owner), strict=True))


def test_preserved_rows_are_not_computed_again() -> None:
    engine, steps = history(MemoryRules(tier_rows=100, write_ns=1_000, read_ns=1_000))
    again = counts(engine)
    assert engine.state.recomputed_rows == 0
    assert again["preemptions_preserve_total"] == again["resume_tickets_total"] == 1
    assert again["preserved_rows_total"] == again["promoted_rows_total"] == 20  # both have 20 of 40 rows when the 41st is wanted
    assert [len(tokens) for tokens in tokens_of(steps).values()] == [20, 20]


def test_rows_on_their_way_out_serve_nobody() -> None:
    """The copy takes longer than four iterations: until it is complete, the request that needs the room stands still."""
    engine, steps = history(MemoryRules(tier_rows=100, write_ns=2_500_000))  # 20 rows: 50 ms
    stamps = [step.end_ns for step in steps if 0 in step.handles]
    stall = max(later - earlier for earlier, later in pairwise(stamps))
    assert 50_000_000 <= stall < 75_000_000
    assert counts(engine)["preserved_rows_total"] == 20


def test_a_full_tier_falls_back_as_declared() -> None:
    computed, _ = history(MemoryRules(tier_rows=5))
    assert counts(computed)["preservation_failures_total"] == counts(computed)["preemptions_recompute_total"] == 1
    assert computed.state.recomputed_rows == 20
    stays, steps = history(MemoryRules(tier_rows=5, fallback=Mode.REMAIN_SUSPENDED))
    assert counts(stays)["preservation_failures_total"] >= 1
    assert [len(tokens) for tokens in tokens_of(steps).values()] == [20, 20]
    engine = engine_with(MemoryRules(tier_rows=5, fallback=Mode.ABORT), tokens=64, kv_capacity=40)
    steps, declined = drive(engine, submit(engine, TWO))
    assert declined == {"r1"}
    assert [len(tokens) for tokens in tokens_of(steps).values()] == [20, 13]
    assert counts(engine)["preemptions_abort_total"] == 1


def test_a_cancellation_during_a_transfer_wins_and_frees_once() -> None:
    """Withdrawn while its rows are copied out: the receipt of the old generation comes too late to count, and nothing is left behind."""
    engine = engine_with(MemoryRules(tier_rows=100, write_ns=2_500_000, read_ns=2_500_000), tokens=64, kv_capacity=40)
    requests = [(p, m, q, n, 99) for p, m, q, n, _ in TWO]
    submit(engine, requests)
    now, left = 0, False
    for _ in range(200):
        begun = engine.begin(now)
        if not left and len(engine.state.suspended) and engine.state.suspended.ready[0] == 0:
            assert engine.state.suspended.resident.tolist() == [20]
            engine.abort("r1")
            left = True
        if begun is None:
            if engine.next_receipt_ns == np.iinfo(np.int64).max:
                break
            now = engine.next_receipt_ns
            continue
        now += begun[1]
        list(engine.tokens_of(engine.complete(now)))
    assert left
    assert counts(engine)["stale_receipts_total"] == 1
    assert counts(engine)["preserved_rows_total"] == 0
    nothing_left(engine.owner)


def test_arrival_order_and_service_survive_a_suspension() -> None:
    for rules in (MemoryRules(), MemoryRules(tier_rows=100, write_ns=1_000)):
        engine, steps = history(rules)
        assert int(engine.state.service.sum()) == 2 * (8 + 20 - 1)
        # Neither arrival time nor first-token time begins anew: the first output of each is its first.
        assert [published.prompt_tokens for step in steps for published in step.published if published.prompt_tokens] == [8, 8]


def test_idle_rows_of_last_blocks_are_counted() -> None:
    engine = engine_with(MemoryRules(), kv_capacity=64, kv_block=16)
    engine.submit("a", 17, 3, Truth(0, None))
    begun = engine.begin(0)
    assert begun is not None
    engine.complete(begun[1])
    assert engine.kv_rows == 16
    assert counts(engine)["kv_idle_rows"] == 0
    engine.complete(begun[1] + 1) if engine.begin(begun[1]) else None
    assert engine.kv_rows == 32
    assert counts(engine)["kv_idle_rows"] == 32 - 17


def test_every_count_has_a_name_and_a_meaning() -> None:
    assert len(NAMES) == len(set(NAMES)) == len(GAUGES) + len(COUNTERS)
    assert all(name.endswith("_total") for name, _ in COUNTERS)
    engine = engine_with(MemoryRules(tier_rows=5))
    assert set(counts(engine).values()) == {0}


def test_a_policy_object_is_not_changed_by_the_rules() -> None:
    workload = engine_with(MemoryRules(tier_rows=5)).core.workload
    assert workload.preserve
    assert workload.counted
    assert not dataclasses.replace(workload, preserve=False).counted
    assert t.COLUMNS == 20
