"""Chunked prefill twice: SARATHI's prefill anchor with piggybacked decodes, and Sarathi-Serve's decodes first (seed 0x09)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from harness.reference.contract import IterationPlan, SchedulerState, WorkloadManifest
from harness.reference.passes import Draft, admit_known, admit_reserving, by_priority, least_favoured
from harness.reference.policy import ANY_RULE, BLOCKS, Card, MethodContract, Parameter, Policy
from harness.reference.table import ORDER, PRIORITY, Int64, Phase, Table

_DECODE = int(Phase.DECODE)


class SarathiShaped(Policy):
    """One prefill chunk anchors the batch, decodes ride in the remaining slots. Without a prompt to process, decodes run alone."""

    engine_rules = BLOCKS
    card: ClassVar[Card] = Card(
        "sarathi-shaped", "1", "SARATHI (2023), decode-maximal batching", "paper, batch composition as reconstructed by the seed",
        ("anchor_rank", "arrival_order"),
        MethodContract(
            "prefill chunk and decode rows of one hybrid batch", "request", "frontiers, chunk size, resident batch bound",
            "one anchor chunk and up to B - 1 decode rows", "output lengths", "device utilisation of decodes, offline throughput",
            "end-to-end throughput at a given P:D ratio",
            ("chunk profiled for model and hardware", "resident batch bounded by memory (F50)"), ("KV slots", "fused linear kernels"),
        ),
        (
            "chunk size is a parameter here; the paper profiles it and fits it to tiles",
            "residents are bounded by declared maxima (F50 with each request's own length), so nobody is preempted",
            "no latency objective: nothing about time between tokens follows",
        ),
        {"chunk_rows": Parameter(256, "rows", "prompt rows of the anchor")},
    )  # fmt: skip

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Choose the anchor (a started prompt, else the next to come in), then piggyback decodes in arrival order."""
        draft = Draft(self, workload, state)
        running = state.running
        prefills = (running.phase != _DECODE).nonzero()[0]
        by_age = prefills[running.order.take(prefills).argsort()][:1]
        decodes = (running.phase == _DECODE).nonzero()[0]
        decodes = decodes[running.order.take(decodes).argsort()]
        chunk = min(self.parameters["chunk_rows"], workload.budgets.tokens)
        if len(by_age):
            draft.serve_running(np.concatenate((by_age, decodes)), cap=chunk, victim=None)
            return draft.finish()
        # The anchor comes first: a newcomer takes its chunk, decodes get what is left. Reservations hold whatever the order.
        admit_reserving(draft, draft.queue(), slots=workload.budgets.sequences, limit=1, cap=chunk)
        draft.serve_running(decodes, victim=None)
        return draft.finish()

    def fields(self, workload: WorkloadManifest, state: SchedulerState, members: Table) -> Mapping[str, Int64]:  # noqa: ARG002 - the seam
        """``anchor_rank``: 0 for rows of a prompt or rebuild, 1 for decodes."""
        return {"anchor_rank": (members.phase == _DECODE).astype(np.int64)}


class SarathiServeShaped(Policy):
    """All running decodes, then started prompts, then new ones, within one token budget tau (``budgets.tokens``)."""

    engine_rules = ANY_RULE
    card: ClassVar[Card] = Card(
        "sarathi-serve-shaped", "1", "Sarathi-Serve (OSDI 2024), Algorithm 3", "paper, Algorithm 3 as reconstructed by the seed",
        ("phase_rank", "priority_rank", "arrival_order", "request_id", "request_generation"),
        MethodContract(
            "token rows of one request in one iteration", "request", "frontiers, token budget, KV room",
            "decode rows, then chunks of started prompts, then of new ones", "output lengths, arrivals",
            "no generation stalls behind long prompts", "capacity under a p99 time-between-tokens limit",
            ("tau profiled under the target limit",), ("block allocator", "model execution"),
        ),
        (
            "tau is the declared token budget; it is not profiled here",
            "that decodes are not paused behind a full prompt does not say that no token gap grows",
            "recompute preemption of the least favoured is borrowed from the runtime the paper builds on",
        ),
    )  # fmt: skip

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve by (phase, priority, arrival); let others in unless somebody was preempted."""
        draft = Draft(self, workload, state)
        running = state.running
        order = np.lexsort((running.cells[ORDER], running.cells[PRIORITY], running.phase != _DECODE))
        draft.serve_running(order, victim=least_favoured)
        if not draft.preempted:
            admit_known(draft, by_priority(draft))
        return draft.finish()
