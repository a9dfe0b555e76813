"""The connection against bytes fed by hand: its transport is a recorder, everything else is the real thing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.record.schema import EndKind
from harness.replay.connection import MAX_HEAD_BYTES, Connection
from harness.replay.exchange import Exchange, connect_end
from harness.replay.rows import exchange_row
from harness.wire import PROTOCOLS
from harness.wire.contract import Decoder
from harness.wire.decode import BodyDecoder, StreamDecoder
from tests.unit.test_wire_sse import cut


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unsent = 0
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Desk:
    """An owner that writes down what it is told."""

    def __init__(self) -> None:
        self.idle = 0
        self.ends: list[tuple[EndKind, str]] = []
        self.live_decoder: Any = self._decoder
        self.too_long = EndKind.MALFORMED

    def _decoder(self, stream: bool) -> Decoder:
        return StreamDecoder() if stream else BodyDecoder()

    def made(self) -> None:
        pass

    def released(self, connection: Connection) -> None:
        self.idle += 1

    def lost(self, connection: Connection) -> None:
        pass

    def ended(self, exchange: Exchange, kind: EndKind, now_ns: int, error: str) -> None:
        exchange.end(kind, now_ns, error)
        assert exchange.kind is not None
        self.ends.append((exchange.kind, error))


def sent(stop_after: int = -1, *, followed: bool = False) -> tuple[Desk, Wire, Connection, Exchange]:
    desk, wire = Desk(), Wire()
    connection = Connection(desk, None)
    connection.connection_made(wire)
    exchange = Exchange(0, 0, stop_after, followed)
    connection.send(exchange, b"POST")
    return desk, wire, connection, exchange


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"text":"a","token_ids":[7]}]}\n\n'


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


WHOLE = CHUNKED + chunk(TOKEN) + chunk(TOKEN) + b"0\r\n\r\n"


def test_a_whole_response_completes_and_frees_the_connection() -> None:
    desk, wire, connection, exchange = sent()
    connection.data_received(WHOLE)
    assert (desk.ends, desk.idle, wire.closed) == ([(EndKind.COMPLETE, "")], 1, False)
    assert (exchange.status, exchange.stream, exchange.chunks) == (200, True, [TOKEN, TOKEN])
    assert len(set(exchange.stamps)) == 1


@given(st.lists(st.integers(0, len(WHOLE)), max_size=10))
def test_any_split_completes_with_the_same_body(places: list[int]) -> None:
    desk, _, connection, exchange = sent()
    for piece in cut(WHOLE, places):
        connection.data_received(piece)
    assert desk.ends == [(EndKind.COMPLETE, "")]
    assert b"".join(exchange.chunks) == TOKEN * 2
    assert exchange.stamps == sorted(exchange.stamps)


def test_the_second_request_reuses_the_connection() -> None:
    desk, _, connection, exchange = sent()
    connection.data_received(WHOLE)
    again = Exchange(1, 0, -1)
    connection.send(again, b"POST")
    connection.data_received(WHOLE)
    assert (exchange.reused, again.reused, len(desk.ends)) == (False, True, 2)


def test_connection_close_and_an_unwritten_request_both_forbid_reuse() -> None:
    desk, wire, connection, _ = sent()
    connection.data_received(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
    assert (desk.idle, wire.closed) == (0, True)
    desk, wire, connection, _ = sent()
    wire.unsent = 10
    connection.data_received(b"HTTP/1.1 429 No\r\ncontent-length: 2\r\n\r\n{}")
    assert (desk.ends[0][0], desk.idle, wire.closed) == (EndKind.HTTP_ERROR, 0, True)


def test_interim_answers_are_passed_over() -> None:
    desk, _, connection, exchange = sent()
    connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + WHOLE)
    assert (desk.ends, exchange.status) == ([(EndKind.COMPLETE, "")], 200)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 101 Switch\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        HEAD + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
        CHUNKED + b"zz\r\n",
        HEAD + b"content-length: abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * MAX_HEAD_BYTES,
    ],
)
def test_what_is_not_http_is_malformed_and_closes(answer: bytes) -> None:
    desk, wire, connection, _ = sent()
    connection.data_received(answer)
    assert [kind for kind, _ in desk.ends] == [EndKind.MALFORMED]
    assert (wire.closed, desk.idle) == (True, 0)


def test_bytes_behind_the_end_do_not_spoil_the_answer_but_the_connection() -> None:
    desk, wire, connection, exchange = sent()
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}excess")
    assert (desk.ends, wire.closed, desk.idle, exchange.chunks) == ([(EndKind.COMPLETE, "")], True, 0, [b"{}"])


@pytest.mark.parametrize(
    "got", [b"", b"HTTP/1.1 200", CHUNKED, CHUNKED + chunk(TOKEN) + b"20\r\nda", HEAD + b"content-length: 9\r\n\r\nshort"]
)
def test_a_close_before_the_end_is_a_reset(got: bytes) -> None:
    desk, _, connection, _ = sent()
    if got:
        connection.data_received(got)
    connection.connection_lost(None)
    assert [kind for kind, _ in desk.ends] == [EndKind.RESET]


def test_a_body_without_a_length_ends_with_the_connection_unless_that_broke() -> None:
    for error, kind in ((None, EndKind.COMPLETE), (ConnectionResetError(), EndKind.RESET)):
        desk, _, connection, _ = sent()
        connection.data_received(HEAD + b"\r\n" + TOKEN)
        connection.connection_lost(error)
        assert [k for k, _ in desk.ends] == [kind]


def test_a_refusing_status_outranks_how_its_body_ended() -> None:
    desk, _, connection, _ = sent()
    connection.data_received(b"HTTP/1.1 503 Busy\r\ncontent-length: 10\r\n\r\nx")
    connection.connection_lost(ConnectionResetError())
    assert [kind for kind, _ in desk.ends] == [EndKind.HTTP_ERROR]


@pytest.mark.parametrize(("status", "kind"), [(b"503 Busy", EndKind.HTTP_ERROR), (b"200 OK", EndKind.CANCELLED)])
def test_a_planned_cancellation_does_not_hide_that_the_server_had_refused(status: bytes, kind: EndKind) -> None:
    desk, _, connection, _ = sent()
    connection.data_received(b"HTTP/1.1 " + status + b"\r\ncontent-length: 10\r\n\r\nx")
    connection.stop(EndKind.CANCELLED)
    assert [end for end, _ in desk.ends] == [kind]


def test_client_stop_counts_live_and_keeps_the_overshoot_of_its_last_read() -> None:
    desk, wire, connection, exchange = sent(stop_after=2)
    connection.data_received(CHUNKED + chunk(TOKEN))
    assert desk.ends == []
    connection.data_received(chunk(TOKEN) + chunk(TOKEN))
    assert (desk.ends, wire.closed, desk.idle) == ([(EndKind.CLIENT_STOP, "")], True, 0)
    assert exchange.chunks == [TOKEN] * 3


DONE, ERROR = b"data: [DONE]\n\n", b'data: {"error":{"message":"full","type":"Overloaded","code":503}}\n\n'
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    ("answer", "completed"),
    [
        (CHUNKED + chunk(TOKEN) + chunk(DONE) + b"0\r\n\r\n", True),
        (WHOLE, False),  # no end mark
        (CHUNKED + chunk(TOKEN) + chunk(ERROR) + chunk(DONE) + b"0\r\n\r\n", False),
        (CHUNKED + chunk(b"data: {oops\n\n") + chunk(DONE) + b"0\r\n\r\n", False),
        (CHUNKED + b"0\r\n\r\n", False),
        (JSON + b'content-length: 50\r\n\r\n{"choices":[{"text":"a","token_ids":[7]}]}', False),
        (JSON + b'content-length: 42\r\n\r\n{"choices":[{"text":"a","token_ids":[7]}]}', True),
        (JSON + b"content-length: 0\r\n\r\n", False),
        (b"HTTP/1.1 204 No\r\n\r\n", False),
        (b"HTTP/1.1 429 No\r\ncontent-length: 2\r\n\r\n{}", False),
    ],
)
def test_a_followed_request_is_judged_live_as_its_row_will_be(answer: bytes, completed: bool) -> None:
    desk, _, connection, exchange = sent(followed=True)
    connection.data_received(answer)
    connection.connection_lost(None)
    raw = exchange.raw(0)
    assert len(desk.ends) == 1
    assert exchange.completed() is completed
    assert (exchange_row(raw, PROTOCOLS["completions"])["end_kind"] == "complete") is completed


EVENTS = st.sampled_from([TOKEN, DONE, ERROR, TOKEN[:9], b"data: {oops\n\n", b": note\n\n"])


@given(st.lists(EVENTS, max_size=5), st.booleans(), st.booleans())
def test_any_stream_is_judged_live_as_its_row_will_be(events: list[bytes], whole: bool, stop: bool) -> None:
    _, _, connection, exchange = sent(2 if stop else -1, followed=True)
    connection.data_received(CHUNKED + b"".join(map(chunk, events)) + (b"0\r\n\r\n" if whole else b""))
    connection.connection_lost(None)
    row = exchange_row(exchange.raw(0), PROTOCOLS["completions"])
    assert exchange.completed() == (row["end_kind"] in ("complete", "client_stop"))


def test_nothing_is_decoded_for_a_request_that_nobody_waits_for() -> None:
    _, _, connection, exchange = sent()
    connection.data_received(CHUNKED + chunk(TOKEN))
    assert exchange.decoder is None


def test_bytes_on_an_idle_connection_close_it() -> None:
    desk, wire, connection, _ = sent()
    connection.data_received(WHOLE)
    connection.data_received(b"HTTP/1.1 408 Timeout\r\n\r\n")
    assert (wire.closed, len(desk.ends)) == (True, 1)


def test_an_exchange_ends_once() -> None:
    exchange = Exchange(0, 0, -1)
    exchange.end(EndKind.RESET, 1, "")
    with pytest.raises(ValueError, match="again"):
        exchange.end(EndKind.TIMEOUT, 2, "")


@given(st.binary(max_size=300), st.booleans())
def test_arbitrary_bytes_end_in_at_most_one_kind_and_a_close_in_exactly_one(data: bytes, prefixed: bool) -> None:
    desk, _, connection, _ = sent(stop_after=1)
    connection.data_received((CHUNKED if prefixed else b"") + data)
    connection.connection_lost(None)
    assert len(desk.ends) == 1


def test_connect_failures_are_told_apart() -> None:
    assert connect_end(ConnectionRefusedError()) is EndKind.CONNECT_REFUSED
    assert connect_end(OSError(24, "too many open files")) is EndKind.CLIENT_FAULT
    assert connect_end(TimeoutError()) is EndKind.CONNECT_FAILED
