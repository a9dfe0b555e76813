"""The four records of the scheduler contract: what a policy may see, what it decides, what execution reports.

Four writers, four records: the workload is declared, the state is published by the transition alone, the plan by a policy, the result by
execution. A plan advances nothing; only a validated, completed result does. Formulas F01-F07, F12-F14, F20-F21. All counts are tokens
(rows of the KV cache), all instants ns on the engine's clock. Views and work rows are named tuples because a state is rebuilt every
iteration; immutability is the point, speed the reason for the form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Phase(StrEnum):
    """Annotation of an interval, always derived from the frontiers (``phase_of``) and never chosen."""

    PREFILL = "PREFILL_CHUNK"
    DECODE = "DECODE_ROW"
    REBUILD = "REBUILD_CHUNK"
    """Recomputes rows below the semantic frontier after a preemption; emits nothing and debits no service."""


class Key(NamedTuple):
    """Identity that authorizes work: an id alone is not enough, a cancellation publishes the next generation."""

    request_id: str
    generation: int


class Declaration(NamedTuple):
    """What a client declared: all that an online policy may know of a request. ``priority``: lower runs first."""

    request_id: str
    generation: int
    arrival_order: int
    prompt_tokens: int
    max_output_tokens: int
    priority: int = 0
    client: str = ""


class RequestView(NamedTuple):
    """Factual frontiers of one request at a cut.

    ``emitted`` e, ``computed`` c, ``committed`` k (= c at every published cut); ``resident``: rows whose KV is held now, below c only after
    a preemption. ``suspension_epoch`` counts preemptions, so that a receipt of an earlier suspension cannot serve a later one.
    """

    declared: Declaration
    snapshot_version: int = 0
    emitted: int = 0
    computed: int = 0
    committed: int = 0
    resident: int = 0
    ready: bool = True
    terminal: str | None = None
    suspension_epoch: int = 0

    @property
    def key(self) -> Key:
        """Current identity."""
        return Key(self.declared.request_id, self.declared.generation)


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits of one iteration (F05, F06, F20, F21) and of the cache (F28), in tokens and sequences.

    ``kv_watermark`` rows are held back from admission, never from requests that already run.
    """

    tokens: int
    sequences: int
    kv_capacity: int
    kv_watermark: int = 0


@dataclass(frozen=True, slots=True)
class WorkloadManifest:
    """The online projection of a workload: declarations and limits, no realized lengths."""

    workload_id: str
    clock: str
    policy_id: str
    policy_version: str
    tie_break: tuple[str, ...]
    budgets: Budgets
    requests: tuple[Declaration, ...] = ()


class Service(NamedTuple):
    """Completed rows of one client, prefill and decode apart (they may be weighted differently, F52)."""

    prefill_rows: int = 0
    decode_rows: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """Everything known at one cut. Each queue holds request ids; ``views`` has one entry for each of them.

    ``finished`` holds what became terminal in the last transition; the next arrival or cancellation retires it.
    """

    decision_id: int
    state_version: int
    now_ns: int
    waiting: tuple[str, ...]
    running: tuple[str, ...]
    suspended: tuple[str, ...]
    finished: tuple[str, ...]
    views: Mapping[str, RequestView]
    service: Mapping[str, Service]
    recomputed_rows: int = 0


class Work(NamedTuple):
    """One authorized interval [start, end) of one request, bound to the exact snapshot it was planned from."""

    request_id: str
    generation: int
    snapshot_version: int
    suspension_epoch: int
    start: int
    end: int
    phase: Phase
    positions: range

    @property
    def width(self) -> int:
        """Rows of the interval (F12)."""
        return self.end - self.start


class Ledger(NamedTuple):
    """What a plan uses: rows (F21), request generations (F20), KV rows resident after it completes."""

    tokens: int
    sequences: int
    kv_rows: int


OrderKey = tuple[int | str, ...]
"""The values of the declared tie-break for one request, in the declared order."""


@dataclass(frozen=True, slots=True)
class IterationPlan:
    """A policy's decision for one iteration. ``order``: the tie-break evidence, one key for each work row, ascending.

    ``admit`` enter the running queue with this plan, ``preempt`` leave it (their KV is freed before execution).
    """

    decision_id: int
    input_state_version: int
    policy_id: str
    policy_version: str
    work: tuple[Work, ...]
    order: tuple[OrderKey, ...]
    admit: tuple[Key, ...]
    preempt: tuple[Key, ...]
    ledger: Ledger


class Row(NamedTuple):
    """What execution says about one planned interval: how far it got, clocks before and after, token, terminal event, failure."""

    request_id: str
    generation: int
    snapshot_version: int
    start: int
    planned_end: int
    completed_end: int
    emitted_before: int
    emitted_after: int
    computed_before: int
    computed_after: int
    committed_after: int
    resident_after: int
    token: int | None = None
    terminal: str | None = None
    failure: str | None = None


class Debit(NamedTuple):
    """Completed semantic service of one client in one iteration; rebuilt rows are not service."""

    client: str
    prefill_rows: int
    decode_rows: int


@dataclass(frozen=True, slots=True)
class IterationResult:
    """Facts of one completed iteration. ``recomputed_rows``: rebuilt rows, a cost that is no service."""

    decision_id: int
    input_state_version: int
    rows: tuple[Row, ...]
    debits: tuple[Debit, ...]
    recomputed_rows: int = 0


def phase_of(view: RequestView) -> Phase:
    """Derive the phase of the only legal next interval (F01, F03; rebuild when rows are missing below the frontier)."""
    if view.resident < view.computed:
        return Phase.REBUILD
    return Phase.PREFILL if view.computed < view.declared.prompt_tokens else Phase.DECODE


def interval_limit(view: RequestView) -> tuple[int, int]:
    """Start and greatest legal end of the next interval (F02, F04; rebuild: [resident, computed))."""
    if view.resident < view.computed:
        return view.resident, view.computed
    prompt = view.declared.prompt_tokens
    return view.computed, prompt if view.computed < prompt else view.computed + 1


def make_work(view: RequestView, width: int) -> Work:
    """Build the work row of ``width`` rows from the current snapshot; annotations are derived here."""
    start, _ = interval_limit(view)
    declared = view.declared
    return Work(
        declared.request_id, declared.generation, view.snapshot_version, view.suspension_epoch,
        start, start + width, phase_of(view), range(start, start + width),
    )  # fmt: skip


def order_key(tie_break: tuple[str, ...], view: RequestView, *, running: bool) -> OrderKey:
    """Evaluate the declared tie-break for one request. Raises KeyError for a field that is not part of the contract.

    ``phase_rank``: 0 decode, 1 prompt or rebuild rows of a running request, 2 a request that would have to be admitted.
    """
    declared = view.declared
    values: dict[str, int | str] = {
        "phase_rank": 2 if not running else 0 if phase_of(view) is Phase.DECODE else 1,
        "priority_rank": declared.priority,
        "arrival_order": declared.arrival_order,
        "request_id": declared.request_id,
        "request_generation": declared.generation,
    }
    return tuple([values[name] for name in tie_break])


def packed_offsets(plan: IterationPlan) -> tuple[int, ...]:
    """Offsets of each work row in the packed iteration: o_0 = 0, o_(i+1) = o_i + q_i (F13, F14)."""
    offsets = [0]
    for work in plan.work:
        offsets.append(offsets[-1] + work.width)
    return tuple(offsets)


def frozen_map(values: Mapping[str, T]) -> Mapping[str, T]:
    """Return a read-only view of a private copy."""
    return MappingProxyType(dict(values))
