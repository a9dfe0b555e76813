"""Opening connections: the address found once, sockets made by us so that options and first writes are ours."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.replay.connection import Connection, Owner
from harness.replay.reader import Reader, ask_for_stamps

CONNECT_TIMEOUT_S = 10.0
"""A host that answers at all accepts within two SYN retransmissions (1 s and 3 s); 10 s covers a third."""

REACH_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Address:
    """A resolved address that accepted a connection."""

    family: int
    sockaddr: Any


def reach(host: str, port: int) -> Address:
    """Resolve and try each address once, blocking; OSError of the last one when none accepts."""
    problem: OSError = OSError(f"{host} has no address")
    for family, kind, proto, _, sockaddr in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, proto) as sock:
            sock.settimeout(REACH_TIMEOUT_S)
            try:
                sock.connect(sockaddr)
            except OSError as error:
                problem = error
                continue
        return Address(family, sockaddr)
    raise problem


class Dialer:
    """Opens connections in the background and reports each outcome to two callbacks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: Owner,
        address: Address,
        tls_host: str | None,
        opened: Callable[[Connection], None],
        failed: Callable[[BaseException], None],
        reader: Reader | None = None,
    ) -> None:
        """``reader``: reads what is opened; None: transports of the loop do, as they must under TLS."""
        self._loop, self._owner, self._address, self._reader = loop, owner, address, reader
        self._tls_host = tls_host
        self._context = ssl.create_default_context() if tls_host is not None else None
        self._opened, self._failed = opened, failed
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def opening(self) -> int:
        """Connections under way."""
        return len(self._tasks)

    def open(self, count: int) -> None:
        """Start ``count`` connections."""
        for _ in range(count):
            task = self._loop.create_task(self._open())
            self._tasks.add(task)

    async def close(self) -> None:
        """Cancel what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()  # one that had not begun could not take itself out

    async def _open(self) -> None:
        connection: Connection | None = None
        problem: BaseException | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self._connect()
        except (OSError, ssl.SSLError, TimeoutError) as error:
            problem = error
        finally:
            task = asyncio.current_task()
            if task is not None:
                self._tasks.discard(task)
        # Called last, with this attempt no longer counted as under way.
        if connection is not None:
            self._opened(connection)
        elif problem is not None:
            self._failed(problem.with_traceback(None))
            problem = None  # what a timeout was raised from points at this frame, and the collector is off

    async def _connect(self) -> Connection:
        sock = socket.socket(self._address.family, socket.SOCK_STREAM)
        plain, later = (None, self._loop.call_soon) if self._context else (sock, None)
        connection = Connection(self._owner, plain, later)
        try:
            sock.setblocking(False)
            # Requests are one write each; Nagle would hold the tail of a large one for an acknowledgement.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._reader is None:
                await self._loop.sock_connect(sock, self._address.sockaddr)
                await self._loop.create_connection(lambda: connection, sock=sock, ssl=self._context, server_hostname=self._tls_host)
            else:
                ask_for_stamps(sock)
                await self._loop.sock_connect(sock, self._address.sockaddr)
                connection.connection_made(self._reader.adopt(sock, connection))
        except BaseException:
            sock.close()
            # Given up between its making and our being told: uvloop closes it then, and never says that it is lost.
            connection.connection_lost(None)
            raise
        return connection
