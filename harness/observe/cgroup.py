"""CPU limit and throttling of the control group we run in, versions 1 and 2."""

from __future__ import annotations

import math
from pathlib import Path

from harness.record.facts import Fact

UNLIMITED = "unlimited"


def group_folder(proc: Path, root: Path) -> Path | None:
    """Folder with our CPU controller's files, or None when none is mounted.

    Inside a container the path in /proc/self/cgroup may be the host's and not exist here; then the mount itself is our group.
    """
    try:
        lines = (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "cpu" in controllers.split(","):
            base = root / "cpu" if (root / "cpu").is_dir() else root / "cpu,cpuacct"
        elif not controllers and (root / "cgroup.controllers").exists():
            base = root
        else:
            continue
        own = base / path.lstrip("/")
        return own if (own / "cpu.stat").exists() else base if (base / "cpu.stat").exists() else None
    return None


def cpu_limit(proc: Path, root: Path) -> Fact:
    """Cores' worth of CPU time the group may use per period, or ``unlimited``. Limits of parent groups are not visible from inside."""
    folder = group_folder(proc, root)
    if folder is None:
        return Fact(reason="no CPU control group is mounted", source="cgroup")
    limit = _limit(folder)
    if limit is None:
        return Fact(reason="the group's quota cannot be read", source=str(folder))
    return Fact(value=UNLIMITED if limit == math.inf else round(limit, 3), source=str(folder))


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
    except (OSError, ValueError):
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
