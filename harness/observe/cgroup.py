"""Limits and throttling of control groups, versions 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path

from harness.record.facts import Fact

UNLIMITED = "unlimited"
NO_LIMIT = 1 << 62
"""Version 1 writes "no limit" as the greatest multiple of a page below 2^63, which depends on the page; no memory is half of that."""


def group_chain(proc: Path, root: Path, controller: str = "cpu", pid: int | str = "self") -> tuple[Path, ...]:
    """Folders of a process's group of a controller (``cpu`` or ``memory``) and of those above it, as far as they are visible, its own
    first; () when none is mounted or its own is outside of what this namespace shows.

    Inside a container the path in /proc/PID/cgroup may be the host's and not exist here; then the mount itself is the group.
    """
    try:
        lines = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    for line in lines:
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            base = root / controller if (root / controller).is_dir() else root / controllers
        elif not controllers and (root / "cgroup.controllers").exists():
            base = root
        else:
            continue
        if ".." in path.split("/"):  # outside of what this namespace shows
            return ()
        found = next((f for f in (base / path.lstrip("/"), base) if (f / f"{controller}.stat").exists()), None)
        return () if found is None else (found, *(parent for parent in found.parents if parent.is_relative_to(base)))
    return ()


def _tightest(proc: Path, root: Path, controller: str, limit: Callable[[Path], float | None]) -> tuple[float | None, str] | None:
    """The lowest limit of our group and those above it, and our folder; a limit of None cannot be read."""
    chain = group_chain(proc, root, controller)
    if not chain:
        return None
    limits = [limit(group) for group in chain]
    known = [value for value in limits if value is not None]
    return (min(known) if len(known) == len(limits) else None), str(chain[0])


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


def throttled_s(groups: Collection[Path]) -> float | None:
    """Seconds that the groups were held back so far, added up; None when one of them may be and the kernel does not count it.

    A group's counter knows its own quota only: what runs in it waits as well when one above it has spent its own.
    """
    held = [_held_s(group) for group in groups]
    known = [value for value in held if value is not None]
    return sum(known) if groups and len(known) == len(held) else None


def _held_s(folder: Path) -> float | None:
    """Of one group. One that nothing limits is never held back: version 2 then keeps no counter, and zero is the measured truth."""
    try:
        lines = (folder / "cpu.stat").read_text(encoding="utf-8").splitlines()
        stats = {name: int(value) for name, value in (line.split() for line in lines)}
    except (OSError, ValueError):
        return 0.0 if not (folder / "cpu.stat").exists() and _limit(folder) == math.inf else None
    if "throttled_usec" in stats:
        return stats["throttled_usec"] / 1e6
    if "throttled_time" in stats:
        return stats["throttled_time"] / 1e9
    return 0.0 if _limit(folder) == math.inf else None
