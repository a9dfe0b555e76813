"""The only writer of scheduler state: arrivals, cancellations and completed results make the successor; plans alone make nothing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from harness.reference.contract import (
    EMITTED_AFTER,
    EMITTED_BEFORE,
    PLANNED_END,
    RESIDENT_AFTER,
    TERMINAL,
    Authorized,
    IterationPlan,
    IterationResult,
    SchedulerState,
    WorkloadManifest,
    credit_rows,
)
from harness.reference.table import (
    CLIENT,
    COMMITTED,
    EMITTED,
    EMPTY,
    EPOCH,
    GENERATION,
    HANDLE,
    LAST_NS,
    PRESERVED,
    READY,
    RESERVED,
    RESIDENT,
    SNAPSHOT,
    Int64,
    Table,
    all_zero,
    in_blocks,
    is_identity,
    join,
    one_in_blocks,
)

_ONE = np.int64(1)


def initial_state(memory: object = None) -> SchedulerState:
    """Return the state before anything arrived; ``memory`` is the policy's first."""
    return SchedulerState(0, 0, 0, EMPTY, EMPTY, EMPTY, EMPTY, np.zeros((2, 1), np.int64), memory=memory)


def at_time(state: SchedulerState, now_ns: int) -> SchedulerState:
    """The same state read at a later instant."""
    return state if state.now_ns == now_ns else state._replace(now_ns=now_ns)


def arrive(state: SchedulerState, new: Table) -> SchedulerState:
    """Publish new requests at the end of the waiting queue and retire what had finished.

    Handles are never reused, so the newest must be above all that wait. Raises ValueError otherwise.
    """
    handles = new.handle
    last = int(state.waiting.handle[-1]) if len(state.waiting) else -1
    if len(new) and (int(handles[0]) <= last or np.count_nonzero(handles[1:] <= handles[:-1])):
        raise ValueError(f"handles={handles.tolist()}: must ascend beyond {last}, a number is used once")
    service = state.service
    clients = 1 + (int(new.cells[CLIENT].max()) if len(new) else -1)
    if clients > service.shape[1]:
        service = np.concatenate((service, np.zeros((2, clients - service.shape[1]), np.int64)), axis=1)
        service.flags.writeable = False
    return state._replace(state_version=state.state_version + 1, waiting=state.waiting.with_more(new), finished=EMPTY, service=service)


def cancel(state: SchedulerState, handles: Iterable[int], block: int = 1) -> SchedulerState:
    """Publish a terminal successor generation of each live request named; numbers that are not live are ignored (they ended first)."""
    wanted = np.array(sorted(set(handles)), np.int64)
    gone, left = [], []
    for queue in (state.running, state.suspended, state.waiting):
        at = np.isin(queue.handle, wanted).nonzero()[0]
        gone.append(queue.take(at))
        left.append(queue.without(at))
    ended = join(gone)
    return state._replace(
        state_version=state.state_version + 1,
        running=left[0],
        suspended=left[1],
        waiting=left[2],
        finished=_successors(ended),
        # A suspended one takes room while its rows are being preserved or are back; one that waits takes none.
        held_rows=state.held_rows - int(in_blocks(gone[0].resident, block).sum() + in_blocks(gone[1].resident, block).sum()),
    )


def refuse(state: SchedulerState, handles: list[int], reason: int, block: int = 1) -> SchedulerState:
    """End live requests on the server's side: a terminal generation of each, and a word to whoever waits for them."""
    after = cancel(state, handles, block)
    named = np.array((handles, [reason] * len(handles)), np.int64)
    return after._replace(finished=join((state.finished, after.finished)), declined=np.concatenate((state.declined, named), axis=1))


def _successors(ended: Table) -> Table:
    cells = ended.cells.copy()
    cells[GENERATION] += 1
    cells[SNAPSHOT] += 1
    cells[RESIDENT] = 0
    return Table(cells)


def set_ready(state: SchedulerState, handles: Iterable[int], *, ready: bool) -> SchedulerState:
    """Publish that dependencies of requests became ready or unready; a fact of their owner, which no policy writes."""
    wanted = np.array(list(handles), np.int64)

    def changed(queue: Table) -> Table:
        at = np.isin(queue.handle, wanted)
        if not np.count_nonzero(at):
            return queue
        cells = queue.cells.copy()
        cells[READY, at] = ready
        cells[SNAPSHOT, at] += 1
        return Table(cells)

    queues = [changed(queue) for queue in (state.running, state.suspended, state.waiting)]
    return state._replace(state_version=state.state_version + 1, running=queues[0], suspended=queues[1], waiting=queues[2])


def set_reused(state: SchedulerState, handles: Int64, rows: Int64) -> SchedulerState:
    """Publish how many rows (k,) of waiting requests (k,) a prefix store could give now; a fact of its owner, which no policy writes.

    They count as computed, committed and resident, so that the next interval starts behind them, and take KV room when the request is let
    in. A later publication may be lower: blocks can leave the store while a request waits. Raises ValueError for a request that does not
    wait, or rows that are not below its prompt.
    """
    waiting = state.waiting
    at = np.searchsorted(waiting.handle, handles)
    if len(at) and (int(at.max()) >= len(waiting) or np.count_nonzero(waiting.handle.take(at) != handles)):
        raise ValueError(f"handles={handles.tolist()}: not all of them wait")
    if np.count_nonzero((rows < 0) | (rows >= waiting.prompt.take(at))):
        raise ValueError(f"rows={rows.tolist()}: at least the last row of a prompt is computed")
    cells = waiting.cells.copy()
    cells[SNAPSHOT, at] += 1
    cells[RESIDENT : COMMITTED + 1, at] = rows
    return state._replace(state_version=state.state_version + 1, waiting=Table(cells))


def set_suspended(
    state: SchedulerState, handles: Iterable[int], *, resident: int, preserved: int, ready: int = 1, block: int = 1
) -> SchedulerState:
    """Publish what became of the rows of suspended requests: how many are on the device, how many a second tier holds; ``ready``: they may
    move again.

    A fact of the owner of those rows, which no policy writes. The request's own state is what it was, so its snapshot stays: receipts are
    bound to it.
    """
    at = np.isin(state.suspended.handle, np.array(list(handles), np.int64)).nonzero()[0]
    cells = state.suspended.cells.copy()
    freed = int(in_blocks(cells[RESIDENT, at], block).sum()) - len(at) * one_in_blocks(resident, block)
    cells[RESIDENT, at], cells[PRESERVED, at], cells[READY, at] = resident, preserved, ready
    return state._replace(state_version=state.state_version + 1, suspended=Table(cells), held_rows=state.held_rows - freed)


def advance(state: SchedulerState, authorized: Authorized, result: IterationResult, now_ns: int) -> SchedulerState:
    """Return the successor of ``state``: queue intents of the plan, then progress of the completed rows only.

    Plan and result must have been validated. Raises ValueError when either belongs to another state version.
    """
    plan, members = authorized.plan, authorized.members
    if not plan.input_state_version == result.input_state_version == state.state_version:
        raise ValueError(f"input_state_version={plan.input_state_version}: the state is at {state.state_version}")
    cells, added = _progress(members, plan.work.at, result.rows, now_ns)
    running, finished, released = _retire(cells, plan.work.at, result.rows)
    suspended, waiting, declined = state.suspended.without(plan.resume.at), state.waiting.without(plan.admit.at), state.declined
    if len(plan.preempt.at):
        lost = state.running.take(plan.preempt.at)
        released += int(lost.resident.sum())
        suspended = join((_suspended(lost), suspended))
    if len(plan.decline.at):
        waiting, finished, declined = _declined(state, authorized, finished)
    service = state.service
    if result.recomputed_rows == 0 or result.debits.any():
        service = service + result.debits
        service.flags.writeable = False
    return SchedulerState(
        state.decision_id + 1, state.state_version + 1, now_ns, running, suspended, waiting, finished, service,
        state.held_rows + credit_rows(state, plan.admit) + added - released, state.recomputed_rows + result.recomputed_rows, state.memory,
        state.foreign, declined, state.learned,
    )  # fmt: skip


def account(workload: WorkloadManifest, before: SchedulerState, plan: IterationPlan, after: SchedulerState) -> SchedulerState:
    """Add to a successor what ``advance`` does not know of: promises, whole blocks, and rows that stay until they are preserved.

    For workloads that are ``counted``. A preempted member whose rows are to be preserved keeps them and is unready, and so is one that is
    called back: which of it becomes true is for the owner to say.
    """
    running, suspended, block = after.running, after.suspended, workload.budgets.kv_block
    if plan.reserve.shape[1]:
        running, suspended = (_with_promises(queue, plan.reserve) for queue in (running, suspended))
    if len(plan.preempt.at) or len(plan.promote.at):
        cells, gone = suspended.cells.copy(), len(plan.preempt.at)
        cells[RESERVED, :gone] = 0  # advance put them in front
        if workload.preserve:
            cells[RESIDENT, :gone], cells[READY, :gone] = before.running.resident.take(plan.preempt.at)[::-1], 0
        called = np.isin(cells[HANDLE], plan.promote.keys[0])
        cells[RESIDENT, called], cells[READY, called] = cells[PRESERVED, called], 0
        suspended = Table(cells)
    held = int(in_blocks(running.resident, block).sum() + in_blocks(suspended.resident, block).sum())
    return after._replace(running=running, suspended=suspended, held_rows=held)


def _with_promises(queue: Table, reserve: Int64) -> Table:
    sort = reserve[0].argsort()
    at = np.searchsorted(reserve[0], queue.handle, sorter=sort)
    mine = (at < len(sort)).nonzero()[0]
    place = sort.take(at.take(mine))
    same = reserve[0].take(place) == queue.handle.take(mine)
    cells = queue.cells.copy()
    cells[RESERVED, mine.compress(same)] = reserve[2].take(place.compress(same))
    return Table(cells)


def _declined(state: SchedulerState, authorized: Authorized, finished: Table) -> tuple[Table, Table, Int64]:
    """Waiting queue without those let in or declined, the finished with the latter's terminal generation, and who was declined and why."""
    plan = authorized.plan
    lost = _successors(state.waiting.take(plan.decline.at))
    waiting = state.waiting.without(np.sort(np.concatenate((plan.admit.at, plan.decline.at))))
    return waiting, join((finished, lost)), np.concatenate((state.declined, (lost.handle, plan.reasons)), axis=1)


def _progress(members: Table, at: Int64, rows: Int64, now_ns: int) -> tuple[Int64, int]:
    """Columns of the members after the completed rows, and how many KV rows came in."""
    cells = members.cells.copy()
    where = slice(None) if len(at) == len(members) and is_identity(at) else at  # whole columns at once when everybody ran
    cells[SNAPSHOT, where] += _ONE
    cells[RESIDENT : EMITTED + 1, where] = rows[RESIDENT_AFTER : EMITTED_AFTER + 1]
    if members.decoding and rows[RESIDENT_AFTER].tobytes() == rows[PLANNED_END].tobytes():  # one row and one output each
        cells[LAST_NS, where] = now_ns
        return cells, len(at)
    cells[LAST_NS][at.compress(rows[EMITTED_AFTER] > rows[EMITTED_BEFORE])] = now_ns
    return cells, int(np.add.reduce(rows[RESIDENT_AFTER] - rows[RESIDENT]))


def _retire(cells: Int64, at: Int64, rows: Int64) -> tuple[Table, Table, int]:
    if all_zero(rows[TERMINAL]):
        return Table(cells), EMPTY, 0
    gone = at.compress(rows[TERMINAL] > 0)
    keep = np.ones(cells.shape[1], bool)
    keep[gone] = False
    finished = cells.take(gone, axis=1)
    released = int(finished[RESIDENT].sum())
    finished[RESIDENT] = 0
    return Table(cells.compress(keep, axis=1)), Table(finished), released


def _suspended(lost: Table) -> Table:
    # Recompute preemption: the semantic frontiers stay (no token is emitted twice), only the held rows go. The last to be preempted
    # stands first, as each is put in front of the queue.
    cells = lost.cells[:, ::-1].copy()
    cells[SNAPSHOT] += 1
    cells[EPOCH] += 1
    cells[RESIDENT] = 0
    return Table(cells)
