"""The engine in virtual time under its default policy: arrivals, refill, preemption, aborts, cost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from harness.errors import UsageError
from harness.reference import contract as c
from harness.reference import table as t
from harness.reference.contract import Budgets, IterationPlan, IterationResult
from harness.reference.cost import CostModel
from harness.reference.deployment import NOT_MOVING
from harness.reference.engine import Engine, Published
from harness.reference.policies.vllm import VllmShapedFcfs
from harness.reference.policy import Completed
from harness.reference.registry import POLICIES, make_policy
from harness.reference.table import Phase
from harness.reference.tokens import EOS_ID, Truth, natural_length, tokens_at

COSTS = CostModel(base_ns=1_000_000, prefill_token_ns=1_000, decode_row_ns=10_000, context_token_ns=1)


class Step(NamedTuple):
    """One iteration as it was."""

    plan: IterationPlan
    result: IterationResult
    end_ns: int
    published: list[Published]

    @property
    def widths(self) -> list[int]:
        return self.plan.work.widths.tolist()

    @property
    def handles(self) -> list[int]:
        return self.plan.work.cells[t.HANDLE].tolist()


def make_engine(tokens: int = 16, sequences: int = 4, kv: int = 200, watermark: int = 0, policy: str = "vllm-shaped-fcfs") -> Engine:
    return Engine(make_policy(policy), Budgets(tokens, sequences, kv, watermark), COSTS)


def run(engine: Engine, limit: int = 3_000, start_ns: int = 0) -> list[Step]:
    """Run to the end."""
    now, steps = start_ns, []
    for _ in range(limit):
        begun = engine.begin(now)
        if begun is None:
            if engine.next_receipt_ns == NOT_MOVING:
                return steps
            now = engine.next_receipt_ns
            continue
        now += begun[1]
        result = engine.complete(now)
        steps.append(Step(begun[0], result, now, list(engine.tokens_of(result))))
    raise AssertionError("the engine does not come to an end")


def tokens_of(steps: list[Step]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for step in steps:
        for published in step.published:
            out.setdefault(published.request_id, []).append(published.token)
    return out


def test_one_request_takes_its_prefill_chunks_then_one_row_a_token() -> None:
    engine = make_engine(tokens=16)
    engine.submit("r", 40, 3, Truth(1, None))
    steps = run(engine)
    assert [step.widths for step in steps] == [[16], [16], [8], [1], [1]]
    assert [int(step.result.rows[c.EMITTED_AFTER, 0]) for step in steps] == [0, 0, 1, 2, 3]
    assert steps[-1].published[0].finish == "length"
    assert [p.prompt_tokens for step in steps for p in step.published] == [40, 0, 0]
    # 5 iterations, 40 prompt rows, 2 decode rows, contexts 16 + 32 + 40 + 41 + 42.
    assert steps[-1].end_ns == 5 * 1_000_000 + 40 * 1_000 + 2 * 10_000 + 171


def test_a_new_prompt_takes_what_the_running_decode_leaves_of_the_budget() -> None:
    engine = make_engine(tokens=4)
    engine.submit("old", 4, 10, Truth(1, None))
    engine.begin(0)
    list(engine.tokens_of(engine.complete(1)))
    engine.submit("new", 9, 1, Truth(2, None))
    begun = engine.begin(2)
    assert begun is not None
    assert (begun[0].work.cells[c.PHASE].tolist(), begun[0].work.widths.tolist()) == ([Phase.DECODE, Phase.PREFILL], [1, 3])


def test_natural_stop_ends_with_the_declared_end_token() -> None:
    engine = make_engine()
    engine.submit("r", 3, 50, Truth(5, 4))
    steps = run(engine)
    assert steps[-1].published[0].finish == "stop"
    assert len(tokens_of(steps)["r"]) == 4
    assert tokens_of(steps)["r"].index(EOS_ID) == 3


def test_tokens_by_array_are_the_tokens_one_by_one() -> None:
    seeds = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    index, natural = np.array([0, 5, 1_000_000, 2]), np.array([9, 6, 2**62, 9])
    expected = [Truth(int(s), int(n)).token(int(i)) for s, i, n in zip(seeds, index, natural, strict=True)]
    assert tokens_at(seeds, index, natural).tolist() == expected


def test_a_short_cache_preempts_the_tail_and_rebuilds_it_without_new_tokens() -> None:
    engine = make_engine(tokens=16, sequences=4, kv=20)
    engine.submit("old", 8, 10, Truth(1, None))
    engine.submit("young", 8, 10, Truth(2, None))
    steps = run(engine)
    assert [key for step in steps for key in step.plan.preempt.keys[0].tolist()] == [1]
    assert engine.preemptions == 1
    rebuilt = sum(step.result.recomputed_rows for step in steps)
    assert rebuilt == engine.state.recomputed_rows > 0
    assert {name: len(tokens) for name, tokens in tokens_of(steps).items()} == {"old": 10, "young": 10}
    assert int(engine.state.service.sum()) == 2 * (8 + 9)
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


def test_abort_frees_the_cache_at_the_next_cut() -> None:
    engine = make_engine()
    engine.submit("r", 8, 50, Truth(1, None))
    engine.begin(0)
    list(engine.tokens_of(engine.complete(1)))
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
    engine.submit("r", 8, 50, Truth(1, None))
    assert engine.waiting == 1


def test_abort_while_its_last_iteration_runs_is_no_contradiction() -> None:
    engine = make_engine()
    engine.submit("r", 8, 1, Truth(1, None))
    engine.begin(0)
    engine.abort("r")
    list(engine.tokens_of(engine.complete(1)))
    assert engine.begin(2) is None
    assert len(engine.state.finished) == 0


def test_a_live_id_is_not_taken_twice() -> None:
    engine = make_engine()
    engine.submit("r", 8, 1, Truth(1, None))
    with pytest.raises(ValueError, match="already live"):
        engine.submit("r", 8, 1, Truth(1, None))


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


def test_what_is_kept_of_requests_that_ended_does_not_grow_with_their_number() -> None:
    engine = make_engine()
    engine.submit("long", 1, 150, Truth(1, None))  # alive all the while the first hundred come and go
    seen: dict[str, list[int]] = {}
    for index in range(1_000):
        engine.submit(f"r{index}", 1, 2, Truth(index, 2))
        for _ in range(2):
            begun = engine.begin(index)
            assert begun is not None
            for published in engine.tokens_of(engine.complete(index)):
                seen.setdefault(published.request_id, []).append(published.token)
    assert seen["long"] == [Truth(1, None).token(i) for i in range(150)]
    assert all(seen[f"r{index}"] == [Truth(index, 2).token(0), EOS_ID] for index in range(1_000))
    assert len(engine._truths._natural) <= 256


def test_a_policy_learns_of_outputs_without_their_ids() -> None:
    """An id is drawn from the seed that the hidden length is drawn from, and virtual time has none: both would show in a plan."""

    class Curious(VllmShapedFcfs):
        def learn(self, workload: c.WorkloadManifest, state: c.SchedulerState, done: Completed) -> object:
            before = state.memory if isinstance(state.memory, tuple) else ()
            return (*before, done.result.tokens)

    engine = Engine(Curious(), Budgets(16, 4, 200), COSTS)
    engine.submit("a", 3, 2, Truth(1, None))
    assert sum(len(step.published) for step in run(engine)) == 2
    assert engine.state.memory == (None, None)
