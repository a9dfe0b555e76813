"""Reading all plain connections of a worker: what has come is read in one go, and the kernel says when each piece of it came.

The kernel stamps a segment as it takes it from the network, whatever this process does then. So a stamp holds nothing of the client: not
its queue of events, not the core that it waited for. What is read together shares the stamp of what came last. That frees the reader to
read late and together, at the pace of a ``Rest`` and not at every token, which is what costs least; and to look between two reads whether
a request is due, which must not wait. Where the kernel gives no stamps (not Linux; inside TLS) the instant of the read is the stamp, as
everywhere else.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Protocol

from harness.alarm import Alarm
from harness.clock import NS_PER_S
from harness.replay.rest import Rest

AT_ONCE = 128
"""Connections read before the loop gets a turn: about 1 ms."""

READ_BYTES = 64 * 1024
READS = 4
"""Of one connection in one pass: 256 KiB, so that a large answer holds nobody up and is not read a token's time too late either."""

WRITE_BYTES = 128 * 1024
"""Handed to the kernel in one pass, about 0.05 ms: ten prompts of 700 KB that leave together would hold all streams for 5 ms."""

STEP_NS = 20_000
"""Wall clock and monotonic clock are slewed alike, so that their difference is constant but for the reading, well under 1 us, unless
somebody sets the clock."""

# Not in Python's socket module. The kernel answers with a timespec of the wall clock, two 64-bit numbers where longs are that wide.
_SO_TIMESTAMPNS = 35
_timespec = struct.Struct("@qq").unpack
_TIMESPEC_BYTES = 16
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC_BYTES)


class Receiver(Protocol):
    """Who gets what a connection reads."""

    def received(self, data: bytes, stamp_ns: int) -> None:
        """Bytes and when they came, CLOCK_MONOTONIC ns."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """The end: None when the server closed, or we did."""
        ...


def supported() -> bool:
    """Whether this platform has what a ``Reader`` works with."""
    return sys.platform == "linux" and hasattr(select, "epoll")


def stamped_by(*, tls: bool) -> str:
    """Who says when bytes came: ``kernel``, or ``read`` where that is this process as it reads them."""
    if tls or not supported():
        return "read"
    with socket.socket() as sock:
        return "kernel" if ask_for_stamps(sock) else "read"


def ask_for_stamps(sock: socket.socket) -> bool:
    """Let the kernel stamp what this socket receives; False where it cannot. For the host's first such socket it begins some milliseconds
    later, long before an epoch; what is read until then is stamped as it is read."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class Reader:
    """Reads every wire it was given. ``next_ns`` tells when something is due next (CLOCK_MONOTONIC ns), and ``due`` does it.

    ``rest`` None: each is read as soon as the loop can, for runs in which one answer brings about the next request. ``reads`` counts what
    was read, ``unstamped`` those reads of it that the kernel gave no usable stamp for. Raises HostError where the kernel has no timerfd.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, next_ns: Callable[[], int], due: Callable[[], None], rest: Rest | None = None
    ) -> None:
        self.loop = loop
        self.reads = self.unstamped = 0
        self._next_ns, self._due = next_ns, due
        self.rest = rest
        self._alarm = Alarm()
        self._epoll = select.epoll()
        self._wires: dict[int, Wire] = {}
        self._clock = WallClock()
        self._last_ns = 0
        self._ticking = self._going_on = False
        loop.add_reader(self._alarm.fd, self._tick)
        loop.add_reader(self._epoll.fileno(), self._pass)

    def adopt(self, sock: socket.socket, receiver: Receiver) -> Wire:
        """Take over a connected socket."""
        wire = Wire(self, sock, receiver)
        self._wires[wire.fd] = wire
        self._epoll.register(wire.fd, select.EPOLLIN)
        return wire

    def forget(self, fd: int) -> None:
        """Read it no more."""
        if self._wires.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def want_writing(self, fd: int, wanted: bool) -> None:
        """Tell a wire when the kernel can take more of what it holds."""
        self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)

    def catch_up(self) -> None:
        """Read what has come by now, before something is decided that depends on it, such as a time limit: every wire once, which is all
        of it but for the rest of a very long answer."""
        for _ in range(1 + len(self._wires) // AT_ONCE):
            if self._read() < AT_ONCE:
                return

    def close(self) -> None:
        """Stop reading. The wires stay open."""
        if not self._epoll.closed:
            self.loop.remove_reader(self._alarm.fd)
            self.loop.remove_reader(self._epoll.fileno())
            self._alarm.close()
            self._epoll.close()
            self._wires.clear()

    # -- when to look

    def _tick(self) -> None:
        if self._alarm.clear():
            self._pass()

    def _pass(self) -> None:
        """Read; then wait for the kernel's word where little comes, or look at every tick where much does."""
        came = self._read()
        rest = self.rest
        if self._epoll.closed or rest is None:
            return
        now_ns = time.monotonic_ns()
        changed, rest_ns = rest.settle(), rest.ns
        close_by, self._last_ns = now_ns - self._last_ns < rest_ns // 2, now_ns
        if self._ticking and not came:
            self._ticking = False
            self._alarm.disarm()
            self.loop.add_reader(self._epoll.fileno(), self._pass)
        elif self._ticking and changed:
            self._alarm.arm(now_ns + rest_ns, rest_ns)
        elif not self._ticking and came and close_by:
            self._ticking = True
            self._alarm.arm(now_ns + rest_ns, rest_ns)
            self.loop.remove_reader(self._epoll.fileno())
        if self._ticking and came >= AT_ONCE and not self._going_on:
            self._going_on = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        self._pass()

    # -- looking

    def _read(self) -> int:
        """Serve each wire that has something; returns how many there were, ``AT_ONCE`` when some may be left."""
        ready = None if self._epoll.closed else self._epoll.poll(0, AT_ONCE)
        if not ready:
            return 0
        wires, clock, now = self._wires, self._clock, time.monotonic_ns
        clock.read()
        next_ns = self._next_ns()
        more = False
        for fd, what in ready:
            wire = wires.get(fd)  # None: closed by what another one brought
            if wire is None:
                continue
            if wire.serve(what, clock):
                more = True
            if now() >= next_ns:
                self._due()
                next_ns = self._next_ns()
        return AT_ONCE if more else len(ready)


class WallClock:
    """Maps the kernel's stamps, which are of the wall clock, onto CLOCK_MONOTONIC. ``steady`` False: the wall clock was just set."""

    __slots__ = ("_monotonic", "_set_ns", "_wall", "offset_ns", "steady")

    def __init__(self, monotonic: Callable[[], int] = time.monotonic_ns, wall: Callable[[], int] = time.time_ns) -> None:
        self._monotonic, self._wall = monotonic, wall
        self.steady, self._set_ns = True, 0
        self.offset_ns = self._measured()

    def read(self) -> None:
        """See whether the wall clock was set since the last look: what came before this look cannot be mapped then."""
        offset_ns = self._monotonic() - self._wall()
        self.steady = abs(offset_ns - self.offset_ns) < STEP_NS
        if not self.steady:
            # A look that was interrupted shows the same; a second one, taken with care, tells which it was.
            found_ns = self._measured()
            self.steady = abs(found_ns - self.offset_ns) < STEP_NS
            self.offset_ns = found_ns
            if not self.steady:
                self._set_ns = self._monotonic()

    def stamp(self, ancillary: list[tuple[int, int, bytes]], floor_ns: int, now_ns: int) -> int:
        """CLOCK_MONOTONIC ns of what was read with ``ancillary``, from ``floor_ns`` to ``now_ns``; -1 when the kernel said nothing, or
        nothing that can be. What misses them by less than a step is taken for them: two cores may stamp pieces of one stream in turn."""
        if not self.steady or not ancillary:
            return -1
        said = ancillary[0][2]
        if len(said) != _TIMESPEC_BYTES:
            return -1
        seconds, rest = _timespec(said)
        stamp_ns: int = seconds * NS_PER_S + rest + self.offset_ns
        if stamp_ns < self._set_ns:
            return -1  # of the clock as it was before, and read only now
        if stamp_ns < floor_ns:
            return floor_ns if floor_ns - stamp_ns < STEP_NS else -1
        if stamp_ns > now_ns:
            return now_ns if stamp_ns - now_ns < STEP_NS else -1
        return stamp_ns

    def _measured(self) -> int:
        """The tightest of three bracketed readings."""
        best_ns, offset_ns = sys.maxsize, 0
        for _ in range(3):
            before, wall, after = self._monotonic(), self._wall(), self._monotonic()
            if after - before < best_ns:
                best_ns, offset_ns = after - before, (before + after) // 2 - wall
        return offset_ns


class Wire:
    """One plain socket under a ``Reader``; what ``Connection`` needs of a transport and no more."""

    __slots__ = ("_broken", "_closed", "_floor_ns", "_lost", "_reader", "_received", "_recvmsg", "_saw", "_sock", "_unwritten", "fd")

    def __init__(self, reader: Reader, sock: socket.socket, receiver: Receiver) -> None:
        self.fd = sock.fileno()
        self._reader, self._sock = reader, sock
        self._recvmsg, self._received, self._lost = sock.recvmsg, receiver.received, receiver.connection_lost
        self._saw: Callable[[int], None] | None = None if reader.rest is None else reader.rest.saw
        self._unwritten = memoryview(b"")
        self._floor_ns = time.monotonic_ns()
        self._broken: OSError | None = None
        self._closed = False

    # -- what a connection asks

    def write(self, data: bytes | memoryview) -> None:
        """Keep what the kernel did not take at once; it goes out in pieces, as the kernel takes them."""
        if not self._unwritten:
            self._reader.want_writing(self.fd, True)
        self._unwritten = memoryview(b"".join((self._unwritten, data)) if self._unwritten else data)

    def get_write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken."""
        return len(self._unwritten)

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self._closed

    def abort(self) -> None:
        """Close now, dropping what was not written; that it is lost is told in the next loop pass, as transports do."""
        if not self._closed:
            self._close()
            self._reader.loop.call_soon(self._lost, None)

    # -- what the reader asks

    def serve(self, what: int, clock: WallClock) -> bool:
        """Write and read what can be; True when there may be more at once."""
        if what & select.EPOLLOUT:
            self._write()
        if what == select.EPOLLOUT:
            return bool(self._unwritten)
        for _ in range(READS):
            try:
                data, ancillary, _, _ = self._recvmsg(READ_BYTES, _ANCILLARY_BYTES)
            except BlockingIOError:
                return False
            except OSError as error:
                self._lose(error)
                return False
            if not data:
                self._lose(self._broken)
                return False
            self._reader.reads += 1
            now_ns = time.monotonic_ns()
            stamp_ns = clock.stamp(ancillary, self._floor_ns, now_ns)
            if stamp_ns < 0:
                self._reader.unstamped += 1
                stamp_ns = now_ns
            elif self._saw is not None:
                self._saw(stamp_ns - self._floor_ns)
            self._floor_ns = stamp_ns
            self._received(data, stamp_ns)
            if len(data) < READ_BYTES or self._closed:
                return False
        return True

    def _write(self) -> None:
        try:
            taken = self._sock.send(self._unwritten[:WRITE_BYTES])
        except BlockingIOError:
            return
        except OSError as error:
            # An answer may have come before it broke: that is read first. The kernel tells an error once, so reading will find an end.
            self._broken = error.with_traceback(None)  # which points at us, and the collector is off
            return
        self._unwritten = self._unwritten[taken:]
        if not self._unwritten:
            self._reader.want_writing(self.fd, False)

    def _lose(self, error: OSError | None) -> None:
        self._close()
        self._lost(error)

    def _close(self) -> None:
        self._closed = True
        self._unwritten = memoryview(b"")
        self._reader.forget(self.fd)
        self._sock.close()
