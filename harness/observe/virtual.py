"""Whether something stands between us and the machine: a hypervisor, a container. Hints, since either can hide."""

from __future__ import annotations

from pathlib import Path

from harness.record.facts import Fact

VENDORS = {
    "QEMU": "kvm", "Google": "google compute", "Amazon EC2": "amazon ec2", "Microsoft Corporation": "hyper-v", "VMware": "vmware",
    "innotek": "virtualbox", "Xen": "xen", "Parallels": "parallels", "OpenStack": "openstack", "DigitalOcean": "digitalocean",
}  # fmt: skip
"""Beginnings of a firmware's vendor that are a hypervisor's or a cloud's, and the word for each."""

CONTAINERS = ("docker", "containerd", "kubepods", "libpod", "lxc", "crio")
"""Words that container engines write into the path of a control group."""


def virtualisation(proc: Path, sys: Path) -> Fact:
    """The hypervisor as far as it shows: its name, ``unnamed`` where only the CPU's flag tells, ``none`` where nothing does.

    A bare machine and a hypervisor that hides look alike, so ``none`` means none was seen.
    """
    named = _read(sys / "hypervisor/type") or _vendor(_read(sys / "class/dmi/id/sys_vendor"), _read(sys / "class/dmi/id/product_name"))
    if named:
        return Fact(value=named, source="firmware tables")
    info = _read(proc / "cpuinfo")
    if info is None:
        return Fact(reason="the kernel describes no CPU here", source=str(proc / "cpuinfo"))
    flags = next((line for line in info.splitlines() if line.startswith(("flags", "Features"))), "")
    shown = "hypervisor" in flags.split()
    return Fact(
        value="unnamed" if shown else "none", source="flags of /proc/cpuinfo" if shown else "no sign in firmware tables or CPU flags"
    )


def container(proc: Path, root: Path = Path("/")) -> Fact:
    """The kind of container we seem to run in, or ``none`` where no sign of one was seen."""
    for path, name in ((root / ".dockerenv", "docker"), (root / "run/.containerenv", "podman")):
        if path.exists():
            return Fact(value=name, source=str(path))
    groups = _read(proc / "self/cgroup")
    if groups is None:
        return Fact(reason="the control groups of this process cannot be read", source=str(proc / "self/cgroup"))
    found = next((word for word in CONTAINERS if word in groups), None)
    return Fact(value=found or "none", source=str(proc / "self/cgroup"))


def _vendor(*texts: str | None) -> str | None:
    return next((word for text in texts if text for start, word in VENDORS.items() if text.startswith(start)), None)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
