"""CPU time and memory of a command with everything that it starts, sampled from outside: no tool's own account is used."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

EVERY_S = 0.25
"""Four looks a second place the edges of a load of many seconds well, and cost the host under one per cent."""

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Usage:
    """Samples of one tree: instants (ns, CLOCK_MONOTONIC), CPU seconds so far, resident bytes, processes."""

    at_ns: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    total_cpu_s: float = 0.0

    def cpu_between(self, start_ns: int, stop_ns: int) -> float | None:
        """CPU seconds between two instants, between samples by straight line; None when nothing was sampled there."""
        if len(self.at_ns) < 2 or stop_ns <= self.at_ns[0] or start_ns >= self.at_ns[-1]:
            return None
        low, high = np.interp([start_ns, stop_ns], self.at_ns, self.cpu_s)
        return float(high - low)

    def close(self, at_ns: int, waited_cpu_s: float) -> None:
        """The command is over: ``waited_cpu_s`` is what the kernel says of it and of all that was waited for, which has what its processes
        used after the last look at them."""
        self.total_cpu_s = max([waited_cpu_s, *self.cpu_s[-1:]])
        self.at_ns.append(at_ns)
        self.cpu_s.append(self.total_cpu_s)


class Watch:
    """Samples the tree under ``pid`` on a thread until ``stop``. A process once seen is followed even when its parent is gone."""

    def __init__(self, pid: int) -> None:
        self.usage = Usage()
        self._root = pid
        self._cpu_s: dict[tuple[int, int], float] = {}
        """By process and its start, since the kernel gives numbers out again; those that ended keep what they had."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the sampling; what was sampled stays in ``usage``."""
        self._done.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._done.is_set():
            self._sample()
            self._done.wait(EVERY_S)

    def _sample(self) -> None:
        now_ns, table = time.monotonic_ns(), processes()
        ours = family(table, self._root, set(self._cpu_s))
        self._cpu_s |= {(one.pid, one.started): one.cpu_s for one in ours}
        usage = self.usage
        usage.at_ns.append(now_ns)
        usage.cpu_s.append(sum(self._cpu_s.values()))
        usage.rss.append(sum(one.rss for one in ours))
        usage.processes.append(len(ours))


@dataclass(frozen=True, slots=True)
class Process:
    """What /proc tells of one process; ``started``: clock ticks since the boot."""

    pid: int
    parent: int
    started: int
    cpu_s: float
    rss: int


def processes(proc: Path = Path("/proc")) -> list[Process]:
    """Every process of this host, in one pass."""
    found = (stat(int(entry.name), entry / "stat") for entry in proc.iterdir() if entry.name.isdigit())
    return [one for one in found if one is not None]


def stat(pid: int, path: Path) -> Process | None:
    """One process; None when it is gone."""
    try:
        # The name, in parentheses, may hold spaces.
        fields = path.read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return Process(pid, int(fields[1]), int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICK, int(fields[21]) * _PAGE)


def family(table: list[Process], root: int, known: set[tuple[int, int]]) -> list[Process]:
    """The root, what was known before, and all their descendants."""
    children: dict[int, list[Process]] = {}
    for one in table:
        children.setdefault(one.parent, []).append(one)
    todo = [one for one in table if one.pid == root or (one.pid, one.started) in known]
    found: dict[int, Process] = {}
    while todo:
        one = todo.pop()
        if one.pid not in found:
            found[one.pid] = one
            todo += children.get(one.pid, [])
    return list(found.values())
