"""Large requests under TLS, with a transport that refuses to take more when it likes and a loop that is turned by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.record.schema import EndKind
from harness.replay.connection import Connection
from harness.replay.exchange import Exchange
from harness.replay.pieces import PIECE_BYTES, Pieces
from tests.unit.test_replay_connection import Desk, Wire


class Soon:
    """A call of the next pass."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call, self.cancelled = call, False

    def cancel(self) -> None:
        self.cancelled = True


class Turned:
    """The part of a loop that is used here."""

    def __init__(self) -> None:
        self.soon: list[Soon] = []

    def call_soon(self, call: Callable[[], None]) -> Soon:
        self.soon.append(Soon(call))
        return self.soon[-1]

    def turn(self) -> bool:
        """One pass; False when there was nothing to do."""
        now, self.soon = self.soon, []
        live = [entry for entry in now if not entry.cancelled]
        for entry in live:
            entry.call()
        return bool(live)


class Choosy(Wire):
    """Writes down the size of each piece."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def write(self, data: Any) -> None:
        self.sizes.append(len(data))
        super().write(data)


def payload(size: int) -> bytes:
    return bytes(i % 251 for i in range(size))


@given(st.integers(0, 5 * PIECE_BYTES), st.lists(st.booleans(), max_size=12))
def test_all_of_it_is_written_in_order_one_piece_a_pass_and_none_while_paused(size: int, pauses: list[bool]) -> None:
    loop, wire, whole = Turned(), Choosy(), bytes(size)
    pieces = Pieces(loop.call_soon, wire, whole)  # type: ignore[arg-type]
    for pause in pauses:
        (pieces.pause if pause else pieces.resume)()
        before = len(wire.sizes)
        loop.turn()
        assert len(wire.sizes) - before <= (0 if pause else 1)
    pieces.resume()
    while loop.turn():
        pass
    assert (sum(wire.sizes), pieces.left) == (size, 0)
    assert max(wire.sizes) <= PIECE_BYTES


def test_bytes_are_those_of_the_payload() -> None:
    loop, wire, whole = Turned(), Choosy(), payload(3 * PIECE_BYTES + 7)
    Pieces(loop.call_soon, wire, whole)  # type: ignore[arg-type]
    while loop.turn():
        pass
    assert wire.written == whole


def large() -> tuple[Turned, Desk, Choosy, Connection]:
    loop, desk, wire = Turned(), Desk(), Choosy()
    connection = Connection(desk, None, loop.call_soon)  # type: ignore[arg-type]
    connection.connection_made(wire)
    connection.send(Exchange(0, 0, -1), bytes(3 * PIECE_BYTES))
    return loop, desk, wire, connection


def test_an_answer_that_comes_before_the_end_of_the_request_spoils_the_connection() -> None:
    loop, desk, wire, connection = large()
    connection.data_received(b"HTTP/1.1 429 No\r\ncontent-length: 2\r\n\r\n{}")
    assert (desk.ends, desk.idle) == ([(EndKind.HTTP_ERROR, "")], 0)
    assert not wire.closed  # not from inside the read
    loop.turn()
    assert wire.sizes == [PIECE_BYTES]  # and no more is written
    assert wire.closed


def test_a_whole_request_leaves_the_connection_to_the_next() -> None:
    loop, desk, wire, connection = large()
    connection.pause_writing()
    loop.turn()
    assert sum(wire.sizes) == PIECE_BYTES
    connection.resume_writing()
    while loop.turn():
        pass
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    assert (desk.idle, wire.closed) == (1, False)
    connection.send(Exchange(1, 0, -1), b"small")
    assert wire.written.endswith(b"small")


def test_a_lost_connection_writes_no_more() -> None:
    loop, desk, wire, connection = large()
    connection.connection_lost(ConnectionResetError())
    assert [kind for kind, _ in desk.ends] == [EndKind.RESET]
    assert not loop.turn()
    connection.pause_writing()  # whatever the transport still says, nobody is there
    connection.resume_writing()
    assert wire.sizes == [PIECE_BYTES]
