"""Accelerators as the driver's management library sees them (NVML)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml

from harness.record.facts import Fact

NONE = "none"
SOURCE = "NVML"
DEVICES = (Path("/dev/nvidia0"), Path("/dev/kfd"), Path("/dev/accel"))
"""Device nodes of accelerators: with one of them here, a silent library means unknown, not none."""


def gpu_facts(devices: tuple[Path, ...] = DEVICES, nvml: Any = pynvml) -> dict[str, Fact]:
    """Return host.gpu, host.gpu_count, host.driver and host.gpu_processes.

    No library and no device node: the value is ``none`` and says why. A device that cannot be asked: unknown.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _without(devices, str(error))
    try:
        return _with(nvml)
    except nvml.NVMLError as error:
        return _unknown(str(error))
    finally:
        nvml.nvmlShutdown()


def _with(nvml: Any) -> dict[str, Fact]:
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    if not handles:
        return _none("the driver lists no device")
    names = sorted({_decoded(nvml.nvmlDeviceGetName(h)) for h in handles})
    return {
        "host.gpu": Fact(value=" + ".join(names), source=SOURCE),
        "host.gpu_count": Fact(value=len(handles), source=SOURCE),
        "host.driver": Fact(value=_decoded(nvml.nvmlSystemGetDriverVersion()), source=SOURCE),
        "host.gpu_processes": _processes(nvml, handles),
    }


def _processes(nvml: Any, handles: list[Any]) -> Fact:
    """Number of processes that compute on any device: before a server starts, each is somebody else's."""
    try:
        return Fact(value=len({p.pid for h in handles for p in nvml.nvmlDeviceGetComputeRunningProcesses(h)}), source=SOURCE)
    except nvml.NVMLError as error:
        return Fact(reason=str(error), source=SOURCE)


def _without(devices: tuple[Path, ...], why: str) -> dict[str, Fact]:
    present = [str(d) for d in devices if d.exists()]
    if present:
        return _unknown(f"{', '.join(present)} exists, but NVML says: {why}")
    return _none(f"no accelerator device here (NVML: {why})")


def _none(why: str) -> dict[str, Fact]:
    return {
        "host.gpu": Fact(value=NONE, reason=why, source=SOURCE),
        "host.gpu_count": Fact(value=0, reason=why, source=SOURCE),
        "host.driver": Fact(reason=why, source=SOURCE),
        "host.gpu_processes": Fact(value=0, reason=why, source=SOURCE),
    }


def _unknown(why: str) -> dict[str, Fact]:
    return {name: Fact(reason=why, source=SOURCE) for name in ("host.gpu", "host.gpu_count", "host.driver", "host.gpu_processes")}


def _decoded(text: str | bytes) -> str:
    return text.decode("utf-8", errors="replace") if isinstance(text, bytes) else text
