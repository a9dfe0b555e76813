"""What the host gave to a run: processors and memory by role, and its accelerators with what they drew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from analysis.devices import NO_GPU, device_samples, power, power_source, serving
from analysis.gates.tables import mean_ratio, shares
from analysis.model import Figure
from analysis.planned import in_window
from analysis.quantities import Quantity
from analysis.samples import need, need_seen, series
from analysis.virtual import in_virtual_time
from harness.record.reader import RunRecord

WINDOW = "the measured window"
ROLES = ("server", "client", "spooler")


def host_quantities(record: RunRecord, figures: Mapping[str, Figure]) -> tuple[Quantity, ...]:
    """What there is to measure on this host; nothing in virtual time, and nothing of accelerators where there is none.

    ``figures``: the run's own, for the tokens that the client received.
    """
    if in_virtual_time(record):
        return ()
    gpu = record.facts.before.get("host.gpu")
    equipped = gpu is not None and gpu.value != NO_GPU
    return (*_processes(record), *(_devices(record, figures) if equipped else ()))


def _processes(record: RunRecord) -> Iterator[Quantity]:
    for role in ROLES:
        yield Quantity(f"{role}_cpu", "cores", WINDOW, partial(_cores, record, role))
        yield Quantity(f"{role}_memory_max", "bytes", f"samples in {WINDOW}", partial(_memory, record, role))
    for name, metric in (("host_busy", "cpu_busy_ratio"), ("host_foreign", "foreign_cpu_ratio"), ("host_steal", "cpu_steal_ratio")):
        yield Quantity(name, "ratio", f"all cores over {WINDOW}", partial(mean_ratio, record, metric))


def _cores(record: RunRecord, role: str) -> tuple[float, int]:
    """CPU time per wall time of all processes of the role."""
    found = shares(record, role, "cpu_s_total")
    return sum(found.values()), len(found)


def _memory(record: RunRecord, role: str) -> tuple[float, int]:
    """Highest resident memory; of several clients, the sum of each one's highest."""
    found = series(record.host, role, "rss_bytes")
    need(bool(found), f"{role}.rss_bytes was never sampled")
    inner = {label: in_window(t, record.spec.window) for label, (t, _) in found.items()}
    for label, (t, _) in found.items():
        need_seen(t[inner[label]], record.spec.window, f"{role}.rss_bytes samples")
    return sum(float(v[inner[label]].max()) for label, (_, v) in found.items()), sum(int(mask.sum()) for mask in inner.values())


def _devices(record: RunRecord, figures: Mapping[str, Figure]) -> Iterator[Quantity]:
    devices, known = serving(record)
    over = f"the {len(devices)} device{'s' * (len(devices) != 1)}" + (
        " the server computes on" if known else " of the host, since whose processes compute is not known"
    )
    for name, metric, unit in (
        ("gpu_utilisation", "gpu_utilisation_ratio", "ratio"), ("gpu_clock", "gpu_sm_clock_mhz", "MHz"),
        ("gpu_temperature", "gpu_temperature_c", "C"),
    ):  # fmt: skip
        yield Quantity(name, unit, f"mean over {over} in {WINDOW}", partial(_device_mean, record, metric))
    yield Quantity("gpu_memory_max", "bytes", f"highest of each added up over {over} in {WINDOW}", partial(_device_memory, record))
    how = power_source(record)
    yield Quantity("gpu_power", "W", f"added up over {over} in {WINDOW}, {how}", partial(power, record))
    words = f"output tokens received in {WINDOW}; energy of {over}, {how}"
    yield Quantity("gpu_unread", "samples", "the whole run", lambda: (missed(record, "gpu_sample_failed"), len(devices)))
    yield Quantity("gpu_energy_per_token", "J/tok", words, partial(_energy_per_token, record, figures.get("token_throughput")))


def missed(record: RunRecord, kind: str) -> float:
    """How often an observation of ``kind`` says that something could not be read."""
    return float(sum(o["count"] for o in record.observations if o.get("kind") == kind))


def _device_mean(record: RunRecord, metric: str) -> tuple[float, int]:
    found = [v for _, v in device_samples(record, metric).values()]
    return float(np.mean([v.mean() for v in found])), sum(map(len, found))


def _device_memory(record: RunRecord) -> tuple[float, int]:
    found = [v for _, v in device_samples(record, "gpu_memory_used_bytes").values()]
    return sum(float(v.max()) for v in found), sum(map(len, found))


def _energy_per_token(record: RunRecord, throughput: Figure | None) -> tuple[float, int]:
    """Mean power over tokens a second: the energy of the window over the tokens that came in it, whatever they were part of."""
    watts, _ = power(record)
    need(throughput is not None and throughput.value is not None, "how many output tokens came is unknown")
    rate = throughput.value if throughput is not None and throughput.value is not None else 0.0
    need(rate > 0, "no output token came in the measured window")
    return watts / rate, round(rate * record.spec.window.measured_ns / 1e9)
