"""Checks that stand between a policy and execution, and between execution and state. All problems are collected; nothing short-circuits.

Every code below has a negative test that changes one invariant and sees that code refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from harness.errors import Problem, TrigpointError
from harness.reference.contract import (
    Debit,
    IterationPlan,
    IterationResult,
    Key,
    Ledger,
    Phase,
    RequestView,
    Row,
    SchedulerState,
    Work,
    WorkloadManifest,
    interval_limit,
    order_key,
    phase_of,
)


class ContractError(TrigpointError):
    """A policy or an executor broke the scheduler contract: a defect in this engine, not an input error."""

    exit_code = 3


def validate_plan(workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan) -> list[Problem]:
    """Hold a plan against the state it claims to be made from (F01-F06 and version binding); empty when it may run."""
    problems = [*_plan_identity(workload, state, plan), *_duplicates(plan)]
    for work in plan.work:
        problems.extend(_check_work(state, work))
    problems.extend(_queues(workload, state, plan))
    problems.extend(_budgets(workload, state, plan))
    problems.extend(_evidence(workload, state, plan))
    return problems


def validate_result(state: SchedulerState, plan: IterationPlan, result: IterationResult) -> list[Problem]:
    """Hold a result against its plan: nothing unplanned, clocks by F07, debits from completed service only."""
    problems = []
    if (result.decision_id, result.input_state_version) != (plan.decision_id, plan.input_state_version):
        problems.append(_bad("stale_result", f"decision_id={result.decision_id}: decision and version are not those of the plan"))
    planned = {work.request_id: work for work in plan.work}
    seen: set[str] = set()
    for row in result.rows:
        work = planned.get(row.request_id)
        if work is None or row.request_id in seen:
            problems.append(_bad("unplanned_completion", f"request_id={row.request_id}: no planned interval is left for this row"))
            continue
        seen.add(row.request_id)
        problems.extend(_check_row(state.views[row.request_id], work, row))
    problems.extend(_bad("missing_row", f"request_id={name}: planned but not reported") for name in planned.keys() - seen)
    problems.extend(_check_service(state, plan, result))
    return problems


def require(problems: Sequence[Problem]) -> None:
    """Raise ContractError with all problems, if there are any."""
    if problems:
        raise ContractError(*problems)


def service_of(state: SchedulerState, plan: IterationPlan, rows: Sequence[Row]) -> tuple[tuple[Debit, ...], int]:
    """Derive debits by client (sorted by name) and rebuilt rows from completed intervals."""
    phases = {work.request_id: work.phase for work in plan.work}
    totals: dict[str, list[int]] = {}
    rebuilt = 0
    for row in rows:
        width = row.completed_end - row.start
        phase = phases.get(row.request_id)
        if width <= 0 or phase is None:
            continue
        if phase is Phase.REBUILD:
            rebuilt += width
            continue
        client = state.views[row.request_id].declared.client
        totals.setdefault(client, [0, 0])[phase is Phase.DECODE] += width
    return tuple([Debit(client, *counts) for client, counts in sorted(totals.items())]), rebuilt


def kv_after(state: SchedulerState, preempt: Sequence[Key], work: Sequence[Work]) -> int:
    """KV rows resident once ``work`` has completed: what is held now, less the preempted, plus every planned row (F23 in rows)."""
    gone = {key.request_id for key in preempt}
    held = sum([state.views[name].resident for name in state.running if name not in gone])
    return held + sum([item.end - item.start for item in work])


def _bad(code: str, what: str) -> Problem:
    return Problem(code, what, "correct the policy or executor that wrote this record; the iteration was not run")


def _plan_identity(workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan) -> Iterator[Problem]:
    if plan.input_state_version != state.state_version:
        yield _bad("stale_state", f"input_state_version={plan.input_state_version}: the state is at {state.state_version}")
    if plan.decision_id != state.decision_id:
        yield _bad("stale_decision", f"decision_id={plan.decision_id}: the state expects {state.decision_id}")
    if (plan.policy_id, plan.policy_version) != (workload.policy_id, workload.policy_version):
        yield _bad("policy_identity", f"policy={plan.policy_id} {plan.policy_version}: the workload declares another")


def _duplicates(plan: IterationPlan) -> Iterator[Problem]:
    for name, members in (
        ("work", [work.request_id for work in plan.work]),
        ("admit", [key.request_id for key in plan.admit]),
        ("preempt", [key.request_id for key in plan.preempt]),
    ):
        if len(set(members)) != len(members):
            yield _bad("duplicate_member", f"{name}={members}: a request appears twice")


def _check_work(state: SchedulerState, work: Work) -> Iterator[Problem]:
    view = state.views.get(work.request_id)
    if view is None or view.declared.generation != work.generation:
        yield _bad("stale_generation", f"request={work.request_id}:{work.generation}: not a current generation")
        return
    if (view.snapshot_version, view.suspension_epoch) != (work.snapshot_version, work.suspension_epoch):
        yield _bad("stale_snapshot", f"request={work.request_id} snapshot={work.snapshot_version}: it is at {view.snapshot_version}")
    if view.terminal is not None:
        yield _bad("terminal_request", f"request={work.request_id}: ended with {view.terminal}")
    if not view.ready:
        yield _bad("unready_request", f"request={work.request_id}: a dependency is not ready")
    yield from _check_interval(view, work)


def _check_interval(view: RequestView, work: Work) -> Iterator[Problem]:
    if view.committed != view.computed or not 0 <= view.resident <= view.computed:
        yield _bad("view_frontiers", f"request={work.request_id}: k={view.committed} c={view.computed} resident={view.resident}")
    start, limit = interval_limit(view)
    if work.start != start or not start < work.end <= limit:
        yield _bad("illegal_interval", f"request={work.request_id} [{work.start}, {work.end}): legal ends lie in ({start}, {limit}]")
    if work.phase is not phase_of(view):
        yield _bad("forged_phase", f"request={work.request_id} phase={work.phase}: the frontiers say {phase_of(view)}")
    if work.positions != range(work.start, work.end):
        yield _bad("forged_positions", f"request={work.request_id} positions={work.positions}: the interval says otherwise")
    if work.phase is Phase.DECODE and view.computed != view.declared.prompt_tokens + view.emitted - 1:
        yield _bad("decode_clock", f"request={work.request_id}: computed={view.computed} is not prompt + emitted - 1 (F03)")


def _queues(workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan) -> Iterator[Problem]:
    running, outside = set(state.running), {*state.waiting, *state.suspended}
    members = (*state.waiting, *state.running, *state.suspended, *state.finished)
    if len(set(members)) != len(members) or set(members) != state.views.keys():
        yield _bad("queue_partition", "queues: a live request is missing, unknown or a member of two queues")
    for name, keys, allowed in (("admit", plan.admit, outside), ("preempt", plan.preempt, running)):
        for key in keys:
            view = state.views.get(key.request_id)
            if key.request_id not in allowed or view is None or view.key != key:
                yield _bad("queue_intent", f"{name}={key.request_id}:{key.generation}: not a current member of the queue it should leave")
    preempted = {key.request_id for key in plan.preempt}
    eligible = (running - preempted) | {key.request_id for key in plan.admit}
    for work in plan.work:
        if work.request_id not in eligible:
            yield _bad("not_admitted", f"request={work.request_id}: selected, but not running after this plan")
    if len(eligible) > workload.budgets.sequences:
        yield _bad("sequence_budget", f"running={len(eligible)}: the budget is {workload.budgets.sequences} sequences")


def _budgets(workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan) -> Iterator[Problem]:
    limit = workload.budgets
    tokens = sum([work.end - work.start for work in plan.work])
    sequences = len({work.request_id for work in plan.work})
    kv_rows = kv_after(state, plan.preempt, plan.work)
    if tokens > limit.tokens:
        yield _bad("token_budget", f"tokens={tokens}: the budget is {limit.tokens} (F05)")
    if sequences > limit.sequences:
        yield _bad("sequence_budget", f"sequences={sequences}: the budget is {limit.sequences} (F06)")
    if kv_rows > limit.kv_capacity:
        yield _bad("kv_capacity", f"kv_rows={kv_rows}: the capacity is {limit.kv_capacity}")
    if plan.ledger != Ledger(tokens, sequences, kv_rows):
        yield _bad("ledger_drift", f"ledger={tuple(plan.ledger)}: the work adds up to {(tokens, sequences, kv_rows)}")


def _evidence(workload: WorkloadManifest, state: SchedulerState, plan: IterationPlan) -> Iterator[Problem]:
    running = set(state.running)
    replayed = tuple(
        [
            order_key(workload.tie_break, state.views[work.request_id], running=work.request_id in running)
            for work in plan.work
            if work.request_id in state.views
        ]
    )
    if plan.order != replayed:
        yield _bad("tie_break_evidence", "order: the declared tie-break gives other keys for this state")
    elif any(later < earlier for earlier, later in pairwise(replayed)):
        yield _bad("tie_break_order", "work: not in the declared order")


def _check_row(view: RequestView, work: Work, row: Row) -> Iterator[Problem]:
    if (row.generation, row.snapshot_version) != (work.generation, work.snapshot_version):
        yield _bad("stale_result", f"request={row.request_id}:{row.generation}: the plan binds generation {work.generation}")
    if (row.start, row.planned_end) != (work.start, work.end) or not work.start <= row.completed_end <= work.end:
        yield _bad("unplanned_completion", f"request={row.request_id} end={row.completed_end}: planned [{work.start}, {work.end})")
    rebuilt = work.phase is Phase.REBUILD
    width = row.completed_end - row.start
    computed = view.computed + (0 if rebuilt else width)
    if (row.computed_before, row.computed_after, row.committed_after) != (view.computed, computed, computed):
        yield _bad("computed_clock", f"request={row.request_id} computed={row.computed_after}: completed rows give {computed}")
    if row.resident_after != view.resident + width:
        yield _bad("resident_clock", f"request={row.request_id} resident={row.resident_after}: completed rows give {view.resident + width}")
    emits = width > 0 and not rebuilt and computed >= view.declared.prompt_tokens
    if (row.emitted_before, row.emitted_after) != (view.emitted, view.emitted + emits) or (row.token is not None) != emits:
        yield _bad("output_clock", f"request={row.request_id} emitted={row.emitted_after}: F07 gives {view.emitted + emits}")
    if row.completed_end < work.end and row.failure is None:
        yield _bad("unexplained_shortfall", f"request={row.request_id}: completed less than planned without a failure")
    yield from _check_terminal(view, row, emits=emits)


def _check_terminal(view: RequestView, row: Row, *, emits: bool) -> Iterator[Problem]:
    at_limit = row.emitted_after >= view.declared.max_output_tokens
    if row.emitted_after > view.declared.max_output_tokens or (at_limit and row.terminal is None):
        yield _bad("declared_maximum", f"request={row.request_id} emitted={row.emitted_after}: declared {view.declared.max_output_tokens}")
    if row.terminal is not None and not emits and row.failure is None:
        yield _bad("terminal_without_token", f"request={row.request_id}: ended with {row.terminal} without a token or a failure")


def _check_service(state: SchedulerState, plan: IterationPlan, result: IterationResult) -> Iterator[Problem]:
    debits, rebuilt = service_of(state, plan, result.rows)
    if result.debits != debits:
        yield _bad("service_debit", "debits: not what the completed rows add up to; planned work is no service")
    if result.recomputed_rows != rebuilt:
        yield _bad("rebuild_ledger", f"recomputed_rows={result.recomputed_rows}: completed rebuilds give {rebuilt}")
