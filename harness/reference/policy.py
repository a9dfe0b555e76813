"""The seam for scheduling policies: how to write one.

A policy is a class with a ``card`` and a ``plan``; put it into ``harness/reference/policies/`` and name it in ``registry.POLICIES``.

1. ``plan(workload, state)`` is a pure function to an ``IterationPlan``. It sees three read-only tables (``state.running``, ``suspended``,
   ``waiting``: arrays by column, see ``contract.Table``), budgets and completed service; realized lengths, token ids and physical blocks
   are in none of them. A plan selects intervals of members that run, or that it admits or resumes; it advances nothing. A waiting request
   may hold rows already: a credit of the prefix store, which need not be computed and takes KV room when the request is admitted.
2. Most policies need no loop of their own. ``passes.Draft`` serves the running queue in an order, then admits in an order (ORCA, Sarathi,
   vLLM, VTC are of this kind); ``ranking.ranked_plan`` ranks all live requests by the declared tie-break and serves from the top (priority,
   slack, feedback queues). Both build plans that pass ``validate.validate_plan``; tests run every registered policy through it.
3. ``card.tie_break`` names the fields by which the selected intervals ascend. Fields of the contract are listed in ``keys.order_keys``;
   ``fields(workload, state, members)`` adds the policy's own, one int64 for each member. The validator evaluates them again on the same
   state: a field must depend on nothing but its arguments.
4. A policy object holds parameters only. What it must remember (counters, queue levels) is an immutable value in ``state.memory``,
   published by the core at two events: ``observe`` after arrivals and cancellations were published, ``learn`` after a completed result.
   Both return the new value; ``initial_memory`` is the first.
5. ``plan.decline`` turns waiting requests away for good, with a reason; a policy that does so says ``declines``. One that needs a second
   pool or a second tier returns it from ``deployment``; what the owners of transfers publish stands in READY and ``state.foreign``.
6. The card states the contract K_m (F65), the evidence basis, parameters, and what must not be claimed. No policy is called exact.

``tests/unit/test_policies_contract.py`` runs over the registry: a new policy is under it as soon as it is registered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from harness.errors import Problem, UsageError
from harness.reference.contract import Authorized, Budgets, IterationPlan, IterationResult, SchedulerState, WorkloadManifest
from harness.reference.deployment import Deployment
from harness.reference.table import Int64, Table


@dataclass(frozen=True, slots=True)
class MethodContract:
    """K_m = (G, I, S, D, U, O, M, A, F) of F65: what has to be equal before two methods are the same method."""

    granularity: str
    identity: str
    visible_state: str
    decision: str
    unknown_future: str
    objective: str
    metric: str
    assumptions: tuple[str, ...]
    foreign_owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of a policy: default, unit, least allowed value, meaning."""

    default: int
    unit: str
    meaning: str
    least: int = 1


@dataclass(frozen=True, slots=True)
class Card:
    """Identity of a policy and what may be said about it. ``exact_reproduction`` is False for every policy here."""

    policy_id: str
    policy_version: str
    shaped_like: str
    evidence_basis: str
    tie_break: tuple[str, ...]
    contract: MethodContract
    claim_limits: tuple[str, ...]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    exact_reproduction: bool = False


class Completed(NamedTuple):
    """One iteration that ran: what was authorized (``plan``, ``members``, ``picked``), its result without token ids, and when it ended."""

    authorized: Authorized
    result: IterationResult
    now_ns: int


MOST: Final[Mapping[str, int]] = {"ns": 3_600_000_000_000, "levels": 32}
"""Greatest value of a parameter by its unit: an hour, and doublings that stay within 64 bits. Of every other unit ``MOST_OTHER``."""
MOST_OTHER: Final = 1_000_000
"""Times the rows of any cache this engine takes, a product of it still is far within 64 bits, where a wrapped score would plan nonsense."""

ANY_RULE: Final = frozenset({"kv-block", "preemption", "admission"})
BLOCKS: Final = frozenset({"kv-block"})


class Policy:
    """Base of every policy: identity from the card, parameters by name, no memory.

    Raises UsageError ``policy_parameter`` for a parameter the card does not have or a value out of its range.
    """

    card: ClassVar[Card]
    declines: ClassVar[bool] = False
    """Whether a plan may decline requests; a server then answers nothing of a request before it was let in."""
    reads_limits: ClassVar[bool] = False
    """Whether plans depend on latency limits that requests declare; a client need not send them to a policy that does not look."""
    engine_rules: ClassVar[frozenset[str]] = frozenset()
    """Memory rules of the engine that its plans keep: ``kv-block`` (room is counted in blocks), ``preemption`` (rows may be preserved) and
    ``admission`` (the declared rule replaces the policy's own). ``passes`` plans by all of them, whatever the policy does."""

    def __init__(self, **parameters: int) -> None:
        _check(self.card, parameters)
        self.parameters = {name: parameters.get(name, known.default) for name, known in self.card.parameters.items()}

    @property
    def policy_id(self) -> str:
        """Name under which plans are filed."""
        return self.card.policy_id

    @property
    def policy_version(self) -> str:
        """Raised when the same state could give another plan."""
        return self.card.policy_version

    @property
    def tie_break(self) -> tuple[str, ...]:
        """Fields by which a plan's intervals ascend."""
        return self.card.tie_break

    def plan(self, workload: WorkloadManifest, state: SchedulerState) -> IterationPlan:
        """Return the plan for ``state``; a plan without work when nothing can run. Equal inputs give equal plans."""
        raise NotImplementedError

    def fields(self, workload: WorkloadManifest, state: SchedulerState, members: Table) -> Mapping[str, Int64]:  # noqa: ARG002 - the seam
        """Values of the policy's own tie-break fields for ``members`` (n,)."""
        return {}

    def deployment(self, budgets: Budgets) -> Deployment | None:  # noqa: ARG002 - the seam
        """What this policy runs on beside one pool with all KV on the device, within ``budgets``; it is declared with the workload."""
        return None

    def initial_memory(self) -> object:
        """Memory before anything arrived."""
        return None

    def observe(self, workload: WorkloadManifest, state: SchedulerState) -> object:  # noqa: ARG002 - the seam
        """Memory after arrivals or cancellations were published in ``state``."""
        return state.memory

    def learn(self, workload: WorkloadManifest, state: SchedulerState, done: Completed) -> object:  # noqa: ARG002 - the seam
        """Memory after an iteration planned from ``state`` completed; only completed rows may count as service."""
        return state.memory


def _check(card: Card, given: Mapping[str, Any]) -> None:
    problems = []
    for name, value in given.items():
        known = card.parameters.get(name)
        if known is None:
            has = ", ".join(sorted(card.parameters)) or "none"
            problems.append(Problem("policy_parameter", f"{name}: policy {card.policy_id} has no such parameter", f"its parameters: {has}"))
        elif not isinstance(value, int) or not known.least <= value <= MOST.get(known.unit, MOST_OTHER):
            most = MOST.get(known.unit, MOST_OTHER)
            what = f"{name}={value!r}: must be a whole number from {known.least} to {most} ({known.unit}: {known.meaning})"
            problems.append(Problem("policy_parameter", what, f"leave it out for {known.default}"))
    if problems:
        raise UsageError(*problems)
