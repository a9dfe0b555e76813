"""Rules of a search for capacity: its own fields, and what the rest of a manifest must be for a search to mean anything."""

from __future__ import annotations

from harness.errors import UsageError
from harness.manifest.findings import Finding, Findings
from harness.manifest.schema import Arm, CapacitySearch, Load, Rank, Replicates, Slo
from harness.manifest.units import format_rate, parse_rate
from harness.manifest.workload import Workload
from harness.record.search import Search, Stages
from workloads.seeds import derive

PATH = ("load", "capacity")

MAX_PROBES = 10_000
"""Runs of one campaign at most, as for fixed load points: at a minute each it is a week."""

DIGITS = 6
"""Significant digits of a load point's name; two loads that differ beyond them would share a folder."""


def to_search(capacity: CapacitySearch, replicates: Replicates) -> Search:
    """Return the declared procedure. Raises UsageError with everything that contradicts itself."""
    stages = capacity.stages
    return Search(
        unit="rate" if isinstance(capacity.start, str) else "time_compression",
        start=load_number(capacity.start),
        limit=load_number(capacity.limit),
        attainment=capacity.attainment,
        resolution=capacity.resolution,
        grid=capacity.grid,
        step=capacity.step,
        replicates=replicates.count,
        widen=capacity.widen,
        halvings=capacity.halvings,
        spare=capacity.spare,
        method=capacity.method,
        confidence=capacity.confidence,
        order_seed=derive(replicates.seed, "capacity-order"),
        stages=None if stages is None else Stages(stages.half_width, stages.most),
        servers=capacity.servers,
    )


def load_number(load: float | str) -> float:
    """A load as a number on its axis: req/s, or a compression."""
    return parse_rate(load) if isinstance(load, str) else load


def check_search(load: Load, replicates: Replicates) -> Findings:
    """The procedure does not contradict itself, and can be named and grouped."""
    capacity = load.capacity
    if capacity is None:
        return
    if isinstance(capacity.start, str) != isinstance(capacity.limit, str):
        what = f"={_said(capacity.limit)}: start={_said(capacity.start)} is on the other axis, so there is no range between the two"
        yield Finding("bad_search", (*PATH, "limit"), what, "write both as rates (1/s), or both as compressions (1.0)")
        return
    try:
        to_search(capacity, replicates)
    except UsageError as error:
        for problem in error.problems:
            field = problem.where.rpartition(".")[2]
            path = ("replicates", "count") if field == "replicates" else (*PATH, field)
            yield Finding(problem.code, path, f": {problem.what}", problem.remedy)
    for name in ("start", "limit"):
        value = load_number(getattr(capacity, name))
        if float(f"{value:.{DIGITS}g}") != value:
            what = f"={value!r}: more than {DIGITS} significant digits, to which load points are named"
            unit = "/s" if isinstance(capacity.start, str) else ""
            yield Finding("bad_search", (*PATH, name), what, f"write {value:.{DIGITS}g}{unit}")
    if replicates.server_starts not in (None, replicates.count):
        what = f"={replicates.server_starts}: a replicate's capacity is its own only on a server start of its own"
        remedy = f"use {replicates.count} or leave it out; load.capacity.servers says whether load points share one"
        yield Finding("bad_replicates", ("replicates", "server-starts"), what, remedy)


def check_length(load: Load, replicates: Replicates, arms: dict[str, Arm]) -> Findings:
    """The search ends in this life."""
    if load.capacity is None or isinstance(load.capacity.start, str) != isinstance(load.capacity.limit, str):
        return
    try:
        most = to_search(load.capacity, replicates).most_probes * len(arms)
    except UsageError:
        return  # told by check_search
    if most > MAX_PROBES:
        what = f": up to {most} runs over {len(arms)} arms, more than {MAX_PROBES}"
        yield Finding("too_many_runs", PATH, what, "declare fewer replicates, load points or arms")


def check_offered(load: Load, workload: Workload) -> Findings:
    """The load axis is one that the arrivals obey, and the load is the experimenter's alone."""
    if load.capacity is None:
        return
    by_rate, own = isinstance(load.capacity.start, str), workload.arrivals.process == "trace"
    if own and by_rate:
        what = f"={_said(load.capacity.start)}: the trace's own arrival times have no rate to set"
        yield Finding("load_mismatch", (*PATH, "start"), what, "search over compressions (start: 1.0), or use poisson arrivals")
    elif not own and not by_rate:
        what = f"={_said(load.capacity.start)}: arrivals are {workload.arrivals.process}, and nothing says at which rate"
        yield Finding("load_mismatch", (*PATH, "start"), what, "search over rates (start: 1/s), or use arrivals: {process: trace}")
    if workload.loop == "closed":
        what = "=closed: the server's own speed sets the load of a closed loop, so no load of it is a capacity"
        yield Finding("load_mismatch", ("workload", "loop"), what, "use an open loop, or fixed load points")


def check_objective(load: Load, slo: Slo | None) -> Findings:
    """A capacity is counted against an SLO."""
    if load.capacity is not None and slo is None:
        what = ": capacity is the load at which requests still meet an SLO, and there is none"
        yield Finding("missing_key", PATH, what, "add slo, e.g. slo: {ttft: 2s}")


def check_claim(rank: Rank | None, load: Load) -> Findings:
    """A search ranks capacities and nothing else can; one claim has one target and no load point."""
    if rank is None or (load.capacity is None and rank.metric != "capacity"):
        return
    if load.capacity is None or rank.metric != "capacity":
        every = "a search visits other load points for every arm, so capacity is all that arms have in common"
        why = "capacity is found by a search, and only by one" if load.capacity is None else every
        remedy = "use load: {capacity: ...} with metric: capacity, and fixed load points with the others"
        yield Finding("bad_rank", ("rank", "metric"), f"={rank.metric}: {why}", remedy)
        return
    if rank.at is not None:
        what = f"={rank.at}: a capacity is itself a load, and is ranked at none"
        yield Finding("bad_rank", ("rank", "at"), what, "delete at")
    if rank.against is not None:
        what = f"={rank.against}: a search visits other load points for every arm, so no second figure is theirs at one load"
        yield Finding("bad_rank", ("rank", "against"), what, "delete against, or use fixed load points")
    if rank.attainment != load.capacity.attainment:
        what = f"={rank.attainment:g}: load.capacity.attainment={load.capacity.attainment:g}; one claim has one target"
        yield Finding("bad_rank", ("rank", "attainment"), what, f"write attainment: {load.capacity.attainment:g} in both")


def _said(load: float | str) -> str:
    return f"{load:g}" if isinstance(load, float) else format_rate(parse_rate(load))
