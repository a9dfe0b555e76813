"""Rules that tie sections together. Each says which sections it needs, so that a fault in one hides no fault in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.manifest.api_rules import check_api
from harness.manifest.arm_rules import check_arms, check_attested
from harness.manifest.cache_rules import check_shared_servers
from harness.manifest.capacity_rules import check_claim, check_length, check_objective, check_offered, check_search
from harness.manifest.document import Path
from harness.manifest.explain import nearest, shown
from harness.manifest.fairness import FairnessSection, check_fairness, check_guarantee
from harness.manifest.findings import Finding, Findings
from harness.manifest.priority_rules import check_priorities
from harness.manifest.ramp_rules import check_ramp, check_ramp_search, check_ramp_window
from harness.manifest.schema import Arm, Client, Load, Rank, Replicates, Slo, Waiver, Window
from harness.manifest.topology import check_topology
from harness.manifest.units import UnitError, format_duration, parse_rate
from harness.manifest.workload import Workload
from harness.manifest.workload_rules import check_classes, check_workload, draws

NEVER_WAIVABLE = frozenset({"partition_closes", "requests_wellformed", "server_survived", "seal_intact", "pins_match"})
"""Gates whose failure means that the record is not of the run it claims to be (DESIGN 8)."""

MAX_RUNS = 10_000
"""Runs of one campaign: at a minute each it is a week."""

_SLO_METRICS = frozenset({"goodput", "attainment", "capacity", "jain_attainment", "attainment_least"})


def cross_check(sections: Mapping[str, Any], known_gates: frozenset[str] | None) -> list[Finding]:
    """Run every rule whose sections are valid; return everything found."""
    found = [f for needs, rule in RULES if all(n in sections for n in needs) for f in rule(*(sections[n] for n in needs))]
    if "waivers" in sections:
        found += check_waivers(sections["waivers"], known_gates)
    return found


def check_waivers(waivers: tuple[Waiver, ...], known_gates: frozenset[str] | None) -> Findings:
    """A waiver names a gate that exists and may be waived, once."""
    seen: set[str] = set()
    for i, waiver in enumerate(waivers):
        path = ("waivers", i, "gate")
        if waiver.gate in NEVER_WAIVABLE:
            yield Finding(
                "never_waivable", path, f"={waiver.gate}: no written reason can make up for it", "delete the waiver and cure the cause"
            )
        elif known_gates is not None and waiver.gate not in known_gates:
            near = nearest(waiver.gate, sorted(known_gates))
            remedy = f"did you mean {near}?" if near else "`trigpoint explain` lists the gates"
            yield Finding("unknown_gate", path, f"={waiver.gate}: no gate has this code", remedy)
        if waiver.gate in seen:
            yield Finding("waived_twice", path, f"={waiver.gate}: waived twice", "keep one reason")
        seen.add(waiver.gate)


def _slo(slo: Slo | None) -> Findings:
    if slo is not None and slo.ttft is None and slo.tbt is None and slo.e2e is None:
        yield Finding("empty_slo", ("slo",), ": without a limit every request is valid", "add ttft, tbt or e2e, or delete slo")


def _load(load: Load) -> Findings:
    given = [name for name in ("time_compression", "rate", "capacity") if getattr(load, name) is not None]
    if len(given) != 1:
        yield Finding(
            "bad_load",
            ("load",),
            f": {len(given)} load axes are given, one is needed",
            "keep exactly one of time-compression, rate, capacity",
        )
    for name in ("time_compression", "rate"):
        values = getattr(load, name) or ()
        labels = [f"{v:g}" for v in values]
        twice = sorted({x for x in labels if labels.count(x) > 1})
        if twice:
            what = f": {', '.join(twice)} more than once, to six digits: two cells would have one name"
            yield Finding("same_load", ("load", name.replace("_", "-")), what, "keep each load point once")


def _load_fits(load: Load, workload: Workload) -> Findings:
    own = workload.arrivals.process == "trace"
    if own and workload.trace is None:
        yield Finding(
            "no_trace",
            ("workload", "arrivals"),
            ".process=trace: there is no trace to take times from",
            "use constant, poisson, gamma or weibull, or add a trace",
        )
    elif own and load.rate is not None:
        what = ": the trace's own arrival times have no rate to set"
        yield Finding("load_mismatch", ("load", "rate"), what, "use time-compression, or arrivals: {process: poisson}")
    elif not own and load.time_compression is not None:
        what = f": arrivals are {workload.arrivals.process}, and nothing says at which rate"
        yield Finding("load_mismatch", ("load", "time-compression"), what, "use load: {rate: [5/s]}, or arrivals: {process: trace}")


def _rank(rank: Rank | None, slo: Slo | None) -> Findings:
    if rank is None:
        return
    for key, metric in (("metric", rank.metric), ("against", rank.against)):
        if metric in _SLO_METRICS and slo is None:
            what = f"={metric}: is counted against an SLO, and there is none"
            yield Finding("missing_key", ("rank", key), what, "add slo, e.g. slo: {ttft: 2s}")
    if rank.against == rank.metric:
        what = f"={rank.against}: is the metric itself, and a front needs two"
        yield Finding("bad_rank", ("rank", "against"), what, "name another figure, such as ttft_p95, or leave the key out")


def _rank_at(rank: Rank | None, load: Load) -> Findings:
    if rank is None:
        return
    if load.capacity is not None or rank.metric == "capacity":  # see check_claim
        return
    points = load.time_compression or load.rate or ()
    written = ", ".join(f"{p:g}{'/s' if load.rate else ''}" for p in points)
    if rank.at is None:
        if len(points) > 1:
            yield Finding(
                "missing_key",
                ("rank",),
                f": there are {len(points)} load points ({written}), at says which",
                f"add at: {written.split(',')[0]}",
            )
    elif rank_value(rank.at, is_rate=load.rate is not None) not in points:
        yield Finding(
            "bad_rank",
            ("rank", "at"),
            f"={shown(rank.at)}: not a load point of this manifest",
            f"use one of: {written or 'none, delete at'}",
        )


def rank_value(at: float | str, *, is_rate: bool) -> float | None:
    """Return ``at`` on the load's axis, None when it is written for the other axis."""
    if isinstance(at, str) != is_rate:
        return None
    try:
        return parse_rate(at) if isinstance(at, str) else float(at)
    except UnitError:
        return None


def _replicates(replicates: Replicates, arms: dict[str, Arm], load: Load) -> Findings:
    points = len(load.time_compression or load.rate or (None,))
    runs = replicates.count * len(arms) * points
    if runs > MAX_RUNS:
        what = f"={replicates.count} x {len(arms)} arms x {points} load points = {runs} runs, more than {MAX_RUNS}"
        yield Finding("too_many_runs", ("replicates", "count"), what, "split the campaign")


def _starts(replicates: Replicates) -> Findings:
    if replicates.server_starts is not None and replicates.server_starts > replicates.count:
        what = f"={replicates.server_starts} is above count={replicates.count}: some servers would serve nothing"
        yield Finding("bad_replicates", ("replicates", "server-starts"), what, f"use at most {replicates.count}")


def _varied(replicates: Replicates, workload: Workload) -> Findings:
    path: Path = ("replicates", "vary")
    if replicates.vary == "window" and workload.trace is None:
        yield Finding("bad_vary", path, "=window: there is no trace to take other slices from", "use vary: seed, or vary: none")
    if replicates.vary == "window" and workload.trace is not None and workload.trace.window is None:
        what = "=window: slices are cut from workload.trace.window, and there is none"
        yield Finding("bad_vary", path, what, "add window: [0s, 3000s] to workload.trace, as much as you mean to sample")
    if replicates.vary == "seed" and not draws(workload):
        what = "=seed: times and lengths come from the trace and nothing in the chain is drawn, so replicates would repeat one load"
        yield Finding("bad_vary", path, what, "use vary: window, vary: none, a step that draws, or poisson arrivals")


def _client(client: Client) -> Findings:
    if client.concurrency_cap is not None and client.fleet is not None and client.fleet.workers > 1:
        what = f"={client.concurrency_cap}: a cap is one queue, and each of the {client.fleet.workers} workers would have its own"
        yield Finding("cap_workers", ("client", "concurrency-cap"), what, "use one worker, or no cap")
    if client.fleet is not None and client.fleet.mode == "processes" and client.fleet.memory is not None:
        what = ": processes of one host take what they need; memory is reserved on the nodes of a Ray cluster only"
        yield Finding("fleet_memory", ("client", "fleet", "memory"), what, "delete it, or use mode: ray")
    for name in ("cpus", "server_cpus", "spool_cpus"):
        cores = getattr(client, name)
        if len(set(cores)) != len(cores):
            yield Finding("same_core", ("client", name.replace("_", "-")), ": a core stands twice", "name each core once")
    for name in ("server_cpus", "spool_cpus"):
        shared = sorted(set(client.cpus) & set(getattr(client, name)))
        if shared:
            what = f": shares core {', '.join(map(str, shared))} with client.cpus, which are reserved for the load engine"
            yield Finding("shared_core", ("client", name.replace("_", "-")), what, "reserve other cores, or none")


def _fairness(section: FairnessSection | None, window: Window) -> Findings:
    yield from check_fairness(section, window.measured)


def _without(arms: dict[str, Arm], workload: Workload) -> Findings:
    """Clients that an arm leaves out are there, and somebody is left."""
    known = sorted(workload.tenants)
    for name, arm in arms.items():
        path: Path = ("arms", name, "without-clients")
        for client in arm.without_clients:
            if known and workload.trace is None and client not in known:
                near = nearest(client, known)
                remedy = f"did you mean {near}?" if near else f"use one of: {', '.join(known[:20])}"
                yield Finding("unknown_client", path, f"={client}: no client of workload.tenants", remedy)
        if not known and workload.trace is None and arm.without_clients:
            yield Finding("unknown_client", path, ": the workload has no clients", "declare workload.tenants with shares")
        if known and set(known) <= set(arm.without_clients):
            yield Finding("bad_clients", path, ": nobody would be left", "leave at least one client in")


def _controls(arms: dict[str, Arm], rank: Rank | None) -> Findings:
    """A ranking needs arms that are no controls."""
    if rank is not None and len(arms) > 1 and sum(not arm.without_clients for arm in arms.values()) < 2:
        what = f"={rank.metric}: all arms but one leave clients out, and such controls are never ranked"
        yield Finding("bad_rank", ("rank", "metric"), what, "add an arm that serves every client, or drop rank")


def _cancellations(client: Client, workload: Workload) -> Findings:
    cancelled, limit = workload.cancellations, client.request_timeout
    if cancelled is not None and limit is not None and cancelled.after >= limit:
        what = f"={format_duration(cancelled.after)}: client.request-timeout={format_duration(limit)} ends every request sooner"
        path: Path = ("workload", "cancellations", "after")
        yield Finding("never_cancelled", path, what, "cancel earlier, raise the time limit, or drop one of the two")


Rule = tuple[tuple[str, ...], Callable[..., Findings]]

RULES: tuple[Rule, ...] = (
    (("arms",), check_arms),
    (("arms", "pins"), check_attested),
    (("arms", "pins"), check_topology),
    (("workload",), check_workload),
    (("workload", "slo"), check_classes),
    (("slo",), _slo),
    (("load",), _load),
    (("load", "workload"), _load_fits),
    (("load", "replicates"), check_search),
    (("load", "replicates", "arms"), check_length),
    (("load", "workload"), check_offered),
    (("load", "workload", "arms"), check_shared_servers),
    (("load", "slo"), check_objective),
    (("rank", "load"), check_claim),
    (("rank", "slo"), _rank),
    (("rank", "load"), _rank_at),
    (("replicates",), _starts),
    (("replicates", "arms", "load"), _replicates),
    (("replicates", "workload"), _varied),
    (("fairness", "window"), _fairness),
    (("fairness", "arms"), check_guarantee),
    (("arms", "workload"), _without),
    (("arms", "workload"), check_api),
    (("workload",), check_ramp),
    (("load", "workload"), check_ramp_search),
    (("window", "workload"), check_ramp_window),
    (("arms", "workload"), check_priorities),
    (("arms", "rank"), _controls),
    (("client",), _client),
    (("client", "workload"), _cancellations),
)
