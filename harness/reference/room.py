"""Cache room where a row is not simply a row: whole blocks, promises, and rows that leave for a second tier or come back from it.

Used when the workload declares any of it (``WorkloadManifest.counted``), by the draft that makes a plan and by the validator that replays
the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from harness.reference.admission import estimate_rows, recalled_rows, reservations
from harness.reference.contract import END, IterationPlan, Moves, SchedulerState, WorkloadManifest
from harness.reference.table import COMPUTED, PRESERVED, PROMPT, READY, RESERVED, RESIDENT, Int64, Table, in_blocks, one_in_blocks

COUNTED_CODES: Final = ("reservation_drift", "hard_ceiling", "soft_ceiling", "no_ticket", "nothing_preserved")
"""Every reason for which a plan is refused here."""


def held_after(
    workload: WorkloadManifest, state: SchedulerState, members: Table, at: Int64, ends: Int64, preempt: Moves, admit: Moves, promote: Moves
) -> int:
    """Rows of whole blocks that are held once a plan completes. What is to be preserved is held until its copy is complete."""
    block = workload.budgets.kv_block
    freed = 0 if workload.preserve else _rows(state.running.resident.take(preempt.at), block)
    came = _rows(state.waiting.resident.take(admit.at), block) + _rows(state.suspended.preserved.take(promote.at), block)
    return state.held_rows - freed + came + _rows(ends, block) - _rows(members.resident.take(at), block)


def _rows(counts: Int64, block: int) -> int:
    return int(in_blocks(counts, block).sum()) if len(counts) else 0


def promised_rows(workload: WorkloadManifest, state: SchedulerState) -> int:
    """R of F29: rows set aside for all that run or are on their way back, and rows that are still on the device of those that leave.

    Without a rule that sets anything aside: what they are sure to need for their prompt, their rebuild or their next row.
    """
    block, running, suspended = workload.budgets.kv_block, state.running, state.suspended
    if workload.admission.reserves:
        return int(running.reserved.sum()) + int(np.maximum(suspended.reserved, in_blocks(suspended.resident, block)).sum())
    known = _rows(np.maximum(np.maximum(running.cells[PROMPT], running.cells[COMPUTED]), running.limit), block)
    return known + _rows((suspended.limit * (suspended.resident > 0)), block)


def holds_room(suspended: Table) -> bool:
    """Whether any of them is on the device or on its way there: rows are held back for it too, although nobody runs."""
    return bool(np.count_nonzero(suspended.resident) or np.count_nonzero(suspended.reserved))


class Room:
    """What intervals and candidates of one draft take of the cache.

    ``held``: rows taken before the draft decides anything: promises, or held blocks where nothing is promised. ``coming``: rows on their
    way out, which will be free and are not.
    """

    def __init__(self, workload: WorkloadManifest, state: SchedulerState) -> None:
        self._workload, self._state = workload, state
        self._block, self._rule = workload.budgets.kv_block, workload.admission
        running, suspended = state.running, state.suspended
        self._base = running.reserved if self._rule.reserves else in_blocks(running.resident, self._block)
        self.held = promised_rows(workload, state) if self._rule.reserves else state.held_rows
        leaving = (suspended.cells[READY] == 0) & (suspended.cells[PRESERVED] <= 0)  # or will, once the tier has room for them
        self.coming = _rows(suspended.resident.compress(leaving), self._block) if workload.preserve else 0

    def growth(self, order: Int64, widths: Int64) -> Int64:
        """Rows that intervals of running members take beyond what these have (n,)."""
        ends = self._state.running.resident.take(order) + widths
        rows: Int64 = np.maximum(in_blocks(ends, self._block) - self._base.take(order), 0)
        return rows

    def given_up(self, at: int) -> tuple[int, int]:
        """Rows that are free as soon as a running member gives way, and rows that are free once they are preserved."""
        stays = _rows(self._state.running.resident[at : at + 1], self._block) if self._workload.preserve else 0
        return int(self._base[at]) - stays, stays

    def promised(self, held: int, preempted: list[int]) -> int:
        """Rows promised when the draft holds ``held`` and takes ``preempted`` out."""
        if self._rule.reserves:
            return held
        running = self._state.running
        known = np.maximum(np.maximum(running.cells[PROMPT], running.cells[COMPUTED]), running.limit)
        return promised_rows(self._workload, self._state) - _rows(known.take(preempted), self._block)

    def asks(self, table: Table, at: int, width: int, *, suspended: bool) -> tuple[int, int]:
        """Rows that a candidate must be promised beyond what it has, and rows it takes at once, with an interval of ``width``."""
        resident, preserved, reserved = (int(table.cells[column, at]) for column in (RESIDENT, PRESERVED, RESERVED))
        block = self._block
        end = one_in_blocks(resident + width, block)
        if suspended and resident:  # it is back on the device, and was promised its rows when it was called back
            more = max(end - reserved, 0) if self._rule.reserves else end - one_in_blocks(resident, block)
            return (more if self._rule.reserves else 0), more
        if self._rule.reserves:
            expect = recalled_rows if preserved else estimate_rows
            rows = int(expect(self._rule, self._state.learned, table.take(np.array([at])), block)[0])
            return rows, rows
        if preserved:
            sure = max(int(table.prompt[at]), int(table.computed[at]) + 1)
            return one_in_blocks(sure, block), one_in_blocks(preserved, block)
        return one_in_blocks(int(table.limit[at]), block), end


def counted_problems(workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan, members: Table) -> Iterator[tuple[str, str]]:
    """Code and text of every rule about promises and suspensions that a plan breaks (F28, F29; seed 0x0C)."""
    if workload.preserve or len(plan.promote.at):
        yield from _suspension_problems(state, plan)
    rule, block, called = workload.admission, workload.budgets.kv_block, state.suspended.take(plan.promote.at)
    expected = reservations(rule, state.learned, members, plan.work.at, plan.work.cells[END], block, called)
    if plan.reserve.shape != expected.shape or plan.reserve.tobytes() != expected.tobytes():
        yield "reservation_drift", f"reserve={plan.reserve.T.tolist()}: the rule {rule.rule} gives {expected.T.tolist()}"
    elif rule.reserves:
        yield from _ceilings(workload, state, plan, members)


def _suspension_problems(state: SchedulerState, plan: IterationPlan) -> Iterator[tuple[str, str]]:
    back, called = state.suspended.take(plan.resume.at), state.suspended.take(plan.promote.at)
    wrong = back.handle.compress((back.cells[READY] == 0) | (back.preserved != 0))
    if len(wrong):
        yield "no_ticket", f"resume={wrong.tolist()}: not every fact that they wait for is there"
    wrong = called.handle.compress((called.cells[READY] == 0) | (called.preserved <= 0))
    if len(wrong):
        yield "nothing_preserved", f"promote={wrong.tolist()}: the second tier holds no rows of theirs"


def _ceilings(workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan, members: Table) -> Iterator[tuple[str, str]]:
    limit, gone = workload.budgets, state.running.take(plan.preempt.at)
    stays = _rows(gone.resident, limit.kv_block) if workload.preserve else 0
    before = dict(zip(members.handle.tolist(), members.reserved.tolist(), strict=True))
    had = [before.get(number, 0) for number in plan.reserve[0].tolist()]
    promised = promised_rows(workload, state) - int(gone.reserved.sum()) + stays + int(plan.reserve[2].sum()) - sum(had)
    if promised > limit.kv_capacity:
        yield "hard_ceiling", f"promised={promised}: the ceiling is {limit.kv_capacity} (F29)"
    came = len(plan.resume.at) + len(plan.admit.at) + len(plan.promote.at)
    alone = came == 1 and len(gone) == len(state.running) and not holds_room(state.suspended)
    if 0 in had and not alone and promised > limit.kv_capacity - limit.kv_watermark:
        yield "soft_ceiling", f"promised={promised}: whoever comes in must leave {limit.kv_watermark} rows free (F28)"
