"""Readers ``csv``, ``jsonl`` and ``parquet`` for any table of requests, by a map of its columns; and presets of that map.

Nothing is guessed: which column is what, the unit of time and its clock are options. Columns that are not mapped are left alone, and named
in a note. A generic reader never claims a file by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from workloads.schedule import Trace
from workloads.traces.contract import FormatInfo, NoOptions, Options
from workloads.traces.problems import TOKEN_LIMIT, ProblemList
from workloads.traces.table_files import CsvFile, JsonlFile, ParquetFile, TableFile, Wanted
from workloads.traces.table_rows import Rules, TableRows

_OPTIONAL = ("client", "session", "turn", "think", "kind", "failed", "prefix_ids")


class ColumnMap(Options):
    """Names of the file's columns, by what they hold."""

    arrival: str | None = Field(None, description="when the request arrived; absent only with clock none")
    input_tokens: str = Field(description="tokens of the prompt")
    output_tokens: str = Field(description="tokens of the answer")
    client: str | None = Field(None, description="who sent it")
    session: str | None = Field(None, description="conversation that the request belongs to; a row without one stands alone")
    turn: str | None = Field(None, description="number within the session; without it the order of the file counts")
    think: str | None = Field(None, description="pause from the end of the turn before to this one, in the unit of the arrivals")
    kind: str | None = Field(None, description="class of the request")
    failed: str | None = Field(None, description="true or 1 where the traced service did not answer")
    prefix_ids: str | None = Field(None, description="list of 64-bit ids, one for each block of prompt tokens")


class TableOptions(Options):
    """What must be said of a table before its rows mean anything."""

    columns: ColumnMap
    clock: Literal["absolute", "relative", "none"] = Field(description="wall time, time since the trace's start, or no time at all")
    unit: Literal["s", "ms", "us", "ns", "iso"] | None = Field(None, description="unit of the arrivals; iso for stamps")
    block_size: int | None = Field(None, ge=1, le=TOKEN_LIMIT, strict=True, description="tokens of a block with an id")
    rounding: Literal["ceil", "floor"] | None = Field(None, description="whether a partly filled last block has an id")
    history: Literal["included", "excluded"] | None = Field(None, description="whether input tokens count the earlier turns")

    @model_validator(mode="after")
    def _agrees(self) -> TableOptions:
        if wrong := list(self._contradictions()):
            raise ValueError("; ".join(wrong))
        return self

    def _contradictions(self) -> Iterator[str]:
        columns = self.columns
        timed = self.clock != "none"
        for name, present in (("columns.arrival", columns.arrival is not None), ("unit", self.unit is not None)):
            if present != timed:
                yield f"{name} {'is wanted' if timed else 'means nothing'} with clock {self.clock}"
        if self.unit == "iso" and self.clock == "relative":
            yield "unit iso is of clock absolute: a stamp names a wall time"
        for name, given, of, due in (
            ("block-size", self.block_size is not None, "columns.prefix-ids", columns.prefix_ids is not None),
            ("rounding", self.rounding is not None, "columns.prefix-ids", columns.prefix_ids is not None),
            ("history", self.history is not None, "columns.session", columns.session is not None),
        ):
            if given != due:
                yield f"{name} {'is wanted with' if due else 'means nothing without'} {of}"
        for name in ("turn", "think"):
            if getattr(columns, name) is not None and columns.session is None:
                yield f"columns.{name} means nothing without columns.session"
        mapped = [name for name in columns.model_dump().values() if name is not None]
        for name in sorted({name for name in mapped if mapped.count(name) > 1}):
            yield f"column {name!r} is mapped twice"


class CsvOptions(TableOptions):
    """A CSV table."""

    delimiter: str = Field(",", pattern=r"^[,;\t|]$", description="what stands between cells")


Opener = Callable[[Path, ProblemList, Any], TableFile]


def read_table(fmt: str, path: Path, options: TableOptions, opener: Opener) -> Trace:
    """Read a file by its options. Raises UsageError with everything wrong in it and its lines."""
    problems = ProblemList(path.name)
    mapped = {role: name for role, name in options.columns.model_dump().items() if name is not None}
    lists = frozenset({mapped["prefix_ids"]} if "prefix_ids" in mapped else ())
    optional = frozenset(name for role, name in mapped.items() if role in _OPTIONAL)
    file = opener(path, problems, options)
    rules = Rules(options.clock, options.unit, options.block_size, options.rounding, options.history)
    rows = TableRows(mapped, rules, problems, file.line)
    for block in file.blocks(Wanted(tuple(mapped.values()), lists, optional)):
        rows.add({role: block[name] for role, name in mapped.items()})
    return rows.trace(fmt, path.name, _unread(file, mapped))


def _unread(file: TableFile, mapped: dict[str, str]) -> tuple[str, ...]:
    left = [name for name in file.columns if name not in mapped.values()]
    rest = f" and {len(left) - 12} more" if len(left) > 12 else ""
    return (f"columns not read: {', '.join(islice(left, 12))}{rest}",) if left else ()


class _Generic:
    """A kind of file, read by a map."""

    def __init__(self, info: FormatInfo, options: type[TableOptions], opener: Opener) -> None:
        self.info, self.options, self._opener = info, options, opener

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the contract's arguments
        """Never: what columns mean must be said."""
        return False

    def read(self, path: Path, options: TableOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing is drawn
        """Read the whole file."""
        return read_table(self.info.format, path, options, self._opener)


class _Preset:
    """A CSV whose header is known, read by a map that is."""

    options = NoOptions

    def __init__(self, info: FormatInfo, header: str, options: dict[str, Any]) -> None:
        self.info, self._header, self._options = info, header, CsvOptions.model_validate(options)

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the header tells
        """Whether the file begins with just this header."""
        return head.partition(b"\n")[0].removesuffix(b"\r") == self._header.encode()

    def read(self, path: Path, options: NoOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing to choose or to draw
        """Read the whole file."""
        return read_table(self.info.format, path, self._options, _open_csv)


def _open_csv(path: Path, problems: ProblemList, options: CsvOptions) -> TableFile:
    return CsvFile(path, problems, options.delimiter)


def _info(fmt: str, what: str) -> FormatInfo:
    return FormatInfo(
        format=fmt,
        summary=f"{what}, by a map of its columns",
        clock="relative",
        time_unit="as the options say, and so the clock",
        lengths="as the mapped columns have them",
        prefix=None,
        tested="schema",
    )


READERS = (
    _Preset(
        FormatInfo(
            format="vidur",
            summary="Traces in the form that the simulator Vidur ships: arrivals since the start and token counts",
            clock="relative",
            time_unit="decimal seconds, rounded to ns",
            lengths="input and output tokens",
            prefix=None,
            tested="full file",
        ),
        "arrived_at,num_prefill_tokens,num_decode_tokens",
        {
            "columns": {"arrival": "arrived_at", "input-tokens": "num_prefill_tokens", "output-tokens": "num_decode_tokens"},
            "clock": "relative",
            "unit": "s",
        },
    ),
    _Generic(_info("csv", "Any CSV file with a header"), CsvOptions, _open_csv),
    _Generic(_info("jsonl", "Any file of JSON objects, one a line"), TableOptions, lambda path, problems, _: JsonlFile(path, problems)),
    _Generic(_info("parquet", "Any Parquet file"), TableOptions, lambda path, problems, _: ParquetFile(path, problems)),
)
