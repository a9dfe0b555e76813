"""A policy that tries anything: whatever the validator lets pass runs, and the owner's books stay whole."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.reference.admission import Admission, Rule
from harness.reference.contract import Budgets, IterationPlan, SchedulerState, WorkloadManifest, moves
from harness.reference.engine import Engine
from harness.reference.owner import MemoryRules
from harness.reference.passes import positions, seal
from harness.reference.policies.vllm import VllmShapedPriority
from harness.reference.table import Int64, join
from harness.reference.tokens import Truth
from harness.reference.validate import validate_plan
from tests.unit.test_reference_owner import COSTS, REQUESTS, RULES, Asked, holds


class Wild(VllmShapedPriority):
    """Any members leave, come in and run any number of rows; where that breaks a rule, or by chance, the policy's own plan."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.chance, self.accepted, self.refused = chance, 0, set[str]()

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        if self.chance.random() < 0.7:
            plan = self._anything(workload, state)
            problems = validate_plan(self, workload, state, plan)
            self.refused |= {problem.code for problem in problems}
            if not problems and (len(plan.work.at) or len(plan.preempt.at) or len(plan.promote.at)):
                self.accepted += 1
                return plan
        return super().plan(workload, state)

    def _some(self, count: int, *shares: float) -> Int64:
        share = self.chance.choice(shares)
        return positions(at for at in range(count) if self.chance.random() < share)

    def _anything(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        preempt = moves(state.running, self._some(len(state.running), 0, 0.1, 0.5))
        back = self._some(len(state.suspended), 0, 0.5, 1)
        resume = moves(state.suspended, back)
        promote = moves(state.suspended, np.setdiff1d(self._some(len(state.suspended), 0, 0.5, 1), back))
        admit = moves(state.waiting, self._some(len(state.waiting), 0, 0.3, 1))
        members = join((state.running.without(preempt.at), state.suspended.take(resume.at), state.waiting.take(admit.at)))
        at = self._some(len(members), 0.5, 1)
        widths = positions(self.chance.randint(1, int(most)) for most in (members.limit - members.resident).take(at).clip(1))
        return seal(self, workload, state, members, at, widths, preempt, resume, admit, promote=promote)


@pytest.mark.parametrize("rule", list(Rule))
@settings(max_examples=25, deadline=None)
@given(REQUESTS, RULES, st.sampled_from([1, 2, 4]), st.integers(0, 6), st.randoms(use_true_random=False))
def test_what_the_validator_accepts_leaks_nothing(
    rule: Rule, requests: list[Asked], rules: MemoryRules, block: int, watermark: int, chance: Random
) -> None:
    if rules.admission.rule is not rule:
        rules = MemoryRules(Admission(rule, default=2, after=1), rules.tier_rows, rules.write_ns, rules.read_ns, rules.fallback)
    policy = Wild(chance)
    engine, now = Engine(policy, Budgets(16, 4, 44, watermark, block), COSTS, rules=rules), 0
    for index, (prompt, maximum, priority, natural, _) in enumerate(requests):
        engine.submit(f"r{index}", prompt, maximum, Truth(index, natural), priority=priority)
    for turn in range(60):  # it may preempt for ever, so nothing says that all of them end
        begun = engine.begin(now)
        engine.take_declined()
        if turn % 7 == 3:
            engine.abort(f"r{turn % len(requests)}")
        if begun is None:
            holds(engine)
            if engine.next_receipt_ns == np.iinfo(np.int64).max:
                break
            now = engine.next_receipt_ns
            continue
        now += begun[1]
        list(engine.tokens_of(engine.complete(now)))
        holds(engine)
        engine.take_declined()


def test_it_tries_enough() -> None:
    policy = Wild(Random(7))  # noqa: S311 - a seeded search, no secret
    engine, now = Engine(policy, Budgets(16, 4, 44, 2, 4), COSTS, rules=MemoryRules(tier_rows=60, write_ns=100, read_ns=100)), 0
    for index in range(12):
        engine.submit(f"r{index}", 5 + index, 10, Truth(index, None))
    for _ in range(300):
        begun = engine.begin(now)
        now = engine.next_receipt_ns if begun is None else now + begun[1]
        if begun is None and now == np.iinfo(np.int64).max:
            break
        if begun is not None:
            list(engine.tokens_of(engine.complete(now)))
    assert policy.accepted > 10
    assert policy.refused >= {"token_budget", "no_ticket", "nothing_preserved", "kv_capacity"}
