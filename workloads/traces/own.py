"""Format ``trigpoint``: one Parquet file that holds a whole ``Trace``, to convert to once and to exchange.

Columns bear the names of ``Trace``; those that a trace lacks are not there. What is not a column stands as JSON under the key ``trigpoint``
of the file's metadata: format version, source (format, name, sha256), licence, attribution, clock, grid, block size and rounding, history,
notes, rows skipped. A higher major version is refused; within one, columns and keys are only added, and a reader leaves alone what it does
not know. The same trace gives the same bytes under one version of the Parquet writer, which signs its files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workloads.schedule import Blocks, ClockKind, Int64, Labels, Ragged, Trace, Turns, frozen
from workloads.traces.contract import FormatInfo, NoOptions
from workloads.traces.fields import LATEST_NS
from workloads.traces.find import unreadable
from workloads.traces.problems import TOKEN_LIMIT, ProblemList
from workloads.traces.table_files import not_parquet

FORMAT = "trigpoint"
SUFFIX = ".trigpoint.parquet"
"""Ending of a file's name by which it is known: a Parquet file's head says nothing of what it holds."""

MAJOR, MINOR = 1, 0
"""Format version. 1.0: every column of ``Trace`` at its first release."""

_KEY = b"trigpoint"
_ROW_GROUP = 1 << 16
_COUNTS = ("arrival_ns", "input_tokens", "output_tokens", "source_row")
_TURNS = ("session", "turn", "after", "think_ns", "extends")
_LEAST = {"think_ns": -1, "extends": -1}
_MOST = {
    **dict.fromkeys(("input_tokens", "output_tokens"), TOKEN_LIMIT),
    **dict.fromkeys(("arrival_ns", "think_ns"), LATEST_NS),
    **dict.fromkeys(("session", "turn"), 1 << 40),  # a number each, however sparse; the transform loop adds to it
}
_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys((*_COUNTS, *_TURNS), pa.int64()),
    "client": pa.string(),
    "kind": pa.string(),
    "failed": pa.bool_(),
    "block_ids": pa.list_(pa.uint64()),
    "after": pa.list_(pa.int64()),
}


class _Header(BaseModel):
    """What the file says beside its columns."""

    model_config = ConfigDict(frozen=True, strict=True)  # unknown keys are a later minor version's

    version: tuple[int, int] = Field(strict=False)
    source: dict[str, str]
    licence: str
    attribution: str
    clock: ClockKind
    grid_ns: int = Field(ge=1)
    block_size: int | None = Field(None, ge=1, le=TOKEN_LIMIT)
    rounding: Literal["ceil", "floor"] | None = None
    history: Literal["included", "excluded"] | None = None
    notes: list[str]
    skipped: dict[str, int]


def write_trace(trace: Trace, path: Path) -> None:
    """Write ``trace`` as one file; ``path`` should end in ``SUFFIX``. Equal traces give equal bytes. Raises UsageError on failure."""
    table = pa.table(_columns(trace)).replace_schema_metadata({_KEY: _header(trace)})
    plain = [field.name for field in table.schema if field.type == pa.int64()]
    try:
        pq.write_table(
            table,
            path,
            row_group_size=_ROW_GROUP,
            compression="zstd",
            use_dictionary=[name for name in ("client", "kind") if name in table.column_names],
            column_encoding=dict.fromkeys(plain, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
        )
    except OSError as error:
        raise unreadable(path, error) from error


def _columns(trace: Trace) -> dict[str, pa.Array]:
    columns: dict[str, Any] = {name: pa.array(getattr(trace, name), pa.int64()) for name in _COUNTS}
    columns |= {name: _text(labels) for name, labels in (("client", trace.client), ("kind", trace.kind)) if labels is not None}
    if trace.failed is not None:
        columns["failed"] = pa.array(trace.failed, pa.bool_())
    if trace.blocks is not None:
        columns["block_ids"] = _lists(trace.blocks.ids, pa.uint64())
    if trace.turns is not None:
        turns = trace.turns
        columns |= {name: pa.array(getattr(turns, name), pa.int64()) for name in _TURNS if name != "after"}
        columns["after"] = _lists(turns.after, pa.int64())
    return columns


def _text(labels: Labels) -> pa.Array:
    """Names by row; the file keeps neither their codes nor names that no row bears."""
    codes = pa.array(labels.codes, pa.int32(), mask=labels.codes < 0)
    return pa.array(list(labels.names), pa.string()).take(codes)


def _lists(rows: Ragged, kind: pa.DataType) -> pa.Array:
    parts = pa.LargeListArray.from_arrays(pa.array(rows.offsets, pa.int64()), pa.array(rows.values, kind))
    return parts.cast(pa.list_(kind)) if len(rows.values) < 1 << 31 else parts


def _header(trace: Trace) -> bytes:
    blocks, turns = trace.blocks, trace.turns
    header = _Header(
        version=(MAJOR, MINOR),
        source={"format": trace.format, "name": trace.name, "sha256": trace.sha256},
        licence=trace.licence,
        attribution=trace.attribution,
        clock=trace.clock,
        grid_ns=trace.grid_ns,
        block_size=blocks.size if blocks else None,
        rounding=blocks.rounding if blocks else None,
        history=turns.history if turns else None,
        notes=list(trace.notes),
        skipped=trace.skipped,
    )
    return json.dumps(header.model_dump(), sort_keys=True, separators=(",", ":")).encode()


@dataclass(slots=True)
class _File:
    """Columns of one file under their checks."""

    name: str
    table: pa.Table
    problems: ProblemList

    def whole(self, name: str) -> Int64:
        """Integers (n,) of a column within its limits."""
        column = self.table.column(name).combine_chunks()
        values: Int64 = np.array(column.to_numpy(zero_copy_only=False), dtype=np.int64) if not column.null_count else np.empty(0, np.int64)
        if column.null_count:
            self._wrong(name, f"{column.null_count} rows have none")
        elif len(values) and not (_LEAST.get(name, 0) <= values.min() and values.max() <= _MOST.get(name, (1 << 63) - 1)):
            self._wrong(name, f"a value outside [{_LEAST.get(name, 0)}, {_MOST.get(name, (1 << 63) - 1)}]")
        return frozen(values)

    def lists(self, name: str, dtype: type[np.int64 | np.uint64]) -> Ragged:
        """Lists by row."""
        column = self.table.column(name).combine_chunks()
        if column.null_count or column.flatten().null_count:
            self._wrong(name, "a row without a list, or a list with a gap")
        ends = np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
        values: npt.NDArray[np.generic] = pc.fill_null(column.flatten(), 0).to_numpy(zero_copy_only=False).astype(dtype)
        return Ragged(frozen(np.concatenate((np.zeros(1, np.int64), ends))), frozen(values))

    def labels(self, name: str) -> Labels | None:
        """Names by row, when the file has them."""
        return Labels.of(self.table.column(name).to_pylist()) if name in self.table.column_names else None

    def flags(self, name: str) -> npt.NDArray[np.bool_] | None:
        """Truth values (n,), when the file has them."""
        if name not in self.table.column_names:
            return None
        column = self.table.column(name).combine_chunks()
        if column.null_count:
            self._wrong(name, f"{column.null_count} rows have none")
        values: npt.NDArray[np.bool_] = pc.fill_null(column, False).to_numpy(zero_copy_only=False).astype(np.bool_)
        return frozen(values)

    def _wrong(self, name: str, what: str) -> None:
        self.problems.add("trace.column", f"column={name}: {what}", "convert the source again; the file was not written by write_trace")


def _trace(file: _File, header: _Header) -> Trace:
    arrival, tokens_in, tokens_out, rows = (file.whole(name) for name in _COUNTS)
    there = set(file.table.column_names)
    blocks = turns = None
    _check_header(file, header, there)
    file.problems.raise_if_any()
    if header.block_size is not None and header.rounding is not None:
        blocks = Blocks(file.lists("block_ids", np.uint64), header.block_size, header.rounding)
    if header.history is not None:
        session, turn, think, extends = (file.whole(name) for name in _TURNS if name != "after")
        turns = Turns(session, turn, _references(file, extends), think, extends, header.history)
    failed = file.flags("failed")
    file.problems.raise_if_any()
    origin = f"converted from {header.source.get('format')} {header.source.get('name')}, sha256 {header.source.get('sha256') or 'unknown'}"
    return Trace(
        FORMAT,
        file.name,
        arrival,
        tokens_in,
        tokens_out,
        rows,
        clock=header.clock,
        grid_ns=header.grid_ns,
        licence=header.licence,
        attribution=header.attribution,
        client=file.labels("client"),
        kind=file.labels("kind"),
        failed=failed,
        blocks=blocks,
        turns=turns,
        skipped=header.skipped,
        notes=(*header.notes, origin),
    )


def _check_header(file: _File, header: _Header, there: set[str]) -> None:
    """Record columns that mean nothing without what the header lacks: left out, a replay would lack sharing or sessions unannounced."""
    told = {"block_ids": header.block_size is not None and header.rounding is not None, **dict.fromkeys(_TURNS, header.history is not None)}
    for name, has in told.items():
        if has != (name in there):
            what = f"column={name}: {'not there, while the header tells' if has else 'there, while the header lacks'} how to read it"
            file.problems.add("trace.column", what, "convert the source again; the file was not written by write_trace")


def _references(file: _File, extends: Int64) -> Ragged:
    """Rows that each row waits for; every reference of the file must be to one of its rows."""
    after, rows = file.lists("after", np.int64), file.table.num_rows
    beyond = int((after.values >= rows).sum() + (after.values < np.int64(0)).sum() + (extends >= rows).sum())
    if beyond:
        what = f"columns after and extends: {beyond} references to rows that the file of {rows} rows does not have"
        file.problems.add("trace.column", what, "convert the source again; rows may have been cut off")
    return after


def _open(path: Path, problems: ProblemList) -> tuple[pa.Table, _Header]:
    """Read the header, then the columns this version knows, each of its type."""
    try:
        with path.open("rb") as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
            header = _checked_header(file.schema_arrow.metadata or {}, problems)
            problems.raise_if_any()
            known = [field.name for field in file.schema_arrow if field.name in _TYPES]
            for name in _COUNTS:
                if name not in known:
                    problems.add("trace.column", f"column={name}: not in the file", "convert the source again")
            problems.raise_if_any()
            table = file.read(columns=known)
            return table.cast(pa.schema([(name, _TYPES[name]) for name in table.column_names])), header
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise not_parquet(path, error) from error
    except OSError as error:
        raise (unreadable if error.errno else not_parquet)(path, error) from error


def _checked_header(metadata: dict[bytes, bytes], problems: ProblemList) -> _Header:
    if _KEY not in metadata:
        what = "the Parquet file has no trigpoint header"
        problems.add("trace.header", what, "read it with format parquet and a map of its columns")
        problems.raise_if_any()
    try:
        found = json.loads(metadata[_KEY])
        major = found["version"][0]
        if isinstance(major, int) and major > MAJOR:
            what = f"version={major}: this program reads trace files up to version {MAJOR}"
            problems.add("trace.version", what, "use the version of trigpoint that wrote it, or convert the source with this one")
            problems.raise_if_any()
        return _Header.model_validate(found)
    except (ValidationError, ValueError, LookupError, TypeError, RecursionError) as error:
        problems.add("trace.header", f"the trigpoint header cannot be read ({str(error)[:200]!r})", "convert the source again")
        problems.raise_if_any()
        raise


class _Own:
    """``trigpoint``: our own exchange format."""

    info = FormatInfo(
        format=FORMAT,
        summary="Trigpoint's own exchange format: any trace, converted once, with its origin and licence",
        clock="relative",
        time_unit="ns",
        lengths="as the source has them",
        prefix=None,
        tested="full file",
    )
    options = NoOptions

    def sniff(self, name: str, head: bytes) -> bool:
        """Whether it is a Parquet file of our ending."""
        return name.endswith(SUFFIX) and head.startswith(b"PAR1")

    def read(self, path: Path, options: NoOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing to choose or to draw
        """Read the whole file; licence and attribution are the source's."""
        problems = ProblemList(path.name)
        table, header = _open(path, problems)
        return _trace(_File(path.name, table, problems), header)


READERS = (_Own(),)
