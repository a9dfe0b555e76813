"""Dealing a plan out to worker processes: sessions undivided, the same requests for every start."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.replay.contract import ReplayPlan
from workloads.schedule import Int64, Ragged


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What one worker replays: a plan of its own, numbered from 0. ``ids`` (m,): what its requests are called in the whole plan.

    ``index`` numbers the workers; ``label`` (``w0``, ...) tells their samples apart and is None when there is only one.
    """

    index: int
    label: str | None
    ids: Int64
    plan: ReplayPlan


def share_out(plan: ReplayPlan) -> list[Share]:
    """Deal the plan to at most ``plan.workers`` workers; a worker that would get nothing is left out, but for the only one."""
    dealt = deal(len(plan.bodies), plan.after, plan.workers)
    dealt = [ids for ids in dealt if len(ids)] or dealt[:1]
    if len(dealt) == 1:
        return [Share(0, None, dealt[0], plan)]
    return [Share(k, f"w{k}", ids, _part(plan, ids, k, len(dealt))) for k, ids in enumerate(dealt)]


def deal(count: int, after: Ragged | None, workers: int) -> list[Int64]:
    """Ids of each worker's requests, ascending. Groups tied by ``after`` stay whole and go round by their smallest id; a request that
    neither waits nor is waited for is a group of its own."""
    _, group = np.unique(groups(count, after), return_inverse=True)
    return [np.flatnonzero(group % workers == k) for k in range(workers)]


def groups(count: int, after: Ragged | None) -> Int64:
    """For each request (n,) the smallest id among those it is tied to, directly or through others."""
    parent = list(range(count))

    def top(request: int) -> int:
        while parent[request] != request:
            parent[request] = request = parent[parent[request]]  # halving the way keeps every later one short
        return request

    for request in range(0 if after is None else count):
        for before in after.row(request).tolist() if after is not None else ():
            low, high = sorted((top(request), top(before)))
            parent[high] = low
    return np.array([top(request) for request in range(count)], dtype=np.int64)


def _part(plan: ReplayPlan, ids: Int64, index: int, of: int) -> ReplayPlan:
    return replace(
        plan,
        arrival_ns=plan.arrival_ns[ids],
        bodies=[plan.bodies[i] for i in ids.tolist()],
        stop_after=plan.stop_after[ids],
        after=None if plan.after is None else _renumbered(plan.after, ids),
        think_ns=None if plan.think_ns is None else plan.think_ns[ids],
        cancel_after_ns=None if plan.cancel_after_ns is None else plan.cancel_after_ns[ids],
        cpus=cores(plan.cpus, index, of),
        spool_cpus=cores(plan.spool_cpus, index, of),
        warm_connections=-(-plan.warm_connections // of),
        workers=1,
    )


def _renumbered(after: Ragged, ids: Int64) -> Ragged:
    """Rows ``ids`` with their values as places in ``ids``; groups are whole, so every value has one."""
    kept = after.take(ids)
    return Ragged(kept.offsets, np.searchsorted(ids, kept.values).astype(np.int64))


def cores(cpus: tuple[int, ...], index: int, of: int) -> tuple[int, ...]:
    """Cores of worker ``index``: an even part of them, or one that it shares when there are fewer cores than workers."""
    if not cpus:
        return ()
    return cpus[index::of] or (cpus[index % len(cpus)],)
