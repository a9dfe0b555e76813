"""One request and its response while they are alive. Stamps are absolute CLOCK_MONOTONIC ns here and become relative in the frame."""

from __future__ import annotations

import errno
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.record.schema import EndKind
from harness.replay.descriptors import run_out
from harness.replay.frames import RawExchange
from harness.replay.verdict import COMPLETED, verdict
from harness.wire.contract import Decoded, Decoder

if TYPE_CHECKING:
    from harness.replay.connection import Connection

OUR_FAULT_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""A connect that fails for want of our own descriptors, memory or ports says nothing about the server."""

FAILED_KINDS = frozenset(
    {
        EndKind.HTTP_ERROR,
        EndKind.CONNECT_REFUSED,
        EndKind.CONNECT_FAILED,
        EndKind.RESET,
        EndKind.TIMEOUT,
        EndKind.MALFORMED,
        EndKind.CLIENT_FAULT,
    }
)
"""What the progress line calls failed; the record's classes are made by analysis."""

_STATUS_WINS = frozenset({EndKind.COMPLETE, EndKind.RESET, EndKind.TIMEOUT, EndKind.MALFORMED, EndKind.DRAIN_END, EndKind.CANCELLED})


@dataclass(slots=True, eq=False)
class Exchange:
    """State of one request. ``kind`` None: it has not ended. ``connection`` None: not sent yet, or over.

    ``followed``: others wait for its end, so its body is decoded live; no other is, but to count for ``stop_after``.
    """

    request_id: int
    arrival_ns: int
    stop_after: int
    followed: bool = False
    send_ns: int | None = None
    headers_ns: int | None = None
    end_ns: int | None = None
    kind: EndKind | None = None
    status: int | None = None
    error: str = ""
    stream: bool = False
    until_eof: bool = False
    reused: bool | None = None
    stamps: list[int] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    received: int = 0
    decoder: Decoder | None = None
    connection: Connection | None = None

    def end(self, kind: EndKind, now_ns: int, error: str) -> None:
        """Close the exchange once. A refusing status outranks how its body ended: the server had answered."""
        if self.kind is not None:
            raise ValueError(f"request {self.request_id} ended as {self.kind} and again as {kind}")
        refused = self.status is not None and not 200 <= self.status < 300
        self.kind = EndKind.HTTP_ERROR if refused and kind in _STATUS_WINS else kind
        self.end_ns = now_ns
        self.error = error

    def completed(self) -> bool:
        """Whether an ended exchange lets its followers come due; the body is judged as it will be for the record. Callable once."""
        if self.kind is None:
            raise ValueError(f"request {self.request_id} has not ended")
        decoded = Decoded() if self.decoder is None else self.decoder.finish()
        return verdict(self.kind, self.status, self.error, decoded)[0] in COMPLETED

    def forget(self) -> None:
        """Free the body: something may still point at an exchange that is over, such as its time limit."""
        self.decoder = None
        self.stamps.clear()
        self.chunks.clear()

    def raw(self, epoch_ns: int) -> RawExchange:
        """Everything the spooler needs, on the run's epoch."""
        if self.kind is None:
            raise ValueError(f"request {self.request_id} has not ended")
        return RawExchange(
            request_id=self.request_id,
            arrival_ns=self.arrival_ns - epoch_ns,
            send_ns=_since(self.send_ns, epoch_ns),
            headers_ns=_since(self.headers_ns, epoch_ns),
            end_ns=_since(self.end_ns, epoch_ns),
            kind=self.kind,
            status=self.status,
            stream=self.stream,
            reused=self.reused,
            error=self.error,
            stamps=tuple(s - epoch_ns for s in self.stamps),
            sizes=tuple(map(len, self.chunks)),
            body=b"".join(self.chunks),
        )


def not_sent(request_id: int, kind: EndKind, arrival_ns: int | None, end_ns: int | None) -> RawExchange:
    """A request that ended without having come due; stamps on the run's epoch, None for what never happened."""
    return RawExchange(request_id, arrival_ns, None, None, end_ns, kind, None, False, None, "", (), (), b"")


def _since(stamp_ns: int | None, epoch_ns: int) -> int | None:
    return None if stamp_ns is None else stamp_ns - epoch_ns


def connect_end(error: BaseException) -> EndKind:
    """How a request ends whose connection could not be opened."""
    if isinstance(error, ConnectionRefusedError):
        return EndKind.CONNECT_REFUSED
    if isinstance(error, OSError) and error.errno in OUR_FAULT_ERRNOS:
        return EndKind.CLIENT_FAULT
    return EndKind.CONNECT_FAILED


def connect_problem(error: BaseException) -> str:
    """Why a connection could not be opened, in words that say what to look at."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "no connection in time"  # asyncio's own has no text
    return (str(error) or type(error).__name__) + run_out(error)
