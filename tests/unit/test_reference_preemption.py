"""The seed's eight cases of preemption and resume (0x0C), through plans, owner and transition.

A has 12 rows and one output to go; B gives way to it and comes back when A has ended. B's frontiers are those of the seed's cases.
"""

from __future__ import annotations

import numpy as np
import pytest

from harness.reference import table as t
from harness.reference.contract import END, PHASE, Authorized, Budgets, SchedulerState
from harness.reference.cost import CostModel
from harness.reference.engine import Core, Engine, online_workload
from harness.reference.execute import Truths, execute
from harness.reference.owner import MemoryRules, Owner
from harness.reference.registry import make_policy
from harness.reference.resume import Binding, Mode
from harness.reference.table import Phase
from harness.reference.tokens import Truth
from tests.unit.test_reference_contract import member, table

A, B = 0, 1
ROW_A = member(A, prompt=10, emitted=3, computed=12, committed=12, resident=12, maximum=4, last_ns=0)
FOREVER = 10**15


def row_b(prompt: int, emitted: int, resident: int | None = None) -> dict[int, int]:
    computed = prompt + emitted - 1
    held = computed if resident is None else resident
    return member(B, prompt=prompt, emitted=emitted, computed=computed, committed=computed, resident=held, maximum=20, last_ns=0)


class Stage:
    """A and B run and fill the cache; the next row of A is one too many."""

    def __init__(self, b: dict[int, int], rules: MemoryRules, policy: str = "vllm-shaped-fcfs") -> None:
        rows = ROW_A[t.RESIDENT] + b[t.RESIDENT]
        workload = online_workload(make_policy(policy), Budgets(64, 4, rows), rules=rules)
        self.core = Core(workload, make_policy(policy), CostModel(1_000, 0, 0, 0))
        self.owner: Owner | None = rules.owner(workload)
        if self.owner is not None and self.owner.blocks is not None:
            for row in (ROW_A, b):
                assert self.owner.blocks.grow(row[t.HANDLE], row[t.RESIDENT])
        service = np.zeros((2, 1), np.int64)
        self.state = SchedulerState(0, 0, 0, table(ROW_A, b), table(), table(), table(), service, rows)
        self.truths = Truths()
        for number in (A, B):
            self.truths.add(number, Truth(number, None))

    def decide(self, now_ns: int) -> Authorized:
        """Publish what is due, and plan."""
        if self.owner is not None:
            self.state = self.core.due(self.state, now_ns, self.owner)
        self.state, authorized, _, _ = self.core.settle(self.state, self.owner)
        return authorized

    def step(self, now_ns: int) -> list[tuple[int, int, int, Phase]]:
        """One iteration: request, start, end and phase of each interval."""
        authorized = self.decide(now_ns)
        cells = authorized.plan.work.cells
        if cells.shape[1]:
            result = execute(self.state, authorized, self.truths, tokens=False)
            self.state = self.core.publish(self.state, authorized, result, now_ns, self.owner)
        columns = (cells[t.HANDLE].tolist(), cells[t.RESIDENT].tolist(), cells[END].tolist(), cells[PHASE].tolist())
        return [(handle, start, end, Phase(phase)) for handle, start, end, phase in zip(*columns, strict=True)]

    def of_b(self, steps: int = 6) -> list[tuple[int, int, Phase]]:
        """First two intervals of B after it gave way."""
        found = [work for now in range(steps) for work in self.step(now)]
        return [work[1:] for work in found if work[0] == B][:2]

    @property
    def service(self) -> int:
        return int(self.state.service.sum())


KEEPS = MemoryRules(tier_rows=100)
ALL_BEFORE = 1
"""Rows of A's last step, the only service beside B's."""


def test_exact_preservation_rebuilds_nothing() -> None:
    stage = Stage(row_b(4, 3), KEEPS)
    assert stage.of_b() == [(6, 7, Phase.DECODE), (7, 8, Phase.DECODE)]
    assert stage.state.recomputed_rows == 0


def test_full_recomputation_rebuilds_all_without_service_or_output() -> None:
    stage = Stage(row_b(4, 3), MemoryRules())
    assert stage.owner is None
    assert stage.step(0) == [(A, 12, 13, Phase.DECODE)]
    before = stage.service
    assert stage.step(1) == [(B, 0, 6, Phase.REBUILD)]
    assert (stage.service - before, stage.state.recomputed_rows, stage.state.running.emitted.tolist()) == (0, 6, [3])
    assert stage.step(2) == [(B, 6, 7, Phase.DECODE)]
    assert stage.service - before == 1


def test_a_partial_exact_prefix_rebuilds_the_rest() -> None:
    """B gives way in the middle of a rebuild, with four of its seven rows on the device: those four are what is kept."""
    stage = Stage(row_b(4, 4, resident=4), KEEPS)
    assert stage.of_b() == [(4, 7, Phase.REBUILD), (7, 8, Phase.DECODE)]
    assert stage.state.recomputed_rows == 3


def test_failed_preservation_takes_the_declared_fallback() -> None:
    stage = Stage(row_b(3, 3), MemoryRules(tier_rows=4))
    assert stage.of_b() == [(0, 5, Phase.REBUILD), (5, 6, Phase.DECODE)]
    assert stage.owner is not None
    assert (stage.owner.usage.failed, stage.owner.usage.recompute, stage.owner.usage.tickets) == (1, 1, 1)
    ends = Stage(row_b(3, 3), MemoryRules(tier_rows=4, fallback=Mode.ABORT))
    assert ends.of_b() == []
    assert ends.state.declined[0].tolist() == [B]


@pytest.mark.parametrize("during", ["preservation", "promotion"])
def test_cancellation_wins_over_every_receipt_of_the_old_generation(during: str) -> None:
    stage = Stage(row_b(4, 3), MemoryRules(tier_rows=100, write_ns=10, read_ns=10))
    assert stage.owner is not None
    assert stage.step(0) == []
    now = 0
    if during == "promotion":
        stage.step(60)
        assert stage.step(61) == []  # called back, under way until 121
        now = 61
    assert stage.state.suspended.handle.tolist() == [B]
    stage.state = stage.core.cut(stage.state, now, None, [B], owner=stage.owner)
    assert stage.state.finished.generation.tolist() == [1]
    before = (stage.owner.usage.preserved_rows, stage.owner.usage.promoted_rows, stage.state.held_rows)
    assert stage.owner.blocks is not None
    assert stage.owner.blocks.held_rows == stage.state.held_rows == (12 if during == "preservation" else 0)
    stage.state = stage.core.due(stage.state, FOREVER, stage.owner)
    assert (stage.owner.usage.preserved_rows, stage.owner.usage.promoted_rows, stage.state.held_rows) == before
    assert stage.owner.usage.stale_receipts == 1
    assert stage.owner.kept is not None
    assert not stage.owner.kept.tier.held


def test_each_suspension_has_an_epoch_and_a_ticket_of_its_own() -> None:
    """Three outgrow the cache, so that the same one gives way again and again; an earlier epoch's receipt serves no later one
    (test_reference_suspension has it come late)."""
    rules = MemoryRules(tier_rows=500, write_ns=50, read_ns=50)
    engine = Engine(make_policy("vllm-shaped-fcfs"), Budgets(64, 4, 40), CostModel(1_000, 0, 0, 0), rules=rules)
    for number in range(3):
        engine.submit(f"r{number}", 8, 30, Truth(number, None))
    assert engine.owner is not None
    assert engine.owner.kept is not None
    now, seen = 0, dict[Binding, None]()
    while (begun := engine.begin(now)) is not None or engine.next_receipt_ns < FOREVER:
        seen |= dict.fromkeys(held.intent.binding for held in engine.owner.kept._live.values())
        now = engine.next_receipt_ns if begun is None else now + begun[1]
        if begun is not None:
            list(engine.tokens_of(engine.complete(now)))
    epochs = [[binding.epoch for binding in seen if binding.request == number] for number in range(3)]
    assert epochs[0] == []  # the oldest never gives way
    assert max(map(len, epochs)) >= 2
    assert all(found == list(range(1, len(found) + 1)) for found in epochs)
    assert engine.owner.usage.tickets == len(seen)


def test_a_promotion_in_flight_gives_no_ticket() -> None:
    stage = Stage(row_b(4, 3), MemoryRules(tier_rows=100, read_ns=10))
    assert stage.owner is not None
    stage.step(0)
    assert stage.step(0) == [(A, 12, 13, Phase.DECODE)]
    assert [stage.step(now) for now in (1, 30, 60)] == [[], [], []]  # called back at 1, six rows at 10
    assert (stage.owner.usage.tickets, stage.state.held_rows) == (0, 6)
    assert stage.step(61) == [(B, 6, 7, Phase.DECODE)]
    assert stage.owner.usage.tickets == 1


def test_a_release_in_flight_frees_nothing_and_gives_no_ticket() -> None:
    stage = Stage(row_b(4, 3), MemoryRules(tier_rows=100, write_ns=10))
    assert stage.owner is not None
    assert [stage.step(now) for now in (0, 30, 59)] == [[], [], []]
    assert (stage.state.held_rows, stage.owner.usage.tickets) == (18, 0)
    assert stage.step(60) == [(A, 12, 13, Phase.DECODE)]


def test_the_least_favoured_gives_way_by_priority() -> None:
    """The same with priority victims: A asks, and A is the less favoured."""
    stage = Stage(row_b(4, 3), KEEPS, "vllm-shaped-priority")
    stage.state = stage.state._replace(running=table(ROW_A | {t.PRIORITY: 5}, row_b(4, 3)))
    assert stage.step(0) == []
    assert stage.state.suspended.handle.tolist() == [A]
    assert stage.step(1) == [(B, 6, 7, Phase.DECODE)]
