"""The engine in virtual time: every iteration validated, every request ends, nothing depends on what the policy cannot know."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.reference.contract import Budgets, IterationPlan, IterationResult, Phase
from harness.reference.cost import CostModel
from harness.reference.engine import Engine
from harness.reference.policy import POLICIES, make_policy
from harness.reference.tokens import EOS_ID, Truth, natural_length

COSTS = CostModel(base_ns=1_000_000, prefill_token_ns=1_000, decode_row_ns=10_000, context_token_ns=1)


def make_engine(tokens: int = 16, sequences: int = 4, kv: int = 200, watermark: int = 0) -> Engine:
    return Engine(make_policy("vllm-shaped-fcfs"), Budgets(tokens, sequences, kv, watermark), COSTS)


def run(engine: Engine, limit: int = 5_000) -> list[tuple[IterationPlan, IterationResult, int]]:
    """Run to the end; each entry is a plan, its result and its end (ns)."""
    now, steps = 0, []
    for _ in range(limit):
        begun = engine.begin(now)
        if begun is None:
            return steps
        now += begun[1]
        steps.append((begun[0], engine.complete(now), now))
    raise AssertionError("the engine does not come to an end")


def tokens_of(steps: list[tuple[IterationPlan, IterationResult, int]]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for _, result, _ in steps:
        for row in result.rows:
            if row.token is not None:
                out.setdefault(row.request_id, []).append(row.token)
    return out


def test_one_request_takes_its_prefill_chunks_then_one_row_a_token() -> None:
    engine = make_engine(tokens=16)
    engine.submit("r", 40, 3, Truth(1, None))
    steps = run(engine)
    assert [[w.width for w in plan.work] for plan, _, _ in steps] == [[16], [16], [8], [1], [1]]
    assert [result.rows[0].emitted_after for _, result, _ in steps] == [0, 0, 1, 2, 3]
    assert steps[-1][1].rows[0].terminal == "length"
    # 5 iterations, 40 prompt rows, 2 decode rows, contexts 16 + 32 + 40 + 41 + 42.
    assert steps[-1][2] == 5 * 1_000_000 + 40 * 1_000 + 2 * 10_000 + 171


def test_a_finished_request_leaves_room_in_the_next_iteration() -> None:
    engine = make_engine(sequences=2)
    for name, length in (("A", 2), ("B", 8), ("C", 3)):
        engine.submit(name, 1, length, Truth(1, None))
    # The seed's fixture: refill lets C start when A is done; eight iterations instead of the eleven of a fixed batch.
    steps = run(engine)
    assert len(steps) == 8
    assert [i for i, (plan, _, _) in enumerate(steps) if any(w.request_id == "C" for w in plan.work)] == [2, 3, 4]


def test_decode_rows_come_before_prompt_rows_within_the_token_budget() -> None:
    engine = make_engine(tokens=4)
    engine.submit("old", 4, 10, Truth(1, None))
    engine.begin(0)
    engine.complete(1)
    engine.submit("new", 9, 1, Truth(2, None))
    begun = engine.begin(2)
    assert begun is not None
    assert [(w.request_id, w.phase, w.width) for w in begun[0].work] == [("old", Phase.DECODE, 1), ("new", Phase.PREFILL, 3)]


def test_natural_stop_ends_with_the_declared_end_token() -> None:
    engine = make_engine()
    engine.submit("r", 3, 50, Truth(5, 4))
    steps = run(engine)
    assert steps[-1][1].rows[0].terminal == "stop"
    assert len(tokens_of(steps)["r"]) == 4
    assert tokens_of(steps)["r"].index(EOS_ID) == 3


def test_a_short_cache_preempts_the_latest_and_rebuilds_it_without_new_tokens() -> None:
    engine = make_engine(tokens=16, sequences=4, kv=20)
    engine.submit("old", 8, 10, Truth(1, None))
    engine.submit("young", 8, 10, Truth(2, None))
    steps = run(engine)
    preempted = [key.request_id for plan, _, _ in steps for key in plan.preempt]
    assert preempted == ["young"]
    assert engine.preemptions == 1
    rebuilt = sum(result.recomputed_rows for _, result, _ in steps)
    assert rebuilt == engine.state.recomputed_rows > 0
    assert {name: len(tokens) for name, tokens in tokens_of(steps).items()} == {"old": 10, "young": 10}
    service = sum(d.prefill_rows + d.decode_rows for _, result, _ in steps for d in result.debits)
    assert service == 2 * (8 + 9)
    assert tokens_of(steps)["young"] == [Truth(2, None).token(i) for i in range(10)]


def test_the_watermark_holds_back_admission_only() -> None:
    free, held = make_engine(kv=20), make_engine(kv=20, watermark=5)
    for engine in (free, held):
        engine.submit("a", 8, 2, Truth(1, None))
        engine.submit("b", 8, 2, Truth(2, None))
    assert len(run(free)) == 2
    assert len(run(held)) == 4


def test_a_prompt_above_the_soft_ceiling_still_runs_alone() -> None:
    engine = make_engine(tokens=32, kv=20, watermark=10)
    engine.submit("r", 18, 2, Truth(1, None))
    assert len(run(engine)) == 2


def test_first_come_first_served_does_not_skip_the_head() -> None:
    engine = make_engine(tokens=64, kv=30)
    for name, prompt in (("a", 20), ("big", 25), ("small", 2)):
        engine.submit(name, prompt, 2, Truth(1, None))
    assert list(tokens_of(run(engine))) == ["a", "big", "small"]


def test_lower_priority_numbers_run_first() -> None:
    engine = make_engine(sequences=1)
    engine.submit("later", 2, 1, Truth(1, None), priority=5)
    engine.submit("sooner", 2, 1, Truth(1, None), priority=0)
    assert list(tokens_of(run(engine))) == ["sooner", "later"]


def test_abort_frees_the_cache_at_the_next_cut() -> None:
    engine = make_engine()
    engine.submit("r", 8, 50, Truth(1, None))
    engine.begin(0)
    engine.complete(1)
    assert engine.kv_rows == 8
    engine.abort("r")
    assert engine.begin(2) is None
    assert (engine.kv_rows, engine.running, engine.waiting) == (0, 0, 0)


def test_abort_before_the_first_cut_leaves_no_trace() -> None:
    engine = make_engine()
    engine.submit("r", 8, 50, Truth(1, None))
    engine.abort("r")
    engine.abort("r")
    assert engine.waiting == 0
    assert engine.begin(0) is None


def test_abort_while_its_last_iteration_runs_is_no_contradiction() -> None:
    engine = make_engine()
    engine.submit("r", 8, 1, Truth(1, None))
    engine.begin(0)
    engine.abort("r")
    engine.complete(1)
    assert engine.begin(2) is None
    assert engine.state.finished == ()


def test_begin_and_complete_alternate() -> None:
    engine = make_engine()
    with pytest.raises(ValueError, match="no iteration"):
        engine.complete(0)
    engine.submit("r", 8, 2, Truth(1, None))
    engine.begin(0)
    with pytest.raises(ValueError, match="in progress"):
        engine.begin(1)


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="vllm-shaped-fcfs"):
        make_policy("best")
    assert "exact" not in " ".join(POLICIES)


REQUESTS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 2), st.integers(0, 20)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(1, 20), st.integers(1, 6), st.integers(42, 80), st.integers(0, 20))
def test_every_load_ends_within_contract_and_every_token_is_the_request_s_own(
    requests: list[tuple[int, int, int, int]], tokens: int, sequences: int, kv: int, watermark: int
) -> None:
    # kv >= 30 + 12: any request fits alone, as the server demands at its start. Validation runs inside begin and complete.
    engine = make_engine(tokens, sequences, kv, watermark)
    for index, (prompt, maximum, priority, _) in enumerate(requests):
        engine.submit(f"r{index}", prompt, maximum, Truth(index, None), priority=priority, client=f"c{index % 2}")
    out = tokens_of(run(engine))
    for index, (_, maximum, _, _) in enumerate(requests):
        assert out[f"r{index}"] == [Truth(index, None).token(i) for i in range(maximum)]
    assert engine.kv_rows == 0
    served = sum(s.prefill_rows + s.decode_rows for s in engine.state.service.values())
    assert served == sum(prompt + maximum - 1 for prompt, maximum, _, _ in requests)


@settings(max_examples=30, deadline=None)
@given(REQUESTS, st.integers(1, 20), st.integers(1, 6))
def test_plans_do_not_depend_on_hidden_lengths_until_they_show(
    requests: list[tuple[int, int, int, int]], tokens: int, sequences: int
) -> None:
    plans = []
    for longer in (0, 1):
        engine = make_engine(tokens, sequences, 80)
        for index, (prompt, _, priority, natural) in enumerate(requests):
            # Both truths are hidden; they differ only in what happens after ``natural`` tokens.
            engine.submit(f"r{index}", prompt, 40, Truth(index, 1 + natural + longer), priority=priority)
        plans.append([(plan, frozenset(r.request_id for r in result.rows if r.terminal)) for plan, result, _ in run(engine)])
    for (one, ended_one), (other, ended_other) in zip(*plans, strict=False):
        assert one == other
        if ended_one != ended_other:
            break


def test_equal_states_give_equal_plans() -> None:
    engines = [make_engine(), make_engine()]
    for engine in engines:
        for index in range(6):
            engine.submit(f"r{index}", 5 + index, 4, Truth(index, None))
    assert [p for p, _, _ in run(engines[0])] == [p for p, _, _ in run(engines[1])]


def test_natural_lengths_follow_their_mean_and_their_seed() -> None:
    drawn = [natural_length(seed, 40.0) for seed in range(4_000)]
    assert min(drawn) >= 1
    # Geometric: standard deviation about the mean, so the mean of 4000 lies within 4 * 40 / 63 of 40.
    assert abs(sum(drawn) / len(drawn) - 40) < 2.6
    assert drawn == [natural_length(seed, 40.0) for seed in range(4_000)]
    assert natural_length(3, 40.0, minimum=500) == 500
    assert natural_length(3, 1.0) == 1


def test_the_cost_model_adds_up_by_hand() -> None:
    engine = make_engine(tokens=8)
    engine.submit("r", 8, 2, Truth(1, None))
    begun = engine.begin(0)
    assert begun is not None
    assert begun[1] == 1_000_000 + 8 * 1_000 + 8
