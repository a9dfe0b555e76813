"""The four records of the scheduler contract: what a policy may see, what it decides, what execution reports.

Four writers, four records: the workload is declared, the state is published by the transition alone, the plan by a policy, the result by
execution. A plan advances nothing; only a validated, completed result does. Formulas F01-F07, F12-F14, F20-F21. Counts are tokens (rows
of the KV cache), instants and durations ns on the engine's clock.

Inside, records are columnar (``harness.reference.table``). No column holds a realized length, a token id or a physical block: what is not
in the record cannot be read by a policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from harness.reference.admission import NO_RESERVATIONS, Admission, Learned
from harness.reference.deployment import NO_DECLINED, NO_FACTS, NO_LAYERS, NO_REASONS, Deployment, Foreign
from harness.reference.table import (
    ARRIVAL_NS,
    CLIENT,
    COLUMNS,
    GENERATION,
    HANDLE,
    LAST_NS,
    NO_LIMIT,
    ORDER,
    PROMPT,
    READY,
    RESIDENT,
    TBT_NS,
    Int64,
    Phase,
    Table,
    all_ones,
    join,
    pick,
)

OWN_ADMISSION: Final = Admission()


class Declaration(NamedTuple):
    """What a client declared of a request: all that an online policy may ever know of it beside its observed progress.

    ``priority``: lower runs first. ``client`` numbers the tenant. ``ttft_ns``, ``tbt_ns``: declared latency limits, NO_LIMIT for none.
    """

    handle: int
    arrival_order: int
    prompt_tokens: int
    max_output_tokens: int
    priority: int = 0
    client: int = 0
    arrival_ns: int = 0
    ttft_ns: int = NO_LIMIT
    tbt_ns: int = NO_LIMIT
    generation: int = 0


def declared_table(declarations: Sequence[Declaration]) -> Table:
    """Rows of requests that were declared and have not run: nothing computed, nothing emitted, ready."""
    cells = np.zeros((COLUMNS, len(declarations)), np.int64)
    if declarations:
        columns = np.array(declarations, np.int64).T
        cells[HANDLE], cells[ORDER], cells[PROMPT : CLIENT + 1] = columns[0], columns[1], columns[2:6]
        cells[ARRIVAL_NS : TBT_NS + 1] = columns[6:9]
        cells[GENERATION] = columns[9]
    cells[LAST_NS], cells[READY] = -1, 1
    return Table(cells)


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits of one iteration (F05, F06, F20, F21) and of the cache (F28), in tokens and sequences.

    ``kv_watermark`` rows are held back from admission, never from requests that already run. ``kv_block``: rows that the owner of the
    cache gives at a time; every count of held rows is in whole blocks, and none is ever seen.
    """

    tokens: int
    sequences: int
    kv_capacity: int
    kv_watermark: int = 0
    kv_block: int = 1


@dataclass(frozen=True, slots=True)
class WorkloadManifest:
    """The online projection of a workload: declarations and limits, no realized lengths. ``parameters``: the policy's own, by name.

    ``deployment``: a second pool or a second tier that the policy runs on; None for one pool with all KV on the device.
    ``admission``: the engine's rule, which stands above the policy's own. ``preserve``: rows of a preempted request stay on the device
    until a second tier has them, and come back from there; False: they are free at once and computed again. ``counted``: whether any of
    this makes room of the cache more than a count of rows.
    """

    workload_id: str
    clock: str
    policy_id: str
    policy_version: str
    tie_break: tuple[str, ...]
    budgets: Budgets
    requests: tuple[Declaration, ...] = ()
    parameters: tuple[tuple[str, int], ...] = ()
    deployment: Deployment | None = None
    admission: Admission = OWN_ADMISSION
    preserve: bool = False
    counted: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "counted", self.admission.reserves or self.preserve or self.budgets.kv_block > 1)


class SchedulerState(NamedTuple):
    """Everything known at one cut; the four tables partition the live requests, and each member stands in one of them only.

    ``finished`` holds what became terminal in the last transition. ``service`` (2, clients): completed prefill and decode rows of each
    client (F52, F53). ``held_rows``: KV rows resident now, in whole blocks, of running members (a waiting one has a credit at most) and of
    suspended ones that a second tier takes rows from or gives rows back to. ``memory``: what the policy published about its own past (None:
    it has none). ``foreign``: what owners of transfers published, under a ``deployment``. ``declined`` (2, k): handle and reason of those
    declined since the last publication. ``learned``: what outputs of requests that ended say of those to come (None: the admission rule
    does not ask).
    """

    decision_id: int
    state_version: int
    now_ns: int
    running: Table
    suspended: Table
    waiting: Table
    finished: Table
    service: Int64
    held_rows: int = 0
    recomputed_rows: int = 0
    memory: object = None
    foreign: Foreign = NO_FACTS
    declined: Int64 = NO_DECLINED
    learned: Learned | None = None


class Moves(NamedTuple):
    """Members that leave a queue: positions in it (k,), and handle and generation (2, k) as the identity that is meant."""

    at: Int64
    keys: Int64


NO_MOVES: Final = Moves(np.zeros(0, np.int64), np.zeros((2, 0), np.int64))

POSITION, PHASE, END = 5, 6, 7
_DECODE: Final = int(Phase.DECODE)
WORK_COLUMNS: Final = 8


class Work(NamedTuple):
    """Authorized intervals, one a selected request, in packed order.

    ``at`` (n,): positions among the members that may run (``eligible``). ``cells`` (8, n): handle, generation, snapshot, epoch, start,
    local position of the first row, phase, end. Positions of the rows are start, start + 1, ...; the column binds them.
    """

    at: Int64
    cells: Int64

    @property
    def widths(self) -> Int64:
        """Rows of each interval q (F12)."""
        widths: Int64 = self.cells[END] - self.cells[RESIDENT]
        return widths


class Ledger(NamedTuple):
    """What a plan uses: rows (F21), request generations (F20), KV rows resident after it completes."""

    tokens: int
    sequences: int
    kv_rows: int


class IterationPlan(NamedTuple):
    """A policy's decision for one iteration.

    ``order`` (fields, n): the tie-break evidence, one column for each interval, ascending. ``preempt`` leave the running queue (their KV
    is freed before execution; where the workload is to ``preserve``, once a second tier has it), ``resume`` leave the suspended and
    ``admit`` the waiting queue. ``notes``: score inputs kept as evidence.
    ``decline`` leave the waiting queue for good, without any output, each with a reason (k,) of ``deployment.REASONS``. ``layers`` (2, k):
    handle and number of layers to hold on the device, an intent to the tier owner (``deployment.Layered``). ``reserve`` (3, k): handle,
    generation and rows that are set aside from now on, for each request that comes in or outgrows what it has (``admission.reservations``).
    ``promote``: suspended members whose preserved rows are to be brought back; they stay suspended until that is done.
    """

    decision_id: int
    input_state_version: int
    policy_id: str
    policy_version: str
    work: Work
    order: Int64
    ledger: Ledger
    preempt: Moves = NO_MOVES
    resume: Moves = NO_MOVES
    admit: Moves = NO_MOVES
    notes: tuple[tuple[str, int], ...] = ()
    decline: Moves = NO_MOVES
    reasons: Int64 = NO_REASONS
    layers: Int64 = NO_LAYERS
    reserve: Int64 = NO_RESERVATIONS
    promote: Moves = NO_MOVES


PLANNED_END, COMPLETED_END, COMPUTED_BEFORE, EMITTED_BEFORE = range(5, 9)
RESIDENT_AFTER, COMPUTED_AFTER, COMMITTED_AFTER, EMITTED_AFTER, TERMINAL, FAILURE = range(9, 15)
RESULT_COLUMNS: Final = 15


class IterationResult(NamedTuple):
    """Facts of one completed iteration, one column for each planned interval.

    ``rows`` (15, n): identity and start as planned, planned and completed end, clocks before and after, Terminal, failure code (0: none).
    ``tokens`` (n,): ids of emitted tokens, -1 where none; None when execution only counts (virtual time). ``debits`` (2, clients):
    completed semantic service; rebuilt rows are a cost in ``recomputed_rows`` and no service.
    """

    decision_id: int
    input_state_version: int
    rows: Int64
    debits: Int64
    recomputed_rows: int = 0
    tokens: Int64 | None = None


def eligible(state: SchedulerState, preempt: Moves = NO_MOVES, resume: Moves = NO_MOVES, admit: Moves = NO_MOVES) -> Table:
    """Members that may run under a plan's queue intents: the running ones it keeps, then resumed, then admitted."""
    if not (len(preempt.at) or len(resume.at) or len(admit.at)):
        return state.running
    return join((state.running.without(preempt.at), state.suspended.take(resume.at), state.waiting.take(admit.at)))


def credit_rows(state: SchedulerState, admit: Moves) -> int:
    """KV rows that come in with admitted requests: a waiting one's resident rows are a credit, and take room only when it is let in."""
    return int(np.add.reduce(state.waiting.resident.take(admit.at))) if len(admit.at) else 0


def moves(table: Table, at: Int64) -> Moves:
    """Bind positions of a queue to the generations that stand there now."""
    return Moves(at, table.cells[:2].take(at, axis=1)) if len(at) else NO_MOVES


def make_work(members: Table, at: Int64, widths: Int64) -> Work:
    """Intervals of ``widths`` rows for the members at positions ``at``; annotations are derived here."""
    cells = np.empty((WORK_COLUMNS, len(at)), np.int64)
    cells[: RESIDENT + 1] = pick(members, at)[: RESIDENT + 1]
    start = cells[RESIDENT]
    cells[POSITION] = start
    if members.decoding and all_ones(widths):
        cells[PHASE], cells[END] = _DECODE, members.limit.take(at)
    else:
        cells[PHASE] = members.phase.take(at)
        np.add(start, widths, cells[END])
    cells.flags.writeable = False
    return Work(at, cells)


class Authorized(NamedTuple):
    """A plan that passed ``validate.authorize``, the members its positions point to and their columns in plan order.

    The only thing execution takes.
    """

    plan: IterationPlan
    members: Table
    picked: Int64

    @classmethod
    def of(cls, plan: IterationPlan, members: Table) -> Authorized:
        """Bind a plan to its members."""
        return cls(plan, members, pick(members, plan.work.at))
