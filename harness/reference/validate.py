"""What stands between a policy and execution: every plan passes here before it runs. All problems are collected; nothing short-circuits.

Checks are vectorised over the plan's intervals; the whole costs a few array operations an iteration. Each code in ``PLAN_CODES`` has a
fixture that passes and one that it refuses, and a test that enumerates them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from harness.errors import Problem, TrigpointError
from harness.reference.admission import NO_RESERVATIONS
from harness.reference.contract import (
    END,
    NO_MOVES,
    PHASE,
    POSITION,
    Authorized,
    IterationPlan,
    Ledger,
    Moves,
    SchedulerState,
    Work,
    WorkloadManifest,
    credit_rows,
    eligible,
)
from harness.reference.deployment import NO_LAYERS, NO_REASONS, Layered
from harness.reference.foreign_rules import FOREIGN_CODES, declines, deployed
from harness.reference.keys import first_descent, order_keys
from harness.reference.policy import Policy
from harness.reference.projection import LEAKS
from harness.reference.room import COUNTED_CODES, counted_problems, held_after
from harness.reference.table import (
    COMMITTED,
    COMPUTED,
    EMITTED,
    EMPTY,
    EPOCH,
    GENERATION,
    HANDLE,
    PROMPT,
    READY,
    RESIDENT,
    SNAPSHOT,
    Bools,
    Int64,
    Phase,
    Table,
    all_ones,
    all_zero,
    is_identity,
    occurs,
    pick,
)

PLAN_CODES: Final = (
    "stale_state", "stale_decision", "policy_identity", "queue_intent", "duplicate_member", "not_admitted", "unknown_request",
    "terminal_request", "stale_generation", "stale_snapshot", "stale_suspension", "unready_request", "view_frontiers", "decode_clock",
    "illegal_interval", "multi_row_decode", "forged_phase", "forged_positions", "token_budget", "sequence_budget", "kv_capacity",
    "ledger_drift", "tie_break_evidence", "tie_break_order", "physical_block_leak", "hidden_truth_leak", *FOREIGN_CODES, *COUNTED_CODES,
)  # fmt: skip
"""Every reason for which a plan is refused."""


class ContractError(TrigpointError):
    """A policy or an executor broke the scheduler contract: a defect in this engine, not an input error."""

    exit_code = 3


def authorize(policy: Policy, workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan) -> Authorized:
    """Validate and bind. Raises ContractError with every problem."""
    problems, members, picked = _judge(policy, workload, state, plan)
    require(problems)
    return Authorized(plan, members, picked)


def validate_plan(policy: Policy, workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan) -> list[Problem]:
    """Hold a plan against the state it claims to be made from (F01-F06 and version binding); empty when it may run."""
    return _judge(policy, workload, state, plan)[0]


def require(problems: list[Problem]) -> None:
    """Raise ContractError unless there is no problem."""
    if problems:
        raise ContractError(*problems)


def refusal(code: str, what: str) -> Problem:
    """One broken rule."""
    return Problem(code, what, "correct the policy or executor that wrote this record; the iteration was not run")


def _judge(policy: Policy, workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan) -> tuple[list[Problem], Table, Int64]:
    """Problems, the members that may run, and their columns in plan order (no column as long as positions mean nothing)."""
    stated = (plan.input_state_version, plan.decision_id, plan.policy_id, plan.policy_version)
    problems: list[Problem] = []
    if stated != (state.state_version, state.decision_id, workload.policy_id, workload.policy_version):
        problems += _identity(workload, state, plan)
    if not (plan.preempt is plan.resume is plan.admit is plan.decline is plan.promote is NO_MOVES and plan.reasons is NO_REASONS):
        problems += _intents(state, plan)
        if len(plan.decline.at) and not policy.declines:  # nobody would look for its declines: a stream has begun, a simulation waits on
            problems.append(refusal("decline_undeclared", f"decline={plan.decline.at.tolist()}: {policy.policy_id} says it never declines"))
    if problems:
        return problems, state.running, EMPTY.cells  # positions mean nothing under another state or broken intents
    members = eligible(state, plan.preempt, plan.resume, plan.admit)
    problems += _reach(members, plan.work)
    picked, tokens, kv_rows = EMPTY.cells, None, None
    if not problems:
        picked = pick(members, plan.work.at)
        if members.decoding and _sound_decodes(members, plan.work, picked):
            tokens = len(plan.work.at)
        else:
            problems += _binding(state, plan.work, picked)
            problems += _frontiers(plan.work, picked)
            problems += _intervals(members, plan.work)
        problems += _evidence(policy, workload, state, plan, members)
        if not (workload.deployment is None and plan.layers is NO_LAYERS):
            problems += [refusal(*found) for found in deployed(workload, state, plan, members)]
        if workload.counted or not (plan.reserve is NO_RESERVATIONS and plan.promote is NO_MOVES):
            problems += [refusal(*found) for found in counted_problems(workload, state, plan, members)]
            kv_rows = held_after(workload, state, members, plan.work.at, plan.work.cells[END], plan.preempt, plan.admit, plan.promote)
    problems += _budgets(workload, state, plan, tokens, kv_rows)
    if plan.notes:
        problems += _notes(plan)
    return problems, members, picked


def _identity(workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan) -> Iterator[Problem]:
    if plan.input_state_version != state.state_version:
        yield refusal("stale_state", f"input_state_version={plan.input_state_version}: the state is at {state.state_version}")
    if plan.decision_id != state.decision_id:
        yield refusal("stale_decision", f"decision_id={plan.decision_id}: the state expects {state.decision_id}")
    if plan.policy_id != workload.policy_id or plan.policy_version != workload.policy_version:
        yield refusal("policy_identity", f"policy={plan.policy_id} {plan.policy_version}: the workload declares another")


def _intents(state: SchedulerState, plan: IterationPlan) -> Iterator[Problem]:
    for name, move, queue in (
        ("preempt", plan.preempt, state.running),
        ("resume", plan.resume, state.suspended),
        ("admit", plan.admit, state.waiting),
        ("decline", plan.decline, state.waiting),
        ("promote", plan.promote, state.suspended),
    ):
        if len(move.at):
            yield from _check_move(name, move, queue)
    yield from (refusal(*found) for found in declines(state, plan))
    if len(plan.preempt.at) and len(plan.resume.at) + len(plan.admit.at) and not len(plan.work.at):
        # Decisions are repeated until one has work: members that change places without any could do so for ever.
        yield refusal("queue_intent", f"preempt={plan.preempt.at.tolist()}: lets others in for it and gives nobody work")


def _check_move(name: str, move: Moves, queue: Table) -> Iterator[Problem]:
    at = move.at
    if int(at.min()) < 0 or int(at.max()) >= len(queue) or move.keys.shape != (2, len(at)):
        yield refusal("queue_intent", f"{name}={at.tolist()}: the queue it should leave has {len(queue)} members")
    elif move.keys.tobytes() != queue.cells[:2].take(at, axis=1).tobytes():
        yield refusal("queue_intent", f"{name}={move.keys.T.tolist()}: not the generations that stand at {at.tolist()}")
    if len(set(at.tolist())) != len(at):
        yield refusal("duplicate_member", f"{name}={at.tolist()}: a member is named twice")


def _reach(members: Table, work: Work) -> Iterator[Problem]:
    if work.cells.shape[1] == len(work.at) <= len(members) and is_identity(work.at):
        return  # every position from the first on, each once
    at = work.at.tolist()
    if work.cells.shape[1] != len(at) or (at and (min(at) < 0 or max(at) >= len(members))):
        yield refusal("not_admitted", f"at={at}: only {len(members)} members may run after this plan's intents")
    elif len(set(work.cells[HANDLE].tolist())) != len(at):
        yield refusal("duplicate_member", f"work={work.cells[HANDLE].tolist()}: a request is selected twice")


def _where(wrong: Int64, work: Work) -> str:
    first = int(wrong[0])
    cells = work.cells[:, first].tolist()
    return f"request={cells[HANDLE]}:{cells[GENERATION]} [{cells[RESIDENT]}, {cells[END]})"


def _sound_decodes(members: Table, work: Work, picked: Int64) -> bool:
    """Whether ``_binding``, ``_frontiers`` and ``_intervals`` would find nothing, for members that all decode: their rules at once.

    Most iterations are of this kind, and comparing the bytes of whole columns costs a third. It names nothing, so what it does not accept
    goes through the rules one by one; a test holds the two against each other over forged records.
    """
    cells, computed, end = work.cells, picked[COMPUTED].tobytes(), work.cells[END].tobytes()
    return (
        cells[: RESIDENT + 1].tobytes() == picked[: RESIDENT + 1].tobytes()
        and cells[POSITION].tobytes() == computed == picked[RESIDENT].tobytes() == picked[COMMITTED].tobytes()
        and all_zero(cells[PHASE])  # Phase.DECODE
        and end == members.limit.take(work.at).tobytes()  # of a decode: computed + 1
        and end == (picked[PROMPT] + picked[EMITTED]).tobytes()  # computed = prompt + emitted - 1
        and all_ones(picked[READY])
    )


_BOUND: Final = ((HANDLE, "unknown_request", "does not stand where the plan points"), (GENERATION, "stale_generation", "is at generation"),
                 (SNAPSHOT, "stale_snapshot", "is at snapshot"), (EPOCH, "stale_suspension", "is at suspension"),
                 (RESIDENT, "illegal_interval", "next interval starts at"))  # fmt: skip


def _binding(state: SchedulerState, work: Work, picked: Int64) -> Iterator[Problem]:
    if work.cells[: RESIDENT + 1].tobytes() != picked[: RESIDENT + 1].tobytes():
        for column, code, said in _BOUND:
            wrong = (work.cells[column] != picked[column]).nonzero()[0]
            if len(wrong):
                ended = code == "unknown_request" and int(work.cells[HANDLE, wrong[0]]) in state.finished.handle.tolist()
                code = "terminal_request" if ended else code
                yield refusal(code, f"{_where(wrong, work)}: {said} {int(picked[column, wrong[0]])}")
    if not all_ones(picked[READY]):
        yield refusal("unready_request", f"{_where((picked[READY] != 1).nonzero()[0], work)}: a dependency is not ready")


def _frontiers(work: Work, picked: Int64) -> Iterator[Problem]:
    computed, resident = picked[COMPUTED], picked[RESIDENT]
    same = computed.tobytes()
    if picked[COMMITTED].tobytes() != same or (resident.tobytes() != same and occurs(resident > computed)) or occurs(resident < 0):
        wrong = (picked[COMMITTED] != computed) | (resident > computed) | (resident < 0)
        yield refusal("view_frontiers", f"{_where(wrong.nonzero()[0], work)}: committed = computed >= resident >= 0 does not hold")
    # Rows computed beyond what the outputs account for: none while decoding, none or less before the first output.
    beyond = computed - picked[PROMPT] - picked[EMITTED] + 1
    if np.count_nonzero(beyond):
        wrong = (beyond > 0) | ((beyond < 0) & (picked[EMITTED] > 0))
        if occurs(wrong):
            where = _where(wrong.nonzero()[0], work)
            yield refusal("decode_clock", f"{where}: computed is not prompt + emitted - 1, or a prompt ended silently (F01, F03)")


def _intervals(members: Table, work: Work) -> Iterator[Problem]:
    start, end = work.cells[RESIDENT], work.cells[END]
    limit = members.limit.take(work.at)
    phase = members.phase.take(work.at)
    wrong = (end <= start) | (end > limit)
    if occurs(wrong):
        yield from _wrong_ends(work, wrong, phase, limit)
    if work.cells[PHASE].tobytes() != phase.tobytes():
        bad = (work.cells[PHASE] != phase).nonzero()[0]
        yield refusal("forged_phase", f"{_where(bad, work)} phase={int(work.cells[PHASE, bad[0]])}: the frontiers say {int(phase[bad[0]])}")
    if work.cells[POSITION].tobytes() != start.tobytes():
        bad = (work.cells[POSITION] != start).nonzero()[0]
        yield refusal(
            "forged_positions", f"{_where(bad, work)}: positions from {int(work.cells[POSITION, bad[0]])}, the interval says otherwise"
        )


def _wrong_ends(work: Work, wrong: Bools, phase: Int64, limit: Int64) -> Iterator[Problem]:
    decode = (phase == int(Phase.DECODE)) & (work.cells[END] > limit)
    if occurs(decode):
        yield refusal("multi_row_decode", f"{_where(decode.nonzero()[0], work)}: an ordinary decode is one row (F04)")
    rest = (wrong & ~decode).nonzero()[0]
    if len(rest):
        yield refusal("illegal_interval", f"{_where(rest, work)}: legal ends lie above the start and up to {int(limit[rest[0]])} (F02)")


def freed_rows(state: SchedulerState, plan: IterationPlan) -> int:
    """KV rows that the plan's preemptions free."""
    return int(state.running.resident.take(plan.preempt.at).sum()) if len(plan.preempt.at) else 0


def _budgets(
    workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan, tokens: int | None, kv_rows: int | None
) -> Iterator[Problem]:
    """``tokens``, ``kv_rows``: rows of the work and rows held after it, when they were counted already."""
    limit, sequences = workload.budgets, len(plan.work.at)
    tokens = int(np.add.reduce(plan.work.widths)) if tokens is None else tokens
    if kv_rows is None:
        kv_rows = state.held_rows - freed_rows(state, plan) + credit_rows(state, plan.admit) + tokens
    if tokens > limit.tokens:
        yield refusal("token_budget", f"tokens={tokens}: the budget is {limit.tokens} (F05)")
    if sequences > limit.sequences:
        yield refusal("sequence_budget", f"sequences={sequences}: the budget is {limit.sequences} (F06)")
    capacity = limit.kv_capacity + (workload.deployment.host_rows if isinstance(workload.deployment, Layered) else 0)
    if kv_rows > capacity:
        yield refusal("kv_capacity", f"kv_rows={kv_rows}: the capacity is {capacity}")
    if plan.ledger != Ledger(tokens, sequences, kv_rows):
        yield refusal("ledger_drift", f"ledger={tuple(plan.ledger)}: the work adds up to {(tokens, sequences, kv_rows)}")


def _evidence(policy: Policy, workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan, members: Table) -> Iterator[Problem]:
    kept = len(state.running) - len(plan.preempt.at)
    replayed = order_keys(workload.tie_break, members, kept, plan.work.at, policy.fields(workload, state, members))
    if plan.order.shape != replayed.shape or plan.order.tobytes() != replayed.tobytes():
        yield refusal("tie_break_evidence", "order: the declared tie-break gives other keys for this state")
        return
    descent = first_descent(replayed)
    if descent >= 0:
        yield refusal("tie_break_order", f"work={plan.work.cells[HANDLE].tolist()}: not in the declared order at {descent}")


def _notes(plan: IterationPlan) -> Iterator[Problem]:
    for name, _ in plan.notes:
        if name in LEAKS:
            yield refusal(LEAKS[name], f"notes.{name}: belongs to another owner and may not stand in a plan")
