"""The owner of what a scheduler only asks for: blocks, the second tier, promises. Its facts reach the state here.

A plan's intents arrive when it was authorized (``planned``), what came of its rows when they completed (``published``), cancellations
(``cancelled``) and finished transfers (``due``) at a cut. An engine that declares none of this has no owner and pays nothing for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from harness.reference.admission import Admission, Forecaster, ReservationLedger
from harness.reference.blocks import BlockAllocator
from harness.reference.contract import END, OWN_ADMISSION, Authorized, SchedulerState, WorkloadManifest
from harness.reference.resume import Mode
from harness.reference.suspension import Suspensions, Usage
from harness.reference.table import CLIENT, COMPUTED, EMITTED, HANDLE, READY, RESERVED, RESIDENT, in_blocks, one_in_blocks
from harness.reference.tier import Tier
from harness.reference.validate import ContractError, refusal

OWNER_CODES: Final = ("allocation_denied", "no_ticket", "owner_drift")
"""Every reason of its own for which the owner stops an engine whose plans were within contract; missing facts have ``TICKET_CODES``."""


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """What an engine declares of its cache beside the budgets: the admission rule, and a second tier of ``tier_rows`` rows (0: none) at
    ``write_ns`` and ``read_ns`` a row, with what follows when it has no room (``suspension.Suspensions``).
    """

    admission: Admission = OWN_ADMISSION
    tier_rows: int = 0
    write_ns: int = 0
    read_ns: int = 0
    fallback: Mode = Mode.RECOMPUTE

    def owner(self, workload: WorkloadManifest) -> Owner | None:
        """The owner that a workload under these rules needs; None when nothing is there to own."""
        if not workload.counted:
            return None
        return Owner(workload, Tier(self.tier_rows, self.write_ns, self.read_ns) if workload.preserve else None, self.fallback)


NO_RULES: Final = MemoryRules()


class Owner:
    """Facts about one engine's requests. ``tier`` None: preempted rows are free at once and computed again.

    ``fallback``: what follows when the tier has no room (``suspension.Suspensions``).
    """

    def __init__(self, workload: WorkloadManifest, tier: Tier | None = None, fallback: Mode = Mode.RECOMPUTE) -> None:
        budgets = workload.budgets
        self.workload = workload
        self.usage, self.ledger = Usage(), ReservationLedger()
        self.blocks: BlockAllocator | None = None
        self.kept: Suspensions | None = None
        if budgets.kv_block > 1 or tier is not None:
            self.blocks = BlockAllocator(budgets.kv_block, budgets.kv_capacity // budgets.kv_block)
        if tier is not None and self.blocks is not None:
            self.kept = Suspensions(self.blocks, tier, self.usage, fallback)
        self._forecaster = Forecaster(workload.admission) if workload.admission.learns else None

    @property
    def next_ns(self) -> int | None:
        """When the next transfer is done; None when none is under way."""
        return None if self.kept is None else self.kept.tier.next_ns

    def aborts(self) -> list[int]:
        """Requests that are to end because there was no room for their rows; each is named once."""
        if self.kept is None or not self.kept.aborts:
            return []
        out, self.kept.aborts = self.kept.aborts, []
        return out

    def planned(self, state: SchedulerState, authorized: Authorized, now_ns: int) -> None:
        """Act on the intents of a plan before it runs. Raises ContractError with ``OWNER_CODES`` or ``resume.TICKET_CODES``."""
        plan = authorized.plan
        if len(plan.preempt.at):
            self._preempt(state, authorized, now_ns)
        if self.workload.admission.reserves:
            self._promise(authorized)
        if self.kept is not None:
            for row in state.suspended.cells.take(plan.promote.at, axis=1).T.tolist():
                self.kept.promote(row, now_ns)
            for row in state.suspended.cells.take(plan.resume.at, axis=1).T.tolist():
                self.kept.resume(row)
        if self.blocks is not None:
            _allocate(self.blocks, state, authorized)

    def published(self, authorized: Authorized, after: SchedulerState) -> SchedulerState:
        """Settle what ended, and add the facts to the successor state. Raises ContractError ``owner_drift``."""
        for row in after.finished.cells.T.tolist():
            self._ended(row)
        if self._forecaster is not None:
            after = after._replace(learned=self._forecaster.published())
        if self.kept is not None:
            after = self.kept.fall_back(after, authorized.plan.preempt.keys[0].tolist())
        if self.blocks is not None and self.blocks.held_rows != after.held_rows:
            raise ContractError(refusal("owner_drift", f"held_rows={after.held_rows}: blocks of {self.blocks.held_rows} rows are held"))
        return after

    def cancelled(self, numbers: list[int]) -> None:
        """Take everything back from requests that were withdrawn."""
        for number in numbers:
            self.ledger.withdraw(number)
            if self.blocks is not None:
                self.blocks.free(number)
            if self.kept is not None:
                self.kept.forget(number)

    def due(self, state: SchedulerState, now_ns: int) -> SchedulerState:
        """Publish transfers that are done by ``now_ns``."""
        return state if self.kept is None else self.kept.due(state, now_ns)

    def unstick(self, state: SchedulerState) -> SchedulerState | None:
        """Nothing can run in ``state``: what can be done about it, or None."""
        return None if self.kept is None else self.kept.unstick(state)

    def _ended(self, row: list[int]) -> None:
        if self.blocks is not None:
            self.blocks.free(row[HANDLE])
        if not row[EMITTED]:  # declined: nothing was promised, and nothing can be learned of it
            return
        self.ledger.settle(row[HANDLE], one_in_blocks(row[COMPUTED], self.workload.budgets.kv_block))
        if self._forecaster is not None:
            self._forecaster.note(row[CLIENT], row[EMITTED])

    def _preempt(self, state: SchedulerState, authorized: Authorized, now_ns: int) -> None:
        plan, running, budgets = authorized.plan, state.running, self.workload.budgets
        if self.workload.admission.reserves:
            wanted = in_blocks(running.limit, budgets.kv_block) * running.cells[READY]
            self.ledger.breach += max(int(np.maximum(running.cells[RESERVED], wanted).sum()) - budgets.kv_capacity, 0)
        for row in running.cells.take(plan.preempt.at, axis=1).T.tolist():
            if self.kept is not None:
                self.kept.suspend(row, plan, now_ns)
                continue
            self.usage.recompute += 1
            if self.blocks is not None:
                self.blocks.free(row[HANDLE])

    def _promise(self, authorized: Authorized) -> None:
        """Note extensions, which stand first among a plan's promises, then those to newcomers."""
        reserve, members = authorized.plan.reserve, authorized.members
        if not reserve.shape[1]:
            return
        new = len(members) - int(np.count_nonzero(members.reserved)) + len(authorized.plan.promote.at)
        longer = reserve.shape[1] - new
        if longer:
            before = int(members.reserved.compress(np.isin(members.handle, reserve[0, :longer])).sum())
            self.ledger.extend(longer, int(reserve[2, :longer].sum()) - before)
        for number, rows in zip(reserve[0, longer:].tolist(), reserve[2, longer:].tolist(), strict=True):
            self.ledger.promise(number, rows)


def _allocate(blocks: BlockAllocator, state: SchedulerState, authorized: Authorized) -> None:
    """Give each interval, and each request that comes in with rows of the prefix store, its blocks."""
    plan, work = authorized.plan, authorized.plan.work.cells
    asked = [(row[HANDLE], row[RESIDENT]) for row in state.waiting.cells.take(plan.admit.at, axis=1).T.tolist() if row[RESIDENT]]
    crossing = (in_blocks(work[END], blocks.block) > in_blocks(work[RESIDENT], blocks.block)).nonzero()[0]
    asked += zip(work[HANDLE].take(crossing).tolist(), work[END].take(crossing).tolist(), strict=True)
    denied = [number for number, rows in asked if not blocks.grow(number, rows)]
    if denied:
        raise ContractError(refusal("allocation_denied", f"requests={denied}: no blocks are free, although the plan's ledger fits"))
