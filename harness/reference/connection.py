"""One HTTP/1.1 connection: requests in order, keep-alive, chunked answers; a lost connection is told to the application."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Protocol, cast

import httptools

from harness.reference import replies
from harness.reference.api import ApiError

MAX_BODY = 16 << 20
"""16 MiB: four times the longest prompt of ids this server could accept at its largest sensible model length."""

_MAX_HEAD = 64 << 10
_MAX_PIPELINED = 16


class Request(NamedTuple):
    """A parsed request; ``keep_alive`` as the client asked."""

    method: str
    path: str
    body: bytes
    keep_alive: bool


class Application(Protocol):
    """What a connection talks to."""

    def handle(self, connection: Connection, request: Request) -> None:
        """Answer ``request`` now or later through ``connection``."""
        ...

    def lost(self, connection: Connection) -> None:
        """The client went away."""
        ...


class Connection(asyncio.Protocol):
    """Parses with httptools and answers one request at a time; pipelined requests wait their turn."""

    def __init__(self, app: Application, open_connections: set[Connection]) -> None:
        self._app = app
        self._open = open_connections
        self._transport: asyncio.WriteTransport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Request] = deque()
        self._current: Request | None = None
        self._reset_message()

    def _reset_message(self) -> None:
        self._url = b""
        self._body: list[bytes] = []
        self._body_size = 0
        self._head_size = 0
        self._in_body = False
        self._expects_continue = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        # uvloop's transport has the methods but is registered with none of asyncio's transport classes.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - signature of asyncio
        """Tell the application; whatever is in flight for this client is void."""
        self._transport = None
        self._open.discard(self)
        self._queue.clear()
        if self._current is not None:
            self._current = None
            self._app.lost(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; bytes that are not HTTP, or too many of them, end the connection with an error."""
        if not self._in_body:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fatal(400, "Protocol upgrades are not supported.")
        except httptools.HttpParserError:
            self._fatal(400, "The request is not valid HTTP/1.1.")
        if self._body_size > MAX_BODY:
            self._fatal(413, f"The body is larger than {MAX_BODY} bytes.")
        elif not self._in_body and self._head_size > _MAX_HEAD:
            self._fatal(431, f"The head is larger than {_MAX_HEAD} bytes.")

    def on_url(self, url: bytes) -> None:
        """Parser callback."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser callback; only Expect matters here."""
        if name.lower() == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True

    def on_headers_complete(self) -> None:
        """Parser callback: the body follows."""
        self._in_body = True
        self._head_size = 0
        if self._expects_continue:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Parser callback; bytes beyond the limit are counted, not kept."""
        self._body_size += len(data)
        if self._body_size <= MAX_BODY:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """Parser callback: one request is whole."""
        if self._body_size > MAX_BODY or len(self._queue) >= _MAX_PIPELINED:
            self._fatal(413 if self._body_size > MAX_BODY else 400, "Too much was sent before an answer.")
            return
        path = self._url.split(b"?", 1)[0].decode("latin-1")
        method = self._parser.get_method().decode("latin-1")
        self._queue.append(Request(method, path, b"".join(self._body), self._parser.should_keep_alive()))
        self._reset_message()
        self._next()

    def respond(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Send a whole answer to the current request."""
        if self._current is None:
            return
        self.write(replies.whole(status, body, keep_alive=self._current.keep_alive, content_type=content_type))
        self.finish()

    def start_stream(self) -> None:
        """Send the head of a chunked answer to the current request."""
        if self._current is not None:
            self.write(replies.stream_head(keep_alive=self._current.keep_alive))

    def write(self, data: bytes) -> None:
        """Hand bytes to the transport; void after the client left."""
        if self._transport is not None:
            self._transport.write(data)

    def finish(self) -> None:
        """End the current answer, then take the next request or close."""
        current, self._current = self._current, None
        if current is not None and not current.keep_alive:
            self.close()
        else:
            self._next()

    def close(self) -> None:
        """Close after what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def _next(self) -> None:
        if self._current is None and self._queue:
            self._current = self._queue.popleft()
            self._app.handle(self, self._current)

    def _fatal(self, status: int, message: str) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._current is None:  # in the middle of a streamed answer an error body would only corrupt it
            self.write(replies.whole(status, ApiError(status, message).body(), keep_alive=False))
        self.close()
