"""Who sends each request, how urgent it is, and by which objective it is judged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.errors import Problem, UsageError
from workloads import seeds
from workloads.plan import TenantPlan, WorkloadPlan
from workloads.schedule import Int64, Labels, Trace, frozen
from workloads.transforms.contract import sessions_of

SHARES_SLACK = 1e-9
"""How far shares may be from 1 together: what adding decimals in binary can lose."""

NAMES_SHOWN = 20
"""A screenful of client names in a message."""


@dataclass(frozen=True, slots=True, eq=False)
class Senders:
    """Columns of a schedule; None where the workload has no such thing. ``priority`` is 0 for clients that declare none."""

    client: Labels | None
    request_class: Labels | None
    priority: Int64 | None


def check_tenants(tenants: tuple[TenantPlan, ...]) -> list[Problem]:
    """What contradicts itself among the tenants, whatever the trace."""
    names = [tenant.name for tenant in tenants]
    shares = [tenant.share for tenant in tenants if tenant.share is not None]
    problems = []
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        problems.append(Problem("workload.tenant_twice", f"tenants: {', '.join(twice)} declared more than once", "name each once"))
    if shares and len(shares) < len(tenants):
        what = f"tenants: {len(shares)} of {len(tenants)} have a share, so the rest would get what is left by accident"
        problems.append(Problem("workload.tenant_shares", what, "give every tenant a share, or none when the trace has clients"))
    elif shares and abs(sum(shares) - 1) > SHARES_SLACK:
        what = f"tenants: shares add up to {sum(shares):.9g}"
        problems.append(Problem("workload.tenant_shares", what, "make them add up to 1"))
    return problems


def assign(plan: WorkloadPlan, rows: Trace) -> Senders:
    """Clients, classes and priorities of rows.

    A trace's clients keep their rows, and tenants of their names say what these are sent and judged with. Without clients, each session
    (each row where there are none) goes to a tenant by share, from the seed's dimension ``tenants``. Without tenants, the trace's own
    kinds of request are the classes. Raises UsageError when names or shares do not fit the trace.
    """
    if not plan.tenants:
        return Senders(rows.client, rows.kind, None)
    ranked = tuple(sorted(plan.tenants, key=lambda tenant: tenant.name))
    if rows.client is None:
        client, tenant = _drawn(ranked, rows, plan.seed)
    else:
        client, tenant = rows.client, _matched(ranked, rows.client)
    classes = sorted({t.request_class for t in ranked if t.request_class is not None})
    codes = np.array([-1 if t.request_class is None else classes.index(t.request_class) for t in ranked] + [-1], dtype=np.int32)
    urgent = np.array([t.priority or 0 for t in ranked] + [0], dtype=np.int64)
    return Senders(
        client,
        Labels(tuple(classes), frozen(codes[tenant])) if classes else None,
        frozen(urgent[tenant]) if any(t.priority is not None for t in ranked) else None,
    )


def _drawn(ranked: tuple[TenantPlan, ...], rows: Trace, seed: int) -> tuple[Labels, Int64]:
    """Clients by share; (labels, index of each row's tenant)."""
    missing = [tenant.name for tenant in ranked if tenant.share is None]
    if missing:
        what = f"tenants: {', '.join(missing[:NAMES_SHOWN])} without a share, and the workload has no clients of its own"
        raise UsageError.single("workload.tenant_shares", what, "give every tenant a share")
    session = sessions_of(rows)
    draws = seeds.generator(seed, "tenants").random(int(session.max()) + 1 if len(session) else 0)
    edges = np.cumsum([tenant.share or 0.0 for tenant in ranked])[:-1]  # the last one takes what rounding leaves
    tenant = np.searchsorted(edges, draws, side="right")[session].astype(np.int64)
    return Labels(tuple(t.name for t in ranked), frozen(tenant.astype(np.int32))), tenant


def _matched(ranked: tuple[TenantPlan, ...], client: Labels) -> Int64:
    """Index of each row's tenant, -1 for a client that no tenant describes."""
    there = set(client.names)
    unknown = [tenant.name for tenant in ranked if tenant.name not in there]
    known = ", ".join(client.names[:NAMES_SHOWN]) + (", ..." if len(client.names) > NAMES_SHOWN else "")
    problems = []
    if unknown:
        what = f"tenants: {', '.join(unknown[:NAMES_SHOWN])} not among the {len(there)} clients of the trace"
        problems.append(Problem("workload.tenant_unknown", what, f"use the trace's own names: {known}"))
    if any(tenant.share is not None for tenant in ranked):
        what = "tenants: shares are given, but the trace has clients with shares of their own"
        problems.append(Problem("workload.tenant_shares", what, "drop the shares; the transform tenants merges or splits clients"))
    if problems:
        raise UsageError(*problems)
    place = {tenant.name: k for k, tenant in enumerate(ranked)}
    table = np.array([place.get(name, -1) for name in client.names] + [-1], dtype=np.int64)
    return table[client.codes]
