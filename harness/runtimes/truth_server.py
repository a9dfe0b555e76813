"""A server whose every write is known: one epoll loop, one timerfd, a heap of due writes, and a log of what was really written when.

Error of the client is defined against this log, never against the plan (DESIGN 10): each token's instant is read right before the send
call that carries it. Nothing is written to disk before SIGTERM. Answers are OpenAI completions streams of one token an event. Sockets are
used directly because an event loop's transport delays writes to the end of its turn, which would make the log untrue.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import heapq
import json
import resource
import select
import signal
import socket
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from time import monotonic_ns

import httptools
import orjson

from harness.alarm import Alarm
from harness.clock import NS_PER_MS
from harness.runtimes.truth_plan import MAX_TOKENS, Timing, read_ask
from harness.vocabulary import SIMULATED_OWNER

MODEL = "truth"
TOKEN = 97
"""Every token is the letter a."""

READ_BYTES = 1 << 18
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"cmpl-truth","object":"text_completion","created":0,"model":"truth",'
    b'"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":%b,"token_ids":[97]}]}\n\n'
)
_USAGE = (
    b'data: {"id":"cmpl-truth","object":"text_completion","created":0,"model":"truth","choices":[],'
    b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n'
)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_MIDDLE = _chunk(_EVENT % b"null")
_LAST = _chunk(_EVENT % b'"length"')
_END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Log:
    """What was written when, as flat columns; grouped by request only when it is saved."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.received = array("q")
        self.ordinal = array("q")
        self.scheduled = array("q")
        self.actual = array("q")

    def open(self, name: str, received_ns: int) -> int:
        """Add a request; returns its ordinal."""
        self.names.append(name)
        self.received.append(received_ns)
        return len(self.names) - 1

    def wrote(self, ordinal: int, scheduled_ns: int, actual_ns: int) -> None:
        """Add one token."""
        self.ordinal.append(ordinal)
        self.scheduled.append(scheduled_ns)
        self.actual.append(actual_ns)


class Stream:
    """One answer in progress. ``plan_ns``: when its next write is planned, before any jitter; ``step_ns``: between writes; ``left``:
    tokens not yet written."""

    __slots__ = ("client", "end", "left", "ordinal", "plan_ns", "step_ns")

    def __init__(self, client: Client, ordinal: int, tokens: int, end: bytes, plan_ns: int, step_ns: int) -> None:
        self.client = client
        self.ordinal = ordinal
        self.left = tokens
        self.end = end
        self.plan_ns = plan_ns
        self.step_ns = step_ns


class Client:
    """One connection; httptools calls back into it."""

    __slots__ = ("_body", "_parser", "_server", "_url", "backlog", "fd", "sock")

    def __init__(self, sock: socket.socket, server: Server) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.backlog = b""
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Parse received bytes; raises httptools.HttpParserError."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """Parser callback."""
        self._url += url

    def on_body(self, data: bytes) -> None:
        """Parser callback."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Parser callback: hand the whole request over."""
        url, body, self._url, self._body = self._url, b"".join(self._body), b"", []
        self._server.handle(self, self._parser.get_method(), url.split(b"?", 1)[0], body)


class Server:
    """The loop; ``timing`` says when what is due."""

    def __init__(self, host: str, port: int, timing: Timing) -> None:
        self.log = Log()
        self._timing = timing
        self._delays = timing.delays()
        self._several = _MIDDLE * timing.per_write
        self._listener = socket.create_server((host, port), backlog=4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._alarm = Alarm()
        self._wake, wake_write = socket.socketpair()
        for end in (self._wake, wake_write):
            end.setblocking(False)
        self._wake_write = wake_write
        self._epoll = select.epoll()
        for fd in (self._listener.fileno(), self._alarm.fd, self._wake.fileno()):
            self._epoll.register(fd, select.EPOLLIN)
        self._clients: dict[int, Client] = {}
        self._due: list[tuple[int, int, Stream]] = []
        self._now_ns = 0

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        signal.set_wakeup_fd(self._wake_write.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # the wake-up descriptor is what ends the loop
        gc.collect()
        gc.disable()  # nothing here makes garbage cycles but closed connections, and a collection would be our own lateness
        special = {self._listener.fileno(): self._accept, self._alarm.fd: self._alarm.clear}
        while True:
            for fd, mask in self._epoll.poll():
                if fd == self._wake.fileno():
                    return
                action = special.get(fd)
                if action is not None:
                    action()
                else:
                    self._serve(fd, mask)
                self._fire()

    def handle(self, client: Client, method: bytes, path: bytes, body: bytes) -> None:
        """Answer one request."""
        if method == b"GET" and path in {b"/health", b"/v1/models"}:
            card = {"id": MODEL, "object": "model", "owned_by": SIMULATED_OWNER, "max_model_len": MAX_TOKENS}
            models = {"object": "list", "data": [card]}
            self._send(client, _whole(b"200 OK", b"{}" if path == b"/health" else orjson.dumps(models)))
        elif method == b"POST" and path == b"/v1/completions":
            self._open(client, body)
        else:
            self._send(client, _whole(b"404 Not Found", b'{"error":{"message":"Not found.","type":"NotFoundError","code":404}}'))

    def _open(self, client: Client, body: bytes) -> None:
        received = self._now_ns
        try:
            asked = read_ask(body)
        except ValueError:
            self._send(client, _whole(b"400 Bad Request", b'{"error":{"message":"Bad request.","type":"BadRequestError","code":400}}'))
            return
        prompt, tokens = asked.prompt, asked.tokens
        usage = _chunk(_USAGE % (prompt, prompt + tokens, tokens)) if asked.usage else b""
        plan_ns = received + self._timing.ttft_ns
        step_ns = self._timing.per_write * (self._timing.gap_ns if asked.gap_ns is None else asked.gap_ns)
        stream = Stream(client, self.log.open(asked.name, received), tokens, _LAST + usage + _END, plan_ns, step_ns)
        self._send(client, _HEAD)
        due_ns = self._delayed(plan_ns)
        first = not self._due or due_ns < self._due[0][0]
        heapq.heappush(self._due, (due_ns, stream.ordinal, stream))
        if first:
            self._alarm.arm(due_ns)

    def _delayed(self, plan_ns: int) -> int:
        return plan_ns if self._delays is None else plan_ns + self._delays.randint(0, self._timing.jitter_ns)

    def _fire(self) -> None:
        """Make every write that is due."""
        due = self._due
        if not due or due[0][0] > monotonic_ns():
            return
        per_write = self._timing.per_write
        while due and due[0][0] <= monotonic_ns():
            scheduled, ordinal, stream = due[0]
            if not self._has(stream.client):  # gone: the rest of its answer is never written
                heapq.heappop(due)
                continue
            tokens = min(per_write, stream.left)
            stream.left -= tokens
            if stream.left:
                stream.plan_ns += stream.step_ns
                heapq.heapreplace(due, (self._delayed(stream.plan_ns), ordinal, stream))
                data = self._several
            else:
                heapq.heappop(due)
                data = _MIDDLE * (tokens - 1) + stream.end
            actual = monotonic_ns()
            self._send(stream.client, data)
            for _ in range(tokens):
                self.log.wrote(ordinal, scheduled, actual)
        if due:
            self._alarm.arm(due[0][0])

    def _send(self, client: Client, data: bytes) -> None:
        if not self._has(client):
            return
        if client.backlog:
            client.backlog += data
            return
        try:
            sent = client.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(client)
            return
        if sent < len(data):
            client.backlog = data[sent:]
            self._epoll.modify(client.fd, select.EPOLLIN | select.EPOLLOUT)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # BlockingIOError: none left; others: that client is gone already
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = Client(sock, self)
            self._clients[client.fd] = client
            self._epoll.register(client.fd, select.EPOLLIN)

    def _serve(self, fd: int, mask: int) -> None:
        client = self._clients.get(fd)
        if client is None:
            return
        if mask & select.EPOLLOUT:
            backlog, client.backlog = client.backlog, b""
            self._epoll.modify(fd, select.EPOLLIN)
            self._send(client, backlog)
        if mask & ~select.EPOLLOUT:
            self._read(client)

    def _read(self, client: Client) -> None:
        try:
            data = client.sock.recv(READ_BYTES)
            self._now_ns = monotonic_ns()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        try:
            client.feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._drop(client)

    def _drop(self, client: Client) -> None:
        if self._has(client):
            del self._clients[client.fd]
            self._epoll.unregister(client.fd)
            client.sock.close()

    def _has(self, client: Client) -> bool:
        # By identity: the kernel gives a closed connection's number to the next one.
        return self._clients.get(client.fd) is client


def _whole(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def make_parser() -> argparse.ArgumentParser:
    """Flags of the truth server; times in milliseconds."""
    parser = argparse.ArgumentParser(prog="harness.runtimes.truth_server", allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft", type=float, default=20.0, help="first token after the request was received, ms")
    parser.add_argument("--gap", type=float, default=10.0, help="between tokens, ms")
    parser.add_argument("--jitter", type=float, default=0.0, help="each write up to this much later, uniformly, ms")
    parser.add_argument("--seed", type=int, default=0, help="of the jitter")
    parser.add_argument("--per-write", type=int, default=1, help="tokens in one send, each an event of its own")
    parser.add_argument("--log", type=Path, required=True, help="Arrow file written at SIGTERM")
    return parser


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(argv: Sequence[str] | None = None) -> int:
    """Serve, then save the log and say how late we were ourselves."""
    parser = make_parser()
    args = parser.parse_args(argv)
    ttft, gap, jitter = (round(value * NS_PER_MS) for value in (args.ttft, args.gap, args.jitter))
    _raise_descriptor_limit()
    try:
        server = Server(args.host, args.port, Timing(ttft, gap, jitter, args.seed, args.per_write))
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        sys.stderr.write(f"truth: port {args.port} on {args.host}: {error.strerror}\n")
        return 3
    sys.stderr.write(f"truth: listening on {args.host}:{server.port}\n")
    sys.stderr.flush()
    server.run()
    # Imported only now: loading it takes longer than everything before, and its threads have no place beside the loop.
    from harness.runtimes.truth_log import save_log

    sys.stderr.write(json.dumps({"truth": save_log(server.log, args.log)}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
