"""The accelerators of a run: which of the host's serve, and what they did in the measured window."""

from __future__ import annotations

import pyarrow.compute as pc

from analysis.planned import Int64, in_window
from analysis.samples import Floats, need, series
from harness.record.reader import RunRecord

SOURCE, POWER = "gpu", "gpu_power_watts"

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

    Raises AbsentError unless every serving device has one.
    """
    devices, _ = serving(record)
    need(bool(devices), "no accelerator was sampled")
    found = series(record.host, SOURCE, metric)
    inner = {}
    for label in sorted(devices, key=_order):
        need(label in found, f"{metric} of device {label} was never sampled")
        t, v = found[label]
        mask = in_window(t, record.spec.window)
        need(bool(mask.any()), f"{metric} of device {label} has no sample in the measured window")
        inner[label] = (t[mask], v[mask])
    return inner


def _order(label: str) -> tuple[int, str]:
    return int(label) if label.isdigit() else -1, label


def mean_power(record: RunRecord) -> float:
    """Mean power over the measured window, W, of the serving devices together. Raises AbsentError unless each was sampled in it."""
    return sum(float(v.mean()) for _, v in device_samples(record, POWER).values())
