"""The spooler process: decodes ended requests off the hot path and appends them to segments that survive a kill."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from typing import Any

import pyarrow as pa

from harness.clock import NS_PER_MS, NS_PER_S, Clock
from harness.record.schema import REQUESTS, SAMPLES
from harness.record.segments import SegmentWriter
from harness.replay.echoes import hide, keys_of
from harness.replay.frames import Frame, FrameReader, RawExchange
from harness.replay.rows import exchange_row
from harness.replay.shares import Share
from harness.replay.worker import pin
from harness.wire import PROTOCOLS

FLUSH_NS = NS_PER_S // 2
"""With a rest of 0.1 s and a look at the clock every 0.2 s, a row is on disk at most 0.8 s after its request ended: inside the promised
second."""

POLL_MS = 200
READ_BYTES = 1024 * 1024

REST_NS = 100 * NS_PER_MS
"""Frames come one by one, hundreds a second. Woken for each, the spooler would start with cold caches every time, and would interrupt the
worker as often where they share a core; ten times a second is often enough for the promise above."""

FILL = 4
"""The pipe is left alone for a quarter of it: load may come four times as fast as before until the worker has to buffer."""

LEAST_CAPACITY = 64 * 1024
"""Of a pipe whose size nobody can tell, or that the kernel did not let grow."""


def main(share: Share, spool: Pipe, clock: Clock, control: Pipe) -> None:
    """Entry of the process: read frames until the worker's end closes, however it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        # The worker's stamps come first where cores are few, with three times this weight. No more than that: an idle-class process gets
        # nothing on a busy core, and the worker's memory then grows by all it hands over.
        os.nice(5)
    pin(share.plan.spool_cpus)
    # The first array that pyarrow makes imports pandas, where that is installed: 0.2 s of CPU time, which are not to fall into the load.
    pa.RecordBatch.from_pylist([], REQUESTS)
    try:
        rows = _spool(share, spool, clock)
    except Exception as error:
        control.send(("fault", f"{type(error).__name__}: {error}", 0.0))
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    control.send(("done", rows, usage.ru_utime + usage.ru_stime))


def _spool(share: Share, spool: Pipe, clock: Clock) -> int:
    folder = share.plan.segments
    folder.mkdir(parents=True, exist_ok=True)
    reader = FrameReader()
    with (
        SegmentWriter(folder, f"requests-w{share.index}", REQUESTS, clock=clock, flush_ns=FLUSH_NS) as requests,
        SegmentWriter(folder, f"client-w{share.index}", SAMPLES, clock=clock, flush_ns=FLUSH_NS) as samples,
    ):
        books = Books(share, requests, samples)
        for data, behind in _reads(spool.fileno(), clock):
            for frame in reader.feed(data):
                books.take(frame)
                if not behind:
                    # A worker that waits for this core gets it after each exchange, not when the batch is done: a process woken every
                    # millisecond on the spooler's core was late by 2.4 ms in one wake of a hundred, and by 0.5 ms with this line. Who
                    # yields gives up much of his share, which one who is behind cannot.
                    os.sched_yield()
            books.tick()
    return books.rows


def _reads(fd: int, clock: Clock) -> Iterator[tuple[memoryview, bool]]:
    """Yield what is in the pipe, nothing where nothing came in POLL_MS, and whether the pipe was half full; return when the other end is
    closed and all is read.

    The bytes are good until the next is asked for: all reads go into one buffer, whose pages stay with the process.
    """
    ready, closed = select.poll(), select.poll()
    ready.register(fd, select.POLLIN)
    closed.register(fd, 0)  # wakes for nothing but the worker's end
    last_ns, buffer = clock.now_ns(), memoryview(bytearray(READ_BYTES))
    while True:
        if not ready.poll(POLL_MS):
            yield buffer[:0], False
            continue
        now_ns = clock.now_ns()
        came = os.readv(fd, [buffer])
        if not came:
            return
        capacity = _capacity(fd)  # asked each time: the worker makes the pipe larger when it comes up
        yield buffer[:came], 2 * came > capacity
        closed.poll(rest_ns(came, now_ns - last_ns, capacity) // NS_PER_MS)
        last_ns = now_ns


def _capacity(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    except (OSError, AttributeError):
        return LEAST_CAPACITY


def rest_ns(came: int, within_ns: int, capacity: int) -> int:
    """How long a pipe may be left alone after a read of ``came`` bytes, ``within_ns`` after the one before: until its FILL-th part would
    have come at that rate, at most REST_NS."""
    return min(REST_NS, within_ns * capacity // (FILL * came))


class Books:
    """Turns frames into rows of the two segments, under the ids of the whole plan."""

    def __init__(self, share: Share, requests: SegmentWriter, samples: SegmentWriter) -> None:
        self._protocol = PROTOCOLS[share.plan.protocol]
        self._ids, self._label = share.ids.tolist(), share.label
        self._keys = keys_of(share.plan.headers)
        self._requests, self._samples = requests, samples
        self.rows = 0

    def take(self, frame: Frame) -> None:
        """Append what came."""
        if isinstance(frame, RawExchange):
            row = hide(exchange_row(frame, self._protocol), self._keys)
            self._requests.append([row | {"request_id": self._ids[frame.request_id]}])
            self.rows += 1
        else:
            self._samples.append([self._sample(*value) for value in frame.values])

    def tick(self) -> None:
        """Flush what is old enough."""
        self._requests.tick()
        self._samples.tick()

    def _sample(self, t_ns: int, metric: str, value: float) -> dict[str, Any]:
        return {"t_ns": t_ns, "source": "client", "metric": metric, "labels": self._label, "value": value}
