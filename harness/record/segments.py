"""Append-only Arrow segments of a running attempt: what was flushed survives a kill -9 of its writer (DESIGN 5).

A segment is one Arrow IPC *stream*: a schema message, whole record batches, an end mark. Each flush hands a whole batch to the kernel in
one go. The page cache outlives the process, so no fsync is needed for the promise, and none is made: it would stall the writer for
milliseconds. A power cut is not covered by the promise; nothing of a running attempt is reported before it is compacted and sealed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from harness.clock import NS_PER_S, Clock
from harness.errors import HostError, Problem

SUFFIX = ".arrows"
DISK_REFUSED = "record_disk"
_END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # Arrow IPC: continuation marker and a metadata length of zero


class SegmentWriter:
    """Writes rows to ``folder/name.arrows``; not safe for two threads.

    ``flush_ns``: age of the oldest unflushed row at which ``tick`` flushes. Half a second by default, so that a caller who ticks twice a
    second loses at most one second. Raises HostError when the file exists or the disk refuses; rows that could not be written stay
    pending and the file is cut back to its last whole batch, so a later flush can succeed.
    """

    def __init__(self, folder: Path, name: str, schema: pa.Schema, *, clock: Clock, flush_ns: int = NS_PER_S // 2) -> None:
        self.path = folder / f"{name}{SUFFIX}"
        self._schema = schema
        self._clock = clock
        self._flush_ns = flush_ns
        self._rows: list[Mapping[str, Any]] = []
        self._oldest_ns = 0
        self._size = 0
        self._fd: int | None = _open_new(self.path)
        self._write(schema.serialize())

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Queue rows (column name -> value; columns left out are null) and flush if due."""
        if not rows:
            return
        if not self._rows:
            self._oldest_ns = self._clock.now_ns()
        self._rows.extend(rows)
        self.tick()

    def tick(self) -> None:
        """Flush when the oldest queued row is ``flush_ns`` old."""
        if self._rows and self._clock.now_ns() - self._oldest_ns >= self._flush_ns:
            self.flush()

    def flush(self) -> None:
        """Hand everything queued to the kernel as one batch.

        Raises ValueError when a row lacks a required column (our own fault), HostError when the disk refuses.
        """
        if not self._rows:
            return
        batch = pa.RecordBatch.from_pylist(self._rows, self._schema)
        _check_required(batch, self.path)
        self._write(batch.serialize())
        self._rows = []

    def close(self) -> None:
        """Flush, write the end mark and close; the file descriptor is released even when the disk refuses."""
        if self._fd is None:
            return
        try:
            self.flush()
            self._write(_END_MARK)
        finally:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _write(self, data: bytes | pa.Buffer) -> None:
        if self._fd is None:
            raise ValueError(f"segment {self.path.name} is closed")
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            # Half a message would hide every later batch from the reader.
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
            raise disk_refused(self.path, error) from error
        self._size += len(memoryview(data))


def _open_new(path: Path) -> int:
    try:
        # A number of our own, not the umask's: records are private to the user until he shares them.
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise disk_refused(path, error) from error


def disk_refused(path: Path, error: OSError) -> HostError:
    """Say which file could not be written and what to do about it."""
    return HostError(
        Problem(
            code=DISK_REFUSED,
            where=str(path),
            what=f"errno={error.errno} ({os.strerror(error.errno or 0)}): the record could not be written, so this attempt proves nothing",
            remedy="free space or fix the permissions of the results folder, then resume; finished replicates are untouched",
        )
    )


def _check_required(batch: pa.RecordBatch, path: Path) -> None:
    empty = [f.name for f in batch.schema if not f.nullable and batch.column(f.name).null_count]
    if empty:
        raise ValueError(f"{path.name}: columns {empty} are required and were null")


def segment_names(folder: Path, prefix: str | None = None) -> list[str]:
    """Names of the segments ``prefix`` or ``prefix-*`` in a folder (None: all), sorted, without suffix."""
    stems = (p.name.removesuffix(SUFFIX) for p in folder.glob(f"*{SUFFIX}"))
    return sorted(s for s in stems if prefix is None or s == prefix or s.startswith(f"{prefix}-"))


def read_segments(folder: Path, name: str, schema: pa.Schema) -> tuple[pa.Table, bool]:
    """Read the whole batches of ``folder/name.arrows``: (rows in the order written, torn).

    ``torn`` True: the stream does not end with the end mark, because its writer was cut or is still writing; rows may be missing behind
    the last one. Raises HostError when the file is absent or was written under another schema.
    """
    path = folder / f"{name}{SUFFIX}"
    if not path.is_file():
        raise _segment_error(path, "exists=no: a segment that was expected is missing")
    # An empty file cannot be mapped; a large one should not be copied.
    data = pa.memory_map(str(path)).read_buffer() if path.stat().st_size else pa.py_buffer(b"")
    reader = pa.BufferReader(data)
    found = _read_schema(reader)
    if found is not None and not found.equals(schema):
        raise _segment_error(path, f"columns={found.names}: written under another schema than {schema.names}")
    batches = list(_whole_batches(reader, schema)) if found is not None else []
    # The reader stands before the first byte that is no whole batch.
    torn = reader.read() != _END_MARK
    return pa.Table.from_batches(batches, schema), torn


def _segment_error(path: Path, what: str) -> HostError:
    remedy = "re-run this replicate with the version that started it, or delete the attempt"
    return HostError(Problem("record_segment", what, remedy, str(path)))


def _read_schema(reader: pa.BufferReader) -> pa.Schema | None:
    message = _next_message(reader)
    return None if message is None else pa.ipc.read_schema(message)


def _whole_batches(reader: pa.BufferReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while (message := _next_message(reader)) is not None:
        yield pa.ipc.read_record_batch(message, schema)


def _next_message(reader: pa.BufferReader) -> pa.Message | None:
    """Read one whole message; at a torn one, the end mark or the end, rewind to where it began and return None."""
    start = reader.tell()
    try:
        return pa.ipc.read_message(reader)
    except (EOFError, OSError, pa.ArrowInvalid):
        reader.seek(start)
        return None
