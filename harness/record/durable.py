"""Files that are either whole or not there: temporary name, fsync, rename, fsync of the folder; and append-only JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import HostError, Problem
from harness.record.canonical import canonical_json
from harness.record.segments import disk_refused

TEMPORARY = ".tmp"
GROUP_ROWS = 1 << 15
"""Rows of a Parquet row group: at 200 tokens a request its event lists take 85 MB in memory, and a reader need hold no more than two."""

_ZSTD_LEVEL = 3  # the library's own middle: higher levels cost seconds a run and save a few percent after delta encoding


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` only if the block ends well; else nothing is left behind.

    Raises HostError on any refusal of the disk (full, read-only, limit).
    """
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_refused(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file atomically and durably."""
    with replacing(path) as file:
        file.write(data)


def write_json(path: Path, obj: object) -> None:
    """Write a value as indented canonical JSON with exact floats: it is read back as it was."""
    write_bytes(path, canonical_json(obj, digits=None, indent=2) + b"\n")


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as Parquet, the same bytes for the same rows: integers delta-packed, text by dictionary, all of it zstd."""
    write_batches(path, table.schema, [table])


def write_batches(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write tables of one schema under each other as ``write_table`` does, holding one at a time; each is cut into groups of GROUP_ROWS."""
    integers = {leaf: "DELTA_BINARY_PACKED" for leaf, kind in _leaves(schema) if pa.types.is_integer(kind)}
    text = [leaf for leaf, kind in _leaves(schema) if pa.types.is_string(kind)]
    options = {"compression": "zstd", "compression_level": _ZSTD_LEVEL, "use_dictionary": text, "column_encoding": integers}
    with replacing(path) as file, pq.ParquetWriter(file, schema, **options) as writer:
        for table in tables:
            # page borders must not depend on how the rows came in
            writer.write_table(table.combine_chunks(), row_group_size=GROUP_ROWS)


def _leaves(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    for field in schema:
        if pa.types.is_list(field.type):
            yield f"{field.name}.list.element", field.type.value_type
        else:
            yield field.name, field.type


def append_line(path: Path, obj: object, *, sync: bool) -> None:
    """Append one JSON line in one write; a torn line left by a killed writer is cut off first.

    ``sync``: also reach the disk. When the disk refuses, the file keeps its old lines and HostError is raised.
    """
    data = canonical_json(obj, digits=None) + b"\n"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise disk_refused(path, error) from error
    try:
        _append(fd, data, sync=sync)
    except OSError as error:
        raise disk_refused(path, error) from error
    finally:
        os.close(fd)


def _append(fd: int, data: bytes, *, sync: bool) -> None:
    whole = _whole_size(fd)
    os.ftruncate(fd, whole)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(28, "short write")  # ENOSPC: the kernel took part of the line because no room was left
        if sync:
            os.fsync(fd)
    except OSError:
        os.ftruncate(fd, whole)
        raise


def _whole_size(fd: int) -> int:
    """Size up to and including the last line end, read backwards in pieces."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - 4096)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def read_lines(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """Read JSON lines: (objects, torn). A last line without its line end is left out and torn is True; no file is no lines.

    Raises HostError when a line before the last is no JSON object: that is damage, not a cut.
    """
    if not path.exists():
        return [], False
    *lines, rest = path.read_bytes().split(b"\n")
    return [_object(path, number, line) for number, line in enumerate(lines, start=1)], bool(rest)


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:  # JSONDecodeError and UnicodeDecodeError both are
        value = None
    if not isinstance(value, dict):
        what = f"line={line[:40]!r}: not a JSON object, so the file was damaged after it was written"
        raise HostError(Problem("record_damaged", what, "restore the file from a copy, or delete it and re-run", f"{path}:{number}"))
    return value
