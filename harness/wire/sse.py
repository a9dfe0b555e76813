"""Server-sent events: bytes in, frames out, the same frames however the bytes were split (WHATWG HTML, section 9.2.6).

A frame ends with a blank line. Lines end with LF, CR or CRLF. When a frame ends with CR LF, the LF is counted with the next frame, so
that a frame is known the moment its CR is read and sizes do not depend on where the network cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""No honest event comes near it: the largest carries the prompt's token ids, and 16 MiB of those is over two million ids."""

_CR, _LF = b"\r", b"\n"
_BOM = b"\xef\xbb\xbf"
_PLAIN = b"data: "

PLAIN_BYTES = len(_PLAIN) + 2
"""What a plain frame is longer than its data."""


class Frame(NamedTuple):
    """One event block. ``data`` None: it had no data field; ``comment``: nothing but comments. ``size``: its bytes in the body."""

    data: bytes | None
    size: int
    comment: bool


def plain_frames(body: bytes) -> list[bytes] | None:
    """Data of the frames of a whole body in which each frame is ``data: ``, one line and a blank line, every line ending with LF alone.

    None for any other body. What servers send is nearly always this, and a million frames of it are found in the time a Framer takes for
    a tenth of them. Each frame is as long as its data and ``PLAIN_BYTES``.
    """
    if not (body.startswith(_PLAIN) and body.endswith(b"\n\n")) or _CR in body:
        return None
    found = body[len(_PLAIN) : -2].split(b"\n\n" + _PLAIN)
    # Two line feeds a frame are those that end it: one more is a second line in some frame, or a blank line too many.
    return found if body.count(_LF) == 2 * len(found) else None


class Framer:
    """Incremental splitter of one event stream. ``overflow``: an event broke ``limit`` bytes; it and all behind it is ignored."""

    __slots__ = ("_after_cr", "_data", "_data_bytes", "_fields", "_held", "_limit", "_lines", "_size", "_started", "overflow")

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._held = bytearray()  # the line under way
        self._data: list[bytes] = []
        self._data_bytes = 0  # kept as a sum: adding up a long list at every line would take hours for one event of a million lines
        self._lines = 0  # of the frame under way
        self._fields = 0  # of those, lines that are no comments
        self._size = 0
        self._after_cr = False
        self._started = False
        self.overflow = False

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Take bytes; yield each frame that they finish. Exhaust the iterator before the next call."""
        start, cr, lf = 0, chunk.find(_CR), chunk.find(_LF)
        while not self.overflow and (cr >= 0 or lf >= 0):
            ends_cr = cr >= 0 and (lf < 0 or cr < lf)
            stop = cr if ends_cr else lf
            after = stop + 1
            self._size += after - start
            # The LF of a CR LF ends no second line.
            swallowed = self._after_cr and stop == start and not self._held and not ends_cr
            self._after_cr = ends_cr
            # Each is looked for from behind the last one of its own kind, so that a byte is passed over twice at most.
            if ends_cr:
                cr = chunk.find(_CR, after)
            else:
                lf = chunk.find(_LF, after)
            if not swallowed:
                frame = self._line(self._whole(chunk[start:stop]))
                if frame is not None:
                    yield frame
            start = after
        if start < len(chunk):
            self._hold(chunk[start:])

    def finish(self) -> Frame | None:
        """End of stream: the frame under way if it has data, although its blank line is missing; else None."""
        if self._held and not self.overflow:
            self._line(self._whole(b""))
        return self._close() if self._data else None

    def _whole(self, tail: bytes) -> bytes:
        if not self._held:
            return tail
        line = bytes(self._held) + tail
        self._held.clear()
        return line

    def _hold(self, rest: bytes) -> None:
        if self.overflow:
            return
        self._after_cr = False
        self._size += len(rest)
        self._held += rest
        if len(self._held) > self._limit:
            self._overflow()

    def _line(self, line: bytes) -> Frame | None:
        """Take one whole line; return the frame it ends."""
        if len(line) > self._limit:
            self._overflow()
            return None
        if not self._started:
            self._started = True
            line = line.removeprefix(_BOM)
        if not line:
            # Blank lines alone make no frame; their bytes count with the next one.
            return self._close() if self._lines else None
        self._lines += 1
        if not line.startswith(b":"):
            self._fields += 1
            self._field(line)
        return None

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name != b"data":
            return
        self._data.append(value.removeprefix(b" "))
        self._data_bytes += len(self._data[-1]) + 1  # and the line feed that joins it to the next: a million empty lines are no small event
        if len(self._data) > 1 and self._data_bytes > self._limit:
            self._overflow()

    def _overflow(self) -> None:
        self.overflow = True
        self._held.clear()
        self._data.clear()

    def _close(self) -> Frame:
        data = b"\n".join(self._data) if self._data else None
        frame = Frame(data, self._size, comment=self._fields == 0)
        self._data.clear()
        self._lines = self._fields = self._size = self._data_bytes = 0
        return frame
