"""Sections of the manifest turned into the words of the record and of ``workloads``."""

from __future__ import annotations

from itertools import dropwhile
from typing import Literal

from harness.errors import Problem
from harness.manifest import workload as said
from harness.manifest.checks import rank_value
from harness.manifest.load import LoadedManifest
from harness.manifest.schema import Limits, Manifest, Slo, Window
from harness.manifest.slices import S, Slice, consecutive, equal_parts, needed_ns
from harness.manifest.units import format_duration
from harness.record import spec
from workloads import plan
from workloads.seeds import derive


def load_points(manifest: Manifest) -> tuple[spec.LoadPoint, ...]:
    """Return the load points in the order they are written."""
    if manifest.load.rate is not None:
        return tuple(spec.LoadPoint(kind="rate", value=v) for v in manifest.load.rate)
    return tuple(spec.LoadPoint(kind="time_compression", value=v) for v in manifest.load.time_compression or ())


def to_slo(slo: Slo | None) -> spec.Slo:
    """Return the SLO; no SLO is a predicate without limits."""
    return spec.Slo() if slo is None else _limits(slo)


def to_slo_classes(slo: Slo | None) -> dict[str, spec.Slo]:
    """Return the SLO of each class that has its own; a limit that a class leaves out is not part of its predicate."""
    return {} if slo is None else {name: _limits(limits) for name, limits in sorted(slo.per_class.items())}


def _limits(limits: Limits) -> spec.Slo:
    if limits.tbt is None:
        return spec.Slo(ttft_ns=limits.ttft, e2e_ns=limits.e2e)
    return spec.Slo(ttft_ns=limits.ttft, tbt_ns=limits.tbt.limit, tbt_rule=limits.tbt.rule, e2e_ns=limits.e2e)


def to_window(window: Window) -> spec.Window:
    """Return the run's three parts in ns."""
    return spec.Window(warm_up_ns=window.warm_up, measured_ns=window.measured, drain_ns=window.drain)


def to_rank(manifest: Manifest) -> spec.Rank | None:
    """Return the declared claim with its load as a number; null when none was declared."""
    rank = manifest.rank
    if rank is None:
        return None
    return spec.Rank(
        metric=rank.metric,
        against=rank.against,
        at=None if rank.at is None else rank_value(rank.at, is_rate=manifest.load.rate is not None),
        margin=rank.margin,
        attainment=rank.attainment,
        percentile_rule=rank.percentile_rule,
        confidence=rank.confidence,
    )


def horizon_ns(manifest: Manifest) -> int:
    """Return how long load flows: through warm-up, measured window and drain."""
    return to_window(manifest.window).end_ns


def slices_by_replicate(
    loaded: LoadedManifest, points: tuple[spec.LoadPoint, ...], draws: int | None = None
) -> tuple[list[Slice] | None, list[Problem]]:
    """Return the part of the trace of each replicate, long enough for the highest load point; None: no trace. ``draws``: how many parts,
    where it is not the number of replicates.

    One start per replicate for all load points, so that loads pair too. With arrivals of their own, replicates take rows, not times: equal
    parts of the window (the whole of it unless the window varies).
    """
    manifest = loaded.manifest
    trace, count = manifest.workload.trace, draws or manifest.replicates.count
    if trace is None:
        return None, []
    varies = manifest.replicates.vary == "window"
    if manifest.workload.arrivals.process != "trace":
        if trace.window is None:
            return None, []
        return (equal_parts(trace.window, count) if varies else equal_parts(trace.window, 1) * count), []
    need = needed_ns(horizon_ns(manifest), manifest.workload.transforms, max(p.value for p in points))
    if need is None:
        return None, [_short_step(loaded)]
    window = trace.window or (0, need)
    found = consecutive(window, need, count) if varies else consecutive(window, need, 1)
    if found is None:
        return None, [_too_short(loaded, window, need, count if varies else 1)]
    return (found if varies else found * count), []


def _short_step(loaded: LoadedManifest) -> Problem:
    return Problem(
        "window_too_short",
        f"workload.transforms: a window step leaves less than the {format_duration(horizon_ns(loaded.manifest))} of load that a run needs"
        " (warm-up + measured + drain, times the compression that follows it)",
        "widen the step, lower the compression, or shorten the run",
        loaded.where(("workload", "transforms")),
    )


def _too_short(loaded: LoadedManifest, window: tuple[int, int], need: int, slices: int) -> Problem:
    manifest = loaded.manifest
    total, there = need * slices, window[1] - window[0]
    stop = format_duration(-(-(window[0] + total) // S) * S)
    return Problem(
        "window_too_short",
        f"workload.trace.window has {there / S:g} s of trace, {total / S:g} s are needed: {slices} disjoint slice(s) of {need / S:g} s"
        f" = (warm-up + measured + drain = {horizon_ns(manifest) / S:g} s) x compression; load must flow until the drain ends",
        f"widen the window to end at {stop} or later if the trace is that long, or lower count, compression or window lengths"
        + (", or use vary: seed or vary: none" if slices > 1 else ""),
        loaded.where(("workload", "trace", "window")),
    )


def plan_workload(
    manifest: Manifest, load: spec.LoadPoint, replicate: int, part: Slice | None
) -> tuple[plan.WorkloadPlan, tuple[float, float] | None]:
    """Return what replicate ``replicate`` sends at ``load``, equal for every arm, and the part of the trace it uses (s).

    Chain: the replicate's slice, the manifest's steps, the load's compression last.
    """
    workload, horizon = manifest.workload, horizon_ns(manifest)
    compressed = load.kind == "time_compression"
    if part is not None and compressed:
        need = needed_ns(horizon, workload.transforms, load.value) or (part.stop_ns - part.start_ns)
        part = Slice(part.start_ns, part.start_ns + need)
    mending, changing = _split(workload.transforms)
    chain = [_step(step) for step in mending]
    if part is not None:
        chain.append(plan.WindowTransform(start_s=part.start_ns / S, stop_s=part.stop_ns / S))
    chain += [_step(step) for step in changing]
    if compressed:
        chain.append(plan.TimeCompress(factor=load.value))
    built = plan.WorkloadPlan(
        trace=_trace(workload.trace),
        lengths=_lengths(workload.lengths),
        loop=workload.loop,
        users=workload.users,
        sessions=_sessions(workload.sessions),
        tenants=tuple(_tenant(name, tenant) for name, tenant in sorted(workload.tenants.items())),
        cancellations=_cancellations(workload.cancellations),
        chain=tuple(chain),
        arrivals=_arrivals(workload.arrivals, load),
        ramp=_ramp(workload.arrivals.ramp),
        prompts=_prompts(workload.prompts),
        output=plan.OutputPlan(control=workload.output_length.control, max_tokens=workload.output_length.max_tokens),
        api=workload.api,
        horizon_s=horizon / S,
        seed=replicate_seed(manifest, replicate),
    )
    return built, part.seconds if part is not None else None


MENDING = frozenset({"sort", "dedupe", "drop-failed"})
"""Steps that, written first, are about the file rather than the load: they come before a window can be cut from it."""


def _split(steps: tuple[said.Step, ...]) -> tuple[tuple[said.Step, ...], tuple[said.Step, ...]]:
    """Return the leading steps that mend the file, and the rest."""
    rest = tuple(dropwhile(lambda step: step.transform in MENDING, steps))
    return steps[: len(steps) - len(rest)], rest


def replicate_seed(manifest: Manifest, replicate: int) -> int:
    """Return the root seed of a replicate: one for all with ``vary: none``, else its own, so that no prompt and no draw comes twice."""
    own = manifest.replicates
    return own.seed if own.vary == "none" else derive(own.seed, "replicate", replicate)


def _trace(trace: said.TraceFile | None) -> plan.TraceSource | None:
    if trace is None:
        return None
    return plan.TraceSource(format=trace.format, name=trace.name, sha256=trace.sha256, options=dict(trace.options))


def _prompts(prompts: said.Prompts) -> plan.PromptPlan:
    sharing: Literal["as_trace", "none"] = "as_trace" if prompts.sharing == "as-trace" else "none"
    return plan.PromptPlan(source=prompts.source, sharing=sharing, dataset=_trace(prompts.dataset))


def _sessions(sessions: said.Sessions | None) -> plan.SessionPlan | None:
    if sessions is None:
        return None
    return plan.SessionPlan(
        think_s=_seconds(sessions.think_time),
        think_unknown_s=_seconds(sessions.think_unknown),
        think_limit_s=_seconds(sessions.think_limit),
        history=sessions.history,
        max_turns=sessions.max_turns,
    )


def _tenant(name: str, tenant: said.Tenant) -> plan.TenantPlan:
    return plan.TenantPlan(name=name, share=tenant.share, priority=tenant.priority, request_class=tenant.slo_class)


def _cancellations(cancellations: said.Cancellations | None) -> plan.CancelPlan | None:
    return None if cancellations is None else plan.CancelPlan(share=cancellations.share, after_s=cancellations.after / S)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / S


def _length(length: said.ConstantLength | said.UniformLength) -> plan.LengthDistribution:
    return plan.LengthDistribution.model_validate(length.model_dump())


def _lengths(lengths: said.Lengths | None) -> plan.Lengths | None:
    return None if lengths is None else plan.Lengths(input=_length(lengths.input), output=_length(lengths.output))


def _arrivals(arrivals: said.Arrivals, load: spec.LoadPoint) -> plan.Arrivals:
    match arrivals.process:
        case "constant":
            return plan.ConstantArrivals(rate=load.value)
        case "poisson":
            return plan.PoissonArrivals(rate=load.value)
        case "gamma":
            return plan.GammaArrivals(rate=load.value, cv=arrivals.cv or 1.0)
        case "weibull":
            return plan.WeibullArrivals(rate=load.value, cv=arrivals.cv or 1.0)
        case "trace":
            return plan.TraceArrivals()


def _ramp(ramp: said.Ramp | None) -> plan.Ramp | None:
    return None if ramp is None else plan.Ramp(start=ramp.from_, stop=ramp.to)


_SAME_NAME: dict[str, type[plan.Transform]] = {
    "time-compress": plan.TimeCompress,
    "thin": plan.Thin,
    "scale-lengths": plan.ScaleLengths,
    "clip-lengths": plan.ClipLengths,
    "sort": plan.Sort,
    "dedupe": plan.Dedupe,
    "drop-failed": plan.DropFailed,
    "retime": plan.Retime,
    "loop": plan.Loop,
    "tenants": plan.Tenants,
}
"""Steps whose fields mean the same in the manifest and in the plan."""


def _step(step: said.Step) -> plan.Transform:
    if isinstance(step, said.WindowStep):
        return plan.WindowTransform(start_s=step.from_ / S, stop_s=step.to / S)
    if isinstance(step, said.JitterStep):
        return plan.Jitter(grid_s=step.grid / S)
    return _SAME_NAME[step.transform].model_validate(step.model_dump(exclude={"transform"}))
