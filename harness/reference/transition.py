"""The only writer of scheduler state: arrivals, cancellations and completed results make the successor; plans alone make nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from harness.reference.contract import (
    Declaration,
    IterationPlan,
    IterationResult,
    RequestView,
    Row,
    SchedulerState,
    Service,
    frozen_map,
)


def initial_state(now_ns: int = 0) -> SchedulerState:
    """Return the state before anything arrived."""
    return SchedulerState(
        decision_id=0, state_version=0, now_ns=now_ns, waiting=(), running=(), suspended=(), finished=(),
        views=frozen_map({}), service=frozen_map({}),
    )  # fmt: skip


def arrive(state: SchedulerState, declared: Iterable[Declaration]) -> SchedulerState:
    """Publish new requests at the end of the waiting queue and retire what had finished. Raises ValueError for an id in use."""
    views = _live_views(state)
    new = []
    for declaration in declared:
        if declaration.request_id in views:
            raise ValueError(f"request_id={declaration.request_id!r}: already live, ids are used once")
        views[declaration.request_id] = RequestView(declaration)
        new.append(declaration.request_id)
    return replace(state, state_version=state.state_version + 1, waiting=state.waiting + tuple(new), finished=(), views=frozen_map(views))


def cancel(state: SchedulerState, request_ids: Iterable[str]) -> SchedulerState:
    """Publish a terminal successor generation of each live request named; ids that are not live are ignored (they ended first)."""
    views = _live_views(state)
    gone = tuple(name for name in dict.fromkeys(request_ids) if name in views)
    for name in gone:
        view = views[name]
        declared = view.declared._replace(generation=view.declared.generation + 1)
        views[name] = view._replace(declared=declared, snapshot_version=view.snapshot_version + 1, resident=0, terminal="abort")
    lost = frozenset(gone)
    return replace(
        state,
        state_version=state.state_version + 1,
        waiting=_without(state.waiting, lost),
        running=_without(state.running, lost),
        suspended=_without(state.suspended, lost),
        finished=gone,
        views=frozen_map(views),
    )


def advance(state: SchedulerState, plan: IterationPlan, result: IterationResult, now_ns: int) -> SchedulerState:
    """Return the successor of ``state``: queue intents of the plan, then progress of the completed rows only.

    Both must have been validated. Raises ValueError when the plan or the result belongs to another state version.
    """
    if not plan.input_state_version == result.input_state_version == state.state_version:
        raise ValueError(f"input_state_version={plan.input_state_version}: the state is at {state.state_version}")
    views = _live_views(state)
    preempted = {key.request_id for key in plan.preempt}
    for name in preempted:
        views[name] = _suspend(views[name])
    admitted = {key.request_id for key in plan.admit}
    finished = []
    for row in result.rows:
        views[row.request_id] = _progress(views[row.request_id], row)
        if row.terminal is not None:
            finished.append(row.request_id)
    gone = frozenset(finished)
    running = _without(state.running, preempted) + tuple(key.request_id for key in plan.admit)
    return SchedulerState(
        decision_id=state.decision_id + 1,
        state_version=state.state_version + 1,
        now_ns=now_ns,
        waiting=_without(state.waiting, admitted),
        running=_without(running, gone),
        suspended=_without(state.suspended, admitted) + tuple(key.request_id for key in plan.preempt),
        finished=tuple(finished),
        views=frozen_map(views),
        service=_credit(state, result),
        recomputed_rows=state.recomputed_rows + result.recomputed_rows,
    )


def _live_views(state: SchedulerState) -> dict[str, RequestView]:
    views = dict(state.views)
    for name in state.finished:
        del views[name]
    return views


def _suspend(view: RequestView) -> RequestView:
    # Recompute preemption: the semantic frontiers stay (no token is emitted twice), only the held rows go.
    return view._replace(snapshot_version=view.snapshot_version + 1, resident=0, suspension_epoch=view.suspension_epoch + 1)


def _progress(view: RequestView, row: Row) -> RequestView:
    return RequestView(
        view.declared, view.snapshot_version + 1, row.emitted_after, row.computed_after, row.committed_after,
        0 if row.terminal is not None else row.resident_after, view.ready, row.terminal, view.suspension_epoch,
    )  # fmt: skip


def _credit(state: SchedulerState, result: IterationResult) -> Mapping[str, Service]:
    if not result.debits:
        return state.service
    service = dict(state.service)
    for debit in result.debits:
        old = service.get(debit.client, Service())
        service[debit.client] = Service(old.prefill_rows + debit.prefill_rows, old.decode_rows + debit.decode_rows)
    return frozen_map(service)


def _without(names: tuple[str, ...], gone: frozenset[str] | set[str]) -> tuple[str, ...]:
    return tuple([name for name in names if name not in gone]) if gone else names
