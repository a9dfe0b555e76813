"""Files of rows as blocks of mapped columns: CSV, JSON lines and Parquet give text, 64-bit integers or instants, never floats of text."""

from __future__ import annotations

import csv
import io
import json
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv as pacsv

from harness.errors import UsageError
from workloads.traces import jsonl
from workloads.traces.columns import shown
from workloads.traces.find import opened
from workloads.traces.problems import ProblemList
from workloads.traces.streams import line_blocks

Block = Mapping[str, pa.Array]
"""Mapped columns of some rows by name in the file."""

_BLOCK_BYTES = 4 << 20  # of text; a row must fit, and tables may hold prompts
_BLOCK_ROWS = 32_768  # of Parquet: 256 KiB a column of integers
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)  # what a damaged Parquet file ends in
_NEAR = 3  # suggestions for a name that is not there


@dataclass(frozen=True, slots=True)
class Wanted:
    """Mapped columns by name. ``lists``: those that hold lists of ids; ``optional``: those that a row may lack."""

    names: tuple[str, ...]
    lists: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()


class TableFile(Protocol):
    """One file being read. ``columns``: every name seen in it so far."""

    columns: Sequence[str]

    def blocks(self, wanted: Wanted) -> Iterator[Block]:
        """Yield the wanted columns of some rows at a time."""
        ...

    def line(self, row: int) -> int:
        """One-based line of data row ``row`` for messages; of Parquet, which has no lines, the one-based row."""
        ...


def check_columns(wanted: Sequence[str], there: Sequence[str], problems: ProblemList) -> None:
    """Raise UsageError with every mapped column that is not there, and names like it; and every one that is there twice."""
    doubled = [name for name, count in Counter(there).items() if count > 1]
    for name in wanted:
        if name in doubled:
            problems.add("trace.doubled_column", f"column={shown(name)}: stands twice in the file", "rename one of the two", 1)
        if name not in there:
            near = get_close_matches(name.strip().lower(), [n.strip().lower() for n in there], _NEAR, 0.5)
            like = [n for n in there if n.strip().lower() in near]
            what = f"column={shown(name)}: mapped, but not in the file, which has {', '.join(map(shown, there)) or 'no column'}"
            remedy = f"map one of these instead: {', '.join(map(shown, like))}" if like else "map a column of the file"
            problems.add("trace.column", what, remedy, 1)
    problems.raise_if_any()


class CsvFile:
    """CSV with a header; cells may be quoted and may span lines."""

    def __init__(self, path: Path, problems: ProblemList, delimiter: str = ",") -> None:
        self._path, self._problems, self._delimiter = path, problems, delimiter
        self._lines: list[int] | None = None
        self.columns: Sequence[str] = self._header()

    def blocks(self, wanted: Wanted) -> Iterator[Block]:
        """Yield columns as text, lists of ids too."""
        names = list(wanted.names)
        check_columns(names, self.columns, self._problems)
        with opened(self._path) as stream:
            try:
                reader = pacsv.open_csv(
                    stream,
                    read_options=pacsv.ReadOptions(block_size=_BLOCK_BYTES),
                    parse_options=pacsv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                    convert_options=pacsv.ConvertOptions(
                        include_columns=names, column_types=dict.fromkeys(names, pa.string()), null_values=[]
                    ),
                )
                for batch in reader:
                    yield dict(zip(batch.schema.names, batch.columns, strict=True))
            except pa.ArrowException as error:
                self._explain(str(error))

    def line(self, row: int) -> int:
        """Line on which the row starts; found by reading the file once more, when something is wrong."""
        if self._lines is None:
            self._lines = [line for line, _ in self._rows()]
        return self._lines[row + 1] if row + 1 < len(self._lines) else row + 2

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """(line, cells) of each row that is not blank, the header among them."""
        csv.field_size_limit(1 << 30)  # of the process; the library's own 128 KiB is less than a long prompt
        with opened(self._path) as raw, io.TextIOWrapper(raw, "utf-8-sig", "surrogateescape", newline="") as text:
            reader = csv.reader(text, delimiter=self._delimiter)
            start = 1
            try:
                for cells in reader:
                    if cells:
                        yield start, cells
                    start = reader.line_num + 1
            except csv.Error as error:
                raise self._unreadable(f"{error} (line {start})") from error

    def _header(self) -> list[str]:
        first = next(self._rows(), None)
        if first is None:
            self._problems.add("trace.empty", "the file holds no header and no rows", "give the file that was meant")
            self._problems.raise_if_any()
        return first[1] if first else []

    def _explain(self, error: str) -> None:
        """Raise with every row that has another number of cells than the header, or is no UTF-8; else with Arrow's own words."""
        for line, cells in self._rows():
            if len(cells) != len(self.columns):
                what = f"row={shown(self._delimiter.join(cells))}: {len(cells)} cells where the header has {len(self.columns)}"
                self._problems.add("trace.torn_row", what, "restore or remove the row; quote a cell that holds the delimiter", line)
            elif any("\udc80" <= mark <= "\udcff" for cell in cells for mark in cell):
                what = f"row={shown(self._delimiter.join(cells))}: bytes that are not UTF-8"
                self._problems.add("trace.encoding", what, "write the file as UTF-8", line)
        self._problems.raise_if_any()
        raise self._unreadable(error)

    def _unreadable(self, error: str) -> UsageError:
        return UsageError.single("trace.csv", f"not CSV: {error[:200]}", "name the right format, or mend the file", self._path.name)


class JsonlFile:
    """One JSON object a line; numbers stay the text they are written as."""

    def __init__(self, path: Path, problems: ProblemList) -> None:
        self._path, self._problems = path, problems
        self._numbers = array("q")
        self.columns: Sequence[str] = ()

    def blocks(self, wanted: Wanted) -> Iterator[Block]:
        """Yield columns as text and lists of text."""
        required = [name for name in wanted.names if name not in wanted.optional]
        seen: dict[str, None] = {}
        for rows in self._rows():
            seen.update((name, None) for row in rows for name in row)
            self.columns = list(seen)
            check_columns([] if len(self._numbers) > len(rows) else required, self.columns, self._problems)
            yield {name: self._column(rows, name, name in wanted.lists) for name in wanted.names}
        check_columns(wanted.names if seen else (), self.columns, self._problems)

    def line(self, row: int) -> int:
        """Line of the row."""
        return self._numbers[row]

    def _rows(self) -> Iterator[list[dict[str, Any]]]:
        """Objects of some lines at a time; blank lines hold none."""
        number = 0
        for block in line_blocks(self._path, _BLOCK_BYTES):
            rows = []
            for number, line in enumerate(jsonl.by_line_feed(block), number + 1):  # noqa: B020 - counts on over blocks
                row = self._row(line, number) if line.strip() else None
                if row is not None:
                    self._numbers.append(number)
                    rows.append(row)
            if rows:
                yield rows

    def _row(self, line: bytes, number: int) -> dict[str, Any] | None:
        value = jsonl.parse(line, number, self._problems)  # strict syntax, and no key twice; what is wrong is recorded
        if isinstance(value, dict):
            exact: dict[str, Any] = json.loads(line, parse_int=str, parse_float=str)  # the other parser makes floats of long numbers
            return exact
        if value is not None:
            what = f"row={shown(line)}: {type(value).__name__} where a row is an object"
            self._problems.add("trace.row_type", what, "write one object a line", number)
        return None

    def _column(self, rows: list[dict[str, Any]], name: str, is_list: bool) -> pa.Array:
        first = len(self._numbers) - len(rows)
        values = [self._value(row.get(name), name, is_list, self._numbers[first + i]) for i, row in enumerate(rows)]
        return pa.array(values, pa.list_(pa.string()) if is_list else pa.string())

    def _value(self, value: object, name: str, is_list: bool, number: int) -> Any:
        if value is None or (is_list and isinstance(value, list) and all(isinstance(entry, str) for entry in value)):
            return value
        if isinstance(value, bool) and not is_list:
            return "true" if value else "false"
        if isinstance(value, str) and not is_list and not any("\ud800" <= mark <= "\udfff" for mark in value):
            return value
        what = f"{name}={shown(value)}: {'a list of ids' if is_list else 'a number or a name'} is wanted"
        self._problems.add("trace.value", what, "map another key, or leave this one out", number)
        return None


class ParquetFile:
    """Columns of a Parquet file by name, as they are typed there."""

    def __init__(self, path: Path, problems: ProblemList) -> None:
        self._problems = problems
        with opened(path) as stream:  # says why a file cannot be opened; Parquet itself is read by its path
            stream.read(1)
        try:
            self._file = pq.ParquetFile(path)
        except _DAMAGE as error:
            raise not_parquet(path, error) from error
        self._path = path
        self.columns: Sequence[str] = self._file.schema_arrow.names

    def blocks(self, wanted: Wanted) -> Iterator[Block]:
        """Yield columns as text, integers, instants, or lists of integers."""
        check_columns(wanted.names, self.columns, self._problems)
        try:
            for batch in self._file.iter_batches(_BLOCK_ROWS, columns=list(wanted.names)):
                yield {name: self._plain(name, batch.column(name), name in wanted.lists) for name in wanted.names}
        except _DAMAGE as error:
            raise not_parquet(self._path, error) from error

    def line(self, row: int) -> int:
        """One-based number of the row."""
        return row + 1

    def _plain(self, name: str, values: pa.Array, is_list: bool) -> pa.Array:
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        kind = values.type
        if is_list and (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_integer(kind.value_type):
            return values
        if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
            return values
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
            return values.cast(pa.string())  # of a float the shortest text that means it
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return values.cast(pa.string())
        self._problems.add("trace.column_type", f"column={name}: of type {kind}, which is no number, name or instant", "map another column")
        self._problems.raise_if_any()
        return values


def not_parquet(path: Path, error: Exception) -> UsageError:
    """Build the error for a file that Parquet cannot make sense of."""
    what = f"not a whole Parquet file: {str(error)[:200]}"
    return UsageError.single("trace.parquet", what, "name the right format, or take the file again", path.name)
