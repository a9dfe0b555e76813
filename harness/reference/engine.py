"""The time-free core: one iteration is decide, execute, advance. The server runs it in real time, tests and simulation in virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from harness.reference.contract import (
    Budgets,
    Declaration,
    IterationPlan,
    IterationResult,
    Phase,
    RequestView,
    Row,
    SchedulerState,
    Work,
    WorkloadManifest,
)
from harness.reference.cost import CostModel
from harness.reference.policy import Policy
from harness.reference.tokens import Truth
from harness.reference.transition import advance, arrive, cancel, initial_state
from harness.reference.validate import require, service_of, validate_plan, validate_result


class Step(NamedTuple):
    """One iteration: what was planned, what came of it, how long it took, and the state after it."""

    plan: IterationPlan
    result: IterationResult
    cost_ns: int
    state: SchedulerState


@dataclass(frozen=True, slots=True)
class Core:
    """Workload, policy and cost model: everything that is fixed while the engine lives."""

    workload: WorkloadManifest
    policy: Policy
    costs: CostModel

    def decide(self, state: SchedulerState) -> tuple[IterationPlan, int]:
        """Plan one iteration and price it. Raises ContractError when the plan breaks the contract."""
        plan = self.policy.plan(self.workload, state)
        require(validate_plan(self.workload, state, plan))
        return plan, self.costs.cost_ns(plan)

    def execute(self, state: SchedulerState, plan: IterationPlan, truths: Mapping[str, Truth]) -> IterationResult:
        """Complete every planned row. Raises ContractError when the result breaks the contract."""
        rows = tuple([_complete(state.views[work.request_id], work, truths[work.request_id]) for work in plan.work])
        debits, rebuilt = service_of(state, plan, rows)
        result = IterationResult(plan.decision_id, plan.input_state_version, rows, debits, rebuilt)
        require(validate_result(state, plan, result))
        return result

    def step(self, state: SchedulerState, truths: Mapping[str, Truth]) -> Step:
        """Run one whole iteration; the state's clock moves by its cost."""
        plan, cost_ns = self.decide(state)
        result = self.execute(state, plan, truths)
        return Step(plan, result, cost_ns, advance(state, plan, result, state.now_ns + cost_ns))


def _complete(view: RequestView, work: Work, truth: Truth) -> Row:
    width = work.end - work.start
    computed = view.computed if work.phase is Phase.REBUILD else work.end
    emits = work.phase is Phase.DECODE or (work.phase is Phase.PREFILL and work.end == view.declared.prompt_tokens)
    emitted = view.emitted + emits
    return Row(
        work.request_id, work.generation, work.snapshot_version, work.start, work.end, work.end,
        view.emitted, emitted, view.computed, computed, computed, view.resident + width,
        truth.token(view.emitted) if emits else None,
        _terminal(view, truth, emitted) if emits else None,
    )  # fmt: skip


def _terminal(view: RequestView, truth: Truth, emitted: int) -> str | None:
    if truth.natural is not None and emitted >= truth.natural:
        return "stop"
    return "length" if emitted >= view.declared.max_output_tokens else None


class Engine:
    """The core with its current state: arrivals and cancellations gather here and are published at the next cut.

    A plan in progress is bound to its state version, so nothing changes the state between ``begin`` and ``complete``.
    """

    def __init__(self, policy: Policy, budgets: Budgets, costs: CostModel, workload_id: str = "online") -> None:
        workload = WorkloadManifest(workload_id, "CLOCK_MONOTONIC", policy.policy_id, policy.policy_version, policy.tie_break, budgets)
        self.core = Core(workload, policy, costs)
        self.state = initial_state()
        self.preemptions = 0
        self._plan: IterationPlan | None = None
        self._truths: dict[str, Truth] = {}
        self._arrivals: dict[str, Declaration] = {}
        self._cancels: list[str] = []
        self._order = 0

    @property
    def waiting(self) -> int:
        """Requests that hold no place in the running queue, pending arrivals included."""
        return len(self.state.waiting) + len(self.state.suspended) + len(self._arrivals)

    @property
    def running(self) -> int:
        """Requests in the running queue."""
        return len(self.state.running)

    @property
    def kv_rows(self) -> int:
        """KV rows held now."""
        views = self.state.views
        return sum([views[name].resident for name in self.state.running])

    def submit(
        self, request_id: str, prompt_tokens: int, max_output_tokens: int, truth: Truth, *, priority: int = 0, client: str = ""
    ) -> None:
        """Queue a request for the next cut; arrival order is the order of calls."""
        self._arrivals[request_id] = Declaration(request_id, 0, self._order, prompt_tokens, max_output_tokens, priority, client)
        self._truths[request_id] = truth
        self._order += 1

    def abort(self, request_id: str) -> None:
        """Withdraw a request: at once when it has not reached the scheduler, else at the next cut."""
        if self._arrivals.pop(request_id, None) is not None:
            del self._truths[request_id]
        elif request_id in self._truths:
            self._cancels.append(request_id)

    def begin(self, now_ns: int) -> tuple[IterationPlan, int] | None:
        """Publish what gathered, then plan the next iteration; None when there is nothing to run."""
        if self._plan is not None:
            raise ValueError(f"decision_id={self._plan.decision_id}: an iteration is in progress")
        self._cut(now_ns)
        plan, cost_ns = self.core.decide(self.state)
        if not plan.work:
            return None
        self._plan = plan
        return plan, cost_ns

    def complete(self, now_ns: int) -> IterationResult:
        """Complete the iteration in progress and publish its result."""
        if self._plan is None:
            raise ValueError("complete: no iteration is in progress")
        plan, self._plan = self._plan, None
        result = self.core.execute(self.state, plan, self._truths)
        self.state = advance(self.state, plan, result, now_ns)
        self.preemptions += len(plan.preempt)
        self._forget(self.state.finished)
        return result

    def _cut(self, now_ns: int) -> None:
        state = replace(self.state, now_ns=now_ns)
        if self._cancels:
            state = cancel(state, self._cancels)
            self._forget(self._cancels)
            self._cancels = []
        if self._arrivals:
            state = arrive(state, self._arrivals.values())
            self._arrivals = {}
        self.state = state

    def _forget(self, request_ids: Iterable[str]) -> None:
        for name in request_ids:
            self._truths.pop(name, None)
