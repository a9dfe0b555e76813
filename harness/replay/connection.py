"""One HTTP/1.1 connection on the hot path: one stamp a read, keep the body bytes, decide nothing that can wait."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from harness.record.schema import EndKind
from harness.replay.exchange import Exchange
from harness.replay.pieces import PIECE_BYTES, Later, Pieces
from harness.replay.reader import WRITE_BYTES
from harness.wire.contract import Decoder

MAX_HEAD_BYTES = 256 * 1024
"""Four times what common servers accept as a request head; a response head that has not ended by then never will."""

MAX_RESPONSE_BYTES = 512 * 1024 * 1024
"""Of all that is read, framing and trailers too. A stream of 200,000 tokens at 1 KiB an event is 200 MB; /generate repeats itself and gets
here with 10,000 tokens. A server that sends for ever would otherwise fill the memory of the host before its request's deadline."""


_PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
"""Once: the flags are enumerations, whose sum costs more than the look."""


class Channel(Protocol):
    """What a connection needs of a transport."""

    def write(self, data: bytes | memoryview, /) -> None:
        """Take bytes, and send them as the kernel takes them."""
        ...

    def get_write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken."""
        ...

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        ...

    def abort(self) -> None:
        """Close and drop what was not sent; ``connection_lost`` follows in another loop pass."""
        ...


class Owner(Protocol):
    """What a connection tells its engine."""

    live_decoder: Callable[[bool], Decoder]
    """Makes a decoder; True for a stream."""

    too_long: EndKind
    """How a response ends that breaks ``MAX_RESPONSE_BYTES``: whose fault that is depends on the protocol."""

    def made(self) -> None:
        """A connection stands."""
        ...

    def released(self, connection: Connection) -> None:
        """The connection is clean and idle."""
        ...

    def lost(self, connection: Connection) -> None:
        """The connection is closed."""
        ...

    def ended(self, exchange: Exchange, kind: EndKind, now_ns: int, error: str) -> None:
        """The exchange is over."""
        ...


class Connection(asyncio.Protocol):
    """Carries one exchange at a time, never two: pipelining would make one request's body delay another's."""

    def __init__(self, owner: Owner, sock: socket.socket | None, later: Later | None = None) -> None:
        """``sock`` None: TLS, where only the transport can write. ``later``, the loop's ``call_soon``, comes with TLS: large requests are
        encrypted piece by piece, and a close waits until the read under way is over."""
        self._owner = owner
        self._sock = sock
        self._later = later
        self._transport: Channel | None = None
        # The parser refers back to us; ``connection_lost`` cuts the cycle, for the collector is off.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._now_ns = 0
        self._head_bytes = 0
        self._headers: dict[bytes, bytes] = {}
        self._interim = False
        self._complete = False
        self._keep = False
        self._broken = ""
        self._shut = False  # closed by us, although the transport may not know it yet
        self._pieces: Pieces | None = None  # of a request too large to be encrypted at once
        self.served = False

    # -- what the engine asks

    def send(self, exchange: Exchange, payload: bytes) -> None:
        """Begin a request without blocking; what the kernel is not handed, or does not take, at once, the transport writes."""
        self._exchange = exchange
        exchange.connection = self
        exchange.reused = self.served
        self.served = True
        self._head_bytes = 0
        self._complete = self._keep = False
        exchange.send_ns = time.monotonic_ns()
        self._drop_pieces()
        transport = self._open_transport()
        if self._sock is None:
            self._encrypt(transport, payload)
            return
        try:
            taken = self._sock.send(payload if len(payload) <= WRITE_BYTES else memoryview(payload)[:WRITE_BYTES])
        except BlockingIOError:
            taken = 0
        except OSError as error:
            self.stop(EndKind.RESET, f"the connection broke while sending: {error.strerror}")
            return
        if taken < len(payload):
            transport.write(memoryview(payload)[taken:])

    def _encrypt(self, transport: Channel, payload: bytes) -> None:
        if self._later is None or len(payload) <= PIECE_BYTES:
            transport.write(payload)
        else:
            self._pieces = Pieces(self._later, transport, payload)

    def stale(self) -> bool:
        """Whether it is closed, or the server closed or spoke out of turn since the last read: one look into the socket, about 1 us."""
        if self._shut or self._transport is None or self._transport.is_closing():
            return True
        if self._sock is None:
            return False
        try:
            self._sock.recv(1, _PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def stop(self, kind: EndKind, error: str = "") -> None:
        """End the exchange from our side, now, and close."""
        self._finish(kind, time.monotonic_ns(), error, keep=False)

    def close(self) -> None:
        """Close, dropping what was not written: at once, under TLS in the next loop pass. Nobody gets it from now on, nothing is read."""
        self._shut = True
        self._drop_pieces()
        if self._transport is None:
            return
        if self._later is None:
            self._transport.abort()
        else:
            # Aborted from inside a read, uvloop's TLS goes on with that read, fails on the closed socket and never says that it is lost.
            self._later(self._transport.abort)

    # -- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport | Channel) -> None:
        """Keep the transport."""
        # A cast, not a check: uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(Channel, transport)
        self._owner.made()

    def pause_writing(self) -> None:
        """The transport holds as much as it wants."""
        if self._pieces is not None:
            self._pieces.pause()

    def resume_writing(self) -> None:
        """The transport can take more."""
        if self._pieces is not None:
            self._pieces.resume()

    def data_received(self, data: bytes) -> None:
        """What a transport read, stamped here."""
        self.received(data, time.monotonic_ns())

    def received(self, data: bytes, stamp_ns: int) -> None:
        """Split HTTP, and see whether the exchange is over. ``stamp_ns``: when it came, CLOCK_MONOTONIC."""
        self._now_ns = stamp_ns
        exchange = self._exchange
        if exchange is None or self._parser is None:
            if not self._shut:
                self.close()  # bytes that answer nothing: whatever follows could not be trusted
            return
        exchange.received += len(data)
        if exchange.headers_ns is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self.stop(EndKind.CLIENT_FAULT, f"a parser callback failed: {error.__context__!r}")
            return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._broken = self._broken or f"bad HTTP: {error}"
        self._after_read(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cut every cycle and end the exchange that was under way. One that was never made, or is lost already, has nothing to end."""
        made = self._transport is not None
        self._drop_pieces()
        self._transport = self._parser = self._sock = None
        if not made:
            return
        self._owner.lost(self)
        exchange = self._exchange
        if exchange is None:
            return
        if exc is None and exchange.until_eof:
            self._finish(EndKind.COMPLETE, time.monotonic_ns(), "", keep=False)
        else:
            how = "closed by the server before the response ended" if exc is None else f"connection broke: {type(exc).__name__}"
            self._finish(EndKind.RESET, time.monotonic_ns(), how, keep=False)

    # -- what the parser calls

    def on_message_begin(self) -> None:
        """Start a response head; one behind a finished response is excess."""
        self._keep = False
        if self._complete:
            self._broken = "bytes behind the end of the response"
        self._headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header until the head is whole. Trailers say nothing that is asked here, and need not end."""
        if self._exchange is not None and self._exchange.headers_ns is None:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Read status and framing."""
        exchange, parser, headers = self._exchange, self._parser, self._headers
        if exchange is None or parser is None or self._complete:
            return
        status = parser.get_status_code()
        if status < 200:
            self._interim = True
            self._broken = "101: the server switched protocols" if status == 101 else self._broken
            return
        exchange.status, exchange.headers_ns = status, self._now_ns
        exchange.stream = headers.get(b"content-type", b"").lower().startswith(b"text/event-stream")
        exchange.until_eof = b"content-length" not in headers and b"transfer-encoding" not in headers and status not in (204, 304)
        encoding = headers.get(b"content-encoding", b"identity").lower()
        if encoding != b"identity":
            self._broken = f"content-encoding={encoding[:20]!r}, which nobody asked for"
        elif 200 <= status < 300 and (exchange.followed or (exchange.stop_after >= 0 and exchange.stream)):
            exchange.decoder = self._owner.live_decoder(exchange.stream)

    def on_body(self, body: bytes) -> None:
        """Keep stamped bytes; decode only where a count or the end must be known live."""
        exchange = self._exchange
        if exchange is None or self._complete:
            return
        exchange.stamps.append(self._now_ns)
        exchange.chunks.append(body)
        if exchange.decoder is not None:
            exchange.decoder.feed(self._now_ns, body)

    def on_message_complete(self) -> None:
        """Remember the end; it is acted upon when the whole read has been seen."""
        if self._interim:
            self._interim = False
            return
        parser = self._parser
        self._complete = True
        self._keep = parser is not None and parser.should_keep_alive()

    # -- ends

    def _after_read(self, exchange: Exchange) -> None:
        if self._complete and exchange.status is not None:
            clean = not self._broken or self._broken.startswith("bytes behind")
            self._finish(EndKind.COMPLETE if clean else EndKind.MALFORMED, self._now_ns, "" if clean else self._broken, keep=self._clean())
        elif self._broken:
            self._finish(EndKind.MALFORMED, self._now_ns, self._broken, keep=False)
        elif exchange.decoder is not None and self._enough(exchange, exchange.decoder):
            self._finish(EndKind.CLIENT_STOP, self._now_ns, "", keep=False)
        elif exchange.received > MAX_RESPONSE_BYTES:
            exchange.forget()  # all of it: what is too much to hold is too much to hand over
            self._finish(self._owner.too_long, self._now_ns, f"response longer than {MAX_RESPONSE_BYTES} bytes", keep=False)
        elif exchange.headers_ns is None and self._head_bytes > MAX_HEAD_BYTES:
            self._finish(EndKind.MALFORMED, self._now_ns, f"response head longer than {MAX_HEAD_BYTES} bytes", keep=False)

    def _enough(self, exchange: Exchange, decoder: Decoder) -> bool:
        return exchange.stream and 0 <= exchange.stop_after <= decoder.tokens

    def _clean(self) -> bool:
        """The server keeps the connection, and our request was written to its end (a refusal may come before that)."""
        unwritten = self._open_transport().get_write_buffer_size() + (0 if self._pieces is None else self._pieces.left)
        return self._keep and not self._broken and unwritten == 0

    def _drop_pieces(self) -> None:
        if self._pieces is not None:
            self._pieces.drop()
            self._pieces = None

    def _finish(self, kind: EndKind, now_ns: int, error: str, *, keep: bool) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        exchange.connection = None
        if keep:
            self._owner.released(self)
        else:
            self.close()
        self._owner.ended(exchange, kind, now_ns, error)

    def _open_transport(self) -> Channel:
        if self._transport is None:
            raise ConnectionError("the connection is closed")
        return self._transport
