"""The host stayed what it was. One profile per kind of host: what disturbs a shared CPU is not what disturbs a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from analysis.gates.registry import Finding, RunContext, attempt, combine, gate, judge, number, passed
from analysis.gates.tables import inside, windowed
from analysis.model import Claim
from analysis.samples import need, series
from analysis.virtual import WORDS, in_virtual_time

STEAL = 0.02
"""Mean share of time the hypervisor took: a CPU-bound server slows by 1/(1-s), so 2% stays within the usual ranking margin of 2%."""

FOREIGN = 0.10
"""Mean share of the host's CPU used by processes that are neither server nor client: on the smallest supported host (2 cores) that is a
fifth of a core, which the scheduler can still place beside both."""

THROTTLED_S = 0.001
"""cgroup throttling in the window: none; 1 ms is the resolution of the counter's readers."""

SWAP_BYTES = 1 << 20
"""Growth of used swap: none; 1 MiB leaves room for single pages of sleeping processes."""

GPU_HARMFUL = 0x8 | 0x20 | 0x40 | 0x80
"""NVML clock-event bits that mean lost performance: HW slowdown, SW thermal, HW thermal, HW power brake. Idle, application clocks, sync
boost, display clock and the software power cap (normal at full load) are not."""

CLOCK_DROP = 0.90
"""A sample is a drop below 90% of the window's median SM clock."""

CLOCK_SHARE = 0.05
"""At most 5% of samples may be drops: then p95 and below describe the card at its clock."""


@gate(
    "environment_stable",
    protects=(Claim.LATENCY, Claim.GOODPUT, Claim.CAPACITY, Claim.FAIRNESS, Claim.COMPARISON),
    threshold="container-cpu: steal <= 2% (1/(1-s) stays within a 2% margin), no cgroup throttling, swap not growing (1 MiB), foreign "
    "CPU <= 10% (a fifth of a core on the smallest host), same boot. gpu: no thermal, brake or slowdown bit, <= 5% of samples "
    "below 90% of the median clock, swap not growing, same boot. Temperature alone is no reason. Virtual "
    "time: no host can change a number, so none is looked at.",
    remedy="Stop other work on the host, raise the cgroup's CPU quota, give it memory, or choose another host; then run the replicate "
    "again.",
)
def environment_stable(context: RunContext) -> Finding:
    """Nothing on the host changed under the measurement."""
    if in_virtual_time(context.record):
        return passed(f"{WORDS} no host took part")
    common = (_boot, _swap)
    profile = {"container-cpu": (_steal, _throttled, _foreign), "gpu": (_gpu_throttle, _gpu_clock)}[context.record.spec.host_profile]
    return combine(attempt(part, context) for part in (*common, *profile))


def _boot(context: RunContext) -> Finding:
    facts = context.record.facts
    before, after = facts.before.get("host.boot"), facts.after.get("host.boot")
    need(before is not None and before.value is not None, "the boot identity before the run is unknown")
    need(after is not None and after.value is not None, "the boot identity after the run is unknown")
    same = before is not None and after is not None and before.value == after.value
    return judge(
        same,
        "same boot before and after" if same else "the host was booted between before and after",
        same_boot=number(int(same), 1, "boot"),
    )


def _mean(metric: str, limit: float, words: str) -> Callable[[RunContext], Finding]:
    def _check(context: RunContext) -> Finding:
        value = float(windowed(context.record, "host", metric).mean())
        return judge(value <= limit, f"{words} {100 * value:.3g}% (limit {100 * limit:g}%)", **{metric: number(value, limit, "ratio")})

    return _check


_steal = _mean("cpu_steal_ratio", STEAL, "steal")
_foreign = _mean("foreign_cpu_ratio", FOREIGN, "foreign CPU")


def _growth(metric: str, limit: float, unit: str, words: str) -> Callable[[RunContext], Finding]:
    def _check(context: RunContext) -> Finding:
        grown = max(0.0, _delta(context, metric))
        return judge(grown <= limit, f"{words} grew by {grown:.4g} {unit} (limit {limit:g})", **{metric: number(grown, limit, unit)})

    return _check


def _delta(context: RunContext, metric: str) -> float:
    found = series(context.record.host, "host", metric)
    inner = [v[inside(context.record, t)] for t, v in found.values()]
    need(bool(inner) and all(len(v) > 1 for v in inner), f"host.{metric} has fewer than 2 samples in the measured window")
    return float(sum(v[-1] - v[0] for v in inner))


_throttled = _growth("throttled_s_total", THROTTLED_S, "s", "cgroup throttling")
_swap = _growth("swap_used_bytes", SWAP_BYTES, "bytes", "used swap")


def _gpu_throttle(context: RunContext) -> Finding:
    bits = windowed(context.record, "host", "gpu_throttle_bits").astype(np.int64)
    hit = int(((bits & GPU_HARMFUL) != 0).sum())
    return judge(
        hit == 0, f"{hit} of {len(bits)} GPU samples with a thermal, brake or slowdown bit", gpu_throttled=number(hit, 0, "samples")
    )


def _gpu_clock(context: RunContext) -> Finding:
    found = series(context.record.host, "host", "gpu_sm_clock_mhz")
    inner = [v[inside(context.record, t)] for t, v in found.values()]
    need(bool(inner) and all(len(v) > 0 for v in inner), "host.gpu_sm_clock_mhz has no sample in the measured window")
    share = max(float((v < CLOCK_DROP * np.median(v)).mean()) for v in inner)
    return judge(
        share <= CLOCK_SHARE,
        f"{100 * share:.3g}% of clock samples below {100 * CLOCK_DROP:g}% of the median (limit {100 * CLOCK_SHARE:g}%)",
        gpu_clock_drops=number(share, CLOCK_SHARE, "ratio"),
    )
