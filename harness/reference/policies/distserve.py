"""Prefill and decode on workers of their own, shaped like DistServe's online part (seed 0x07, 0x0E)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from harness.errors import UsageError
from harness.reference.contract import NO_MOVES, Budgets, IterationPlan, Moves, SchedulerState, WorkloadManifest, moves
from harness.reference.deployment import Pools
from harness.reference.foreign import decode_side, prefill_side
from harness.reference.passes import positions, seal, serve_in_order
from harness.reference.policy import Card, MethodContract, Parameter, Policy
from harness.reference.table import Int64, Phase, Table, join, ones

_DECODE = int(Phase.DECODE)


class DistServeLike(Policy):
    """First come first served in each pool: prompts in the one, decodes in the other, and the rows move between them once."""

    card: ClassVar[Card] = Card(
        "distserve-like-split", "1", "DistServe (OSDI 2024), disaggregated prefill and decode, first come first served in each",
        "paper's contract as read; its placement search is left out", ("phase_rank", "queue_position"),
        MethodContract(
            "phase: one step of the prefill pool, one of the decode pool", "request", "queues of each pool, KV rows of each, readiness",
            "prompt rows of the one pool, decode rows of the other, victims of the decode pool", "output lengths, arrivals",
            "no decode waits behind a prompt: TTFT and TPOT are each one pool's matter",
            "largest rate for each worker at which enough requests meet TTFT and TPOT",
            ("a transfer takes the declared time", "pools step together", "iteration time is linear in rows"),
            ("KV transfer", "placement and parallelism of the pools", "model execution"),
        ),
        (
            "two workers stand where other policies here have one, and budgets count both: compare per worker, or not at all",
            "both pools end their steps together, the longer one decides: a prompt's end is rounded up to the end of a decode step",
            "a prompt piece that takes longer than predicted holds the decodes up; on real workers it would not",
            "a prompt's pieces are slices of one pass: the base cost is charged to the first one only",
            "no placement search, no goodput solver, one worker a pool: nothing of the paper's capacity follows",
            "a decode that loses its rows is computed again in the prefill pool and moves again; the paper does not preempt",
        ),
        {
            "prefill_percent": Parameter(50, "percent", "share of sequences and KV rows that is the prefill pool's"),
            "piece_rows": Parameter(2048, "rows", "most prompt rows of one step"),
            "base_ns": Parameter(4_000_000, "ns", "predicted decode step without rows"),
            "prefill_row_ns": Parameter(20_000, "ns", "predicted for each prompt row"),
            "decode_row_ns": Parameter(100_000, "ns", "predicted for each decode row"),
        },
    )  # fmt: skip

    def __init__(self, **parameters: int) -> None:
        super().__init__(**parameters)
        share = self.parameters["prefill_percent"]
        if share > 99:
            what = f"prefill_percent={share}: leaves nothing for the decode pool"
            raise UsageError.single("policy_parameter", what, "give 99 or less")

    def deployment(self, budgets: Budgets) -> Pools:
        """Split sequences and KV by the declared share; a step may decode for every request of the decode pool."""
        share = self.parameters["prefill_percent"]
        prefills = max(1, budgets.sequences * share // 100)
        decodes = max(1, budgets.sequences - prefills)
        rows = max(1, budgets.tokens - decodes)
        prefill_kv = budgets.kv_capacity * share // 100
        return Pools(rows, prefills, prefill_kv, min(decodes, max(1, budgets.tokens - rows)), budgets.kv_capacity - prefill_kv)

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Step the decode pool, then give the prefill pool what it computes in that time, then let prompts in."""
        pools = workload.deployment
        if not isinstance(pools, Pools):
            raise TypeError(f"deployment={pools}: this policy runs on two pools")
        running = state.running
        decodes, gone = self._decodes(pools, state)
        prompts = (running.phase != _DECODE).nonzero()[0][: pools.prefill_sequences]
        new = self._let_in(workload, pools, state, len(gone))
        if not (len(prompts) or len(new) or len(gone)):
            return seal(self, workload, state, running, decodes, ones(len(decodes)))
        suspended = len(state.suspended)
        preempt = moves(running, gone)
        resume, admit = _moves(state.suspended, new[new < suspended]), _moves(state.waiting, new[new >= suspended] - suspended)
        members = join((running.without(gone), state.suspended.take(resume.at), state.waiting.take(admit.at)))
        kept = len(running) - len(gone)
        where = np.ones(len(running), np.int64)
        where[gone] = 0
        place = where.cumsum() - 1
        queue = np.concatenate((place.take(prompts), np.arange(kept, len(members))))[: pools.prefill_sequences]
        wants = (members.limit - members.resident).take(queue)
        widths = serve_in_order(wants, self._piece(pools, members.resident.take(queue), len(decodes)))
        at = np.concatenate((place.take(decodes), queue.compress(widths > 0)))
        widths = np.concatenate((ones(len(decodes)), widths.compress(widths > 0)))
        return seal(self, workload, state, members, at, widths, preempt, resume, admit)

    def _decodes(self, pools: Pools, state: SchedulerState) -> tuple[Int64, Int64]:
        """Positions that decode, and of those who give way from the tail because the decode pool is full; who is on the way may as well."""
        running = state.running
        there = decode_side(running, state.foreign)
        held = int(running.resident.compress(there).sum())
        decodes = (there & (running.ready == 1)).nonzero()[0][: pools.decode_sequences]
        if held + len(decodes) <= pools.decode_kv:
            return decodes, positions(())
        left, gone, ready = there.nonzero()[0].tolist(), list[int](), running.ready.tolist()
        while left and held + min(sum(ready[at] for at in left), pools.decode_sequences) > pools.decode_kv:
            gone.append(left.pop())
            held -= int(running.resident[gone[-1]])
        return positions([at for at in left if ready[at]][: pools.decode_sequences]), positions(sorted(gone))

    def _let_in(self, workload: WorkloadManifest, pools: Pools, state: SchedulerState, gone: int) -> Int64:
        """Positions among suspended, then waiting requests that come into the prefill pool: all their rows fit beside what is held there.

        Nobody comes in while a decode gives way, as there would be no end to it.
        """
        running = state.running
        here = prefill_side(running)
        held = int(np.maximum(running.limit, running.resident).compress(here & (running.phase != _DECODE)).sum())
        held += int(running.resident.compress(here & (running.phase == _DECODE)).sum())
        places = min(pools.prefill_sequences - int(np.count_nonzero(running.phase != _DECODE)), workload.budgets.sequences - len(running))
        outside = join((state.suspended, state.waiting))
        if gone or places <= 0 or not len(outside):
            return positions(())
        first = outside.ready.nonzero()[0][:places]
        fits = held + outside.limit.take(first).cumsum() <= pools.prefill_kv
        return first[: int(np.count_nonzero(fits))]  # sums ascend, so those that fit are the first ones

    def _piece(self, pools: Pools, starts: Int64, decodes: int) -> int:
        """Prompt rows that the prefill pool is predicted to compute while the decode pool makes its step."""
        ours, most = self.parameters, min(self.parameters["piece_rows"], pools.prefill_tokens)
        if not decodes or not len(starts):
            return most
        step = decodes * ours["decode_row_ns"] + (0 if int(starts[0]) == 0 else ours["base_ns"])
        return min(most, max(1, step // ours["prefill_row_ns"]))


def _moves(table: Table, at: Int64) -> Moves:
    return moves(table, at) if len(at) else NO_MOVES
