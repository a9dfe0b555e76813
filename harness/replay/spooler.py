"""The spooler process: decodes ended requests off the hot path and appends them to segments that survive a kill."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
from multiprocessing.connection import Connection as Pipe
from typing import Any

from harness.clock import NS_PER_S, Clock
from harness.record.schema import REQUESTS, SAMPLES
from harness.record.segments import SegmentWriter
from harness.replay.echoes import hide, keys_of
from harness.replay.frames import Frame, FrameReader, RawExchange
from harness.replay.rows import exchange_row
from harness.replay.shares import Share
from harness.replay.worker import pin
from harness.wire import PROTOCOLS

FLUSH_NS = NS_PER_S // 2
"""With a look at the clock every 0.2 s, a row is on disk at most 0.7 s after it came: inside the promised second."""

POLL_MS = 200
READ_BYTES = 1024 * 1024


def main(share: Share, spool: Pipe, clock: Clock, control: Pipe) -> None:
    """Entry of the process: read frames until the worker's end closes, however it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(5)  # the worker's stamps come first where cores are few
    pin(share.plan.spool_cpus)
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
        poll = select.poll()
        poll.register(spool.fileno(), select.POLLIN)
        while True:
            if poll.poll(POLL_MS):
                data = os.read(spool.fileno(), READ_BYTES)
                if not data:
                    break
                books.take(reader.feed(data))
            books.tick()
    return books.rows


class Books:
    """Turns frames into rows of the two segments, under the ids of the whole plan."""

    def __init__(self, share: Share, requests: SegmentWriter, samples: SegmentWriter) -> None:
        self._protocol = PROTOCOLS[share.plan.protocol]
        self._ids, self._label = share.ids.tolist(), share.label
        self._keys = keys_of(share.plan.headers)
        self._requests, self._samples = requests, samples
        self.rows = 0

    def take(self, frames: list[Frame]) -> None:
        """Append what came."""
        for frame in frames:
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
