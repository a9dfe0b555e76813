"""Suspended requests whose rows are kept in a second tier: intents come in, facts go out, and only a ticket leads back to running (0x0C).

What a preemption asks for is no fact until a receipt says so. Rows count as free when the copy is complete and the allocator has released
them, and a request runs again when everything it needs has been heard of under the binding of this very suspension.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from harness.reference.blocks import BlockAllocator
from harness.reference.contract import IterationPlan, SchedulerState
from harness.reference.resume import OWNERS, Binding, Mode, Needs, PreemptionIntent, Receipt, Status, derive_ticket
from harness.reference.table import COMPUTED, EPOCH, GENERATION, HANDLE, PRESERVED, RESIDENT, SNAPSHOT
from harness.reference.tier import WRITE, Tier
from harness.reference.transition import set_suspended
from harness.reference.validate import ContractError, refusal, require

FALLBACKS: Final = (Mode.RECOMPUTE, Mode.REMAIN_SUSPENDED, Mode.ABORT)
"""What may follow when the tier has no room."""
NO_ROOM: Final = -1
"""Reason for which a request is ended here; no policy may give it."""
REFUSED: Final = -1
"""Preserved rows of a suspended request for which the tier had no room: what it holds stays on the device."""


@dataclass(slots=True)
class Suspension:
    """One stay outside the running queue: the intent, the rows it began with, the receipts so far, and what it still needs."""

    intent: PreemptionIntent
    rows: int
    receipts: list[Receipt] = field(default_factory=list)
    needs: Needs = field(default_factory=Needs)

    @property
    def failed(self) -> bool:
        """Whether preservation was refused."""
        return any(r.kind == WRITE and r.status is Status.FAILED for r in self.receipts)


@dataclass(slots=True)
class Usage:
    """Preemptions by what came of them, and what that cost, since the start; rows are K/V rows.

    ``failed``: preservations that the tier refused. ``stale_receipts``: facts about suspensions that were over when they came.
    """

    recompute: int = 0
    preserve: int = 0
    abort: int = 0
    failed: int = 0
    preserved_rows: int = 0
    promoted_rows: int = 0
    tickets: int = 0
    stale_receipts: int = 0


class Suspensions:
    """All requests that gave way under preservation.

    ``fallback``, when the tier has no room: RECOMPUTE, REMAIN_SUSPENDED (the rows stay where they are, and it is tried again at every cut;
    when nothing moves any more, one is computed again after all) or ABORT (the request ends).
    """

    def __init__(self, blocks: BlockAllocator, tier: Tier, usage: Usage, fallback: Mode = Mode.RECOMPUTE) -> None:
        self.blocks, self.tier, self.usage, self.fallback = blocks, tier, usage, fallback
        self.aborts: list[int] = []
        self._live: dict[int, Suspension] = {}

    def suspend(self, row: list[int], plan: IterationPlan, now_ns: int) -> None:
        """Begin the suspension of a member of the running queue (its columns before the plan)."""
        binding = Binding(row[HANDLE], row[GENERATION], row[SNAPSHOT] + 1, row[EPOCH] + 1)
        mode = Mode.PRESERVE_EXACT if row[RESIDENT] else Mode.RECOMPUTE  # of nothing there is no copy
        intent = PreemptionIntent(binding, mode, self.fallback, row[COMPUTED], "kv_short", plan.policy_id, plan.decision_id)
        held = self._live[binding.request] = Suspension(intent, row[RESIDENT])
        if mode is Mode.PRESERVE_EXACT:
            held.receipts.append(self.tier.preserve(binding, row[RESIDENT], now_ns))
            self.usage.failed += held.failed
            self.usage.preserve += not held.failed

    def fall_back(self, after: SchedulerState, numbers: list[int]) -> SchedulerState:
        """Release at once what is to be computed again; note who is to end."""
        again = []
        for number in numbers:
            held = self._live[number]
            if held.intent.mode is Mode.RECOMPUTE or (held.failed and self.fallback is Mode.RECOMPUTE):
                again.append(number)
            elif held.failed and self.fallback is Mode.ABORT:
                self.usage.abort += 1
                self.aborts.append(number)
            elif held.failed:
                after = self._told(after, number, resident=held.rows, preserved=REFUSED, ready=0)
        for number in again:
            after = self._recompute(after, number)
        return after

    def promote(self, row: list[int], now_ns: int) -> None:
        """Take room for the preserved rows of a suspended member and begin to bring them back."""
        held = self._live[row[HANDLE]]
        binding = held.intent.binding
        held.receipts += [self.blocks.allocate(binding, row[PRESERVED]), self.tier.promote(binding, now_ns)]

    def resume(self, row: list[int]) -> None:
        """Derive the ticket of a suspended member. Raises ContractError with every fact that is missing, or ``no_ticket``."""
        held = self._live.pop(row[HANDLE])
        binding = held.intent.binding
        if not held.needs.promotion:
            held.receipts.append(self.blocks.allocate(binding, row[RESIDENT]))
        held.receipts.append(Receipt(OWNERS["placement"], "placement", binding, Status.READY))  # there is one worker
        derived = derive_ticket(_binding(row), held.intent, held.receipts, held.needs)
        require(list(derived.problems))
        if derived.ticket is None or derived.ticket.rebuild_start != row[RESIDENT]:
            raise ContractError(refusal("no_ticket", f"request={binding.request}: the ticket does not rebuild from {row[RESIDENT]}"))
        self.usage.tickets += 1

    def forget(self, number: int) -> None:
        """A request was withdrawn: its copy is given up, and what is still under way for it will come too late to count."""
        self._live.pop(number, None)
        self.tier.drop(number)

    def due(self, state: SchedulerState, now_ns: int) -> SchedulerState:
        """Publish transfers that are done by ``now_ns``, and try again what the tier had no room for."""
        for receipt in self.tier.arrived(now_ns):
            held = self._live.get(receipt.binding.request)
            if held is None or held.intent.binding != receipt.binding:
                self.usage.stale_receipts += 1
            elif receipt.kind == WRITE:
                state = self._preserved(state, held, receipt)
            else:
                state = self._promoted(state, held, receipt)
        return self._retry(state, now_ns)

    def _preserved(self, state: SchedulerState, held: Suspension, receipt: Receipt) -> SchedulerState:
        held.receipts += [receipt, self.blocks.release(receipt.binding)]
        held.needs = Needs(promotion=True)
        self.usage.preserved_rows += receipt.ready_rows
        return self._told(state, receipt.binding.request, resident=0, preserved=receipt.ready_rows)

    def _promoted(self, state: SchedulerState, held: Suspension, receipt: Receipt) -> SchedulerState:
        held.receipts.append(receipt)
        self.tier.drop(receipt.binding.request)
        self.usage.promoted_rows += receipt.ready_rows
        return self._told(state, receipt.binding.request, resident=receipt.ready_rows, preserved=0)

    def _recompute(self, state: SchedulerState, number: int) -> SchedulerState:
        held = self._live[number]
        held.receipts.append(self.blocks.release(held.intent.binding))
        self.usage.recompute += 1
        return self._told(state, number, resident=0, preserved=0)

    def unstick(self, state: SchedulerState) -> SchedulerState | None:
        """Nothing can run: have the request that stays longest for want of room computed again after all. None when there is none, or a
        transfer is under way that may change more.
        """
        stuck = self._stuck()
        if not stuck or self.tier.next_ns is not None:
            return None
        held = self._live[stuck[0]]
        held.intent, held.receipts = replace(held.intent, mode=Mode.RECOMPUTE, fallback=Mode.RECOMPUTE), []
        return self._recompute(state, stuck[0])

    def _stuck(self) -> list[int]:
        return [number for number, held in self._live.items() if held.failed] if self.fallback is Mode.REMAIN_SUSPENDED else []

    def _retry(self, state: SchedulerState, now_ns: int) -> SchedulerState:
        for number in self._stuck():
            held = self._live[number]
            receipt = self.tier.preserve(held.intent.binding, held.rows, now_ns)
            if receipt.status is Status.INFLIGHT:
                held.receipts = [receipt]
                self.usage.preserve += 1
                state = self._told(state, number, resident=held.rows, preserved=0, ready=0)
        return state

    def _told(self, state: SchedulerState, number: int, *, resident: int, preserved: int, ready: int = 1) -> SchedulerState:
        return set_suspended(state, (number,), resident=resident, preserved=preserved, ready=ready, block=self.blocks.block)


def _binding(row: list[int]) -> Binding:
    return Binding(row[HANDLE], row[GENERATION], row[SNAPSHOT], row[EPOCH])
