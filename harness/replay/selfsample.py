"""What only the worker can see of itself: lag of its own loop on absolute 10 ms probes, open connections, requests in flight, reads that
the kernel stamped or not, and what waits for the spooler.

CPU time, run-queue delay and memory of its process are read from outside, by the sampler, at no cost to the hot path.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from harness.clock import NS_PER_MS, NS_PER_S
from harness.replay.engine import Engine, Sink
from harness.replay.frames import encode_samples
from harness.replay.timers import make_timer

PROBE_NS = 10 * NS_PER_MS
SAMPLE_NS = 100 * NS_PER_MS
CLEARANCE_NS = NS_PER_MS // 2
"""A sample costs about 0.05 ms; it waits for the next probe when an arrival is nearer than ten times that, at most once."""

Sample = tuple[int, str, float]


class Prober:
    """Wakes on absolute instants; each wake-up's lateness is what a read or a deadline at that instant would have suffered.

    ``backlog``: bytes that wait for the spooler. A spooler short of a core lets the worker's memory grow; this tells why.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, engine: Engine, sink: Sink, epoch_ns: int, backlog: Callable[[], int] | None = None
    ) -> None:
        self._engine, self._sink, self._epoch_ns, self._backlog = engine, sink, epoch_ns, backlog
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
        self._samples.append((t_ns, "open_connections", float(self._engine.open_connections)))
        self._samples.append((t_ns, "in_flight", float(len(self._engine.live))))
        if self._engine.reads is not None:
            for metric, value in zip(("reads_total", "unstamped_reads_total"), self._engine.reads, strict=True):
                self._samples.append((t_ns, metric, float(value)))
        if self._engine.rest_ns is not None:
            self._samples.append((t_ns, "read_rest_s", self._engine.rest_ns / NS_PER_S))
        if self._backlog is not None:
            self._samples.append((t_ns, "spool_backlog_bytes", float(self._backlog())))
        self._sink.write(encode_samples(self._samples))
        self._samples.clear()
