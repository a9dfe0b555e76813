"""Continuous batching shaped like vLLM's default scheduler: decode first, chunked prefill, first come first served, recompute preemption.

Shaped like, not equal to: the cache is counted in single tokens, admission asks for room for the whole prompt, and rebuilt rows are apart
from ordinary ones (a resumed request decodes in the iteration after its rebuild).
"""

from __future__ import annotations

from harness.reference.contract import (
    IterationPlan,
    Key,
    Ledger,
    OrderKey,
    Phase,
    RequestView,
    SchedulerState,
    Work,
    WorkloadManifest,
    interval_limit,
    make_work,
    order_key,
    phase_of,
)


class VllmShapedFcfs:
    """Stateless: everything it knows is in the state it is given."""

    policy_id = "vllm-shaped-fcfs"
    policy_version = "1"
    tie_break: tuple[str, ...] = ("phase_rank", "priority_rank", "arrival_order", "request_id", "request_generation")

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Serve running requests in tie-break order, preempting the youngest when the cache is short; then admit, unless it preempted."""
        draft = _Draft(workload, state)
        draft.serve_running()
        if not draft.preempt:
            draft.admit_waiting()
        return draft.finish()


class _Draft:
    """One plan in the making."""

    def __init__(self, workload: WorkloadManifest, state: SchedulerState) -> None:
        self.workload = workload
        self.state = state
        self.tokens_left = workload.budgets.tokens
        views = [state.views[name] for name in state.running]
        self.kv_used = sum([view.resident for view in views])
        self.queue = self._ordered(views, running=True)
        self.work: list[Work] = []
        self.order: list[OrderKey] = []
        self.admit: list[Key] = []
        self.preempt: list[Key] = []
        # A running request whose dependency is not ready keeps its place and its rows.
        self.kept: list[RequestView] = [view for view in views if not view.ready]

    def _ordered(self, views: list[RequestView], *, running: bool) -> list[tuple[OrderKey, RequestView]]:
        tie_break = self.workload.tie_break
        pairs = [(order_key(tie_break, view, running=running), view) for view in views if view.ready and view.terminal is None]
        pairs.sort(key=lambda pair: pair[0])
        return pairs

    def serve_running(self) -> None:
        """Give each running request its next interval within token budget and cache."""
        pending = self.queue
        while pending:
            key, view = pending.pop(0)
            if self.tokens_left > 0 and not self._make_room(view, pending):
                continue
            self.kept.append(view)
            self._select(key, view)

    def _make_room(self, view: RequestView, pending: list[tuple[OrderKey, RequestView]]) -> bool:
        """Free at least one row for ``view``; False when ``view`` itself had to go."""
        while self.kv_used >= self.workload.budgets.kv_capacity:
            victim = max((candidate for _, candidate in pending), key=_youth, default=view)
            # As in the original, the latest comer not yet served gives way; a request never pushes out an older one to run itself.
            victim = max(victim, view, key=_youth)
            self.preempt.append(victim.key)
            self.kv_used -= victim.resident
            if victim is view:
                return False
            pending[:] = [pair for pair in pending if pair[1] is not victim]
        return True

    def _select(self, key: OrderKey, view: RequestView) -> None:
        start, limit = interval_limit(view)
        width = min(limit - start, self.tokens_left, self.workload.budgets.kv_capacity - self.kv_used)
        if width > 0:
            self.work.append(make_work(view, width))
            self.order.append(key)
            self.tokens_left -= width
            self.kv_used += width

    def admit_waiting(self) -> None:
        """Admit in order while the whole prompt (or rebuild) of the next fits below the watermark (F28, F29); stop at the first misfit."""
        budgets = self.workload.budgets
        if self.tokens_left == 0 or len(self.kept) >= budgets.sequences:
            return  # the common case under load: do not sort a long queue for nothing
        reserved = sum([_reserved(view) for view in self.kept])
        outside = [self.state.views[name] for name in (*self.state.suspended, *self.state.waiting)]
        for key, view in self._ordered(outside, running=False):
            # With nothing running the watermark protects nobody, and holding on to it could block one long prompt for ever.
            ceiling = budgets.kv_capacity - (budgets.kv_watermark if self.kept else 0)
            need = _reserved(view)
            if self.tokens_left == 0 or len(self.kept) >= budgets.sequences or reserved + need > ceiling:
                return
            reserved += need
            self.kept.append(view)
            self.admit.append(view.key)
            self._select(key, view)

    def finish(self) -> IterationPlan:
        """Freeze the draft."""
        return IterationPlan(
            decision_id=self.state.decision_id,
            input_state_version=self.state.state_version,
            policy_id=VllmShapedFcfs.policy_id,
            policy_version=VllmShapedFcfs.policy_version,
            work=tuple(self.work),
            order=tuple(self.order),
            admit=tuple(self.admit),
            preempt=tuple(self.preempt),
            ledger=Ledger(self.workload.budgets.tokens - self.tokens_left, len(self.work), self.kv_used),
        )


def _youth(view: RequestView) -> tuple[int, int, str]:
    declared = view.declared
    return declared.priority, declared.arrival_order, declared.request_id


def _reserved(view: RequestView) -> int:
    """Rows a request holds or is sure to need before its next token; a decoding one needs one more."""
    known = max(view.declared.prompt_tokens, view.computed)
    return known + (1 if phase_of(view) is Phase.DECODE else 0)
