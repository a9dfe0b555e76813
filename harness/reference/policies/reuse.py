"""Reuse of cached prompt beginnings against waiting: greedy by hit, and a quota that keeps unlucky requests alive (seed 0x09A, F62).

What a waiting request could take from a prefix store stands in its ``resident`` rows (the store publishes it); the rest, U = S - H, has to
be computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from harness.reference.contract import IterationPlan, SchedulerState, WorkloadManifest
from harness.reference.passes import SUSPENDED, WAITING, Candidate, Draft, admit_known
from harness.reference.policy import ANY_RULE, Card, Completed, MethodContract, Parameter, Policy
from harness.reference.table import Int64, Table


def hit_percent(waiting: Table) -> Int64:
    """Share of each prompt that is cached, whole percent (n,)."""
    percent: Int64 = 100 * waiting.resident // waiting.prompt
    return percent


class ReuseGreedy(Policy):
    """The greatest cached share comes in first, for ever."""

    engine_rules = ANY_RULE
    card: ClassVar[Card] = Card(
        "reuse-greedy", "1", "largest prefix hit first", "teaching policy of the seed; no paper's algorithm", ("queue_position",),
        MethodContract(
            "admission of a request, token rows of running ones", "request", "cached rows of each waiting prompt, arrival, frontiers",
            "order of admission", "output lengths, arrivals, what the store will hold", "compute as few prompt rows as possible",
            "share of prompt rows not computed", ("cached rows are the prompt's own and available",), ("prefix store", "model execution"),
        ),
        ("a steady stream of hits starves every prompt that shares nothing",),
    )  # fmt: skip

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve who runs; let in by cached share, then arrival."""
        draft = Draft(self, workload, state)
        draft.serve_running()
        if not draft.preempted:
            admit_known(draft, _by_hit(state))
        return draft.finish()


def _by_hit(state: SchedulerState) -> Iterator[Candidate]:
    yield from ((SUSPENDED, at) for at in range(len(state.suspended)))
    waiting = state.waiting
    yield from ((WAITING, at) for at in np.lexsort((waiting.order, -hit_percent(waiting))).tolist())


class PrebleLikeQuota(Policy):
    """Two admissions from the group of high hits, one from the other, in turns; a group without members passes its turn on."""

    engine_rules = ANY_RULE
    card: ClassVar[Card] = Card(
        "preble-like-quota", "1", "Preble's local policy: proportional admission over hit groups",
        "teaching quota of the seed; the paper has more groups and a distributed part", ("queue_position",),
        MethodContract(
            "admission of a request, token rows of running ones", "cache-hit group", "cached share of each waiting prompt, arrival, turn",
            "group of the next admission", "output lengths, arrivals, what the store will hold", "reuse without shutting out the rest",
            "completions by group", ("two groups split at a declared share", "cached rows are the prompt's own and available"),
            ("prefix store", "placement of requests on workers", "model execution"),
        ),
        (
            "not Preble: two groups in fixed turns on one worker",
            "the quota speaks of groups; two clients in one group may be served unequally, and no client bound follows",
        ),
        {
            "high_percent": Parameter(50, "percent", "least cached share of the prompt that counts as a high hit"),
            "high_turns": Parameter(2, "admissions", "turns of the high group in a cycle"),
            "low_turns": Parameter(1, "admissions", "turns of the low group in a cycle"),
        },
    )  # fmt: skip

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve who runs; let in by turns, first come first served within a group."""
        draft = Draft(self, workload, state)
        draft.serve_running()
        if not draft.preempted:
            admit_known(draft, self._turns(state))
        return draft.finish()

    def initial_memory(self) -> int:
        """Turns taken so far."""
        return 0

    def learn(self, workload: WorkloadManifest, state: SchedulerState, done: Completed) -> int:  # noqa: ARG002 - the seam
        """Each admission takes a turn, also one that was passed on."""
        return _taken(state) + len(done.authorized.plan.admit.at)

    def _turns(self, state: SchedulerState) -> Iterator[Candidate]:
        yield from ((SUSPENDED, at) for at in range(len(state.suspended)))
        high = hit_percent(state.waiting) >= self.parameters["high_percent"]
        groups = {True: high.nonzero()[0].tolist()[::-1], False: (~high).nonzero()[0].tolist()[::-1]}
        turn, cycle = _taken(state), self.parameters["high_turns"] + self.parameters["low_turns"]
        while groups[True] or groups[False]:
            wanted = turn % cycle < self.parameters["high_turns"]
            yield WAITING, groups[wanted if groups[wanted] else not wanted].pop()
            turn += 1


def _taken(state: SchedulerState) -> int:
    if not isinstance(state.memory, int):
        raise TypeError(f"memory={type(state.memory).__name__}: not what this policy published")
    return state.memory
