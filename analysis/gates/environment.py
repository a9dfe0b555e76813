"""The host stayed what it was. One profile per kind of host: what disturbs a shared CPU is not what disturbs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from analysis.devices import IDLE_BIT, NO_GPU, SOURCE, device_samples, serving
from analysis.gates.registry import Finding, RunContext, attempt, combine, gate, judge, number, passed
from analysis.gates.tables import mean_ratio, risen
from analysis.model import Claim
from analysis.planned import Bools, Int64
from analysis.samples import Floats, need, series
from analysis.virtual import WORDS, in_virtual_time
from harness.record.facts import Fact

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
"""A sample is a drop below 90% of the median SM clock of the window's samples that were taken while the device was busy."""

CLOCK_SHARE = 0.05
"""At most 5% of samples may be drops: then p95 and below describe the card at its clock."""


@gate(
    "environment_stable",
    protects=(Claim.LATENCY, Claim.GOODPUT, Claim.CAPACITY, Claim.FAIRNESS, Claim.COMPARISON),
    threshold="container-cpu: steal <= 2% (1/(1-s) stays within a 2% margin), no cgroup throttling, swap not growing (1 MiB), foreign "
    "CPU <= 10% (a fifth of a core on the smallest host), no GPU that computes for the server, same boot. gpu, of the devices that "
    "serve: no thermal, brake or slowdown bit, <= 5% of samples while busy below 90% of the median clock, no foreign process, power "
    "limit, ECC, MIG and application clocks the same before and after, swap not growing, same boot. Temperature alone is no reason. "
    "Samples that leave half of the window unseen: unknown. Virtual time: no host can change a number, so none is looked at.",
    remedy="Stop other work on the host and its GPUs, raise the cgroup's CPU quota, give it memory, cool or power the GPUs, leave their "
    "settings alone, or choose another host; then run the replicate again. In a container, share the host's processes (--pid=host).",
)
def environment_stable(context: RunContext) -> Finding:
    """Nothing on the host changed under the measurement."""
    if in_virtual_time(context.record):
        return passed(f"{WORDS} no host took part")
    common = (_boot, _swap)
    profile = {"container-cpu": (_steal, _throttled, _foreign, _no_gpu), "gpu": (_gpu_throttle, _gpu_clock, _gpu_foreign, _gpu_settings)}[
        context.record.spec.host_profile
    ]
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
        value, _ = mean_ratio(context.record, metric)
        return judge(value <= limit, f"{words} {100 * value:.3g}% (limit {100 * limit:g}%)", **{metric: number(value, limit, "ratio")})

    return _check


_steal = _mean("cpu_steal_ratio", STEAL, "steal")
_foreign = _mean("foreign_cpu_ratio", FOREIGN, "foreign CPU")


def _growth(metric: str, limit: float, unit: str, words: str) -> Callable[[RunContext], Finding]:
    def _check(context: RunContext) -> Finding:
        grown = risen(context.record, metric)
        return judge(grown <= limit, f"{words} grew by {grown:.4g} {unit} (limit {limit:g})", **{metric: number(grown, limit, unit)})

    return _check


_throttled = _growth("throttled_s_total", THROTTLED_S, "s", "cgroup throttling")
_swap = _growth("swap_used_bytes", SWAP_BYTES, "bytes", "used swap")


def _no_gpu(context: RunContext) -> Finding:
    """A profile must look at what serves: a hot accelerator under the eyes of a CPU profile would pass unseen."""
    devices, known = serving(context.record)
    there = _fact(context.record.facts.before, "host.gpu")
    if not devices:
        need(there == NO_GPU, "whether this host has a GPU is unknown, or it was never sampled")
        return passed("the host has no GPU")
    need(not known, "the server computes on a GPU, and host-profile: container-cpu does not look at it; declare host-profile: gpu")
    busy = max(float(v.max()) for _, v in device_samples(context.record, "gpu_utilisation_ratio").values())
    need(busy == 0, "GPUs of this host computed, and the driver shows no process of the server: whose work that was is not known")
    return passed("no GPU of the host was seen to compute")


def _gpu_throttle(context: RunContext) -> Finding:
    bits = [v.astype(np.int64) for _, v in device_samples(context.record, "gpu_throttle_bits").values()]
    hit, of = sum(int(((b & GPU_HARMFUL) != 0).sum()) for b in bits), sum(map(len, bits))
    return judge(hit == 0, f"{hit} of {of} GPU samples with a thermal, brake or slowdown bit", gpu_throttled=number(hit, 0, "samples"))


def _gpu_clock(context: RunContext) -> Finding:
    clocks = device_samples(context.record, "gpu_sm_clock_mhz")
    bits = series(context.record.host, SOURCE, "gpu_throttle_bits")
    busy = [v[~_idle(t, bits.get(label))] for label, (t, v) in clocks.items()]
    need(any(len(v) for v in busy), "no device was busy at any sample of its clock in the measured window")
    share = max(float((v < CLOCK_DROP * np.median(v)).mean()) for v in busy if len(v))
    return judge(
        share <= CLOCK_SHARE,
        f"{100 * share:.3g}% of a busy device's clock samples below {100 * CLOCK_DROP:g}% of their median (limit {100 * CLOCK_SHARE:g}%)",
        gpu_clock_drops=number(share, CLOCK_SHARE, "ratio"),
    )


def _idle(t: Int64, bits: tuple[Int64, Floats] | None) -> Bools:
    """At which of the instants (m,) the driver says that the device had nothing to do; an instant it says nothing of counts as busy."""
    if bits is None:
        return np.zeros(len(t), dtype=np.bool_)
    return np.isin(t, bits[0][(bits[1].astype(np.int64) & IDLE_BIT) != 0])


def _gpu_foreign(context: RunContext) -> Finding:
    _, known = serving(context.record)
    need(known, "whose processes compute on the devices is not known: the driver shows none that is the server's")
    most = max(float(v.max()) for _, v in device_samples(context.record, "gpu_processes_foreign").values())
    return judge(most == 0, f"at most {most:g} foreign processes on a serving device", gpu_foreign=number(most, 0, "processes"))


def _gpu_settings(context: RunContext) -> Finding:
    """Nobody changed what moves a clock or what a card may draw."""
    before, after = (_fact(facts, "host.gpu_settings") for facts in (context.record.facts.before, context.record.facts.after))
    need(before is not None, "the settings of the devices before the run are unknown")
    need(after is not None, "the settings of the devices after the run are unknown")
    words = "the same before and after" if before == after else f"before the run {before}, after it {after}"
    return judge(before == after, f"settings of the devices: {words}", gpu_settings_same=number(int(before == after), 1, "settings"))


def _fact(facts: Mapping[str, Fact], name: str) -> Any:
    return facts[name].value if name in facts else None
