"""Watching the processes of a trial from outside: CPU time, memory, and how long they waited for a core, fifty times a second."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.clock import NS_PER_MS, NS_PER_S, Clock
from harness.observe.counters import host_time, process_stat

PERIOD_NS = 20 * NS_PER_MS
"""A stall of the host must be seen beside the request it hit: 20 ms is two probes of the worker's loop. One round costs about 0.1 ms."""

MEMORY_EVERY = 10
"""Resident memory every 0.2 s: it moves slowly, and reading it makes the kernel walk nothing."""

PROC = Path("/proc")

Numbers = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Track:
    """What was read of one process, ns on the monotonic clock: ``delay_ns`` is the time its first thread was ready and had no core,
    ``ran_ns`` the time it had one, finer than the ticks of ``cpu_ns``, which is of all its threads."""

    at_ns: array[int] = field(default_factory=lambda: array("q"))
    cpu_ns: array[int] = field(default_factory=lambda: array("q"))
    delay_ns: array[int] = field(default_factory=lambda: array("q"))
    memory_at_ns: array[int] = field(default_factory=lambda: array("q"))
    memory: array[int] = field(default_factory=lambda: array("q"))
    ran_ns: array[int] = field(default_factory=lambda: array("q"))

    def cpu_between(self, start_ns: int, end_ns: int) -> float | None:
        """CPU seconds used between two instants; None when the process was not seen around both."""
        return _between(self.at_ns, self.cpu_ns, start_ns, end_ns)

    def delay_between(self, start_ns: int, end_ns: int) -> float | None:
        """Seconds it waited for a core between two instants, widened to whole readings."""
        return _between(self.at_ns, self.delay_ns, start_ns, end_ns)

    def memory_around(self, at_ns: int, within_ns: int) -> float | None:
        """Median resident bytes read within ``within_ns`` of an instant; None when there was no reading."""
        at, memory = np.array(self.memory_at_ns, dtype=np.int64), np.array(self.memory, dtype=np.int64)
        near = np.abs(at - at_ns) <= within_ns
        return float(np.median(memory[near])) if near.any() else None

    def memory_most(self, start_ns: int, end_ns: int) -> int | None:
        """Most resident bytes read between two instants; None when there was no reading."""
        read = zip(self.memory_at_ns, self.memory, strict=True)
        return max((value for at, value in read if start_ns <= at <= end_ns), default=None)

    def memory_peak(self) -> int | None:
        """Most resident bytes that were read; None without a reading."""
        return max(self.memory, default=None)


def _between(at: array[int], values: array[int], start_ns: int, end_ns: int) -> float | None:
    """The rise from the last reading at or before the start to the first at or after the end; the last reading stands for what follows
    an end of the process within one second, since nothing can be read of it any more."""
    if not at or at[0] > start_ns or at[-1] < end_ns - NS_PER_S:
        return None
    instants = np.array(at, dtype=np.int64)
    first = int(np.searchsorted(instants, start_ns, side="right")) - 1
    last = min(int(np.searchsorted(instants, end_ns, side="left")), len(at) - 1)
    return (values[last] - values[first]) / NS_PER_S


class Watch:
    """Reads the processes of ``roles`` (name -> pid) from a thread of this process until ``stop``. What cannot be read is left out.

    ``steal``: time the hypervisor kept from this host, all cores together; its unit is a tick of 10 ms.
    """

    def __init__(self, clock: Clock, roles: Mapping[str, int]) -> None:
        self.tracks = {role: Track() for role in roles}
        self.steal = Track()
        self._clock, self._roles = clock, dict(roles)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="watch", daemon=True)

    def start(self) -> None:
        """Begin; the first reading follows at once."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the last reading."""
        self._stopping.set()
        self._thread.join()

    def _loop(self) -> None:
        rounds = 0
        while True:
            for role, pid in self._roles.items():
                _read(pid, self.tracks[role], self._clock.now_ns(), memory=rounds % MEMORY_EVERY == 0)
            self._read_steal()
            rounds += 1
            if self._stopping.wait(PERIOD_NS / NS_PER_S):
                return

    def _read_steal(self) -> None:
        try:
            now = host_time((PROC / "stat").read_text(encoding="utf-8"))
        except OSError:
            return
        if now is not None:
            self.steal.at_ns.append(self._clock.now_ns())
            self.steal.delay_ns.append(round(now.steal * NS_PER_S))


def _read(pid: int, track: Track, now_ns: int, *, memory: bool) -> None:
    try:
        stat = process_stat((PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace"))
        ran, delay = map(int, (PROC / str(pid) / "schedstat").read_text(encoding="ascii").split()[:2])
    except (OSError, ValueError, IndexError):
        return
    if stat.rss == 0:
        return  # it has ended and waits to be collected
    track.at_ns.append(now_ns)
    track.cpu_ns.append(round(stat.cpu_s * NS_PER_S))
    track.delay_ns.append(delay)
    track.ran_ns.append(ran)
    if memory:
        track.memory_at_ns.append(now_ns)
        track.memory.append(stat.rss)
