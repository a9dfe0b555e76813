"""The bytes between worker and spooler: length-prefixed frames, so that a worker killed at any byte costs at most its last frame."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from harness.record.schema import EndKind

REQUEST, SAMPLES = 1, 2

_HEAD = struct.Struct("<IB")  # payload length, frame type
_FIXED = struct.Struct("<qqqqqBhBBII")  # id, arrival, send, headers, end, kind, status, stream, reused, error bytes, reads
_NONE_NS = -(2**63)  # stamps are on the run's epoch; no run lasts 292 years
_NONE_STATUS, _NONE_REUSED = -1, 2
_KINDS = tuple(EndKind)
_KIND_INDEX = {kind: i for i, kind in enumerate(_KINDS)}


class RawExchange(NamedTuple):
    """One ended exchange, undecoded. ``stamps``/``sizes``: one entry a read piece, ns on the epoch and bytes; ``body``: all joined."""

    request_id: int
    arrival_ns: int | None
    send_ns: int | None
    headers_ns: int | None
    end_ns: int | None
    kind: EndKind
    status: int | None
    stream: bool
    reused: bool | None
    error: str
    stamps: tuple[int, ...]
    sizes: tuple[int, ...]
    body: bytes

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield (stamp, bytes) as they were read."""
        start = 0
        for stamp, size in zip(self.stamps, self.sizes, strict=True):
            yield stamp, self.body[start : start + size]
            start += size


class SampleFrame(NamedTuple):
    """Self samples of the worker: (ns on the epoch, metric, value)."""

    values: tuple[tuple[int, str, float], ...]


Frame = RawExchange | SampleFrame


def encode_exchange(raw: RawExchange) -> bytes:
    """One frame holding one exchange."""
    error = raw.error.encode("utf-8", "replace")
    count = len(raw.stamps)
    fixed = _FIXED.pack(
        raw.request_id,
        _or(raw.arrival_ns, _NONE_NS),
        _or(raw.send_ns, _NONE_NS),
        _or(raw.headers_ns, _NONE_NS),
        _or(raw.end_ns, _NONE_NS),
        _KIND_INDEX[raw.kind],
        _or(raw.status, _NONE_STATUS),
        raw.stream,
        _NONE_REUSED if raw.reused is None else raw.reused,
        len(error),
        count,
    )
    arrays = struct.pack(f"<{count}q{count}I", *raw.stamps, *raw.sizes)
    return _frame(REQUEST, fixed, error, arrays, raw.body)


def encode_samples(values: list[tuple[int, str, float]]) -> bytes:
    """One frame holding self samples."""
    return _frame(SAMPLES, orjson.dumps(values))


def _frame(kind: int, *parts: bytes) -> bytes:
    return b"".join((_HEAD.pack(sum(map(len, parts)), kind), *parts))


def _or(value: int | None, none: int) -> int:
    return none if value is None else value


def _decode_exchange(payload: memoryview) -> RawExchange:
    ident, arrival, send, headers, end, kind, status, stream, reused, error_size, count = _FIXED.unpack_from(payload)
    at = _FIXED.size
    error = str(payload[at : at + error_size], "utf-8")
    numbers = struct.unpack_from(f"<{count}q{count}I", payload, at + error_size)
    return RawExchange(
        ident,
        _ns(arrival),
        _ns(send),
        _ns(headers),
        _ns(end),
        _KINDS[kind],
        None if status == _NONE_STATUS else status,
        bool(stream),
        None if reused == _NONE_REUSED else bool(reused),
        error,
        numbers[:count],
        numbers[count:],
        bytes(payload[at + error_size + 12 * count :]),  # 8 bytes a stamp and 4 a size
    )


def _ns(value: int) -> int | None:
    return None if value == _NONE_NS else value


def _decode_samples(payload: memoryview) -> SampleFrame:
    rows: list[list[Any]] = orjson.loads(payload)
    return SampleFrame(tuple((int(ns), str(metric), float(value)) for ns, metric, value in rows))


def _decode(kind: int, payload: memoryview) -> Frame:
    return _decode_exchange(payload) if kind == REQUEST else _decode_samples(payload)


class FrameReader:
    """Splits a byte stream into frames, whatever the reads were. ``pending``: bytes of a frame that has not come whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes held back; at the end of the stream, bytes lost with their writer."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Take bytes; return the frames that are now whole."""
        self._buffer += data
        frames: list[Frame] = []
        at = 0
        with memoryview(self._buffer) as view:
            while len(view) - at >= _HEAD.size:
                size, kind = _HEAD.unpack_from(view, at)
                stop = at + _HEAD.size + size
                if stop > len(view):
                    break
                with view[at + _HEAD.size : stop] as payload:
                    frames.append(_decode(kind, payload))
                at = stop
        del self._buffer[:at]
        return frames
