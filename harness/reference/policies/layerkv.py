"""Prompts that start with part of their layers on the device, shaped like LayerKV (seed 0x09B, F64)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from harness.errors import UsageError
from harness.reference.contract import Budgets, IterationPlan, SchedulerState, WorkloadManifest
from harness.reference.deployment import FACT_DUE_NS, FACT_HANDLE, FACT_LAYERS, NOT_MOVING, Layered
from harness.reference.foreign import device_rows
from harness.reference.passes import SUSPENDED, WAITING, Candidate, Draft
from harness.reference.policies.slack import deadlines
from harness.reference.policy import Card, MethodContract, Parameter, Policy
from harness.reference.table import RESIDENT, Phase, Table

_DECODE = int(Phase.DECODE)


class Missing(NamedTuple):
    """A running request whose layers are not all on the device: its position, its rows, its layers there."""

    at: int
    handle: int
    rows: int
    layers: int


class LayerKvLike(Policy):
    """Who runs has all its layers on the device; a prompt that finds no room comes in with few of them, and fetches the rest later."""

    reads_limits: ClassVar[bool] = True
    card: ClassVar[Card] = Card(
        "layerkv-like", "1", "LayerKV (2024), layer-wise KV with offload and an admission that looks at decode slack",
        "the seed's layer ledger and readiness rule; the paper's contract from its abstract and secondary notes", ("queue_position",),
        MethodContract(
            "iteration for scheduling, model layer for KV residency", "running requests' gap limits, then waiting prompts",
            "layers of each request on the device, what is moving and until when, row-layers free, gap slack of running decodes",
            "prompts that start now and with how many layers, fetches, layers that leave", "output lengths, arrivals",
            "lower TTFT without breaking gap limits", "mean TTFT, share of requests that miss a limit",
            ("a fetch takes the declared time", "what leaves the device is hidden behind compute and costs nothing", "prompts run whole"),
            ("layer-wise allocator", "offload engine and host memory", "model execution"),
        ),
        (
            "residency is counted (F64: requests x layers x rows), never placed: no block, no bus, no bandwidth shared between transfers",
            "a request decodes when all its layers are back and stays so; the paper moves layers within one iteration",
            "a prompt keeps all its layers or the declared fewest, no length is predicted; slack is a linear model of declared limits",
            "a prompt longer than the token budget leaves comes in with all its layers or not at all, since later pieces read the earlier",
            "what the first token gains the second can lose: the gap while layers are away counts like any other",
            "the paper's text was not read beyond its abstract: nothing of its results follows",
        ),
        {
            "layers": Parameter(32, "layers", "layers of the model"),
            "least_layers": Parameter(4, "layers", "fewest layers on the device with which a prompt starts"),
            "host_percent": Parameter(100, "percent", "rows that the host tier holds, of the device's", least=0),
            "base_ns": Parameter(4_000_000, "ns", "predicted iteration without rows"),
            "prefill_row_ns": Parameter(20_000, "ns", "predicted for each prompt row"),
            "ttft_ns": Parameter(2_000_000_000, "ns", "TTFT limit of requests that declare none"),
            "tbt_ns": Parameter(100_000_000, "ns", "TBT limit of requests that declare none"),
        },
    )  # fmt: skip

    def __init__(self, **parameters: int) -> None:
        super().__init__(**parameters)
        least, layers = self.parameters["least_layers"], self.parameters["layers"]
        if least > layers:
            what = f"least_layers={least}: the model has {layers}"
            raise UsageError.single("policy_parameter", what, "lower it, or declare the model's layers")

    def deployment(self, budgets: Budgets) -> Layered:
        """Layers, and a host tier as large as declared."""
        return Layered(self.parameters["layers"], budgets.kv_capacity * self.parameters["host_percent"] // 100)

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve who has all layers; fetch for the oldest who has not; let prompts in with what is left."""
        tier = workload.deployment
        if not isinstance(tier, Layered):
            raise TypeError(f"deployment={tier}: this policy runs on a tier by layers")
        full, capacity = tier.layers, tier.layers * workload.budgets.kv_capacity
        draft, layers = Draft(self, workload, state), list[tuple[int, int]]()
        waiting, fixed = _missing(state)
        free = capacity - device_rows(tier, state.running, state.foreign)
        missing, free = _give_up(waiting, full * min(_wanted(state.running), draft.tokens_left), free, layers)
        # Decodes and their victims are counted in whole rows, of the device (rounded up) or of both tiers, whichever is shorter.
        held, draft.held = draft.held, max(-((free - capacity) // full), draft.held - tier.host_rows)
        draft.serve_running(victim=lambda _running, left: _tail(left, fixed))
        served = workload.budgets.tokens - draft.tokens_left
        draft.held = held + served
        if not draft.preempted:
            free = _fetch(missing, full, free - full * served, layers, stuck=not served and not _moving(state))
            fetched = sum(kept == full for _, kept in layers)
            self._let_in(draft, tier, state, free, layers, crowded=fetched < len(waiting))
        plan = draft.finish()
        return plan._replace(layers=np.array(layers, np.int64).T) if layers else plan

    def _let_in(
        self, draft: Draft, tier: Layered, state: SchedulerState, free: int, layers: list[tuple[int, int]], *, crowded: bool
    ) -> None:
        """Let prompts in, first come first served, while running decodes have slack for their rows: with all layers, or with the fewest
        where there is no room for all, or where it is owed to older ones (``crowded``).
        """
        full, budgets = tier.layers, draft.workload.budgets
        owed = _owed(state.running)
        host = budgets.kv_capacity + tier.host_rows - draft.held - owed
        free -= full * owed
        slack = self._slack(state)
        for queue, at in _queue(state):
            table = state.waiting if queue == WAITING else state.suspended
            rows = int(table.limit[at])
            if draft.running_after >= budgets.sequences or not draft.tokens_left or not table.ready[at] or rows > host:
                return
            width = min(rows - int(table.resident[at]), draft.tokens_left, max(slack, 0))
            kept = full if not crowded and full * rows <= free else self.parameters["least_layers"]
            if not width or kept * rows > free or (kept < full and width < rows):
                return
            draft.let_in((queue, at), width)
            if kept < full:
                layers.append((int(table.handle[at]), kept))
            free, host, slack = free - kept * rows, host - rows, slack - width

    def _slack(self, state: SchedulerState) -> int:
        """Prompt rows predicted to fit before the next token of the tightest running decode is due (F31, F34)."""
        ours, running = self.parameters, state.running
        decodes = running.take(((running.phase == _DECODE) & (running.ready == 1)).nonzero()[0])
        if not len(decodes):
            return 2**62
        due = int(deadlines(decodes, ours["ttft_ns"], ours["tbt_ns"]).min())
        return (due - state.now_ns - ours["base_ns"]) // ours["prefill_row_ns"]


def _queue(state: SchedulerState) -> Iterator[Candidate]:
    yield from ((SUSPENDED, at) for at in range(len(state.suspended)))
    yield from ((WAITING, at) for at in range(len(state.waiting)))


def _missing(state: SchedulerState) -> tuple[list[Missing], set[int]]:
    """Who waits for layers, oldest first, and the positions of all whose layers are not simply there."""
    cells, running = state.foreign.cells, state.running
    place = {handle: at for at, handle in enumerate(running.handle.tolist())} if cells.shape[1] else {}
    waiting, fixed = [], set()
    for fact in cells.T.tolist():
        at = place[fact[FACT_HANDLE]]
        fixed.add(at)
        if fact[FACT_DUE_NS] == NOT_MOVING:
            waiting.append(Missing(at, fact[FACT_HANDLE], int(running.resident[at]), fact[FACT_LAYERS]))
    return sorted(waiting), fixed


def _tail(left: list[int], fixed: set[int]) -> int:
    """The last of the running queue that has all its layers gives way; the layers of the others are no whole rows to count with."""
    return next(at for at in reversed(left) if at not in fixed)


def _moving(state: SchedulerState) -> bool:
    return bool((state.foreign.cells[FACT_DUE_NS] != NOT_MOVING).any())


def _owed(running: Table) -> int:
    """Rows that running members have still to compute of their prompts and rebuilds."""
    owed = (running.limit - running.cells[RESIDENT]).compress(running.phase != _DECODE)
    return int(owed.sum())


def _wanted(running: Table) -> int:
    """Rows of the next intervals of those that can run."""
    return int(((running.limit - running.cells[RESIDENT]) * running.ready).sum())


def _give_up(missing: list[Missing], need: int, free: int, layers: list[tuple[int, int]]) -> tuple[list[Missing], int]:
    """Take the layers of the youngest of those who wait, until ``need`` row-layers are free: sooner than anybody computes again."""
    left = list(missing)
    while left and free < need:
        one = left.pop()
        if one.layers:
            layers.append((one.handle, 0))
            free += one.layers * one.rows
    return left, free


def _fetch(missing: list[Missing], full: int, free: int, layers: list[tuple[int, int]], *, stuck: bool) -> int:
    """Ask for the layers of the oldest while there is room for all their rows and the next one; return the row-layers left.

    ``stuck``: nobody runs and nothing moves. Then the youngest give up the layers they have until the oldest can be fetched, so that the
    engine never stands still with everybody half resident.
    """
    if stuck and missing:
        for one in reversed(missing[1:]):
            if one.layers and _need(missing[0], full) > free:
                layers.append((one.handle, 0))
                free += one.layers * one.rows
        missing = missing[:1]
    for one in missing:
        if _need(one, full) > free:
            break
        layers.append((one.handle, full))
        free -= _need(one, full)
    return free


def _need(one: Missing, full: int) -> int:
    return (full - one.layers) * one.rows + full
