"""Facts about this machine. What cannot be known is null with the reason; nothing is guessed."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from harness.observe.cgroup import cpu_limit, memory_limit
from harness.observe.gpu import gpu_facts
from harness.observe.virtual import container, virtualisation
from harness.record.facts import Fact
from harness.runtimes.guard import below, process_table

PROC = Path("/proc")
SYS = Path("/sys")
MACHINE_ID = Path("/etc/machine-id")
GIB = 2**30


def host_facts(proc: Path = PROC, sys: Path = SYS, machine_id: Path = MACHINE_ID, *, server_pid: int | None = None) -> dict[str, Fact]:
    """Return every host.* fact. The paths are arguments so that tests can show other machines.

    ``server_pid``: root of the server's processes, which are not foreign; None: not a process of this host.
    """
    facts = {
        "host.cpu_model": _cpu_model(proc / "cpuinfo"),
        "host.cores": Fact(value=os.cpu_count(), source="sysconf"),
        "host.affinity": Fact(value=sorted(os.sched_getaffinity(0)), source="sched_getaffinity"),
        "host.smt": _smt(sys / "devices/system/cpu/smt/active"),
        "host.governor": _governor(sys / "devices/system/cpu"),
        "host.numa": _numa(sys / "devices/system/node"),
        "host.memory_gib": _memory(proc / "meminfo", "MemTotal"),
        "host.swap": _memory(proc / "meminfo", "SwapTotal"),
        "host.kernel": Fact(value=platform.release(), source="uname"),
        "host.virtualisation": virtualisation(proc, sys),
        "host.container": container(proc),
        "host.cgroup_cpu_max": cpu_limit(proc, sys / "fs/cgroup"),
        "host.cgroup_memory_max": memory_limit(proc, sys / "fs/cgroup"),
        "host.load": _load(proc / "loadavg"),
        "host.boot": _text(proc / "sys/kernel/random/boot_id", "no boot id"),
        "host.machine": _machine(machine_id),
    }
    facts["host.identity"] = _identity(facts)
    return facts | gpu_facts(ours=_tree(server_pid))


def _tree(root: int | None) -> list[int]:
    return [] if root is None else [root, *below(process_table(), root)]


def _text(path: Path, reason: str) -> Fact:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        return Fact(reason=f"{reason}: {os.strerror(error.errno or 0)}", source=str(path))
    return Fact(value=text, source=str(path)) if text else Fact(reason=f"{reason}: empty", source=str(path))


def _fields(path: Path) -> dict[str, str]:
    """First value of every ``name : value`` line; {} when the file cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    out: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            out.setdefault(name.strip(), value.strip())
    return out


def _cpu_model(path: Path) -> Fact:
    name = _fields(path).get("model name")
    source = str(path)
    return Fact(value=name, source=source) if name else Fact(reason="the kernel names no CPU model here", source=source)


def _memory(path: Path, field: str) -> Fact:
    """GiB with one digit: the kernel's own share moves the last megabytes from boot to boot."""
    words = _fields(path).get(field, "").split()
    source = f"{path} {field}"
    return (
        Fact(value=round(int(words[0]) * 1024 / GIB, 1), source=source)
        if words and words[0].isdecimal()
        else Fact(reason="not stated", source=source)
    )


def _governor(folder: Path) -> Fact:
    """The frequency governor if all cores share one, else each distinct one."""
    source = "cpufreq"
    try:
        found = {path.read_text(encoding="utf-8").strip() for path in folder.glob("cpu[0-9]*/cpufreq/scaling_governor")}
    except OSError as error:  # a core that is switched off refuses
        return Fact(reason=f"a core does not tell its governor: {os.strerror(error.errno or 0)}", source=source)
    if not found:
        return Fact(reason="no frequency control is visible, as in most virtual machines", source=source)
    return Fact(value="+".join(sorted(found)), source=source)


def _smt(path: Path) -> Fact:
    """Whether two threads share a core: then half of the cores that are counted are not whole ones."""
    found = _text(path, "the kernel does not say whether cores are shared by threads")
    return found if found.value is None else Fact(value={"0": "off", "1": "on"}.get(str(found.value), found.value), source=found.source)


def _numa(folder: Path) -> Fact:
    """Memory nodes and the cores that lie beside each: {node: cores as the kernel lists them}."""
    nodes = {path.parent.name.removeprefix("node"): path for path in folder.glob("node[0-9]*/cpulist")}
    try:
        value = {name: nodes[name].read_text(encoding="utf-8").strip() for name in sorted(nodes, key=int)}
    except (OSError, ValueError) as error:
        return Fact(reason=f"the memory nodes cannot be read: {error}", source=str(folder))
    return Fact(value=value, source=str(folder)) if value else Fact(reason="the kernel shows no memory nodes here", source=str(folder))


def _load(path: Path) -> Fact:
    """Threads that ran or waited to, on average over the last minute: of everybody, ours included."""
    found = _text(path, "no load average")
    try:
        return found if found.value is None else Fact(value=float(str(found.value).split()[0]), source=str(path))
    except ValueError:
        return Fact(reason="the load average is not a number", source=str(path))


def _machine(path: Path) -> Fact:
    """Digest of the machine id: the id itself must not leave the machine (machine-id(5))."""
    raw = _text(path, "no machine id")
    return raw if raw.value is None else Fact(value=hashlib.sha256(str(raw.value).encode()).hexdigest(), source=f"sha256 of {path}")


def _identity(facts: dict[str, Fact]) -> Fact:
    """Machine and boot. The boot id alone is unique, so a container without a machine id still has an identity; no boot id, none."""
    boot, machine = facts["host.boot"], facts["host.machine"]
    if boot.value is None:
        return Fact(reason=boot.reason, source=boot.source)
    return Fact(value=f"{str(machine.value)[:16] if machine.value else 'unnamed'}:{boot.value}", source="host.machine and host.boot")
