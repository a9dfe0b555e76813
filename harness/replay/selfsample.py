"""What the worker measures about itself: lag of its own loop on absolute 10 ms probes, CPU, run-queue delay, memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time

from harness.clock import NS_PER_MS, NS_PER_S
from harness.replay.engine import Engine, Sink
from harness.replay.frames import encode_samples
from harness.replay.timers import make_timer

PROBE_NS = 10 * NS_PER_MS
SAMPLE_NS = 100 * NS_PER_MS
CLEARANCE_NS = NS_PER_MS // 2
"""A sample costs about 0.05 ms; it waits for the next probe when an arrival is nearer than ten times that, at most once."""

Sample = tuple[int, str, float]


class ProcessReader:
    """Reads this process's own counters through descriptors opened once."""

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._statm = _open("/proc/self/statm")
        self._schedstat = _open("/proc/self/schedstat")

    def read(self, t_ns: int) -> list[Sample]:
        """Counters at ``t_ns``; what the kernel does not offer is left out."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        samples: list[Sample] = [(t_ns, "cpu_s_total", usage.ru_utime + usage.ru_stime)]
        if self._statm is not None:
            pages = int(os.pread(self._statm, 128, 0).split()[1])
            samples.append((t_ns, "rss_bytes", float(pages * self._page)))
        if self._schedstat is not None:
            # Second field: ns this thread was runnable and had to wait for a core.
            delay_ns = int(os.pread(self._schedstat, 128, 0).split()[1])
            samples.append((t_ns, "run_delay_s_total", delay_ns / NS_PER_S))
        return samples

    def close(self) -> None:
        """Close the descriptors."""
        for fd in (self._statm, self._schedstat):
            if fd is not None:
                os.close(fd)
        self._statm = self._schedstat = None


def _open(path: str) -> int | None:
    with contextlib.suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


class Prober:
    """Wakes on absolute instants; each wake-up's lateness is what a read or a deadline at that instant would have suffered."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Engine, sink: Sink, epoch_ns: int) -> None:
        self._engine, self._sink, self._epoch_ns = engine, sink, epoch_ns
        self._process = ProcessReader()
        self._samples: list[Sample] = []
        self._due_ns = time.monotonic_ns() + PROBE_NS
        self._sample_ns = 0
        self._postponed = False
        self._timer = make_timer(loop, self._on_probe)
        self._timer.arm(self._due_ns)

    def close(self) -> None:
        """Send what is held and stop."""
        self._timer.close()
        self._sample(time.monotonic_ns())
        self._process.close()

    def _on_probe(self) -> None:
        now_ns = time.monotonic_ns()
        # A wake-up late by several periods stands for all of them, each with its own lag.
        while self._due_ns <= now_ns:
            if self._due_ns >= self._epoch_ns:
                self._samples.append((self._due_ns - self._epoch_ns, "loop_lag_s", (now_ns - self._due_ns) / NS_PER_S))
            self._due_ns += PROBE_NS
        self._timer.arm(self._due_ns)
        self._engine.tick(now_ns)
        if now_ns - self._sample_ns >= SAMPLE_NS and now_ns >= self._epoch_ns:
            self._sample_or_postpone(now_ns)

    def _sample_or_postpone(self, now_ns: int) -> None:
        if not self._postponed and 0 <= self._engine.next_deadline_ns() - now_ns < CLEARANCE_NS:
            self._postponed = True
            return
        self._postponed = False
        self._sample_ns = now_ns
        self._sample(now_ns)

    def _sample(self, now_ns: int) -> None:
        t_ns = now_ns - self._epoch_ns
        self._samples += self._process.read(t_ns)
        self._samples.append((t_ns, "open_connections", float(self._engine.open_connections)))
        self._samples.append((t_ns, "in_flight", float(len(self._engine.live))))
        self._sink.write(encode_samples(self._samples))
        self._samples.clear()
