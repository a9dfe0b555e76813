"""Selection shaped like Algorithm 1 of ORCA (OSDI 2022): arrival order, one iteration at a time, slots reserved by maximum (seed 0x03)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from harness.reference.contract import IterationPlan, SchedulerState, WorkloadManifest
from harness.reference.passes import Draft, admit_reserving
from harness.reference.policy import BLOCKS, Card, MethodContract, Parameter, Policy
from harness.reference.table import ARRIVAL_NS, ORDER


class OrcaShaped(Policy):
    """Requests by arrival; one that starts reserves prompt plus greatest output in ``n_rsrv``; the first that does not fit ends the batch.

    ``n_rsrv`` is no counter of the policy: it is the sum of reservations of the running queue, released with the request.
    """

    engine_rules = BLOCKS
    card: ClassVar[Card] = Card(
        "orca-shaped", "1", "ORCA Algorithm 1, Select", "paper, Algorithm 1 as reconstructed by the seed", ("arrival_order",),
        MethodContract(
            "one model iteration of a request", "request", "arrival times, request states, declared maxima, n_rsrv",
            "batch of the next iteration and n_rsrv", "output lengths, arrivals", "throughput at low latency: early return, late joining",
            "median latency normalised by output length, at equal throughput",
            ("max_tokens bounds prompt plus output", "n_slots KV slots in all", "one batch in flight"), ("KV slots", "selective batching"),
        ),
        (
            "one worker without a pipeline: n_workers batches in flight are not modelled, so a returned request is at once eligible",
            "the paper has no token budget; a prompt longer than what ours leaves runs in pieces",
            "n_rsrv is a scheduler's reservation, not allocated memory",
        ),
        {"max_batch": Parameter(0, "requests", "max_bs of the paper, 0 for the sequence budget", least=0)},
    )  # fmt: skip

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve by arrival; let new requests in until one does not fit (the paper's ``break``: nobody younger overtakes it)."""
        draft = Draft(self, workload, state)
        slots = min(self.parameters["max_batch"] or workload.budgets.sequences, workload.budgets.sequences)
        running = state.running
        draft.serve_running(np.lexsort((running.cells[ORDER], running.cells[ARRIVAL_NS])), victim=None)
        admit_reserving(draft, draft.queue(), slots=slots)
        return draft.finish()
