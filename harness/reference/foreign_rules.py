"""The validator's part for plans that decline requests, and for those made for two pools or for KV by layers; its codes count with its."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from harness.reference.contract import PHASE, IterationPlan, SchedulerState, WorkloadManifest
from harness.reference.deployment import FACT_DUE_NS, FACT_HANDLE, NOT_MOVING, REASONS, Layered, Pools
from harness.reference.foreign import decode_side, prefill_side
from harness.reference.table import EMITTED, HANDLE, RESIDENT, Int64, Phase, Table

FOREIGN_CODES: Final = (
    "decline_undeclared", "decline_reason", "decline_after_output", "pool_budget", "pool_capacity", "layer_intent", "layer_not_resident",
    "layer_capacity",
)  # fmt: skip
"""Reasons for which a plan is refused on account of a decline or of the deployment."""
_DECODE = int(Phase.DECODE)

Found = Iterator[tuple[str, str]]
"""Code and what is wrong."""


def declines(state: SchedulerState, plan: IterationPlan) -> Found:
    """Hold the declines of a plan against the waiting queue; that they stand where they are said to is checked with all other moves."""
    at, reasons, waiting = plan.decline.at.tolist(), plan.reasons.tolist(), len(state.waiting)
    if len(reasons) != len(at) or not set(reasons) <= REASONS.keys():
        yield "decline_reason", f"decline={at} reasons={reasons}: each needs one of {sorted(REASONS)}"
    both = sorted(set(at) & set(plan.admit.at.tolist()))
    if both:
        yield "duplicate_member", f"decline={at}: {both} are admitted by the same plan"
    if any(0 <= one < waiting and state.waiting.cells[EMITTED, one] for one in at):
        yield "decline_after_output", f"decline={at}: one has emitted already, and what was answered cannot be declined"


def deployed(workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan, members: Table) -> Found:
    """Hold a plan against the pools or the layers that the workload declares."""
    if isinstance(workload.deployment, Pools):
        yield from _pools(workload.deployment, state, plan)
    elif isinstance(workload.deployment, Layered):
        yield from _layers(workload.deployment, workload.budgets.kv_capacity, state, plan, members)
    if plan.layers.shape[1] and not isinstance(workload.deployment, Layered):
        yield "layer_intent", f"layers={plan.layers.T.tolist()}: this workload declares no tier by layers"


def _pools(pools: Pools, state: SchedulerState, plan: IterationPlan) -> Found:
    decode = plan.work.cells[PHASE] == _DECODE
    decodes, widths = int(np.count_nonzero(decode)), plan.work.widths
    rows, prompts = int(widths.sum()) - decodes, len(widths) - decodes
    if rows > pools.prefill_tokens or prompts > pools.prefill_sequences or decodes > pools.decode_sequences:
        limits = f"{pools.prefill_tokens} rows of {pools.prefill_sequences} requests, {pools.decode_sequences} decodes"
        yield "pool_budget", f"prefill={rows} rows of {prompts} requests, decode={decodes}: the pools step {limits}"
    kept = state.running.without(plan.preempt.at)
    credit = int(state.waiting.resident.take(plan.admit.at).sum())
    prefill = int(kept.resident.compress(prefill_side(kept)).sum()) + credit + rows
    decoded = int(kept.resident.compress(decode_side(kept, state.foreign)).sum()) + decodes
    if prefill > pools.prefill_kv or decoded > pools.decode_kv:
        yield "pool_capacity", f"kv_rows={prefill} and {decoded}: the pools hold {pools.prefill_kv} and {pools.decode_kv}"


def _layers(deployment: Layered, capacity: int, state: SchedulerState, plan: IterationPlan, members: Table) -> Found:
    full = deployment.layers
    before = state.foreign.of(members.cells[HANDLE], full)
    wrong = _wrong_intent(full, state, plan, members, before)
    if wrong:
        yield "layer_intent", wrong
        return
    after = before.copy()
    for handle, layers in plan.layers.T.tolist():
        after[members.cells[HANDLE] == handle] = layers
    start, at = plan.work.cells[RESIDENT], plan.work.at
    # A row with history reads that history in every layer; the rows of an interval from 0 on read only what the interval itself writes.
    missing = (start > 0) & ((after.take(at) < full) | (before.take(at) < full))
    if np.count_nonzero(missing):
        who = int(plan.work.cells[HANDLE, missing.argmax()])
        yield "layer_not_resident", f"request={who}: its next rows read all {full} layers, and not all are on the device (F64)"
    rows = members.cells[RESIDENT].copy()
    rows[at] += plan.work.widths
    held = int(rows @ after)
    if held > full * capacity:
        yield "layer_capacity", f"row-layers={held}: the device holds {capacity} rows of {full} layers (F64)"


def _wrong_intent(full: int, state: SchedulerState, plan: IterationPlan, members: Table, before: Int64) -> str:
    """Why the layer intents cannot be meant; empty when they can."""
    handles, wanted = plan.layers
    if len(set(handles.tolist())) != len(handles):
        return f"layers={plan.layers.T.tolist()}: a request is named twice"
    kept = len(state.running) - len(plan.preempt.at)
    whole = dict(zip(plan.work.at.tolist(), (plan.work.cells[RESIDENT] + plan.work.widths).tolist(), strict=True))
    facts = state.foreign.cells
    moving = facts[FACT_HANDLE].compress(facts[FACT_DUE_NS] != NOT_MOVING).tolist()
    for handle, layers in zip(handles.tolist(), wanted.tolist(), strict=True):
        at = (members.cells[HANDLE] == handle).nonzero()[0].tolist()
        if not at or not 0 <= layers <= full:
            return f"layers={handle}:{layers}: no member that may run, or not from 0 to {full}"
        if at[0] >= kept and whole.get(at[0]) != int(members.limit[at[0]]):
            return f"layers={handle}:{layers}: a prompt that keeps some layers only has to be computed whole at once"
        if handle in moving or (at[0] < kept and layers == before[at[0]]):
            return f"layers={handle}:{layers}: its layers are moving, or are as wanted"
    return ""
