"""Rules inside the workload section, and between it and the objectives its classes are judged by."""

from __future__ import annotations

from harness.manifest.document import Path
from harness.manifest.explain import nearest
from harness.manifest.findings import Finding, Findings
from harness.manifest.schema import Slo
from harness.manifest.workload import UniformLength, WindowStep, Workload
from workloads import get_reader

SHARES_SLACK = 1e-9
"""How far the shares of all tenants may be from 1: what adding decimals in binary can lose."""


def check_workload(workload: Workload) -> Findings:
    """Everything in the section that contradicts itself."""
    path: Path = ("workload",)
    if workload.trace is None and workload.lengths is None:
        yield Finding("missing_key", path, ": neither a trace nor lengths: nothing says how long requests are", "add trace or lengths")
    if workload.trace is not None and workload.lengths is not None:
        remedy = "delete lengths, or the trace; scale-lengths changes a trace's"
        yield Finding("two_sources", (*path, "lengths"), ": the trace already gives lengths", remedy)
    if workload.trace is None and workload.transforms:
        yield Finding("no_trace", (*path, "transforms"), ": there is no trace to change", "delete the chain, or add a trace")
    yield from _trace(workload)
    yield from _steps(workload)
    yield from _lengths(workload)
    yield from _output(workload)
    yield from _prompts(workload)
    yield from _loop(workload)
    yield from _tenants(workload)


def check_classes(workload: Workload, slo: Slo | None) -> Findings:
    """A tenant's class is one that the objectives know."""
    known = sorted(slo.per_class) if slo else []
    for name, tenant in workload.tenants.items():
        if tenant.slo_class is not None and tenant.slo_class not in known:
            near = nearest(tenant.slo_class, known)
            remedy = f"did you mean {near}?" if near else "add it under slo.per-class, or drop slo-class"
            what = f"={tenant.slo_class}: slo.per-class has no limits for it, so nothing would say how its requests are judged"
            yield Finding("unknown_class", ("workload", "tenants", name, "slo-class"), what, remedy)


def draws(workload: Workload) -> bool:
    """Say whether another seed makes another load (times, lengths or which rows), not only other prompts."""
    drawn_steps = {"thin", "jitter", "retime", "tenants"}
    lengths = workload.lengths
    synthetic = lengths is not None and (isinstance(lengths.input, UniformLength) or isinstance(lengths.output, UniformLength))
    return (
        workload.arrivals.process in {"poisson", "gamma", "weibull"}
        or synthetic
        or workload.cancellations is not None
        or any(t.share is not None for t in workload.tenants.values())
        or any(s.transform in drawn_steps for s in workload.transforms)
        or (workload.trace is not None and get_reader(workload.trace.format).info.drawn)
    )


def _trace(workload: Workload) -> Findings:
    trace, path = workload.trace, ("workload", "trace")
    if trace is None or trace.window is None:
        return
    if trace.window[0] >= trace.window[1]:
        yield Finding("bad_window", (*path, "window"), ": ends before it starts", "write [from, to] with from < to")
    if get_reader(trace.format).info.clock in {"session", "none"}:
        what = f": {trace.format} has no time of its own that a window could be cut from"
        yield Finding("bad_window", (*path, "window"), what, "delete it, and use vary: seed or vary: none")


def _steps(workload: Workload) -> Findings:
    for i, step in enumerate(workload.transforms):
        path: Path = ("workload", "transforms", i)
        if isinstance(step, WindowStep) and step.from_ >= step.to:
            yield Finding("bad_window", path, ": ends before it starts", "write from < to")
        for side in ("input", "output"):
            low, high = getattr(step, f"{side}_minimum", None), getattr(step, f"{side}_maximum", None)
            if low is not None and high is not None and low > high:
                yield Finding("bad_range", path, f": {side}-minimum={low} is above {side}-maximum={high}", "swap them")


def _lengths(workload: Workload) -> Findings:
    for side in ("input", "output"):
        length = getattr(workload.lengths, side, None)
        if isinstance(length, UniformLength) and length.low > length.high:
            yield Finding("bad_range", ("workload", "lengths", side), f": low={length.low} is above high={length.high}", "swap them")


def _output(workload: Workload) -> Findings:
    control, path = workload.output_length, ("workload", "output-length")
    if control.control in {"capped", "client_stop"} and control.max_tokens is None:
        what = f"={control.control}: needs max-tokens, the maximum that is declared to the server"
        yield Finding("missing_key", path, what, f"write output-length: {{control: {control.control}, max-tokens: 512}}")
    if control.control in {"natural", "forced"} and control.max_tokens is not None:
        remedy = "delete max-tokens, or use capped or client_stop"
        yield Finding("not_used", (*path, "max-tokens"), f": {control.control} declares no common maximum", remedy)
    arrivals = workload.arrivals
    if (arrivals.process in {"gamma", "weibull"}) != (arrivals.cv is not None):
        remedy = "write arrivals: {process: gamma, cv: 2.0}, or drop cv"
        what = f".process={arrivals.process}: cv belongs to gamma and weibull, and only to them"
        yield Finding("bad_arrivals", ("workload", "arrivals"), what, remedy)


def _prompts(workload: Workload) -> Findings:
    prompts, path = workload.prompts, ("workload", "prompts")
    if (prompts.source == "dataset") != (prompts.dataset is not None):
        remedy = "write prompts: {source: dataset, dataset: {format: F, name: N, sha256: S}}, or drop dataset"
        yield Finding("bad_prompts", path, ": dataset belongs to the source dataset, and only to it", remedy)
    if prompts.sharing == "as-trace" and workload.trace is None:
        what = "=as-trace: without a trace there are neither prefix ids nor sessions to share by"
        yield Finding("bad_prompts", (*path, "sharing"), what, "use sharing: none, or add a trace")


def _loop(workload: Workload) -> Findings:
    path = ("workload", "loop")
    if (workload.loop == "closed") != (workload.users is not None):
        what = f"={workload.loop}: users belong to the closed loop and only to it"
        yield Finding("bad_loop", path, what, "write loop: closed with users: 8, or drop users")
    if workload.loop == "partly_open" and workload.sessions is None:
        yield Finding("bad_loop", path, "=partly_open: needs sessions, whose later turns wait for answers", "add sessions: {}")


def _tenants(workload: Workload) -> Findings:
    shares = [tenant.share for tenant in workload.tenants.values()]
    given = [share for share in shares if share is not None]
    path = ("workload", "tenants")
    if given and len(given) < len(shares):
        what = f": {len(given)} of {len(shares)} tenants have a share: the rest would get what is left by accident"
        yield Finding("bad_shares", path, what, "give every tenant a share, or none when the trace has clients")
    elif given and abs(sum(given) - 1) > SHARES_SLACK:
        yield Finding("bad_shares", path, f": shares add up to {sum(given):.9g}", "make them add up to 1")
