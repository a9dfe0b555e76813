"""Reading /proc: host CPU time, memory and per-process counters that never run backwards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class HostTime(NamedTuple):
    """Seconds of CPU time since boot, all cores together."""

    busy: float
    steal: float
    total: float


def host_time(stat: str) -> HostTime | None:
    """Read the ``cpu`` line of /proc/stat. Waiting for a disk is idle time; guest time is already inside user time."""
    words = stat.partition("\n")[0].split()
    if len(words) < 9 or words[0] != "cpu":
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = (int(w) * TICK_S for w in words[1:9])
    busy = user + nice + system + irq + softirq
    return HostTime(busy, steal, busy + steal + idle + iowait)


def memory_bytes(meminfo: str) -> dict[str, float]:
    """Return memory_available_bytes and swap_used_bytes, each only when the kernel states it."""
    kib = {w[0].rstrip(":"): int(w[1]) for w in map(str.split, meminfo.splitlines()) if len(w) >= 2 and w[1].isdecimal()}
    out: dict[str, float] = {}
    if "MemAvailable" in kib:
        out["memory_available_bytes"] = kib["MemAvailable"] * 1024.0
    if "SwapTotal" in kib and "SwapFree" in kib:
        out["swap_used_bytes"] = (kib["SwapTotal"] - kib["SwapFree"]) * 1024.0
    return out


class ProcessStat(NamedTuple):
    """One process: start in ticks since boot (tells a reused id from the old one), CPU seconds, resident bytes."""

    started: int
    cpu_s: float
    rss: int


def process_stat(stat: str) -> ProcessStat:
    """Read /proc/PID/stat; the name in brackets may hold anything, so fields are counted from its last bracket."""
    words = stat.rpartition(")")[2].split()
    return ProcessStat(int(words[19]), (int(words[11]) + int(words[12])) * TICK_S, int(words[21]) * PAGE)


class Ledger:
    """Sum of counters whose owners come and go; what an owner counted stays counted after it is gone, once, should it come back.

    ``update`` takes owner -> counter as it stands now and returns the sum so far, which never falls.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, float] = {}
        self._gone: dict[Hashable, float] = {}
        self._closed = 0.0

    def update(self, now: Mapping[Hashable, float]) -> float:
        """Fold in the current counters of the living owners."""
        for owner in self._last.keys() - now.keys():
            self._gone[owner] = self._last.pop(owner)
            self._closed += self._gone[owner]
        for owner, value in now.items():
            if owner in self._gone:  # one walk over the processes missed it
                self._last[owner] = self._gone.pop(owner)
                self._closed -= self._last[owner]
            self._last[owner] = max(value, self._last.get(owner, value))
        return self._closed + sum(self._last.values())


@dataclass(frozen=True, slots=True)
class TreeCounters:
    """Counters of a process tree at one instant. ``run_delay_s`` None: this kernel keeps no scheduler statistics."""

    cpu_s: float
    rss: int
    run_delay_s: float | None


class TreeReader:
    """Counters of one role's processes, monotone over processes and threads that end."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._cpu = Ledger()
        self._delay = Ledger()
        self.cpu_s = 0.0
        """CPU seconds that its processes used so far, as last read; they stay used when none lives any more"""

    def read(self, pids: Iterable[int]) -> TreeCounters | None:
        """Return the counters of the living among ``pids``; None when none lives."""
        cpu: dict[Hashable, float] = {}
        delay: dict[Hashable, float] = {}
        rss = 0
        for pid in pids:
            try:
                stat = process_stat((self._proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace"))
            except (OSError, ValueError, IndexError):
                continue  # it ended meanwhile
            cpu[pid, stat.started] = stat.cpu_s
            rss += stat.rss
            delay |= self._delays(pid, stat.started)
        if not cpu:
            return None
        self.cpu_s = self._cpu.update(cpu)
        return TreeCounters(self.cpu_s, rss, self._delay.update(delay) if delay else None)

    def _delays(self, pid: int, started: int) -> dict[Hashable, float]:
        """Seconds each thread was ready and had no core. The process's own file speaks of its first thread only."""
        out: dict[Hashable, float] = {}
        folder = f"{self._proc}/{pid}/task"
        try:
            threads = os.listdir(folder)  # noqa: PTH208 - as below
        except OSError:
            return out
        for thread in threads:
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"{folder}/{thread}/schedstat", encoding="ascii") as source,  # noqa: PTH123 - hundreds of threads, four times a second
            ):
                out[pid, started, thread] = int(source.read().split()[1]) / 1e9
        return out
