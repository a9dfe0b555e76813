"""Preemption as intents, foreign facts as receipts, and the one way back to running: a resume ticket (seed 0x0C).

A policy writes intents; the owner of a resource writes receipts about it; only the conjunction of current receipts makes a ticket. Every
record is bound by (request, generation, snapshot, suspension epoch): the epoch keeps a receipt of an earlier suspension from serving a
later one whose logical state looks the same. No record here holds a physical block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from harness.errors import Problem
from harness.reference.validate import refusal


class Binding(NamedTuple):
    """The four-part key of a suspension."""

    request: int
    generation: int
    snapshot: int
    epoch: int


class Mode(StrEnum):
    """What a preemption asks for; as a fallback, what follows when preservation fails."""

    PRESERVE_EXACT = "preserve_exact"
    RECOMPUTE = "recompute"
    REMAIN_SUSPENDED = "remain_suspended"
    ABORT = "abort"


class Status(StrEnum):
    """State of a foreign transaction; only READY is a fact to build on."""

    READY = "ready"
    INFLIGHT = "inflight"
    FAILED = "failed"


OWNERS: Final = {
    "release": "allocator", "allocation": "allocator", "preservation": "tier", "promotion": "tier", "layer": "tier",
    "placement": "placement",
}  # fmt: skip
"""Which owner may write a receipt of which kind."""


@dataclass(frozen=True, slots=True)
class PreemptionIntent:
    """A policy's wish; it frees nothing. ``target``: rows below the semantic frontier, T_target = prompt + emitted - 1 while decoding."""

    binding: Binding
    mode: Mode
    fallback: Mode
    target: int
    reason: str
    policy_id: str
    decision_id: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """An owner's fact. ``ready_rows``: exact prefix (preservation), ``reclaimed_rows``: freed rows (release), ``layer``: which one."""

    owner: str
    kind: str
    binding: Binding
    status: Status
    ready_rows: int = 0
    reclaimed_rows: int = 0
    layer: int = -1


@dataclass(frozen=True, slots=True)
class Needs:
    """What this suspension must hear of before it may run again. ``token_history``: the immutable tokens to rebuild from are at hand."""

    promotion: bool = False
    layers: frozenset[int] = frozenset()
    placement: bool = True
    token_history: bool = True


@dataclass(frozen=True, slots=True)
class ResumeTicket:
    """Permission to rebuild [rebuild_start, target) without output or service, then to go on at ``target``."""

    binding: Binding
    rebuild_start: int
    target: int
    receipts: tuple[Receipt, ...]

    @property
    def recompute_rows(self) -> int:
        """Cost of the rebuild, no service: T_target - T_ready."""
        return self.target - self.rebuild_start


TICKET_CODES: Final = (
    "cancelled", "stale_suspension", "release_unready", "allocation_unready", "promotion_unready", "layers_unready", "placement_unready",
    "preservation_unready", "preservation_failed", "no_token_history", "wrong_owner", "ready_frontier", "no_resume",
)  # fmt: skip
"""Every reason for which there is no ticket."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A ticket, or the reasons why there is none; ``stale``: receipts that belong to another suspension and serve cleanup only."""

    ticket: ResumeTicket | None
    problems: tuple[Problem, ...]
    stale: tuple[Receipt, ...]


def derive_ticket(now: Binding, intent: PreemptionIntent, receipts: Sequence[Receipt], needs: Needs, *, cancelled: bool = False) -> Derived:
    """Make the ticket of a suspension if every required fact is there and current.

    ``now``: the request's current binding; a cancellation has published the next generation, and wins whatever arrives later.
    """
    current = tuple(receipt for receipt in receipts if receipt.binding == intent.binding)
    stale = tuple(receipt for receipt in receipts if receipt.binding != now)
    problems = _identity(now, intent, current, cancelled=cancelled)
    problems += _facts(current, needs)
    start, missing = _ready_frontier(intent, current, needs)
    problems += missing
    if problems:
        return Derived(None, tuple(problems), stale)
    return Derived(ResumeTicket(intent.binding, start, intent.target, current), (), stale)


def reclaimed_rows(now: Binding, receipts: Sequence[Receipt]) -> int:
    """KV rows that the scheduler may count as free: what current, successful releases say; an intent or a pending release frees none."""
    mine = [r for r in receipts if r.kind == "release" and r.owner == OWNERS["release"] and r.binding == now]
    return sum(receipt.reclaimed_rows for receipt in mine if receipt.status is Status.READY)


def _identity(now: Binding, intent: PreemptionIntent, current: Sequence[Receipt], *, cancelled: bool) -> list[Problem]:
    problems = []
    if cancelled or now.generation != intent.binding.generation:
        problems.append(
            refusal("cancelled", f"request={now.request}: generation {now.generation} is current, the intent is of an earlier one")
        )
    elif now != intent.binding:
        problems.append(
            refusal("stale_suspension", f"request={now.request}: the intent is of suspension {intent.binding}, current is {now}")
        )
    problems += [
        refusal("wrong_owner", f"{receipt.kind} by {receipt.owner!r}: only {OWNERS.get(receipt.kind)!r} may publish it")
        for receipt in current
        if OWNERS.get(receipt.kind) != receipt.owner
    ]
    return problems


def _facts(current: Sequence[Receipt], needs: Needs) -> list[Problem]:
    ready = {receipt.kind for receipt in current if receipt.status is Status.READY}
    layers = {receipt.layer for receipt in current if receipt.kind == "layer" and receipt.status is Status.READY}
    required = {"release", "allocation"} | ({"promotion"} if needs.promotion else set()) | ({"placement"} if needs.placement else set())
    problems = [refusal(f"{kind}_unready", f"{kind}: no current receipt says ready") for kind in sorted(required - ready)]
    if needs.layers - layers:
        problems.append(refusal("layers_unready", f"layers={sorted(needs.layers - layers)}: not ready"))
    return problems


def _ready_frontier(intent: PreemptionIntent, current: Sequence[Receipt], needs: Needs) -> tuple[int, list[Problem]]:
    """T_ready and why there is none: preserved rows if they came through, else what mode or fallback says."""
    kept = [receipt for receipt in current if receipt.kind == "preservation"]
    ready = [receipt.ready_rows for receipt in kept if receipt.status is Status.READY]
    start, problems = max(ready, default=0), []
    plan = intent.mode
    if plan is Mode.PRESERVE_EXACT and not ready:
        if not any(receipt.status is Status.FAILED for receipt in kept):
            return 0, [refusal("preservation_unready", "preservation: neither ready nor failed yet")]
        plan = intent.fallback
        if plan is Mode.REMAIN_SUSPENDED:
            return 0, [refusal("preservation_failed", f"fallback={plan}: the request stays where it is")]
    if plan in (Mode.ABORT, Mode.REMAIN_SUSPENDED):
        return 0, [refusal("no_resume", f"mode={intent.mode} fallback={intent.fallback}: the request is to end, or to stay where it is")]
    if not 0 <= start <= intent.target:
        problems.append(refusal("ready_frontier", f"ready_rows={start}: must lie within [0, {intent.target}]"))
    if start < intent.target and not needs.token_history:
        problems.append(refusal("no_token_history", f"rebuild of [{start}, {intent.target}): the tokens to rebuild from are not at hand"))
    return start, problems
