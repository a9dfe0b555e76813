"""Writing a large request under TLS: the transport would encrypt all of it at once, and every stream would wait for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

Later = Callable[[Callable[[], None]], asyncio.Handle]
"""A loop's ``call_soon``: in the next pass."""

PIECE_BYTES = 64 * 1024
"""Eight megabytes at once were seen to hold the loop for 25 ms, 3 us a KiB: a piece holds it for 0.2 ms, a fifth of the strictest bound on
a send's slip. A prompt of 10,000 token ids is one piece."""


class Writer(Protocol):
    """What takes the pieces."""

    def write(self, data: bytes | memoryview, /) -> None:
        """Take one."""
        ...


class Pieces:
    """Hands a payload to a transport piece by piece, one a loop pass, and none while the transport says that it has enough."""

    __slots__ = ("_handle", "_later", "_paused", "_rest", "_transport")

    def __init__(self, later: Later, transport: Writer, payload: bytes) -> None:
        self._later, self._transport = later, transport
        self._rest = memoryview(payload)
        self._handle: asyncio.Handle | None = None
        self._paused = False
        self._next()

    @property
    def left(self) -> int:
        """Bytes that the transport has not been given."""
        return len(self._rest)

    def pause(self) -> None:
        """Write nothing until ``resume``."""
        self._paused = True
        self._cancel()

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        self._ask()

    def drop(self) -> None:
        """Write no more; the payload can go."""
        self._rest = memoryview(b"")
        self._cancel()

    def _next(self) -> None:
        self._handle = None
        piece, self._rest = self._rest[:PIECE_BYTES], self._rest[PIECE_BYTES:]
        self._transport.write(piece)  # may call ``pause``
        self._ask()

    def _ask(self) -> None:
        if self._rest and not self._paused and self._handle is None:
            self._handle = self._later(self._next)

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
