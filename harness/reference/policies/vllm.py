"""Continuous batching shaped like pinned vLLM v0.23.0: running pass, waiting pass, recompute preemption (seed 0x09, 0x0D)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from harness.reference.contract import IterationPlan, SchedulerState, WorkloadManifest
from harness.reference.passes import Candidate, Draft, Victim, admit_known, by_priority, least_favoured, tail
from harness.reference.policy import ANY_RULE, Card, MethodContract, Parameter, Policy

_CONTRACT = MethodContract(
    granularity="token rows of one request in one iteration; no scheduler-level phases",
    identity="request",
    visible_state="computed and target frontiers, running and waiting queue, token, sequence and KV budget, readiness of remote KV",
    decision="rows for running requests in queue order, then admissions; victims when the cache is short",
    unknown_future="output lengths, arrivals",
    objective="keep the running queue moving within the budgets; admit first come first served or by priority",
    metric="none is optimised; the source states no objective",
    assumptions=("one worker", "KV counted in rows, or in whole blocks where the engine declares them", "a request fits the cache alone"),
    foreign_owners=("block allocator", "prefix cache", "remote KV connector", "model execution"),
)
_LIMITS = (
    "shaped like the pinned source, not a replay of it: blocks and a prefix store only as declared, no LoRA, encoder or speculative rows",
    "one that waits for remote rows takes no room before it is let in; the source allocates first",
    "rebuilt rows are intervals of their own; a resumed request decodes in the iteration after its rebuild",
    "nothing about latency, throughput or any other release of vLLM follows",
)
_PARAMETERS = {"long_prefill_rows": Parameter(0, "rows", "greatest interval of one request in an iteration, 0 for no cap", least=0)}
_BASIS = "vLLM tag v0.23.0 (0fc695f), v1/core/sched/scheduler.py as traced by the seed; decision shape only"


class VllmShapedFcfs(Policy):
    """Running requests in queue order, the tail gives way when the cache is short; then, unless one gave way, first come first served."""

    engine_rules = ANY_RULE
    card: ClassVar[Card] = Card(
        "vllm-shaped-fcfs", "2", "vLLM V1 scheduler v0.23.0, policy fcfs", _BASIS, ("queue_position",), _CONTRACT,
        (*_LIMITS, "first come first served bounds no waiting time under overload"), _PARAMETERS,
    )  # fmt: skip
    victim: Victim = staticmethod(tail)

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve running requests, then let others in unless one was preempted."""
        draft = Draft(self, workload, state)
        cap = self.parameters["long_prefill_rows"]
        draft.serve_running(cap=cap, victim=self.victim)
        if not draft.preempted:
            admit_known(draft, self.candidates(draft), cap=cap)
        return draft.finish()

    def candidates(self, draft: Draft) -> Iterable[Candidate]:
        """Who may come in, in order; lazily, because most iterations ask for nobody."""
        return draft.queue()


class VllmShapedPriority(VllmShapedFcfs):
    """As ``vllm-shaped-fcfs``, but the least favoured (greatest priority number, then latest) gives way and the most favoured comes in."""

    card: ClassVar[Card] = Card(
        "vllm-shaped-priority", "1", "vLLM V1 scheduler v0.23.0, policy priority", _BASIS, ("queue_position",), _CONTRACT,
        (*_LIMITS, "a steady stream of favoured requests starves the others"), _PARAMETERS,
    )  # fmt: skip
    victim: Victim = staticmethod(least_favoured)

    def candidates(self, draft: Draft) -> Iterable[Candidate]:
        """Suspended and waiting requests by (priority, arrival order)."""
        return by_priority(draft)
