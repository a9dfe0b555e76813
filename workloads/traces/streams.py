"""Trace files as a stream of whole lines, so that a file larger than memory can be read; gzip is seen by its first bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TypeVar

from harness.errors import UsageError
from workloads.traces.find import opened, unreadable

_T = TypeVar("_T")

WORKERS = 2
"""Threads that parse blocks. Arrow and NumPy let go of the interpreter's lock; more than two threads wait for it to join the columns."""

BLOCK_BYTES = 1 << 19
"""Bytes of text in hand at a time, 512 KiB: some 13,000 rows, enough to make the cost of a call vanish and little beside any trace."""


MAX_LINE = 1 << 28
"""Longest line read, 256 MiB: far beyond any row, and what keeps a few MiB of gzip without a line's end from filling the memory."""


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
    """Yield what is left of a stream as ``line_blocks`` does. Raises UsageError ``trace.long_line`` beyond ``MAX_LINE``."""
    while piece := stream.read(size):
        yield piece if piece.endswith(b"\n") else piece + limited_line(stream)


def limited_line(stream: BinaryIO) -> bytes:
    """What is left of a line, with its end. Raises UsageError ``trace.long_line`` beyond ``MAX_LINE``."""
    line = stream.readline(MAX_LINE + 1)
    if len(line) > MAX_LINE:
        what = f"a line of more than {MAX_LINE} bytes"
        remedy = "name the right format, or restore the line ends: rows of a trace are lines"
        raise UsageError.single("trace.long_line", what, remedy, getattr(stream, "name", ""))
    return line


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
