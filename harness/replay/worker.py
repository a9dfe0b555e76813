"""The worker process: one event loop that sends, stamps and hands over; it prints nothing and collects no garbage while it measures."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import os
import resource
import signal
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection as Pipe
from typing import Any

import uvloop

from harness.replay.contract import ReplayPlan
from harness.replay.descriptors import raise_limit, refusal
from harness.replay.dialer import reach
from harness.replay.engine import Counts, Engine
from harness.replay.selfsample import Prober

WARM_UP_S = 20.0
"""Connections that are not there after 20 s will not make the run better; it starts with those that stand."""

PIPE_BYTES = 1024 * 1024
"""Asked of the kernel so that the spooler may be preempted for a while before the worker has to buffer; the default cap for users."""


CLOSED_UNDER_TLS = "the handler is closed"
"""What uvloop says when its TLS wants to answer a server's goodbye on a socket that broke while it wrote: it raises inside its own read,
and reports the connection lost like any other. A server that resets can bring it about at will, so it is no fault of ours."""


class WorkerStoppedError(Exception):
    """The worker ends without a run; its text goes to the parent."""


def main(plan: ReplayPlan, count: int, spool: Pipe, counts: Counts, control: Pipe) -> None:
    """Entry of the process. ``count`` bodies follow over ``control``, which then carries go/abort and our answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to turn into an abort
    pin(plan.cpus)
    try:
        payloads = _receive(plan, count, control)
        uvloop.run(_run(plan, payloads, control, spool, counts))
    except (WorkerStoppedError, EOFError) as stopped:
        _tell(control, "stopped", str(stopped))
    except Exception as error:
        _tell(control, "fault", f"{type(error).__name__}: {error}")


def pin(cpus: tuple[int, ...]) -> None:
    """Reserve cores for this process, where the platform can."""
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


def request_head(plan: ReplayPlan, size: int) -> bytes:
    """Head of a POST with a body of ``size`` bytes."""
    host = f"[{plan.host}]" if ":" in plan.host else plan.host
    fields: Mapping[str, str] = {
        "Host": f"{host}:{plan.port}",
        "User-Agent": "trigpoint",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "Content-Length": str(size),
    }
    lines = [f"POST {plan.path} HTTP/1.1", *(f"{k}: {v}" for k, v in (*fields.items(), *plan.headers.items()))]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _receive(plan: ReplayPlan, count: int, control: Pipe) -> list[bytes]:
    payloads = []
    for _ in range(count):
        body = control.recv_bytes()
        payloads.append(request_head(plan, len(body)) + body)
    return payloads


async def _run(plan: ReplayPlan, payloads: list[bytes], control: Pipe, spool: Pipe, counts: Counts) -> None:
    loop = asyncio.get_running_loop()
    engine = await _stand_ready(loop, plan, payloads, counts)
    sink = await SpoolSink.open(loop, spool, engine)
    try:
        _freeze()  # before the word, not after the go: it takes tens of milliseconds, and several workers may share a core
        _tell(control, "ready", "")
        await _replay(loop, engine, sink, control)
    finally:
        await engine.close()
        await sink.close()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    control.send(("done", engine.fault, usage.ru_utime + usage.ru_stime))


async def _stand_ready(loop: asyncio.AbstractEventLoop, plan: ReplayPlan, payloads: list[bytes], counts: Counts) -> Engine:
    try:
        address = await loop.run_in_executor(None, reach, plan.host, plan.port)
    except OSError as error:
        raise WorkerStoppedError(f"no connection: {error}") from error
    engine = Engine(loop, plan, payloads, address, counts)
    loop.set_exception_handler(lambda _loop, context: note_fault(engine, context))
    too_few = refusal(raise_limit(), engine.ahead)
    if too_few is not None:
        raise WorkerStoppedError(too_few)
    standing = await engine.warm_up(WARM_UP_S)
    if engine.fault is not None:
        raise WorkerStoppedError(engine.fault)
    if standing == 0:
        await engine.close()
        raise WorkerStoppedError(f"no connection stands after the first: {engine.connect_problem or 'the server closes each one'}")
    return engine


async def _replay(loop: asyncio.AbstractEventLoop, engine: Engine, sink: SpoolSink, control: Pipe) -> None:
    epoch: asyncio.Future[int] = loop.create_future()
    loop.add_reader(control.fileno(), _on_control, control, engine, epoch, loop)
    try:
        await asyncio.wait((epoch, engine.done), return_when=asyncio.FIRST_COMPLETED)
        if not epoch.done():
            raise WorkerStoppedError(engine.fault or "aborted before the epoch")
        late_ns = time.monotonic_ns() - epoch.result()
        if late_ns >= 0:
            raise WorkerStoppedError(f"the epoch passed {late_ns} ns before the worker was armed")
        prober = Prober(loop, engine, sink, epoch.result(), sink.backlog)
        engine.arm(epoch.result(), sink)
        _tell(control, "armed", "")
        await engine.done
        prober.close()
    finally:
        loop.remove_reader(control.fileno())


def _freeze() -> None:
    """Stop the collector: what exists is kept for good, what comes is freed by reference counts (no cycles on the hot path)."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _on_control(control: Pipe, engine: Engine, epoch: asyncio.Future[int], loop: asyncio.AbstractEventLoop) -> None:
    try:
        word, value = control.recv()
    except (EOFError, OSError):
        loop.remove_reader(control.fileno())
        engine.abort("the parent process is gone")
        return
    if word == "go" and not epoch.done():
        epoch.set_result(value)
    elif word == "abort":
        engine.abort(value)


def note_fault(engine: Engine, context: dict[str, Any]) -> None:
    """Stop the load for what the loop could not hand to anybody, unless it is about one connection, whose request ends by itself."""
    error = context.get("exception")
    # Broken connections and TLS failures end their request through connection_lost; everything else is a defect of ours.
    if not isinstance(error, OSError) and not (isinstance(error, RuntimeError) and CLOSED_UNDER_TLS in str(error)):
        engine.abort(f"{context.get('message')}: {error!r}")


def _tell(control: Pipe, word: str, text: str) -> None:
    with contextlib.suppress(OSError):
        control.send((word, text, 0.0))


class SpoolSink(asyncio.BaseProtocol):
    """Non-blocking write end of the pipe to the spooler; what the pipe does not take waits in memory."""

    def __init__(self, engine: Engine, closed: asyncio.Future[None]) -> None:
        self._engine = engine
        self._closed = closed
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def open(cls, loop: asyncio.AbstractEventLoop, spool: Pipe, engine: Engine) -> SpoolSink:
        """Take over the descriptor of ``spool``."""
        file = os.fdopen(os.dup(spool.fileno()), "wb", buffering=0)
        spool.close()
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(file.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        transport, sink = await loop.connect_write_pipe(lambda: cls(engine, loop.create_future()), file)
        sink._transport = transport
        return sink

    def write(self, data: bytes) -> None:
        """Queue bytes for the spooler."""
        if self._transport is not None:
            self._transport.write(data)

    def backlog(self) -> int:
        """Bytes that the pipe has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def connection_lost(self, exc: Exception | None) -> None:
        """Without a spooler nothing is recorded any more: stop the load."""
        if self._transport is not None and not self._transport.is_closing():
            exc = exc or ConnectionError("closed")
        self._transport = None
        if not self._closed.done():
            self._closed.set_result(None)
        if exc is not None:
            self._engine.abort(f"the spooler is gone: {exc}")

    async def close(self) -> None:
        """Flush everything and close."""
        if self._transport is not None:
            self._transport.close()
        await self._closed
