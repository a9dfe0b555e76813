"""Every registered policy: any load ends under validation, plans are blind to hidden lengths, the card says what it must."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.reference.contract import TERMINAL, Budgets, IterationPlan
from harness.reference.cost import CostModel
from harness.reference.deployment import Pools
from harness.reference.engine import Engine
from harness.reference.registry import POLICIES, make_policy
from harness.reference.tokens import Truth
from tests.unit.test_reference_engine import Step, run, tokens_of

COSTS = CostModel(10_000_000, 1_000, 10_000, 1, transfer_base_ns=3_000_000, transfer_row_ns=1_000_000)
SMALL = {
    "aging_ns": 15_000_000, "promote_ns": 60_000_000, "quantum_rows": 2, "levels": 4, "chunk_rows": 5, "rows_per_tick": 8, "layers": 4,
    "least_layers": 1, "piece_rows": 9, "prefill_percent": 50, "ttft_ns": 150_000_000,
}  # fmt: skip
"""Parameters small enough that rules meant for long waits act within a test."""

REQUESTS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9), st.integers(0, 2), st.integers(0, 8)), min_size=1, max_size=8)
everyone = pytest.mark.parametrize("policy_id", POLICIES)


def engine_of(policy_id: str, tokens: int, sequences: int, kv: int, watermark: int = 0) -> Engine:
    parameters = {name: value for name, value in SMALL.items() if name in POLICIES[policy_id].card.parameters}
    made = make_policy(policy_id, parameters)
    workers = 2 if isinstance(made.deployment(Budgets(tokens, sequences, kv)), Pools) else 1  # a request must fit each pool alone
    return Engine(made, Budgets(tokens, sequences, workers * kv, watermark), COSTS)


def plan_bytes(plan: IterationPlan) -> bytes:
    """Everything a plan says."""
    arrays = [plan.work.at, plan.work.cells, plan.order, plan.reasons, plan.layers, plan.reserve]
    for move in (plan.preempt, plan.resume, plan.admit, plan.decline, plan.promote):
        arrays += [move.at, move.keys]
    scalars = (*plan[:4], plan.ledger, plan.notes)
    return b"|".join([repr(scalars).encode(), *(array.tobytes() for array in arrays)])


@everyone
@settings(max_examples=10, deadline=None)
@given(REQUESTS, st.integers(2, 20), st.integers(1, 6), st.integers(42, 80), st.integers(0, 20))
def test_every_load_ends_within_contract_and_every_token_is_the_request_s_own(
    policy_id: str, requests: list[tuple[int, int, int, int]], tokens: int, sequences: int, kv: int, watermark: int
) -> None:
    # kv >= 30 + 12: any request fits alone, as the server demands at its start. Validation runs inside begin and complete.
    engine = engine_of(policy_id, tokens, sequences, kv, watermark)
    for index, (prompt, maximum, priority, _) in enumerate(requests):
        engine.submit(f"r{index}", prompt, maximum, Truth(index, None), priority=priority, client=f"c{index % 2}")
    out, declined = tokens_of(run(engine)), dict(engine.take_declined())
    assert not declined or engine.core.policy.declines
    served = [(index, row) for index, row in enumerate(requests) if f"r{index}" not in declined]
    assert out == {f"r{index}": [Truth(index, None).token(i) for i in range(row[1])] for index, row in served}
    assert engine.kv_rows == engine.waiting == engine.running == 0
    assert int(engine.state.service.sum()) == sum(prompt + maximum - 1 for _, (prompt, maximum, _, _) in served)


def _history(policy_id: str, requests: list[tuple[int, int, int, int]], tokens: int, sequences: int, longer: int) -> list[Step]:
    engine = engine_of(policy_id, tokens, sequences, 60)
    for index, (prompt, _, priority, natural) in enumerate(requests):
        engine.submit(f"r{index}", prompt, 16, Truth(index, 1 + natural + longer), priority=priority, client=f"c{index % 3}")
    return run(engine)


@everyone
@settings(max_examples=10, deadline=None)
@given(REQUESTS, st.integers(4, 20), st.integers(1, 6), st.integers(1, 5))
def test_plans_are_byte_equal_until_a_hidden_length_shows(
    policy_id: str, requests: list[tuple[int, int, int, int]], tokens: int, sequences: int, longer: int
) -> None:
    """Every hidden length changes; the observed history is the same up to the first request that ends in one world only."""
    one, other = (_history(policy_id, requests, tokens, sequences, more) for more in (0, longer))
    for ours, theirs in zip(one, other, strict=False):
        assert plan_bytes(ours.plan) == plan_bytes(theirs.plan)
        if ours.result.rows[TERMINAL].tolist() != theirs.result.rows[TERMINAL].tolist():
            return
    raise AssertionError("no hidden length ever showed")


@everyone
def test_equal_histories_give_equal_plans(policy_id: str) -> None:
    requests = [(5 + 3 * index, 0, index % 3, index) for index in range(8)]
    one, other = (_history(policy_id, requests, 12, 4, 0) for _ in range(2))
    assert [plan_bytes(step.plan) for step in one] == [plan_bytes(step.plan) for step in other]


@everyone
def test_the_card_states_contract_evidence_and_limits(policy_id: str) -> None:
    card = POLICIES[policy_id].card
    assert card.policy_id == policy_id
    assert card.exact_reproduction is False
    assert card.evidence_basis
    assert card.tie_break
    assert card.claim_limits
    stated = dataclasses.asdict(card.contract)
    assert len(stated) == 9  # K_m = (G, I, S, D, U, O, M, A, F)
    assert all(stated.values())
    assert "exact" not in repr(card).replace("exact_reproduction=False", "")


@everyone
def test_parameters_are_checked_by_name_and_value(policy_id: str) -> None:
    with pytest.raises(UsageError, match="policy_parameter"):
        make_policy(policy_id, {"luck": 7})
    for name, known in POLICIES[policy_id].card.parameters.items():
        with pytest.raises(UsageError, match=name):
            make_policy(policy_id, {name: known.least - 1})
        with pytest.raises(UsageError, match=name):
            make_policy(policy_id, {name: 10**13})
        assert make_policy(policy_id).parameters[name] == known.default


RESERVING = ("fixed-batch", "iteration-refill", "orca-shaped", "sarathi-shaped", "vtc-shaped", "completion_reconciled_vtc_teaching_v1")


@pytest.mark.parametrize("policy_id", RESERVING)
@settings(max_examples=10, deadline=None)
@given(REQUESTS, st.integers(2, 20), st.integers(1, 6))
def test_who_reserves_by_maximum_never_preempts(
    policy_id: str, requests: list[tuple[int, int, int, int]], tokens: int, sequences: int
) -> None:
    engine = engine_of(policy_id, tokens, sequences, 60)
    for index, (prompt, maximum, _, _) in enumerate(requests):
        engine.submit(f"r{index}", prompt, maximum, Truth(index, None))
    run(engine)
    assert engine.preemptions == 0
