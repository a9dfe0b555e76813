"""Limits and throttling of the control group we run in, versions 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from harness.record.facts import Fact

UNLIMITED = "unlimited"
NO_LIMIT = 1 << 62
"""Version 1 writes "no limit" as the greatest multiple of a page below 2^63, which depends on the page; no memory is half of that."""


def group_folder(proc: Path, root: Path, controller: str = "cpu") -> Path | None:
    """Folder with our files of a controller (``cpu`` or ``memory``), or None when none is mounted.

    Inside a container the path in /proc/self/cgroup may be the host's and not exist here; then the mount itself is our group.
    """
    found = _place(proc, root, controller)
    return found[0] if found else None


def _place(proc: Path, root: Path, controller: str) -> tuple[Path, Path] | None:
    """Our group's folder and the mount it lies in."""
    try:
        lines = (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            base = root / controller if (root / controller).is_dir() else root / controllers
        elif not controllers and (root / "cgroup.controllers").exists():
            base = root
        else:
            continue
        found = next((f for f in (base / path.lstrip("/"), base) if (f / f"{controller}.stat").exists()), None)
        return None if found is None else (found, base)
    return None


def _tightest(proc: Path, root: Path, controller: str, limit: Callable[[Path], float | None]) -> tuple[float | None, str] | None:
    """The lowest limit of our group and those above it, as far as they are visible, and our folder; a limit of None cannot be read."""
    place = _place(proc, root, controller)
    if place is None:
        return None
    folder, base = place
    chain = [folder, *(parent for parent in folder.parents if parent.is_relative_to(base))]
    limits = [limit(group) for group in chain]
    known = [value for value in limits if value is not None]
    return (min(known) if len(known) == len(limits) else None), str(folder)


def cpu_limit(proc: Path, root: Path) -> Fact:
    """Cores' worth of CPU time the group may use per period, or ``unlimited``. Limits of groups above a container are not visible."""
    found = _tightest(proc, root, "cpu", _limit)
    if found is None:
        return Fact(reason="no CPU control group is mounted", source="cgroup")
    limit, source = found
    if limit is None:
        return Fact(reason="the group's quota cannot be read", source=source)
    return Fact(value=UNLIMITED if limit == math.inf else round(limit, 3), source=source)


def memory_limit(proc: Path, root: Path) -> Fact:
    """GiB of memory the group may hold, or ``unlimited``; as for the CPU, groups above a container are not visible."""
    found = _tightest(proc, root, "memory", _memory)
    if found is None:
        return Fact(reason="no memory control group is mounted", source="cgroup")
    limit, source = found
    if limit is None:
        return Fact(reason="the group's limit cannot be read", source=source)
    return Fact(value=UNLIMITED if limit == math.inf else round(limit / 2**30, 3), source=source)


def _memory(folder: Path) -> float | None:
    """Read the limit in bytes; infinity for none. The true root of version 2 has no such file because nothing can limit it."""
    try:
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (folder / name).exists():
                text = (folder / name).read_text(encoding="utf-8").strip()
                return math.inf if text == "max" or int(text) >= NO_LIMIT else int(text)
    except (OSError, ValueError):
        return None
    return math.inf


def _limit(folder: Path) -> float | None:
    """Read quota / period; infinity for none. The true root of version 2 has no cpu.max because nothing can limit it."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
            return math.inf if quota == "max" else int(quota) / int(period)
        if (folder / "cpu.cfs_quota_us").exists():
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="utf-8").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="utf-8").strip()
            return math.inf if int(quota) < 0 else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return math.inf


def throttled_s(folder: Path | None) -> float | None:
    """Seconds the group was held back so far; None when the kernel does not count them.

    A group that nothing limits is never held back: version 2 then keeps no counter, and zero is the measured truth.
    """
    if folder is None:
        return None
    try:
        lines = (folder / "cpu.stat").read_text(encoding="utf-8").splitlines()
        stats = {name: int(value) for name, value in (line.split() for line in lines)}
    except (OSError, ValueError):
        return None
    if "throttled_usec" in stats:
        return stats["throttled_usec"] / 1e6
    if "throttled_time" in stats:
        return stats["throttled_time"] / 1e9
    return 0.0 if _limit(folder) == math.inf else None
