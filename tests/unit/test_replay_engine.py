"""The engine in a loop of its own against a listener of this process: what it does at an instant, without waiting for one."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from harness.clock import NS_PER_S
from harness.record.schema import EndKind
from harness.replay.contract import ReplayPlan
from harness.replay.dialer import Address
from harness.replay.engine import Engine
from harness.replay.frames import FrameReader, RawExchange
from harness.replay.reader import supported

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
LONG_NS = 60 * NS_PER_S


class Kept:
    """A sink that keeps how requests ended."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self.kinds: list[EndKind] = []

    def write(self, data: bytes) -> None:
        self.kinds += [frame.kind for frame in self._frames.feed(data) if isinstance(frame, RawExchange)]


def made(listener: socket.socket, **changes: Any) -> Engine:
    """An engine with one request, due at once."""
    base: dict[str, Any] = {"arrival_ns": np.zeros(1, np.int64), "bodies": [b"{}"], "stop_after": np.full(1, -1), "end_ns": LONG_NS}
    plan = ReplayPlan("127.0.0.1", 1, "/", "completions", segments=Path("unused"), warm_connections=1, **(base | changes))
    return Engine(asyncio.get_running_loop(), plan, [b"POST"], Address(socket.AF_INET, listener.getsockname()), [0] * 4)


async def opening_once_due(listener: socket.socket) -> tuple[int, list[EndKind]]:
    engine, sink = made(listener), Kept()
    engine.arm(time.monotonic_ns() - 1, sink)
    engine._send_due()  # as between two reads; the timer may be set to something later before it would fire
    opening = engine._dialer.opening
    engine.abort("over")
    await engine.close()
    return opening, sink.kinds


def test_what_comes_due_between_two_reads_and_finds_no_connection_gets_one_opened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        opening, kinds = uvloop.run(opening_once_due(listener))
    assert opening >= 1
    assert kinds == [EndKind.CLIENT_FAULT]


async def answered_then(decide: Callable[[Engine], None], listener: socket.socket, answer: bytes, changes: dict[str, Any]) -> list[EndKind]:
    engine, sink = made(listener, **changes), Kept()
    assert await engine.warm_up(10) == 1
    with listener.accept()[0] as far:
        engine.arm(time.monotonic_ns() - NS_PER_S, sink)
        engine._send_due()
        far.sendall(answer)
        decide(engine)  # nothing is awaited: the loop had no turn in which to read
        await engine.close()
    return sink.kinds


LIMITS = [
    pytest.param({"request_timeout_ns": NS_PER_S // 2}, lambda e: e.tick(time.monotonic_ns()), EndKind.TIMEOUT, id="time limit"),
    pytest.param({"cancel_after_ns": np.full(1, NS_PER_S // 2)}, lambda e: e.tick(time.monotonic_ns()), EndKind.CANCELLED, id="tick"),
    pytest.param({"cancel_after_ns": np.full(1, NS_PER_S // 2)}, Engine._on_deadline, EndKind.CANCELLED, id="cancellation"),
    pytest.param({"end_ns": NS_PER_S // 2}, Engine._on_deadline, EndKind.DRAIN_END, id="drain end"),
]


@pytest.mark.skipif(not supported(), reason="nothing here to look into every connection with")
@pytest.mark.parametrize(("changes", "decide", "given_up"), LIMITS)
def test_what_came_is_read_before_its_request_is_given_up(
    changes: dict[str, Any], decide: Callable[[Engine], None], given_up: EndKind
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert uvloop.run(answered_then(decide, listener, ANSWER, changes)) == [EndKind.COMPLETE]
        assert uvloop.run(answered_then(decide, listener, ANSWER[:-1], changes)) == [given_up]
