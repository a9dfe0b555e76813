"""Tables held against a schema: on the way in nothing required may be null, on the way out columns may have been added since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import HostError, Problem

_RESTORE = "restore the file from a copy; if there is none, delete the attempt and re-run it"


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Build a table from rows; ValueError when a required column is null."""
    return checked(pa.Table.from_pylist(list(rows), schema), schema)


def checked(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table under exactly this schema; ValueError when a column is missing, of another type, or null where required."""
    table, problems = conform(table, schema)
    if problems:
        raise ValueError("; ".join(problems))
    return table


def conform(table: pa.Table, schema: pa.Schema) -> tuple[pa.Table, list[str]]:
    """Bring a table to a schema: extra columns are left out, missing nullable ones added as null; the rest is a list of problems.

    With problems the table returned is empty.
    """
    columns: list[pa.ChunkedArray] = []
    problems: list[str] = []
    for field in schema:
        column, problem = _column(table, field)
        columns.append(column)
        problems += [problem] if problem else []
    if problems:
        return schema.empty_table(), problems
    return pa.Table.from_arrays(columns, schema=schema), []


def _column(table: pa.Table, field: pa.Field) -> tuple[pa.ChunkedArray, str | None]:
    empty = pa.chunked_array([pa.nulls(table.num_rows, field.type)], field.type)
    if field.name not in table.column_names:
        return empty, None if field.nullable else f"column {field.name}: missing, and required"
    if table.column_names.count(field.name) > 1:
        return empty, f"column {field.name}: present twice"
    column = table.column(field.name)
    if not column.type.equals(field.type):
        return empty, f"column {field.name}: {column.type} where {field.type} belongs"
    if column.null_count and not field.nullable:
        return empty, f"column {field.name}: {column.null_count} nulls where a value is required"
    return column, None


@contextmanager
def opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; HostError record_missing when there is none, record_damaged when it cannot be read, also later in the block."""
    if not path.is_file():
        raise HostError(Problem("record_missing", "exists=no: the attempt lacks this file", _RESTORE, str(path)))
    try:
        # ParquetFile, not read_table: that one would take folder names with "=" for columns.
        with pq.ParquetFile(path) as file:
            yield file
    except (OSError, pa.ArrowException) as error:
        raise HostError(damaged(path, f"{type(error).__name__}: not a whole Parquet file")) from error


def damaged(path: Path, what: str) -> Problem:
    """One thing wrong with a file of a record."""
    return Problem("record_damaged", what, _RESTORE, str(path))


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a Parquet file under a schema. Raises HostError: record_missing, or record_damaged with everything that is wrong."""
    with opened(path) as file:
        table, problems = conform(file.read(), schema)
    if problems:
        raise HostError(*(damaged(path, problem) for problem in problems))
    return table
