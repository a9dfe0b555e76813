"""The HTTP layer against bytes nobody planned: whatever comes in whatever pieces, each exchange ends once, and always the same way."""

from __future__ import annotations

import json
import ssl
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harness.record.schema import EndKind
from harness.replay import connection as layer
from harness.replay.connection import Connection
from harness.replay.exchange import Exchange, connect_end, connect_problem
from harness.replay.rows import exchange_row
from harness.wire import PROTOCOLS
from tests.unit.test_replay_connection import CHUNKED, DONE, HEAD, JSON, TOKEN, WHOLE, Desk, Wire, chunk, sent
from tests.unit.test_wire_sse import cut

GENERATED = [b'data: {"output_ids":%b,"meta_info":{}}\n\n' % json.dumps(list(range(n))).encode() for n in range(3)]
PIECES = st.sampled_from(
    [
        *(WHOLE, CHUNKED, HEAD, JSON, TOKEN, DONE, *GENERATED),
        *(chunk(TOKEN), chunk(DONE), chunk(TOKEN * 3)),
        *(b"0\r\n\r\n", b"\r\n", b"\n", b"zz\r\n", b"ffffffffffffffff\r\n", b"\x00", b":"),
        *(
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 101 X\r\n\r\n",
            b"HTTP/1.0 200 OK\r\n\r\n",
            b"HTTP/2 200\r\n",
        ),
        *(b"content-length: 5\r\n\r\n", b"content-length: 5\r\ncontent-length: 6\r\n\r\n", b"content-length: -1\r\n\r\n"),
        *(b"transfer-encoding: chunked\r\n", b"content-encoding: gzip\r\n", b"connection: close\r\n", b"HTTP/1.1 204 No\r\n\r\n"),
        *(b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n", b"HTTP/1.1 503 X\r\ncontent-length: 2\r\n\r\n{}"),
    ]
)
ANSWERS = st.lists(PIECES | st.binary(max_size=20), max_size=8).map(b"".join)


def ended(pieces: list[bytes], stop_after: int, followed: bool) -> tuple[Any, ...]:
    """Feed ``pieces`` as reads, then end of file; return all that must not depend on how the bytes were cut."""
    desk, wire, connection, exchange = sent(stop_after, followed=followed)
    for piece in pieces:
        if not wire.closed:  # a transport that was aborted reads no more
            connection.data_received(piece)
    connection.connection_lost(None)
    row = exchange_row(exchange.raw(0), PROTOCOLS["completions"])
    assert len(desk.ends) == 1
    assert row["end_kind"] in set(EndKind)
    return row["end_kind"], row["http_status"], row["client_tokens"], row["event_kind"], row["event_tokens"]


@settings(max_examples=150)
@given(ANSWERS, st.lists(st.integers(0, 2000), max_size=10), st.booleans())
def test_the_end_does_not_depend_on_where_the_network_cut(answer: bytes, places: list[int], followed: bool) -> None:
    pieces = cut(answer, [p % (len(answer) + 1) for p in places])
    assert ended([p for p in pieces if p], -1, followed) == ended([answer], -1, followed)


@given(ANSWERS, st.integers(-1, 3), st.booleans())
def test_byte_by_byte_never_raises_and_ends_once(answer: bytes, stop_after: int, followed: bool) -> None:
    ended([answer[i : i + 1] for i in range(len(answer))], stop_after, followed)


class Keeping(RuleBasedStateMachine):
    """One connection used again and again: sends, reads, stops and losses in any order that a transport can make."""

    def __init__(self) -> None:
        super().__init__()
        self.desk, self.wire = Desk(), Wire()
        self.connection = Connection(self.desk, None)
        self.connection.connection_made(self.wire)
        self.started = 0
        self.lost = False
        self.looks = 0
        self.busy: Exchange | None = None

    def _alive(self) -> bool:
        return not self.lost and not self.wire.closed

    @precondition(lambda self: self._alive() and (self.busy is None or self.busy.kind is not None) and self.desk.idle == self.started)
    @rule()
    def send(self) -> None:
        self.busy = Exchange(self.started, 0, -1)
        self.started += 1
        self.connection.send(self.busy, b"POST")

    @precondition(_alive)
    @rule(data=ANSWERS)
    def read(self, data: bytes) -> None:
        self.connection.data_received(data)

    @precondition(lambda self: self.busy is not None and self.busy.connection is not None)
    @rule()
    def give_up(self) -> None:
        self.connection.stop(EndKind.TIMEOUT)

    @precondition(lambda self: not self.lost)
    @rule(broken=st.booleans())
    def lose(self, broken: bool) -> None:
        self.lost = True
        self.connection.connection_lost(ConnectionResetError() if broken else None)

    @rule()
    def pass_over(self) -> None:
        """A connection that is lost has nothing left to do."""
        self.looks += 1

    @invariant()
    def each_exchange_ends_at_most_once_and_frees_the_connection_only_when_clean(self) -> None:
        assert self.started - 1 <= len(self.desk.ends) <= self.started
        assert self.desk.idle <= len(self.desk.ends)
        if self.lost:
            assert len(self.desk.ends) == self.started

    def teardown(self) -> None:
        if not self.lost:
            self.connection.connection_lost(None)
        assert len(self.desk.ends) == self.started


TestKeeping = Keeping.TestCase
TestKeeping.settings = settings(max_examples=60, stateful_step_count=12)


def test_a_response_that_never_stops_ends_at_its_bound_and_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "MAX_RESPONSE_BYTES", 10 * len(TOKEN))
    desk, wire, connection, exchange = sent()
    connection.data_received(CHUNKED)
    for _ in range(11):
        connection.data_received(chunk(TOKEN))
    assert [kind for kind, _ in desk.ends] == [EndKind.MALFORMED]
    assert (wire.closed, exchange.chunks, exchange.stamps) == (True, [], [])


@pytest.mark.parametrize("rest", [b"0\r\n" + b"x: y\r\n" * 400, b"0\r\nx: " + b"y" * 1200, b"5;" + b"a" * 1200, b"1\r\nx\r\n" * 200])
def test_what_frames_a_body_and_follows_it_counts_towards_the_bound_and_is_not_kept(rest: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trailers without end, a chunk's extension without end, and chunks of a byte each."""
    monkeypatch.setattr(layer, "MAX_RESPONSE_BYTES", 1000)
    desk, wire, connection, _ = sent()
    for byte in CHUNKED + rest:
        connection.data_received(bytes([byte]))
        if desk.ends:
            break
    assert desk.ends == [(EndKind.MALFORMED, "response longer than 1000 bytes")]
    assert (wire.closed, len(connection._headers)) == (True, 2)


def test_a_route_that_repeats_itself_breaks_the_bound_by_our_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that keeps to the protocol of /generate must not be counted as failed because its answer is more than we hold."""
    monkeypatch.setattr(layer, "MAX_RESPONSE_BYTES", 100)
    desk, _, connection, _ = sent()
    desk.too_long = EndKind.CLIENT_FAULT
    connection.data_received(CHUNKED + chunk(TOKEN))
    assert [kind for kind, _ in desk.ends] == [EndKind.CLIENT_FAULT]
    assert [name for name, protocol in PROTOCOLS.items() if protocol.cumulative] == ["generate"]


def test_a_connection_whose_close_waits_a_pass_is_given_to_nobody_and_reads_nothing() -> None:
    """Under TLS: what a server said out of turn must neither be read as the answer to a later request nor end that one."""
    later: list[Any] = []
    desk, wire = Desk(), Wire()
    connection = Connection(desk, None, later.append)  # type: ignore[arg-type]
    connection.connection_made(wire)
    assert not connection.stale()
    connection.data_received(WHOLE)  # nobody asked
    connection.data_received(WHOLE)
    assert (connection.stale(), wire.closed, desk.ends, len(later)) == (True, False, [], 1)
    later[0]()
    assert wire.closed


def test_a_flood_of_interim_answers_is_a_head_without_end() -> None:
    desk, wire, connection, _ = sent()
    for _ in range(layer.MAX_HEAD_BYTES // 2500 + 1):
        connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
    assert [kind for kind, _ in desk.ends] == [EndKind.MALFORMED]
    assert wire.closed


def test_why_no_connection_stands_is_said_in_words() -> None:
    refused = ssl.SSLCertVerificationError()
    refused.verify_message = "self-signed certificate"
    assert connect_end(refused) is EndKind.CONNECT_FAILED
    assert connect_problem(refused) == "the server's certificate is not trusted: self-signed certificate"
    assert connect_problem(TimeoutError()) == "no connection in time"
    assert connect_problem(ConnectionRefusedError(111, "refused")) == "[Errno 111] refused"
    assert connect_problem(OSError()) == "OSError"
