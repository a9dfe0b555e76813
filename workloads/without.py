"""A workload without some of its clients: the other half of a noisy-neighbour experiment. The rest is the same to the last nanosecond."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.errors import Problem, UsageError
from workloads.assemble import Rows
from workloads.plan import WorkloadPlan
from workloads.schedule import Bools, Int64, Labels, frozen
from workloads.tenants import NAMES_SHOWN, Senders
from workloads.transforms.contract import cut_references, select, sessions_of


@dataclass(frozen=True, slots=True, eq=False)
class Crowd:
    """Rows in order of arrival with their senders, before prompts are made. ``cancel_after_ns``: None where nothing is cancelled."""

    rows: Rows
    senders: Senders
    cancel_after_ns: Int64 | None


def without_clients(plan: WorkloadPlan, crowd: Crowd) -> Crowd:
    """Leave out the rows of ``plan.without_clients``.

    Arrivals, lengths, senders and cancellations were drawn for all rows before, so those that stay are what they are beside the others;
    only the bytes of their prompts are others of the same lengths, since a prompt is made from its place.
    A turn that waited only for rows that are left out arrives by the clock, and the log counts such turns. Raises UsageError
    ``workload.no_clients``, ``workload.client_unknown``, ``workload.nobody_left``, or ``workload.closed_without`` for a closed loop with a
    user that sends for several clients in turn.
    """
    rows, client = crowd.rows.trace, crowd.senders.client
    if client is None:
        what = "without_clients: no row of the workload bears a client"
        raise UsageError.single("workload.no_clients", what, "declare tenants with shares, or use a trace with clients")
    gone = np.array([name in plan.without_clients for name in client.names] + [False], dtype=np.bool_)
    keep = ~gone[client.codes]
    problems = _refused(plan, client, keep, sessions_of(rows))
    if problems:
        raise UsageError(*problems)
    kept = select(rows, keep)
    if crowd.rows.ledger is not None:
        parameters = {"clients": list(plan.without_clients)}
        crowd.rows.ledger.add("without_clients", parameters, kept, cut_references(rows, keep, kept), planned=True)
    senders = Senders(
        Labels(client.names, frozen(client.codes[keep])),
        crowd.senders.request_class and Labels(crowd.senders.request_class.names, frozen(crowd.senders.request_class.codes[keep])),
        None if crowd.senders.priority is None else frozen(crowd.senders.priority[keep]),
    )
    cancelled = None if crowd.cancel_after_ns is None else frozen(crowd.cancel_after_ns[keep])
    return Crowd(replace(crowd.rows, trace=kept), senders, cancelled)


def _refused(plan: WorkloadPlan, client: Labels, keep: Bools, session: Int64) -> list[Problem]:
    problems = []
    unknown = sorted(set(plan.without_clients) - set(client.names))
    if unknown:
        known = ", ".join(client.names[:NAMES_SHOWN])
        what = f"without_clients: {', '.join(unknown[:NAMES_SHOWN])} not among the {len(client.names)} clients of the workload"
        problems.append(Problem("workload.client_unknown", what, f"use names that are there: {known}"))
    if not keep.any():
        problems.append(Problem("workload.nobody_left", "without_clients: no request is left", "leave at least one client in"))
    torn = np.intersect1d(session[keep], session[~keep])
    if plan.loop == "closed" and len(torn):
        what = f"without_clients: {len(torn)} users of the closed loop send for several clients in turn; without one the others change"
        problems.append(Problem("workload.closed_without", what, "use an open loop, or clients by share, which are users' own"))
    return problems
