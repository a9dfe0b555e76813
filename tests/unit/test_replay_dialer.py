"""Opening connections against a real listener: whenever an attempt is given up, nothing is counted that is not there."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from typing import Any

import pytest
import uvloop

from harness.record.schema import EndKind
from harness.replay.connection import Connection
from harness.replay.dialer import Address, Dialer
from tests.unit.test_replay_connection import Desk

MANY = 20


class Counting(Desk):
    """An owner that knows how many connections it has."""

    def __init__(self) -> None:
        super().__init__()
        self.made_so_far = self.open = 0

    def made(self) -> None:
        self.made_so_far += 1
        self.open += 1

    def lost(self, connection: Connection) -> None:
        self.open -= 1


async def given_up_after(passes: int, listener: socket.socket) -> tuple[int, int, int]:
    loop, owner = asyncio.get_running_loop(), Counting()
    opened: list[Connection] = []
    turns = 0
    dialer = Dialer(loop, owner, Address(socket.AF_INET, listener.getsockname()), None, opened.append, pytest.fail)
    dialer.open(MANY)
    for _ in range(passes):
        await asyncio.sleep(0)
    await dialer.close()
    for connection in opened:
        connection.close()
    while owner.open > 0 and (turns := turns + 1) < 1000:
        await asyncio.sleep(0)  # a closed transport says so some passes later
    return owner.open, dialer.opening, owner.made_so_far


def test_an_attempt_given_up_at_any_moment_leaves_no_connection_behind() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        left = [uvloop.run(given_up_after(passes, listener)) for passes in range(12)]
    assert {(open_, opening) for open_, opening, _ in left} == {(0, 0)}
    assert left[0] == (0, 0, 0)
    assert max(made for _, _, made in left) > 0  # some were given up before they stood, some after


async def left_alive(listener: socket.socket, monkeypatch: pytest.MonkeyPatch, *, given_up: bool) -> int:
    made: list[weakref.ref[Connection]] = []

    def noted(*args: Any) -> Connection:
        connection = Connection(*args)
        made.append(weakref.ref(connection))
        return connection

    monkeypatch.setattr("harness.replay.dialer.Connection", noted)
    failed: list[str] = []
    dialer = Dialer(
        asyncio.get_running_loop(),
        Counting(),
        Address(socket.AF_INET, listener.getsockname()),
        None,
        pytest.fail,
        lambda error: failed.append(str(error)),
    )
    dialer.open(MANY)
    while len(made) < MANY:
        await asyncio.sleep(0)
    if given_up:
        await dialer.close()
    while dialer.opening:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(failed) == (0 if given_up else MANY)
    return sum(ref() is not None for ref in made)


@pytest.mark.parametrize("how", ["refused", "given up", "timed out"])
def test_an_attempt_that_came_to_nothing_is_freed_without_the_collector(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead server is asked for every request of the run, by a worker that collects nothing."""
    if how == "timed out":
        monkeypatch.setattr("harness.replay.dialer.CONNECT_TIMEOUT_S", 0.0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if how != "refused":
            listener.listen(MANY)
        gc.disable()
        try:
            assert uvloop.run(left_alive(listener, monkeypatch, given_up=how == "given up")) == 0
        finally:
            gc.enable()


def test_a_connection_is_lost_once() -> None:
    owner: Any = Counting()
    connection = Connection(owner, None)
    connection.connection_lost(None)  # never made
    connection.connection_made(asyncio.Transport())
    connection.connection_lost(ConnectionResetError())
    connection.connection_lost(None)
    assert (owner.open, owner.made_so_far, owner.ends) == (0, 1, list[tuple[EndKind, str]]())
