"""Skip-join multi-level feedback queue shaped like FastServe's Algorithm 1 (seed 0x09A, F54, F55)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from harness.reference.contract import COMPLETED_END, COMPUTED_AFTER, IterationPlan, SchedulerState, WorkloadManifest
from harness.reference.policy import Card, Completed, MethodContract, Parameter, Policy
from harness.reference.ranking import ranked_plan
from harness.reference.table import HANDLE, PROMPT, RESIDENT, Int64, Table, join

HANDLES, LEVEL, SPENT, SINCE_NS, TURN = range(5)


class Levels(NamedTuple):
    """What the queue remembers of each live request: ``jobs`` (5, n), ascending by number.

    Rows: number, level (0 is Q1), rows spent on that level, since when it waits (ns), turn: a running count of when it joined its level,
    so that each level is first in, first out.
    """

    jobs: Int64
    next_turn: int = 0


def skip_join_level(rows: Int64, quanta: Int64) -> Int64:
    """First level whose quantum covers the next iteration's rows (F55); the last level when none does."""
    return np.minimum(np.searchsorted(quanta, rows), len(quanta) - 1)


class FastServeShaped(Policy):
    """Jobs join the first level whose quantum covers their first iteration, sink when it is spent, and rise after a long wait."""

    card: ClassVar[Card] = Card(
        "fastserve-shaped", "1", "FastServe (2023), skip-join MLFQ", "paper, Algorithm 1 as reconstructed by the seed",
        ("mlfq_level", "mlfq_turn"),
        MethodContract(
            "one iteration of a job", "job", "rows of the next iteration, level, rows spent, waiting time", "the highest levels' jobs",
            "output lengths, arrivals", "job completion time: no short job behind a long one", "average and tail job completion time",
            ("quanta double from level to level (F54)", "first iteration profiled: here its rows stand for its time"),
            ("KV swapping", "model execution"),
        ),
        (
            "quanta count rows, not measured time", "the paper swaps KV to host memory; here the worst ranked recomputes",
            "promotion keeps every job alive and bounds no client's share: nothing of VTC's theorem holds",
        ),
        {
            "quantum_rows": Parameter(64, "rows", "quantum of the top level"),
            "levels": Parameter(6, "levels", "number of queues"),
            "promote_ns": Parameter(300_000_000, "ns", "wait after which a job rises to the top (300 ms is the paper's reported default)"),
        },
    )  # fmt: skip

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve levels from the top, each first in, first out."""
        return ranked_plan(self, workload, state)

    def fields(self, workload: WorkloadManifest, state: SchedulerState, members: Table) -> Mapping[str, Int64]:  # noqa: ARG002 - the seam
        """``mlfq_level`` and ``mlfq_turn`` of each member."""
        memory = _levels(state.memory)
        at = np.searchsorted(memory.jobs[HANDLES], members.handle)
        return {"mlfq_level": memory.jobs[LEVEL].take(at), "mlfq_turn": memory.jobs[TURN].take(at)}

    def initial_memory(self) -> Levels:
        """No job yet."""
        return Levels(np.zeros((5, 0), np.int64))

    def observe(self, workload: WorkloadManifest, state: SchedulerState) -> Levels:  # noqa: ARG002 - the seam
        """Jobs that arrived join by skip-join; jobs that are gone are forgotten."""
        jobs, next_turn = _levels(state.memory)
        live = join((state.running, state.suspended, state.waiting))
        jobs = jobs.compress(np.isin(jobs[HANDLES], live.handle), axis=1)
        new = live.take((~np.isin(live.handle, jobs[HANDLES])).nonzero()[0])
        joined = np.zeros((5, len(new)), np.int64)
        joined[HANDLES], joined[LEVEL] = new.handle, skip_join_level(new.limit - new.resident, self._quanta())
        joined[SINCE_NS], joined[TURN] = state.now_ns, next_turn + np.arange(len(new))
        jobs = np.concatenate((jobs, joined), axis=1)
        return Levels(jobs.take(jobs[HANDLES].argsort(), axis=1), next_turn + len(new))

    def learn(self, workload: WorkloadManifest, state: SchedulerState, done: Completed) -> Levels:  # noqa: ARG002 - the seam
        """Charge completed rows, demote who spent the quantum, promote who waited too long (by the cut that just ended)."""
        memory, rows, quanta = _levels(state.memory), done.result.rows, self._quanta()
        jobs = memory.jobs.copy()
        at = np.searchsorted(jobs[HANDLES], rows[HANDLE])
        jobs[SPENT][at] += rows[COMPLETED_END] - rows[RESIDENT]
        jobs[SINCE_NS][at] = done.now_ns
        sinks = at.compress(jobs[SPENT].take(at) >= quanta.take(jobs[LEVEL].take(at)))
        rises = (done.now_ns - jobs[SINCE_NS] >= self.parameters["promote_ns"]).nonzero()[0]
        # The demotion distance looks ahead: a prompt not yet done sinks to a level whose quantum covers what is left of it.
        left = np.zeros(jobs.shape[1], np.int64)
        left[at] = np.maximum(done.authorized.picked[PROMPT] - rows[COMPUTED_AFTER], 1)
        below = np.maximum(jobs[LEVEL].take(sinks) + 1, skip_join_level(left.take(sinks), quanta))
        jobs[LEVEL][sinks] = np.minimum(below, len(quanta) - 1)
        jobs[LEVEL][rises], jobs[SINCE_NS][rises] = 0, done.now_ns
        moved = np.concatenate((sinks, rises))
        jobs[SPENT][moved], jobs[TURN][moved] = 0, memory.next_turn + np.arange(len(moved))
        return Levels(jobs, memory.next_turn + len(moved))

    def _quanta(self) -> Int64:
        return self.parameters["quantum_rows"] << np.arange(self.parameters["levels"], dtype=np.int64)


def _levels(memory: object) -> Levels:
    if not isinstance(memory, Levels):
        raise TypeError(f"memory={type(memory).__name__}: not what this policy published")
    return memory
