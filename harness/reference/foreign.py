"""Owners beside the scheduler, simulated: the link between two pools, and the tier that holds layers of KV off the device (F64).

Pure: facts in, facts out. A transfer takes the declared time; until its receipt the request it is for is not ready (0x0C: an intent is no
fact). Receipts are bound to handle and suspension epoch, so that one that comes after a preemption or a cancellation changes nothing.
"""

from __future__ import annotations

import numpy as np

from harness.reference.contract import END, PHASE, Authorized, IterationPlan, SchedulerState, WorkloadManifest
from harness.reference.cost import CostModel
from harness.reference.deployment import (
    FACT_COLUMNS,
    FACT_DUE_NS,
    FACT_EPOCH,
    FACT_HANDLE,
    FACT_LAYERS,
    NO_FACTS,
    NOT_MOVING,
    Foreign,
    Layered,
    Pools,
    Remote,
)
from harness.reference.table import HANDLE, RESIDENT, Bools, Int64, Phase, Table, positions_of
from harness.reference.transition import set_ready

_DECODE = int(Phase.DECODE)


def next_receipt_ns(state: SchedulerState) -> int:
    """Instant of the next receipt; NOT_MOVING when nothing is in flight."""
    return int(state.foreign.cells[FACT_DUE_NS].min(initial=NOT_MOVING))


def receive(workload: WorkloadManifest, costs: CostModel, state: SchedulerState) -> SchedulerState:
    """Publish the receipts that are due at the state's instant, and begin the transfers for which room came free."""
    if isinstance(workload.deployment, Remote):
        return _fetch_prefixes(workload.deployment, costs, state)
    if not state.foreign.cells.shape[1]:
        return state
    state = _forget_lost(state)
    cells = state.foreign.cells
    due = cells[FACT_DUE_NS] <= state.now_ns
    if np.count_nonzero(due):
        state = set_ready(state, cells[FACT_HANDLE].compress(due), ready=True)._replace(foreign=_facts(cells.compress(~due, axis=1)))
    return _pull(workload.deployment, costs, state) if isinstance(workload.deployment, Pools) else state


def set_in_motion(
    workload: WorkloadManifest, costs: CostModel, before: SchedulerState, authorized: Authorized, after: SchedulerState
) -> SchedulerState:
    """Let the owners act on a completed plan: hand over who has all rows (Pools), keep, drop or fetch layers (Layered)."""
    if isinstance(workload.deployment, Pools):
        after = _hand_over(authorized, after)
    elif isinstance(workload.deployment, Layered) and authorized.plan.layers.shape[1]:
        after = _move_layers(workload.deployment, costs, before, authorized.plan, after)
    return receive(workload, costs, after)


def _fetch_prefixes(remote: Remote, costs: CostModel, state: SchedulerState) -> SchedulerState:
    """Fetch what waiting requests can take from a store elsewhere: that rows are known to be there makes no request ready (0x0C)."""
    cells = state.foreign.cells
    if not (cells.shape[1] or np.count_nonzero(state.waiting.resident[: remote.looked_at])):
        return state
    first = state.waiting.take(positions_of(state.waiting)[: remote.looked_at])
    cells = cells.compress(np.isin(cells[FACT_HANDLE], first.handle), axis=1).copy()
    arrived = cells[FACT_DUE_NS] <= state.now_ns
    cells[FACT_DUE_NS, arrived] = NOT_MOVING
    have = Foreign(cells[:, cells[FACT_DUE_NS] == NOT_MOVING]).of(first.handle, 0)
    moving = np.isin(first.handle, cells[FACT_HANDLE, cells[FACT_DUE_NS] != NOT_MOVING])
    missing = ((first.resident > have) & ~moving).nonzero()[0]
    if not (len(missing) or np.count_nonzero(arrived) or cells.shape[1] < state.foreign.cells.shape[1]):
        return state
    wanted, ready = first.handle.take(missing), cells[FACT_HANDLE].compress(arrived)
    new = np.empty((FACT_COLUMNS, len(missing)), np.int64)
    new[FACT_HANDLE], new[FACT_EPOCH], new[FACT_LAYERS] = wanted, first.epoch.take(missing), first.resident.take(missing)
    rows = first.resident.take(missing) - have.take(missing)
    new[FACT_DUE_NS] = state.now_ns + costs.transfer_base_ns + rows * costs.transfer_row_ns
    kept = cells.compress(~np.isin(cells[FACT_HANDLE], wanted), axis=1)
    state = set_ready(state, np.setdiff1d(ready, wanted), ready=True)
    return set_ready(state, wanted, ready=False)._replace(foreign=_facts(np.concatenate((kept, new), axis=1)))


def device_rows(deployment: Layered, members: Table, facts: Foreign) -> int:
    """M_GPU of F64 in rows of one layer: the sum of resident rows over requests and over the layers of each that are on the device."""
    return int(members.cells[RESIDENT] @ facts.of(members.cells[HANDLE], deployment.layers))


def held_on_device(workload: WorkloadManifest, state: SchedulerState) -> int:
    """KV rows that take room on the device: of all layers, rounded up, where the layers of a request may be apart."""
    if not isinstance(workload.deployment, Layered):
        return state.held_rows
    return -(-device_rows(workload.deployment, state.running, state.foreign) // workload.deployment.layers)


def price_ns(workload: WorkloadManifest, costs: CostModel, plan: IterationPlan) -> int:
    """Duration of one iteration. Two pools step at once, so the longer one decides.

    A prompt's base is paid by the step that computes its first row: its pieces are slices of one forward pass on a worker that runs nothing
    else. One that begins behind rows of the prefix store is charged none.
    """
    if not isinstance(workload.deployment, Pools) or not len(plan.work.at):
        return costs.cost_ns(plan)
    cells, widths = plan.work.cells, plan.work.widths
    decode = cells[PHASE] == _DECODE
    read = np.where(decode, cells[END], 0).sum(), np.where(decode, 0, cells[END]).sum()
    decodes, begun = int(np.count_nonzero(decode)), np.count_nonzero(~decode & (cells[RESIDENT] == 0))
    step = bool(decodes) * costs.base_ns + decodes * costs.decode_row_ns + int(read[0]) * costs.context_token_ns
    prompt = bool(begun) * costs.base_ns + (int(widths.sum()) - decodes) * costs.prefill_token_ns + int(read[1]) * costs.context_token_ns
    return max(step, prompt, 1)


def _facts(cells: Int64) -> Foreign:
    cells.flags.writeable = False
    return Foreign(cells) if cells.shape[1] else NO_FACTS


def _with_more(facts: Foreign, running: Table, at: Int64, layers: int | Int64) -> Foreign:
    new = np.empty((FACT_COLUMNS, len(at)), np.int64)
    new[FACT_HANDLE], new[FACT_EPOCH] = running.handle.take(at), running.epoch.take(at)
    new[FACT_LAYERS], new[FACT_DUE_NS] = layers, NOT_MOVING
    return _facts(np.concatenate((facts.cells, new), axis=1))


def _forget_lost(state: SchedulerState) -> SchedulerState:
    """Drop facts about who was cancelled, finished or preempted. One that waits to rebuild everything waits for no transfer."""
    cells, running = state.foreign.cells, state.running
    same = (cells[FACT_HANDLE][:, None] == running.handle) & (cells[FACT_EPOCH][:, None] == running.epoch)
    kept = same.any(axis=1)
    if np.count_nonzero(kept) == cells.shape[1]:
        return state
    lost = cells[FACT_HANDLE].compress(~kept)
    state = state._replace(foreign=_facts(cells.compress(kept, axis=1)))
    return set_ready(state, lost, ready=True) if np.isin(state.suspended.handle, lost).any() else state


def _hand_over(authorized: Authorized, after: SchedulerState) -> SchedulerState:
    """Make those unready whose last prompt or rebuild row was just computed: their rows are in the other pool."""
    work, running = authorized.plan.work.cells, after.running
    filled = work[HANDLE].compress(work[PHASE] != _DECODE)
    if not len(filled):
        return after
    at = (np.isin(running.handle, filled) & (running.phase == _DECODE)).nonzero()[0]
    if not len(at):
        return after
    handles = running.handle.take(at)
    return set_ready(after, handles, ready=False)._replace(foreign=_with_more(after.foreign, running, at, 0))


def in_flight(members: Table, facts: Foreign) -> Bools:
    """Which members have a transfer under way (n,)."""
    if not facts.cells.shape[1]:
        return np.zeros(len(members), bool)
    moving = facts.cells[FACT_HANDLE].compress(facts.cells[FACT_DUE_NS] != NOT_MOVING)
    found: Bools = np.isin(members.handle, moving)
    return found


def decode_side(members: Table, facts: Foreign) -> Bools:
    """Which members hold rows in the decode pool (n,): who decodes there, and who is on the way."""
    found: Bools = (members.phase == _DECODE) & ((members.ready == 1) | in_flight(members, facts))
    return found


def prefill_side(members: Table) -> Bools:
    """Which members hold rows in the prefill pool (n,): who computes prompt or rebuild rows, and who has not arrived elsewhere."""
    found: Bools = (members.phase != _DECODE) | (members.ready == 0)
    return found


def _pull(pools: Pools, costs: CostModel, state: SchedulerState) -> SchedulerState:
    """Begin transfers in the order of handing over while the decode pool has room for the rows and the next one."""
    cells, running = state.foreign.cells, state.running
    waiting = (cells[FACT_DUE_NS] == NOT_MOVING).nonzero()[0]
    if not len(waiting):
        return state
    held = int(running.resident.compress(decode_side(running, state.foreign)).sum())
    rows = dict(zip(running.handle.tolist(), running.resident.tolist(), strict=True))
    cells = cells.copy()
    for at in waiting.tolist():
        need = rows[int(cells[FACT_HANDLE, at])]
        if held + need + 1 > pools.decode_kv:
            break
        held += need
        cells[FACT_DUE_NS, at] = state.now_ns + costs.transfer_base_ns + need * costs.transfer_row_ns
    return state._replace(foreign=_facts(cells))


def _move_layers(
    deployment: Layered, costs: CostModel, before: SchedulerState, plan: IterationPlan, after: SchedulerState
) -> SchedulerState:
    """Execute a plan's layer intents. A fetch began when the plan was made; what leaves the device costs nothing, hidden behind compute."""
    full, running = deployment.layers, after.running
    for handle, layers in plan.layers.T.tolist():
        at = (running.handle == handle).nonzero()[0]
        if not len(at):
            continue  # it ended with this very iteration
        held = int(after.foreign.of(running.handle.take(at), full)[0])
        cells = after.foreign.cells
        cells = cells.compress(cells[FACT_HANDLE] != handle, axis=1)
        facts = _with_more(_facts(cells), running, at, layers)
        if layers == full:
            moved = int(running.resident[at[0]]) * (full - held)
            cells = facts.cells.copy()
            cells[FACT_DUE_NS, -1] = before.now_ns + costs.transfer_base_ns - (-moved * costs.transfer_row_ns // full)
            facts = _facts(cells)
        after = after._replace(foreign=facts)
    missing = after.foreign.cells[FACT_HANDLE]
    return set_ready(after, missing, ready=False) if len(missing) else after
