"""The accelerators of a run: which of the host's serve, and what they did in the measured window."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from analysis.planned import Int64, in_window
from analysis.samples import AbsentError, Floats, growth, need, need_seen, series
from harness.record.reader import RunRecord

SOURCE = "gpu"
POWER, ENERGY = "gpu_power_watts", "gpu_energy_j_total"

NO_GPU = "none"
"""Value of the fact ``host.gpu`` where there is none."""

IDLE_BIT = 0x1
"""NVML's reason "nothing to do": a clock that falls then harms nobody."""


def serving(record: RunRecord) -> tuple[frozenset[str], bool]:
    """Labels of the devices on which the server computed, and whether that is known; if it is not, of every device that was sampled.

    It is not known where the driver hides processes, as in many containers, or was refused the question.
    """
    seen = series(record.host, SOURCE, "gpu_processes_server")
    used = frozenset(label for label, (_, v) in seen.items() if (v > 0).any())
    if used:
        return used, True
    labels = record.host.filter(pc.equal(record.host["source"], SOURCE))["labels"]
    return frozenset(label for label in labels.unique().to_pylist() if label is not None), False


def device_samples(record: RunRecord, metric: str) -> dict[str, tuple[Int64, Floats]]:
    """Samples of a metric inside the measured window by serving device: label -> (t_ns, value), (m,) each.

    Raises AbsentError where those of a serving device leave half of the window unseen.
    """
    devices, _ = serving(record)
    need(bool(devices), "no accelerator was sampled")
    found = series(record.host, SOURCE, metric)
    inner = {}
    for label in sorted(devices, key=_order):
        need(label in found, f"{metric} of device {label} was never sampled")
        t, v = found[label]
        mask = in_window(t, record.spec.window)
        need_seen(t[mask], record.spec.window, f"samples of {metric} of device {label}")
        inner[label] = (t[mask], v[mask])
    return inner


def _order(label: str) -> tuple[int, str]:
    return int(label) if label.isdecimal() else -1, label


def power_source(record: RunRecord) -> str:
    """Where ``power`` has it from, in words."""
    try:
        device_samples(record, ENERGY)
    except AbsentError:
        return "integrated from samples of the power"
    return "by the boards' energy counters"


def power(record: RunRecord) -> tuple[float, int]:
    """Mean power of the serving devices together over the window, W, and the samples it rests on.

    From the boards' own energy counters where each of them has one: they miss nothing between samples. Else the samples of the power are
    integrated. Raises AbsentError when neither covers half of the window, RestartedError when a counter fell.
    """
    try:
        found = device_samples(record, ENERGY)
    except AbsentError:
        found = device_samples(record, POWER)
        return sum(_integrated(t, v) for t, v in found.values()), sum(len(v) for _, v in found.values())
    return sum(_counted(t, v) for t, v in found.values()), sum(len(v) for _, v in found.values())


def _counted(t: Int64, v: Floats) -> float:
    return growth(ENERGY, v) / _span_s(t)


def _integrated(t: Int64, v: Floats) -> float:
    return float(np.trapezoid(v, t / 1e9)) / _span_s(t)


def _span_s(t: Int64) -> float:
    return float(t[-1] - t[0]) / 1e9
