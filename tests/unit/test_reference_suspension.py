"""Suspensions against a model, step by step: rows and copies are conserved, and a ticket is there exactly when every fact is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.reference import table as t
from harness.reference.blocks import BlockAllocator
from harness.reference.contract import IterationPlan, Ledger, SchedulerState, make_work
from harness.reference.resume import TICKET_CODES, Binding, Mode, Status
from harness.reference.suspension import REFUSED, Suspensions, Usage
from harness.reference.table import Table
from harness.reference.tier import Tier
from harness.reference.transition import cancel
from harness.reference.validate import ContractError
from tests.unit.test_reference_contract import member, table

NOBODY = np.zeros(0, np.int64)
PLAN = IterationPlan(0, 0, "p", "1", make_work(table(), NOBODY, NOBODY), np.zeros((1, 0), np.int64), Ledger(0, 0, 0))
BLOCK, BLOCKS, TIER = 4, 12, 30


def empty_state() -> SchedulerState:
    return SchedulerState(0, 0, 0, table(), table(), table(), table(), np.zeros((2, 1), np.int64))


class SuspensionMachine(RuleBasedStateMachine):
    """Requests run, give way, have their rows copied, come back, or are withdrawn, in any order and with time passing between."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.state = empty_state()
        self.next = 0
        self.running: dict[int, dict[int, int]] = {}
        self.usage = Usage()

    @initialize(fallback=st.sampled_from([Mode.RECOMPUTE, Mode.REMAIN_SUSPENDED, Mode.ABORT]))
    def begin(self, fallback: Mode) -> None:
        self.kept = Suspensions(BlockAllocator(BLOCK, BLOCKS), Tier(TIER, 3, 2), self.usage, fallback)

    @rule(rows=st.integers(1, 14))
    def start(self, rows: int) -> None:
        """A request runs with ``rows`` rows, if there is room."""
        number = self.next
        if self.kept.blocks.grow(number, rows):
            self.next += 1
            self.running[number] = member(number, prompt=rows, computed=rows, committed=rows, resident=rows, emitted=1)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def give_way(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.running)))
        row = self.running.pop(number)
        self.kept.suspend(self.columns(row), PLAN, self.now)
        row = row | {t.SNAPSHOT: row.get(t.SNAPSHOT, 0) + 1, t.EPOCH: row.get(t.EPOCH, 0) + 1, t.READY: 0}
        cells = np.concatenate((table(row).cells, self.state.suspended.cells), axis=1)
        self.state = self.kept.fall_back(self.state._replace(suspended=Table(cells)), [number])
        for ended in self.kept.aborts:
            self.withdraw(ended)
        self.kept.aborts.clear()

    @rule(step=st.integers(0, 60))
    def wait(self, step: int) -> None:
        self.now += step
        self.state = self.kept.due(self.state, self.now)

    @precondition(lambda self: len(self.state.suspended))
    @rule(data=st.data())
    def call_back(self, data: st.DataObject) -> None:
        """As the validator demands: of those whose copy is ready, and with room for it."""
        suspended = self.state.suspended
        ready = ((suspended.preserved > 0) & (suspended.ready == 1)).nonzero()[0]
        if not len(ready):
            return
        at = int(data.draw(st.sampled_from(ready.tolist())))
        rows = int(suspended.preserved[at])
        if self.kept.blocks.held_rows + -(-rows // BLOCK) * BLOCK > BLOCK * BLOCKS:
            return
        self.kept.promote(self.row(at), self.now)
        cells = suspended.cells.copy()
        cells[t.RESIDENT, at], cells[t.READY, at] = rows, 0
        self.state = self.state._replace(suspended=Table(cells))

    @precondition(lambda self: len(self.state.suspended))
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """A ticket exactly if the state says that nothing is missing; asked at any moment, of anybody."""
        suspended = self.state.suspended
        ready = ((suspended.preserved == 0) & (suspended.ready == 1)).nonzero()[0].tolist()
        at = data.draw(st.sampled_from(ready or range(len(suspended))) | st.integers(0, len(suspended) - 1))
        row = self.row(at)
        complete = row[t.READY] == 1 and row[t.PRESERVED] == 0
        held, before = self.kept._live[row[t.HANDLE]], self.usage.tickets
        receipts = list(held.receipts)
        missing = self.missing_facts(row)
        if missing:
            assert not complete
            assert missing <= set(TICKET_CODES)
            assert self.usage.tickets == before
            held.receipts = receipts  # an engine stops here; the machine asks again
            self.kept._live[row[t.HANDLE]] = held
            self.free_what_was_only_tried(row)
            return
        assert complete
        assert self.usage.tickets == before + 1
        assert all(receipt.binding == held.intent.binding for receipt in held.receipts)
        assert {r.kind for r in held.receipts if r.status is Status.READY} >= {"release", "allocation", "placement"}
        rebuilt = self.kept.blocks.grow(row[t.HANDLE], row[t.COMPUTED])
        self.state = self.state._replace(suspended=self.state.suspended.without(np.array([at])))
        self.running[row[t.HANDLE]] = dict(enumerate(row)) | {t.RESIDENT: row[t.COMPUTED] if rebuilt else row[t.RESIDENT]}

    def missing_facts(self, row: list[int]) -> set[str]:
        try:
            self.kept.resume(row)
        except ContractError as error:
            return {problem.code for problem in error.problems}
        return set()

    def free_what_was_only_tried(self, row: list[int]) -> None:
        if row[t.RESIDENT] == 0:
            self.kept.blocks.free(row[t.HANDLE])

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        live = [*self.running, *self.state.suspended.handle.tolist()]
        if live:
            self.withdraw(data.draw(st.sampled_from(live)))

    def withdraw(self, number: int) -> None:
        """Cancellation: whatever is under way for it will be of an earlier generation."""
        before = self.usage.preserved_rows + self.usage.promoted_rows
        self.running.pop(number, None)
        self.state = cancel(self.state, [number], BLOCK)
        self.kept.forget(number)
        self.kept.blocks.free(number)
        assert self.kept.blocks.free(number) == self.kept.tier.drop(number) == 0  # once, and only once
        assert self.usage.preserved_rows + self.usage.promoted_rows == before

    def row(self, at: int) -> list[int]:
        row: list[int] = self.state.suspended.cells[:, at].tolist()
        return row

    @staticmethod
    def columns(row: dict[int, int]) -> list[int]:
        columns: list[int] = table(row).cells[:, 0].tolist()
        return columns

    @invariant()
    def rows_are_conserved(self) -> None:
        suspended = self.state.suspended
        resident = [row[t.RESIDENT] for row in self.running.values()] + suspended.resident.tolist()
        assert self.kept.blocks.held_rows == sum(-(-rows // BLOCK) * BLOCK for rows in resident)
        assert len({block for n in range(self.next) for block in self.kept.blocks.blocks_of(n)}) * BLOCK == self.kept.blocks.held_rows
        assert set(self.kept.tier.held) <= set(suspended.handle.tolist())
        assert self.kept.tier.rows <= TIER
        kept = {n: rows for n, rows in zip(suspended.handle.tolist(), suspended.preserved.tolist(), strict=True) if rows > 0}
        assert all(self.kept.tier.held[n] == rows for n, rows in kept.items())

    @invariant()
    def who_is_refused_stays_where_it_is(self) -> None:
        suspended = self.state.suspended
        refused = suspended.preserved == REFUSED
        assert not (refused & (suspended.ready == 1)).any()
        assert (suspended.resident.compress(refused) > 0).all()


TestSuspensions = SuspensionMachine.TestCase
TestSuspensions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# Blocks


def test_lowest_blocks_go_first_and_come_back_once() -> None:
    blocks = BlockAllocator(4, 3)
    assert blocks.grow(1, 5)
    assert blocks.blocks_of(1) == (0, 1)
    assert blocks.grow(1, 8)
    assert not blocks.grow(1, 13)
    assert blocks.blocks_of(1) == (0, 1)  # a refusal changes nothing
    assert blocks.grow(2, 1)
    assert blocks.held_rows == 12
    assert blocks.free(1) == 8
    assert blocks.free(1) == 0
    assert blocks.grow(3, 1)
    assert blocks.blocks_of(3) == (0,)


def test_a_large_cache_costs_nothing_before_it_is_used() -> None:
    blocks = BlockAllocator(16, 2**40)  # a list of its ids would not fit any memory
    assert blocks.grow(1, 40)
    assert blocks.grow(2, 16)
    blocks.free(1)
    assert blocks.grow(3, 80)
    assert (blocks.blocks_of(2), blocks.blocks_of(3)) == ((3,), (0, 1, 2, 4, 5))
    assert not blocks.grow(4, 16 * 2**40)
    assert blocks.held_rows == 16 * 6


def test_neighbours_can_be_wanted_where_enough_is_free_and_none_are() -> None:
    for contiguous, granted in ((False, True), (True, False)):
        blocks = BlockAllocator(1, 4, contiguous)
        for number in range(4):
            assert blocks.grow(number, 1)
        blocks.free(0)
        blocks.free(2)
        assert blocks.grow(9, 2) is granted
        binding = Binding(8, 0, 0, 1)
        assert blocks.allocate(binding, 1 if contiguous else 3).status is (Status.READY if contiguous else Status.FAILED)
    grows = BlockAllocator(1, 4, contiguous=True)
    assert grows.grow(1, 1)
    assert grows.grow(2, 1)
    assert not grows.grow(1, 2)  # its neighbour is taken
    assert grows.grow(2, 2)


@pytest.mark.parametrize("wrong", [(0, 4), (4, 0)])
def test_an_allocator_has_something_to_give(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockAllocator(*wrong)


# The second tier


def test_transfers_of_a_direction_follow_one_another() -> None:
    tier = Tier(20, write_ns=10, read_ns=1)
    first, second = Binding(1, 0, 0, 1), Binding(2, 0, 0, 1)
    assert tier.preserve(first, 10, now_ns=0).status is Status.INFLIGHT
    assert tier.preserve(second, 5, now_ns=20).status is Status.INFLIGHT
    assert tier.preserve(Binding(3, 0, 0, 1), 6, now_ns=20).status is Status.FAILED
    assert tier.next_ns == 100
    assert [r.binding.request for r in tier.arrived(149)] == [1]
    assert tier.promote(first, now_ns=149).status is Status.INFLIGHT  # the other direction is free
    assert [(r.kind, r.ready_rows) for r in tier.arrived(200)] == [("preservation", 5), ("promotion", 10)]
    assert tier.next_ns is None


def test_nothing_comes_back_of_what_was_given_up() -> None:
    tier = Tier(20, 1, 1)
    binding = Binding(1, 0, 0, 1)
    tier.preserve(binding, 10, now_ns=0)
    assert (tier.drop(1), tier.drop(1), tier.rows) == (10, 0, 0)
    assert tier.promote(binding, now_ns=5).status is Status.FAILED
    assert [r.status for r in tier.arrived(10)] == [Status.READY]  # it still reports; whose it is decides who asked


def test_a_receipt_of_an_earlier_suspension_does_not_serve_a_later_one() -> None:
    """Given up and suspended again before the first copy reports: that report must not release the rows of the second."""
    usage = Usage()
    kept = Suspensions(BlockAllocator(1, 40), Tier(40, 10, 10), usage)
    facts: dict[str, Any] = {"prompt": 5, "computed": 5, "committed": 5, "resident": 5, "emitted": 1}
    kept.blocks.grow(7, 5)
    kept.suspend(SuspensionMachine.columns(member(7, **facts)), PLAN, 0)
    kept.forget(7)
    kept.suspend(SuspensionMachine.columns(member(7, **facts, epoch=1)), PLAN, 10)
    state = empty_state()._replace(suspended=table(member(7, **facts | {"epoch": 2, "snapshot": 1, "ready": 0})), held_rows=5)
    state = kept.due(state, 50)
    assert (usage.stale_receipts, usage.preserved_rows, kept.blocks.held_rows) == (1, 0, 5)
    assert kept.due(state, 100).suspended.preserved.tolist() == [5]
    assert (usage.stale_receipts, usage.preserved_rows, kept.blocks.held_rows) == (1, 5, 0)
