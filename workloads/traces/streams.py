"""Trace files as a stream of whole lines, so that a file larger than memory can be read; gzip is seen by its first bytes."""

from __future__ import annotations

import gzip
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from workloads.traces.find import unreadable

_T = TypeVar("_T")

WORKERS = 2
"""Threads that parse blocks. Arrow and NumPy let go of the interpreter's lock; more than two threads wait for it to join the columns."""

BLOCK_BYTES = 1 << 19
"""Bytes of text in hand at a time, 512 KiB: some 13,000 rows, enough to make the cost of a call vanish and little beside any trace."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed when it is gzip. Raises UsageError ``trace.unreadable``, also while it is read."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            yield cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if packed else raw
    except (OSError, EOFError, zlib.error) as error:  # a torn gzip member ends with one of the last two
        raise unreadable(path, error if isinstance(error, OSError) else OSError(str(error))) from error


def size_of(path: Path) -> int:
    """Bytes of a file as it lies there. Raises UsageError ``trace.unreadable``."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def line_blocks(path: Path, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield the file in pieces of at least ``size`` bytes that end with a line's end; the last one may be shorter and lack it."""
    with opened(path) as stream:
        yield from whole_lines(stream, size)


def whole_lines(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield what is left of a stream as ``line_blocks`` does."""
    while piece := stream.read(size):
        yield piece if piece.endswith(b"\n") else piece + stream.readline()


def in_order(work: Callable[[bytes], _T], blocks: Iterable[bytes]) -> Iterator[_T]:
    """Yield ``work(block)`` in the blocks' order, on ``WORKERS`` threads that are never more than a block each ahead of the caller."""
    with ThreadPoolExecutor(WORKERS) as threads:
        ahead: deque[Future[_T]] = deque()
        for block in blocks:
            ahead.append(threads.submit(work, block))
            if len(ahead) > WORKERS:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
