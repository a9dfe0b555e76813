"""From a manifest to its runs, in the order in which they are to be made. Pure: no files, no clock, seeded draws only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.errors import UsageError
from harness.manifest.fairness import to_fairness
from harness.manifest.load import LoadedManifest, resolved_form
from harness.manifest.pins import declared, merge_pins
from harness.manifest.playable import unplayable
from harness.manifest.resolve import load_points, plan_workload, slices_by_replicate, to_rank, to_slo, to_slo_classes, to_window
from harness.manifest.schema import Arm, Manifest
from harness.manifest.slices import Slice
from harness.record import spec
from harness.runtimes.contract import RESTARTED
from workloads.plan import WorkloadPlan
from workloads.seeds import generator

if TYPE_CHECKING:
    from harness.manifest.searches import Searches


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One replicate of one cell, complete but for what only the machine knows (schedule, tokenizer, certificate).

    ``index``: place in the execution order. ``server_start``: server process within the arm, over all its load points. ``window_s``: part
    of the trace, s of trace time; null without a trace. ``weights``: of tenants, for the fairness measures.
    """

    index: int
    cell: str
    arm: spec.Arm
    load: spec.LoadPoint
    replicate: int
    server_start: int
    pins: spec.Pins
    workload: WorkloadPlan
    window_s: tuple[float, float] | None
    slo: spec.Slo
    slo_classes: dict[str, spec.Slo] = field(hash=False)
    window: spec.Window
    replication: spec.Replication
    rank: spec.Rank | None
    waivers: tuple[spec.Waiver, ...]
    estimand: spec.Estimand
    on_pin_mismatch: Literal["stop", "run-unranked"]
    host_profile: Literal["container-cpu", "gpu"]
    cache: Literal["cold", "warm", "as_trace"]
    loop: str
    concurrency_cap: int | None
    request_timeout_ns: int | None
    placement: dict[str, list[int]] = field(hash=False)
    workers: int
    weights: dict[str, float] = field(hash=False)
    fairness: spec.Fairness | None = None
    probe: spec.Probe | None = None
    fleet: Literal["processes", "ray"] = "processes"
    worker_memory: int | None = None


@dataclass(frozen=True, slots=True)
class Campaign:
    """One manifest and all its runs, in execution order. A search for capacity has none before it is made: ``searches`` plans each of
    its runs when it is asked for.
    """

    name: str
    digest: str
    question: str
    path: Path
    text: str
    resolved: dict[str, Any] = field(hash=False, repr=False)
    runs: tuple[PlannedRun, ...]
    waivers: tuple[spec.Waiver, ...]
    rank: spec.Rank | None
    searches: Searches | None = None

    @property
    def examples(self) -> tuple[PlannedRun, ...]:
        """Runs that stand for all that can be run: every arm, every draw, and the ends of the load axis."""
        return self.runs if self.searches is None else self.searches.examples()

    @property
    def most_runs(self) -> int:
        """The runs, or the most that its searches can ask for."""
        return len(self.runs) if self.searches is None else self.searches.most_runs


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm at one load; ``point``: place of the load among those of the manifest."""

    arm_name: str
    point: int
    load: spec.LoadPoint


def expand_points(loaded: LoadedManifest) -> Campaign:
    """Resolve a manifest with fixed load points into its runs.

    The same replicate index means the same workload for every arm (runs pair by trace). Interleaved: blocks of one server start of every
    cell, cells in an order drawn per block; sequential: cell after cell. Raises UsageError (``window_too_short``, what ``workloads`` would
    refuse) with every problem of the first kind that has any.
    """
    manifest = loaded.manifest
    points = load_points(manifest)
    slices, problems = slices_by_replicate(loaded, points)
    if problems:
        raise UsageError(*problems)
    order = list(_order(manifest, points))
    names = declared(manifest.arms, manifest.pins)
    runs = tuple(plan_run(i, loaded, cell, r, slices, names[cell.arm_name]) for i, (cell, r) in enumerate(order))
    problems = unplayable(loaded, runs[0].workload)  # runs differ in seed, load and window only
    if problems:
        raise UsageError(*problems)
    return campaign_of(loaded, runs, None)


def campaign_of(loaded: LoadedManifest, runs: tuple[PlannedRun, ...], searches: Searches | None) -> Campaign:
    """Put a campaign's frame around its runs, or around what plans them."""
    manifest = loaded.manifest
    return Campaign(
        name=loaded.name,
        digest=loaded.digest,
        question=manifest.question,
        path=loaded.path,
        text=loaded.text,
        resolved=resolved_form(manifest) | {"name": loaded.name},
        runs=runs,
        waivers=_waivers(manifest),
        rank=to_rank(manifest),
        searches=searches,
    )


def _starts(manifest: Manifest) -> int:
    return manifest.replicates.server_starts or manifest.replicates.count


def _process_of(manifest: Manifest, cell: Cell, replicate: int) -> int:
    """The server process of a replicate within its arm. A cache policy that wants an empty cache gets a process for each replicate from a
    runtime that empties it no other way, however few starts are declared."""
    if manifest.workload.cache != "as_trace" and manifest.arms[cell.arm_name].runtime in RESTARTED:
        return cell.point * manifest.replicates.count + replicate
    return cell.point * _starts(manifest) + _replication(manifest).start_of(replicate)


def _order(manifest: Manifest, points: tuple[spec.LoadPoint, ...]) -> Iterator[tuple[Cell, int]]:
    # Arms by name, because the order of keys in a file must not change what is run.
    cells = [Cell(name, i, point) for name in sorted(manifest.arms) for i, point in enumerate(points)]
    replicates = range(manifest.replicates.count)
    if manifest.replicates.order == "sequential":
        yield from ((cell, r) for cell in cells for r in replicates)
        return
    for start in range(_starts(manifest)):
        # Replicates of one server start stay together: another arm's server in between would end it.
        block = [r for r in replicates if _replication(manifest).start_of(r) == start]
        drawn = generator(manifest.replicates.seed, "order", start).permutation(len(cells))
        yield from ((cells[int(c)], r) for c in drawn for r in block)


def plan_run(
    index: int, loaded: LoadedManifest, cell: Cell, replicate: int, slices: list[Slice] | None, names: tuple[str, ...]
) -> PlannedRun:
    """Plan one run; ``slices`` by replicate, ``names``: coordinates that the arm declares."""
    manifest = loaded.manifest
    arm = manifest.arms[cell.arm_name]
    client = manifest.client
    plan, window_s = plan_workload(manifest, cell.load, replicate, slices[replicate] if slices else None)
    cores = {"client": client.cpus, "server": client.server_cpus, "spool": client.spool_cpus}
    return PlannedRun(
        index=index,
        cell=f"{cell.arm_name}@{cell.load.label()}",
        arm=_arm(cell.arm_name, arm, names),
        load=cell.load,
        replicate=replicate,
        server_start=_process_of(manifest, cell, replicate),
        pins=merge_pins(manifest.pins, arm.pins),
        workload=plan.model_copy(update={"without_clients": tuple(sorted(set(arm.without_clients)))}) if arm.without_clients else plan,
        window_s=window_s,
        slo=to_slo(manifest.slo),
        slo_classes=to_slo_classes(manifest.slo),
        window=to_window(manifest.window),
        replication=_replication(manifest),
        rank=to_rank(manifest),
        waivers=_waivers(manifest),
        estimand="E1" if manifest.replicates.vary == "none" else "E2",
        on_pin_mismatch=manifest.on_pin_mismatch,
        host_profile=manifest.host_profile,
        cache=manifest.workload.cache,
        loop=manifest.workload.loop,
        concurrency_cap=client.concurrency_cap,
        request_timeout_ns=client.request_timeout,
        placement={role: list(cpus) for role, cpus in cores.items() if cpus},
        workers=client.fleet.workers if client.fleet else 1,
        fleet=client.fleet.mode if client.fleet else "processes",
        worker_memory=client.fleet.memory if client.fleet else None,
        weights={name: tenant.weight for name, tenant in sorted(manifest.workload.tenants.items())},
        fairness=to_fairness(manifest.fairness, manifest.window.measured, cell.arm_name),
    )


def _arm(name: str, arm: Arm, names: tuple[str, ...]) -> spec.Arm:
    return spec.Arm(
        name=name,
        runtime=arm.runtime,
        version=arm.version,
        args=dict(arm.args),
        env=dict(arm.env),
        base_url=arm.url,
        declared=names,
        attested=dict(arm.attest),
        metrics=arm.metrics,
        members=arm.members.given(),
    )


def _replication(manifest: Manifest) -> spec.Replication:
    own = manifest.replicates
    return spec.Replication(count=own.count, server_starts=_starts(manifest), order=own.order, vary=own.vary)


def _waivers(manifest: Manifest) -> tuple[spec.Waiver, ...]:
    return tuple(spec.Waiver(gate=w.gate, reason=w.reason) for w in manifest.waivers)
