"""The time-free core: one iteration is decide, execute, advance. The server runs it in real time, tests and simulation in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from harness.reference.contract import (
    COMPUTED_AFTER,
    EMITTED_AFTER,
    EMITTED_BEFORE,
    TERMINAL,
    Authorized,
    Budgets,
    Declaration,
    IterationPlan,
    IterationResult,
    SchedulerState,
    WorkloadManifest,
    declared_table,
)
from harness.reference.cost import CostModel
from harness.reference.deployment import NO_DECLINED, REASONS, Remote
from harness.reference.execute import Truths, execute
from harness.reference.foreign import held_on_device, next_receipt_ns, price_ns, receive, set_in_motion
from harness.reference.owner import NO_RULES, MemoryRules, Owner
from harness.reference.policy import Completed, Policy
from harness.reference.prefix import LOOKED_AT, Chain, PrefixStore, Reuse
from harness.reference.results import validate_result
from harness.reference.suspension import NO_ROOM
from harness.reference.table import FINISH_REASONS, HANDLE, NO_LIMIT, Table
from harness.reference.tokens import Truth
from harness.reference.transition import account, advance, arrive, at_time, cancel, initial_state, refuse, set_reused
from harness.reference.validate import authorize, require

_WHY = {**REASONS, NO_ROOM: "preempted_without_room"}


@dataclass(frozen=True, slots=True)
class Core:
    """Workload, policy and cost model: everything that is fixed while the engine lives. Pure: state in, state out."""

    workload: WorkloadManifest
    policy: Policy
    costs: CostModel

    def start(self) -> SchedulerState:
        """State before anything arrived."""
        return initial_state(self.policy.initial_memory())

    def cut(
        self, state: SchedulerState, now_ns: int, new: Table | None, gone: list[int], reuse: Reuse | None = None, owner: Owner | None = None
    ) -> SchedulerState:
        """Publish arrivals, cancellations and what the prefix store has for those that wait, then let the policy take note of them."""
        state = at_time(state, now_ns)
        if gone:
            state = cancel(state, gone, self.workload.budgets.kv_block)
            if owner is not None:
                owner.cancelled(gone)
        if new is not None:
            state = arrive(state, new)
        found = None if reuse is None else reuse.credits(state.waiting)
        if found is not None:
            state = set_reused(state, *found)
        if gone or new is not None:
            state = state._replace(memory=self.policy.observe(self.workload, state))
        return state

    def decide(self, state: SchedulerState) -> tuple[Authorized, int]:
        """Plan one iteration and price it. Raises ContractError when the plan breaks the contract."""
        plan = self.policy.plan(self.workload, state)
        authorized = authorize(self.policy, self.workload, state, plan)
        return authorized, self.costs.cost_ns(plan) if self.workload.deployment is None else price_ns(self.workload, self.costs, plan)

    def receive(self, state: SchedulerState, now_ns: int) -> SchedulerState:
        """Publish what owners of transfers have to say at a cut; nothing without a declared deployment."""
        return state if self.workload.deployment is None else receive(self.workload, self.costs, at_time(state, now_ns))

    def due(self, state: SchedulerState, now_ns: int, owner: Owner) -> SchedulerState:
        """Publish what the owner of blocks and of the second tier has to say at a cut."""
        return owner.due(at_time(state, now_ns), now_ns)

    def settle(self, state: SchedulerState, owner: Owner | None = None) -> tuple[SchedulerState, Authorized, int, int]:
        """Decide until the plan has work or changes nothing: (state it was made from, plan, price in ns, preemptions on the way).

        A plan may only preempt (a request that must give way to itself), decline, move layers or call rows back: that takes no time, and
        the next decision sees what came of it. Each such plan shortens a queue or sets rows of a request in motion, so there is an end.
        """
        preempted = 0
        while True:
            authorized, cost_ns = self.decide(state)
            plan = authorized.plan
            gone = len(plan.preempt.at)
            if owner is not None:
                owner.planned(state, authorized, state.now_ns)
            if len(plan.work.at) or not (gone or len(plan.decline.at) or plan.layers.shape[1] or len(plan.promote.at)):
                freed = None if owner is None or len(plan.work.at) else owner.unstick(state)
                if freed is None:
                    return state, authorized, cost_ns, preempted
                state = freed
                continue
            preempted += gone
            state = self.publish(state, authorized, execute(state, authorized, Truths(), tokens=False), state.now_ns, owner)

    def publish(
        self, state: SchedulerState, authorized: Authorized, result: IterationResult, now_ns: int, owner: Owner | None = None
    ) -> SchedulerState:
        """Validate a result and return the successor state. Raises ContractError when the result breaks the contract."""
        require(validate_result(state, authorized, result))
        after = advance(state, authorized, result, now_ns)
        if self.workload.counted:
            after = account(self.workload, state, authorized.plan, after)
        if self.workload.deployment is not None:
            after = set_in_motion(self.workload, self.costs, state, authorized, after)
        # Token ids give away the seed that realized lengths are drawn from.
        seen = result if result.tokens is None else result._replace(tokens=None)
        memory = self.policy.learn(self.workload, state, Completed(authorized, seen, now_ns))
        after = after if memory is after.memory else after._replace(memory=memory)
        return after if owner is None else self._owned(authorized, after, owner)

    def _owned(self, authorized: Authorized, after: SchedulerState, owner: Owner) -> SchedulerState:
        after = owner.published(authorized, after)
        ended = owner.aborts()
        if not ended:
            return after
        owner.cancelled(ended)
        after = refuse(after, ended, NO_ROOM, self.workload.budgets.kv_block)
        return after._replace(memory=self.policy.observe(self.workload, after))


def online_workload(
    policy: Policy, budgets: Budgets, *, workload_id: str = "online", clock: str = "CLOCK_MONOTONIC",
    requests: tuple[Declaration, ...] = (), rules: MemoryRules = NO_RULES, remote: Remote | None = None,
) -> WorkloadManifest:  # fmt: skip
    """The manifest under which ``policy`` runs: identity and parameters are the policy's own."""
    parameters = tuple(sorted(policy.parameters.items()))
    return WorkloadManifest(
        workload_id, clock, policy.policy_id, policy.policy_version, policy.tie_break, budgets, requests, parameters,
        policy.deployment(budgets) or remote, rules.admission, rules.tier_rows > 0,
    )  # fmt: skip


class Published(NamedTuple):
    """One emitted token: its request, its id, finish reason when it is the last."""

    request_id: str
    token: int
    prompt_tokens: int
    """prompt length when this is the first token of its request, else 0"""
    finish: str | None
    cached_tokens: int = 0
    """prompt tokens taken from the prefix store, when this is the first token of its request"""


@dataclass(slots=True)
class _Desk:
    """Names outside, numbers inside. ``arrivals`` and ``cancels`` wait for the next cut."""

    numbers: dict[str, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    clients: dict[str, int] = field(default_factory=dict)
    arrivals: dict[str, Declaration] = field(default_factory=dict)
    cancels: list[int] = field(default_factory=list)
    next_number: int = 0

    def declare(self, request_id: str, client: str) -> tuple[int, int]:
        """Number a request and its client."""
        number = self.next_number
        self.next_number += 1
        self.numbers[request_id], self.names[number] = number, request_id
        return number, self.clients.setdefault(client, len(self.clients))

    @property
    def oldest(self) -> int:
        """Least number that is live."""
        return next(iter(self.names), self.next_number)

    def forget(self, number: int) -> None:
        """Drop what ended."""
        name = self.names.pop(number, None)
        if name is not None:
            del self.numbers[name]


class Engine:
    """The core with its current state: arrivals and cancellations gather here and are published at the next cut.

    A plan in progress is bound to its state version, so nothing changes the state between ``begin`` and ``complete``.
    """

    def __init__(
        self, policy: Policy, budgets: Budgets, costs: CostModel, workload_id: str = "online", prefix: PrefixStore | None = None,
        rules: MemoryRules = NO_RULES,
    ) -> None:  # fmt: skip
        remote = Remote(LOOKED_AT) if prefix is not None and prefix.remote else None
        self.core = Core(online_workload(policy, budgets, workload_id=workload_id, rules=rules, remote=remote), policy, costs)
        self.owner = rules.owner(self.core.workload)
        self.state = self.core.start()
        self.preemptions = 0
        self._authorized: Authorized | None = None
        self._truths = Truths()
        self._desk = _Desk()
        self._reuse = None if prefix is None else Reuse(prefix)

    @property
    def clients(self) -> int:
        """Distinct clients seen since the start. What a policy knows of one (service, counters) is kept for good, so this only grows."""
        return len(self._desk.clients)

    def knows(self, client: str) -> bool:
        """Whether a client of that name was seen."""
        return client in self._desk.clients

    @property
    def waiting(self) -> int:
        """Requests that hold no place in the running queue, pending arrivals included."""
        return len(self.state.waiting) + len(self.state.suspended) + len(self._desk.arrivals)

    @property
    def running(self) -> int:
        """Requests in the running queue."""
        return len(self.state.running)

    @property
    def next_receipt_ns(self) -> int:
        """Instant of the next receipt of an owner of transfers, at which an idle engine has to look again; far off when there is none."""
        here = None if self.owner is None else self.owner.next_ns
        return next_receipt_ns(self.state) if here is None else min(here, next_receipt_ns(self.state))

    @property
    def kv_rows(self) -> int:
        """KV rows held now."""
        return held_on_device(self.core.workload, self.state)

    def submit(
        self, request_id: str, prompt_tokens: int, max_output_tokens: int, truth: Truth, *, priority: int = 0, client: str = "",
        arrival_ns: int = 0, ttft_ns: int = NO_LIMIT, tbt_ns: int = NO_LIMIT, chain: Chain = (),
    ) -> int:  # fmt: skip
        """Queue a request for the next cut and return its number; arrival order is the order of calls.

        ``chain``: digests of the prompt's beginnings, by which the prefix store knows it.
        Raises ValueError for an id that is still live.
        """
        if request_id in self._desk.numbers:
            raise ValueError(f"request_id={request_id!r}: already live, ids are used once")
        number, code = self._desk.declare(request_id, client)
        declared = Declaration(number, number, prompt_tokens, max_output_tokens, priority, code, arrival_ns, ttft_ns, tbt_ns)
        self._desk.arrivals[request_id] = declared
        self._truths.add(number, truth, oldest=self._desk.oldest)
        if self._reuse is not None:
            self._reuse.declare(number, chain)
        return number

    def abort(self, request_id: str) -> None:
        """Withdraw a request: at once when it has not reached the scheduler, else at the next cut."""
        declared = self._desk.arrivals.pop(request_id, None)
        if declared is not None:
            self._forget(declared.handle)
        elif request_id in self._desk.numbers:
            self._desk.cancels.append(self._desk.numbers[request_id])

    def flush(self) -> bool:
        """Empty the prefix store; False, and nothing is done, while a request is live that may hold a credit of it."""
        if self.running or self.waiting:
            return False
        if self._reuse is not None:
            self._reuse.store.clear()
        return True

    def begin(self, now_ns: int) -> tuple[IterationPlan, int] | None:
        """Publish what gathered, then plan the next iteration; None when there is nothing to run."""
        if self._authorized is not None:
            raise ValueError(f"decision_id={self._authorized.plan.decision_id}: an iteration is in progress")
        self._cut(now_ns)
        self.state = self.core.receive(self.state, now_ns)
        if self.owner is not None:
            self.state = self.core.due(self.state, now_ns, self.owner)
        self.state, authorized, cost_ns, preempted = self.core.settle(self.state, self.owner)
        self.preemptions += preempted
        if not len(authorized.plan.work.at):
            return None
        self._authorized = authorized
        admit = authorized.plan.admit
        if self._reuse is not None and len(admit.at):
            for number, rows in zip(admit.keys[0].tolist(), self.state.waiting.resident.take(admit.at).tolist(), strict=True):
                self._reuse.take(number, rows)
        return authorized.plan, cost_ns

    def complete(self, now_ns: int) -> IterationResult:
        """Complete the iteration in progress and publish its result."""
        if self._authorized is None:
            raise ValueError("complete: no iteration is in progress")
        authorized, self._authorized = self._authorized, None
        result = execute(self.state, authorized, self._truths, tokens=True)
        self.state = self.core.publish(self.state, authorized, result, now_ns, self.owner)
        self.preemptions += len(authorized.plan.preempt.at)
        if self._reuse is not None:
            first = result.rows[EMITTED_AFTER] > result.rows[EMITTED_BEFORE]
            for number in result.rows[HANDLE].compress(first & (result.rows[EMITTED_BEFORE] == 0)).tolist():
                self._reuse.keep(number)
        return result

    def tokens_of(self, result: IterationResult) -> Iterator[Published]:
        """Emitted tokens of the result just completed, in plan order; names of requests that ended are forgotten, so ask once."""
        if result.tokens is None:
            raise ValueError("tokens: this result only counts outputs")
        rows = result.rows
        # The first token comes with the last prompt row, so what is computed then is the prompt.
        prompts = np.where(rows[EMITTED_BEFORE] == 0, rows[COMPUTED_AFTER], 0)
        columns = (rows[HANDLE].tolist(), result.tokens.tolist(), prompts.tolist(), rows[TERMINAL].tolist())
        for number, token, prompt, ended in zip(*columns, strict=True):
            if token >= 0:
                cached = self._reuse.taken(number) if prompt and self._reuse is not None else 0
                yield Published(self._desk.names[number], token, prompt, FINISH_REASONS.get(ended), cached)
            if ended:
                self._forget(number)

    def take_declined(self) -> list[tuple[str, str]]:
        """Names of the requests that the policy declined or the owner ended since the last call, and why; they are forgotten."""
        declined, self.state = self.state.declined, self.state._replace(declined=NO_DECLINED)
        found = [(self._desk.names[number], _WHY[reason]) for number, reason in declined.T.tolist()]
        for number in declined[0].tolist():
            self._forget(number)
        return found

    def _cut(self, now_ns: int) -> None:
        desk = self._desk
        new = declared_table(list(desk.arrivals.values())) if desk.arrivals else None
        self.state = self.core.cut(self.state, now_ns, new, desk.cancels, self._reuse, self.owner)
        for number in desk.cancels:
            self._forget(number)
        desk.arrivals, desk.cancels = {}, []

    def _forget(self, number: int) -> None:
        self._desk.forget(number)
        if self._reuse is not None:
            self._reuse.forget(number)
