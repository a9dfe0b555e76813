"""Sampling the accelerators of the server's host, once each period: what each device does, and whose work it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import pynvml

from harness.observe.nvml import Nvml, accelerator_nodes, computing, owners

Row = dict[str, Any]
Fail = Callable[[str], None]


class Reading(NamedTuple):
    """One metric of a device (``harness.record.metric_names.GPU``): the call, names of constants it takes, how its answer is read."""

    call: str
    constants: tuple[str, ...] = ()
    read: Callable[[Any], Any] = float


READINGS: Mapping[str, Reading] = {
    "gpu_utilisation_ratio": Reading("nvmlDeviceGetUtilizationRates", read=lambda u: u.gpu / 100),
    "gpu_memory_used_bytes": Reading("nvmlDeviceGetMemoryInfo", read=lambda m: float(m.used)),
    "gpu_sm_clock_mhz": Reading("nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",)),
    "gpu_memory_clock_mhz": Reading("nvmlDeviceGetClockInfo", ("NVML_CLOCK_MEM",)),
    "gpu_power_watts": Reading("nvmlDeviceGetPowerUsage", read=lambda mw: mw / 1000),
    "gpu_temperature_c": Reading("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",)),
    "gpu_energy_j_total": Reading("nvmlDeviceGetTotalEnergyConsumption", read=lambda mj: mj / 1000),
    "gpu_throttle_bits": Reading("nvmlDeviceGetCurrentClocksEventReasons"),
}


class GpuWatch:
    """Rows of source ``gpu``, label the device's index. ``pids`` gives the server's processes as they are known at the moment.

    A call that fails makes no row and is reported through ``fail`` in words; one that can never succeed is not made again.
    """

    def __init__(self, pids: Callable[[], Collection[int]], fail: Fail, library: Any = pynvml) -> None:
        self._pids, self._fail = pids, fail
        self._given_up: set[tuple[str, int]] = set()
        try:
            self._nvml: Nvml | None = Nvml(library)
        except library.NVMLError as error:
            self._nvml = None
            if accelerator_nodes():
                fail(f"the accelerators of this host cannot be sampled: {error}")

    def close(self) -> None:
        """Let go of the library."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def rows(self) -> list[Row]:
        """Return one sample of every device, not yet stamped; [] without a device."""
        nvml = self._nvml
        if nvml is None:
            return []
        found = [row for i, handle in enumerate(nvml.handles) for row in self._device(nvml, i, handle)]
        return found + self._processes(nvml)

    def _device(self, nvml: Nvml, index: int, handle: Any) -> list[Row]:
        rows = []
        for metric, reading in READINGS.items():
            if (metric, index) in self._given_up:
                continue
            answer = nvml.ask(reading.call, handle, *map(nvml.constant, reading.constants), read=reading.read)
            if answer.value is None:
                self._refused(metric, index, answer.reason, lasting=answer.lasting)
            else:
                rows.append(_row(index, metric, answer.value))
        return rows

    def _processes(self, nvml: Nvml) -> list[Row]:
        """Whose processes compute on each device; nothing where they cannot be told apart."""
        metric = "gpu_processes"
        if (metric, 0) in self._given_up:
            return []
        answers = [computing(nvml, handle) for handle in nvml.handles]
        for index, answer in enumerate(answers):
            if answer.value is None:
                self._refused(metric, 0, f"device {index}: {answer.reason}", lasting=answer.lasting)
                return []
        told = owners([set(a.value) for a in answers], self._pids())
        if told is None:
            return []
        pairs = [(i, name, count) for i, one in enumerate(told) for name, count in one._asdict().items()]
        return [_row(i, f"{metric}_{name}", float(count)) for i, name, count in pairs]

    def _refused(self, metric: str, index: int, reason: str, *, lasting: bool) -> None:
        if lasting:
            self._given_up.add((metric, index))
        self._fail(f"{metric} of device {index}: {reason}" + (", not asked again" if lasting else ""))


def _row(index: int, metric: str, value: float) -> Row:
    return {"source": "gpu", "metric": metric, "labels": str(index), "value": float(value)}
