"""The load engine in the test's own process, so that what it leaves behind can be counted: descriptors, tasks, connections, requests."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil
import uvloop

from harness.replay.contract import ReplayPlan
from harness.replay.dialer import reach
from harness.replay.engine import Engine
from harness.replay.frames import FrameReader, RawExchange
from harness.replay.rows import exchange_row
from harness.replay.selfsample import Prober
from harness.replay.worker import note_fault, request_head
from harness.wire import PROTOCOLS
from tests.e2e.replaying import MS, Row


@dataclass(slots=True)
class Kept:
    """A sink that keeps what ended, in the order it ended."""

    look: Callable[[], None]
    reader: FrameReader = field(default_factory=FrameReader)
    ended: list[RawExchange] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.look()
        self.ended += [frame for frame in self.reader.feed(data) if isinstance(frame, RawExchange)]


@dataclass(frozen=True, slots=True)
class Left:
    """What was there more than before the engine was made, once it was closed."""

    descriptors: int
    tasks: int
    connections: int
    requests: int


Look = Callable[[Engine], None]


def drive(plan: ReplayPlan, look: Look = lambda _: None) -> tuple[list[Row], Left]:
    """Replay ``plan``; give its rows in the order they ended, and what was left. ``look`` sees the engine whenever it writes
    something; what it thinks of it, it says afterwards, since an error in there is one of the engine's."""
    return uvloop.run(_drive(plan, look))


async def _drive(plan: ReplayPlan, look: Look) -> tuple[list[Row], Left]:
    loop = asyncio.get_running_loop()
    await _first_transport(loop)
    tasks, descriptors = len(asyncio.all_tasks()), psutil.Process().num_fds()
    payloads = [request_head(plan, len(body)) + body for body in plan.bodies]
    engine = Engine(loop, plan, payloads, reach(plan.host, plan.port), [0] * 4)
    sink = Kept(lambda: look(engine))
    loop.set_exception_handler(lambda _loop, context: note_fault(engine, context))
    await engine.warm_up(20)
    epoch_ns = time.monotonic_ns() + 50 * MS
    prober = Prober(loop, engine, sink, epoch_ns)
    engine.arm(epoch_ns, sink)
    await engine.done
    prober.close()
    await engine.close()
    assert engine.fault is None
    left = Left(psutil.Process().num_fds() - descriptors, len(asyncio.all_tasks()) - tasks, engine.open_connections, len(engine.live))
    return [exchange_row(raw, PROTOCOLS[plan.protocol]) for raw in sink.ended], left


class _Hung(asyncio.Protocol):
    """Says when it is closed."""

    def __init__(self, closed: asyncio.Future[None]) -> None:
        self._closed = closed

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set_result(None)


async def _first_transport(loop: asyncio.AbstractEventLoop) -> None:
    """Make the loop open what it keeps: libuv holds one spare descriptor from its first stream on, for the day when none is left."""
    ours, theirs = socket.socketpair()
    closed = loop.create_future()
    transport, _ = await loop.create_connection(lambda: _Hung(closed), sock=ours)
    transport.abort()
    theirs.close()
    await closed
