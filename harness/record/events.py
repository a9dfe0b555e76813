"""The event lists of requests.parquet, read piece by piece: a run of 200 million stamps does not fit beside what is computed from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import HostError, Problem
from harness.record.schema import REQUESTS
from harness.record.tables import conform, damaged, opened

LISTS = tuple(field.name for field in REQUESTS if pa.types.is_list(field.type))
ROWS = pa.schema([field for field in REQUESTS if field.name not in LISTS])
"""requests.parquet without its lists: one value a request."""

_BATCH = 1 << 12
"""Requests of a batch: 16 MB of lists at 200 tokens each. A whole row group at a time takes more of the system's time for fresh memory than
the decoding does."""


def read_rows(path: Path) -> pa.Table:
    """Read the columns ``ROWS``. Raises HostError: record_missing, or record_damaged with everything wrong, in the lists too."""
    with opened(path) as file:
        names = [name for name in ROWS.names if name in file.schema_arrow.names]
        table, problems = conform(file.read(columns=names), ROWS)
        problems += _wrong_lists(file)
    if problems:
        raise HostError(*(damaged(path, problem) for problem in problems))
    return table


def check_lists(path: Path) -> list[Problem]:
    """Read every list once and tell what of it cannot be read; needed only where no seal vouches for the bytes."""
    try:
        for _ in stream_lists(path, LISTS):
            pass
    except HostError as error:
        return list(error.problems)
    return []


def stream_lists(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield some list columns of consecutive requests, in the file's order; the next piece is decoded while one is worked on.

    Raises HostError record_damaged when a page cannot be read.
    """
    with opened(path) as file, ThreadPoolExecutor(1) as ahead:
        pieces = _pieces(file, list(columns))
        coming = ahead.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = ahead.submit(next, pieces, None)
            yield piece


def cut_lists(table: pa.Table, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the same pieces of a table in memory."""
    chosen = table.select(list(columns))
    for start in range(0, table.num_rows, _BATCH):
        yield chosen.slice(start, _BATCH)


def _pieces(file: pq.ParquetFile, columns: list[str]) -> Iterator[pa.Table]:
    for group in range(file.num_row_groups):
        for batch in file.iter_batches(_BATCH, row_groups=[group], columns=columns, use_threads=False):
            yield pa.Table.from_batches([batch])


def _wrong_lists(file: pq.ParquetFile) -> list[str]:
    """What is wrong with the lists as far as the file's own schema tells; a list it allows to be null is looked through."""
    found = file.schema_arrow
    wanted = pa.schema([REQUESTS.field(name) for name in LISTS])
    _, problems = conform(pa.schema([field for field in found if field.name in LISTS]).empty_table(), wanted)
    if not problems:
        loose = [name for name in LISTS if found.field(name).nullable]
        nulls = {name: sum(piece[name].null_count for piece in _pieces(file, [name])) for name in loose}
        problems = [f"column {name}: {count} nulls where a value is required" for name, count in nulls.items() if count]
    return problems
