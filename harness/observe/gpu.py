"""Facts about accelerators: what they are, how they are set, how they are joined, who else computes on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from harness.observe.gpu_topology import topology
from harness.observe.nvml import DEVICE_NODES, Answer, Nvml, accelerator_nodes, computing, decoded, owners
from harness.record.facts import Fact

NONE = "none"
UNSUPPORTED = "not supported"
SOURCE = "NVML"
GIB = 2**30

THROTTLE: Mapping[int, str] = {
    0x1: "idle", 0x2: "clocks set", 0x4: "software power cap", 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "software thermal",
    0x40: "hardware thermal", 0x80: "power brake", 0x100: "display clock",
}  # fmt: skip
"""NVML's reasons why a clock is held, by bit (nvmlClocksEventReason*)."""

DRIVERS_OWN_GIB = 1.0
"""The driver itself holds some hundred MiB of an idle board; a process that computes holds as much for its context alone, and a model."""

COMPUTE_MODES: Mapping[int, str] = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


class Question(NamedTuple):
    """One fact of every device: the call that answers it, names of constants it takes, and how its answer is read."""

    call: str
    constants: tuple[str, ...] = ()
    read: Callable[[Any], Any] = lambda value: value


def reasons(bits: int) -> list[str]:
    """Words of a mask of clock reasons; a bit that has no word here keeps its number."""
    return [THROTTLE.get(1 << i, f"bit {i}") for i in range(bits.bit_length()) if bits >> i & 1]


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000


def _on(state: int) -> str:
    return "on" if state else "off"


def _current_on(states: Sequence[int]) -> str:
    """Of [now, after the next reset] what holds now."""
    return _on(states[0])


QUESTIONS: Mapping[str, Question] = {
    "host.gpu_uuids": Question("nvmlDeviceGetUUID", read=decoded),
    "host.gpu_memory_gib": Question("nvmlDeviceGetMemoryInfo", read=lambda m: round(m.total / GIB, 1)),
    "host.gpu_memory_used_gib": Question("nvmlDeviceGetMemoryInfo", read=lambda m: round(m.used / GIB, 1)),
    "host.gpu_sm_clock_mhz": Question("nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",)),
    "host.gpu_sm_clock_max_mhz": Question("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM",)),
    "host.gpu_sm_clock_application_mhz": Question("nvmlDeviceGetApplicationsClock", ("NVML_CLOCK_SM",)),
    "host.gpu_memory_clock_mhz": Question("nvmlDeviceGetClockInfo", ("NVML_CLOCK_MEM",)),
    "host.gpu_memory_clock_max_mhz": Question("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_MEM",)),
    "host.gpu_memory_clock_application_mhz": Question("nvmlDeviceGetApplicationsClock", ("NVML_CLOCK_MEM",)),
    "host.gpu_power_limit_w": Question("nvmlDeviceGetEnforcedPowerLimit", read=_watts),
    "host.gpu_power_limit_default_w": Question("nvmlDeviceGetPowerManagementDefaultLimit", read=_watts),
    "host.gpu_ecc": Question("nvmlDeviceGetEccMode", read=_current_on),
    "host.gpu_persistence": Question("nvmlDeviceGetPersistenceMode", read=_on),
    "host.gpu_mig": Question("nvmlDeviceGetMigMode", read=_current_on),
    "host.gpu_compute_mode": Question("nvmlDeviceGetComputeMode", read=lambda mode: COMPUTE_MODES.get(mode, f"mode {mode}")),
    "host.gpu_pcie_generation": Question("nvmlDeviceGetCurrPcieLinkGeneration"),
    "host.gpu_pcie_generation_max": Question("nvmlDeviceGetMaxPcieLinkGeneration"),
    "host.gpu_pcie_width": Question("nvmlDeviceGetCurrPcieLinkWidth"),
    "host.gpu_pcie_width_max": Question("nvmlDeviceGetMaxPcieLinkWidth"),
    "host.gpu_throttle": Question("nvmlDeviceGetCurrentClocksEventReasons", read=reasons),
    "host.gpu_temperature_c": Question("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",)),
    "host.gpu_vbios": Question("nvmlDeviceGetVbiosVersion", read=decoded),
}
"""Facts with one value a device, in NVML's order. A device that refuses has null there; a fact that all refuse is null.

The unique ids say which boards a record is from. They are no coordinates: two boards of one model compare, and the machine and boot are a
coordinate already.
"""

SETTINGS = ("power_limit_w", "ecc", "mig", "sm_clock_application_mhz")
"""What makes two boards of one model and driver unequal, and can be changed between two runs without a trace."""

NAMES = (
    "host.gpu", "host.gpu_count", "host.driver", "host.cuda_driver", *QUESTIONS, "host.gpu_settings", "host.gpu_topology",
    "host.gpu_processes", "host.gpu_foreign_processes",
)  # fmt: skip
"""Every fact that is told here."""


def gpu_facts(nodes: tuple[Path, ...] = DEVICE_NODES, library: Any = pynvml, ours: Collection[int] = ()) -> dict[str, Fact]:
    """Return every fact of ``NAMES``; ``ours``: process ids of the server under test.

    No library and no device node: the value is ``none`` and says why. A device that cannot be asked: unknown.
    """
    try:
        nvml = Nvml(library)
    except library.NVMLError as error:
        return _without(nodes, str(error))
    try:
        return _with(nvml, ours) if nvml.handles else _none("the driver lists no device")
    finally:
        nvml.close()


def _with(nvml: Nvml, ours: Collection[int]) -> dict[str, Fact]:
    names = _each(nvml, Question("nvmlDeviceGetName", read=decoded))
    known = names.value is not None and None not in names.value
    model = " + ".join(sorted(set(names.value))) if known else None
    return {
        "host.gpu": Fact(value=model, reason=names.reason, source=SOURCE),
        "host.gpu_count": Fact(value=len(nvml.handles), source=SOURCE),
        "host.driver": _fact(nvml.ask("nvmlSystemGetDriverVersion", read=decoded)),
        "host.cuda_driver": _fact(nvml.ask("nvmlSystemGetCudaDriverVersion", read=lambda v: f"{v // 1000}.{v % 1000 // 10}")),
        **{fact: _each(nvml, question) for fact, question in QUESTIONS.items()},
        "host.gpu_settings": _settings(nvml),
        "host.gpu_topology": topology(nvml),
        **_processes(nvml, ours),
    }


def _fact(answer: Answer) -> Fact:
    return Fact(value=answer.value, reason=answer.reason or None, source=SOURCE)


def _each(nvml: Nvml, question: Question) -> Fact:
    """One value a device; the reason names the devices that refused."""
    answers = _answers(nvml, question)
    refused = "; ".join(f"device {i}: {a.reason}" for i, a in enumerate(answers) if a.value is None)
    values = [a.value for a in answers]
    return Fact(value=None if all(v is None for v in values) else values, reason=refused or None, source=SOURCE)


def _answers(nvml: Nvml, question: Question) -> list[Answer]:
    constants = [nvml.constant(name) for name in question.constants]
    return [nvml.ask(question.call, handle, *constants, read=question.read) for handle in nvml.handles]


def _settings(nvml: Nvml) -> Fact:
    """The settings that move a clock or what a card may draw, a value a device. What a kind of device does not have says so and equals
    itself; one that was refused for another reason leaves all unknown, since an unknown setting must equal nothing.
    """
    value: dict[str, list[Any]] = {}
    for name in SETTINGS:
        answers = _answers(nvml, QUESTIONS[f"host.gpu_{name}"])
        refused = next((a.reason for a in answers if a.value is None and not a.unsupported), None)
        if refused is not None:
            return Fact(reason=refused, source=SOURCE)
        value[name] = [UNSUPPORTED if a.unsupported else a.value for a in answers]
    return Fact(value=value, source=SOURCE)


def _processes(nvml: Nvml, ours: Collection[int]) -> dict[str, Fact]:
    """How many processes compute on any device, and how many of them are not the server's."""
    answers = [computing(nvml, handle) for handle in nvml.handles]
    refused = next((a.reason for a in answers if a.value is None), None)
    seen = [set(a.value or ()) for a in answers]
    every = set().union(*seen)
    hidden = refused or (None if every else _in_use(nvml))
    if hidden is not None:
        return {name: Fact(reason=hidden, source=SOURCE) for name in ("host.gpu_processes", "host.gpu_foreign_processes")}
    foreign = Fact(value=0, source=SOURCE) if not every else Fact(reason="none of those seen is known as the server's", source=SOURCE)
    if owners(seen, ours) is not None:
        foreign = Fact(value=len(every - set(ours)), source=SOURCE)
    return {"host.gpu_processes": Fact(value=len(every), source=SOURCE), "host.gpu_foreign_processes": foreign}


def _in_use(nvml: Nvml) -> str | None:
    """Why no process that is seen does not mean none: memory is held that nobody seen holds, or nobody can say whether it is."""
    used = _answers(nvml, QUESTIONS["host.gpu_memory_used_gib"])
    held = [(i, a) for i, a in enumerate(used) if a.value is None or a.value > DRIVERS_OWN_GIB]
    if not held:
        return None
    index, answer = held[0]
    return answer.reason or f"{answer.value:g} GiB of device {index} are in use and no process is shown: the driver hides them here"


def _without(nodes: tuple[Path, ...], why: str) -> dict[str, Fact]:
    present = accelerator_nodes(nodes)
    if present:
        why = f"{', '.join(present)} exists, but NVML says: {why}"
        return {name: Fact(reason=why, source=SOURCE) for name in NAMES}
    return _none(f"no accelerator device here (NVML: {why})")


def _none(why: str) -> dict[str, Fact]:
    counts = {"host.gpu": NONE, "host.gpu_count": 0, "host.gpu_processes": 0, "host.gpu_foreign_processes": 0}
    return {name: Fact(value=counts.get(name), reason=why, source=SOURCE) for name in NAMES}
