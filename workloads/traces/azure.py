"""Readers of the Azure LLM inference traces: one row a request, wall time, input and output tokens; no ids, sessions, tenants or failures.

``azure-2023`` has seven fractional digits, CRLF and no newline after the last row; LF and a last newline are read as well. ``azure-2024``
has the same header, so only the UTC offset in its stamps tells it apart; rows on a whole second have no fraction. ``azure-lmm-2025`` adds
the number of images. A row cut inside its last number cannot be told from a whole one; the pinned sha256 is what catches that.

A file is read in blocks of whole lines. Arrow parses a block, which is then taken only if its bytes prove that every row has the
published form (Arrow alone would let signs, blanks, hexadecimal and shortened times pass); any other block goes to ``azure_rows``, which
reads it line by line and says what is wrong where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from workloads.schedule import Int64, Labels, Trace, frozen
from workloads.traces.azure_rows import (
    AZURE_2023,
    AZURE_2024,
    AZURE_LMM_2025,
    REPIN,
    Release,
    check_head,
    parse_lines,
)
from workloads.traces.columns import Growing, int64_view
from workloads.traces.contract import FormatInfo, NoOptions
from workloads.traces.problems import TOKEN_LIMIT, ProblemList
from workloads.traces.streams import in_order, line_blocks, size_of

HEADER = AZURE_2023.header
_BOM = b"\xef\xbb\xbf"
_LATEST_NS = 9_214_646_400_000_000_000  # 2262-01-01, as the line parser has it: the last year that nanoseconds in int64 hold whole
_SHORTEST_ROW = 24  # bytes of "YYYY-MM-DD HH:MM:SS,1,1" and a line feed: no file holds more rows than its size over this
_NO_SHARING = "the file has no prefix or session data: a replay of it cannot show the cache hits that the traced service had"


def parse(raw: bytes, name: str, release: Release = AZURE_2023) -> tuple[Int64, ...]:
    """Return (arrival_ns from the first instant, counts in the file's order...), each (n,) int64.

    Raises UsageError with line numbers: header, another release's stamps, byte-order mark, torn or blank rows, NUL or non-UTF-8 bytes,
    unreadable timestamps, descending ones where the release has none, negative, fractional or huge counts. Equal neighbouring timestamps
    are allowed.
    """
    return tuple(_read(iter((raw,)), name, release))


def _read(blocks: Iterator[bytes], name: str, release: Release, capacity: int = 0) -> list[Int64]:
    rows = _Rows(release, ProblemList(name), [Growing(capacity) for _ in range(1 + len(release.counts))])
    first = _data_of_first_block(next(blocks, b""), release, rows.problems)
    rows.problems.raise_if_any()
    data = chain((first,) if first else (), blocks)
    for block, fast in in_order(lambda block: (block, _parse_block(block, release)), data):
        rows.add(block, fast)
    pa.default_memory_pool().release_unused()  # it would keep some blocks' worth for its next call, beside all that is made of the trace
    if rows.line == 2:
        rows.problems.add("trace.no_rows", "rows=0: the file holds a header and nothing else", REPIN, 1)
    rows.problems.raise_if_any()
    columns = [column.values() for column in rows.columns]
    columns[0] -= columns[0].min()
    return columns


def _data_of_first_block(block: bytes, release: Release, problems: ProblemList) -> bytes:
    """Check header and release; return what follows the header."""
    if not block.strip():
        problems.add("trace.empty", f"bytes={len(block)}: the file holds no header and no rows", REPIN)
        return b""
    if block.startswith(_BOM):
        # Not stripped: the published files have none, so a tool rewrote this one, and spreadsheets also round timestamps.
        what = "the file starts with a UTF-8 byte-order mark, which the published files do not have: an editor or spreadsheet rewrote it"
        problems.add("trace.bom", what, f"{REPIN}; or drop its first three bytes and pin the sha256 of the result", 1)
        block = block[len(_BOM) :]
    header, _, data = block.partition(b"\n")
    check_head(header.removesuffix(b"\r"), data.partition(b"\n")[0], release, problems)
    return data


@dataclass(slots=True)
class _Rows:
    """Columns so far; ``line`` is the file's line of the next row, ``last_ns`` the stamp before it."""

    release: Release
    problems: ProblemList
    columns: list[Growing]
    line: int = 2
    last_ns: int = 0

    def add(self, block: bytes, fast: list[Int64] | None) -> None:
        """Take the rows of one block of whole lines, whose columns are ``fast`` if it is regular."""
        numbers: Sequence[int]
        if fast is None:
            numbers, columns = parse_lines(block, self.line, self.release, self.problems)
            self.line += block.removesuffix(b"\n").count(b"\n") + 1
        else:
            numbers, columns = range(self.line, self.line + len(fast[0])), fast
            self.line += len(fast[0])
        if self.release.ascending and len(numbers):
            self._check_order(numbers, columns[0])
        if len(self.problems):
            return  # no trace will come of it: what follows is read to be judged, not kept
        for column, values in zip(self.columns, columns, strict=True):
            column.extend(values)

    def _check_order(self, numbers: Sequence[int], ns: Int64) -> None:
        """Descending times are refused, not sorted: sorting would change a file whose digest was pinned, and hides a splice."""
        before, self.last_ns = self.last_ns, int(ns[-1])
        if before <= ns[0] and (ns[1:] >= ns[:-1]).all():
            return
        steps = np.diff(ns, prepend=before)
        for index in np.flatnonzero(steps < 0).tolist():
            what = f"TIMESTAMP goes back by {-int(steps[index])} ns against the row before: arrivals must not descend"
            remedy = "sort the data rows by TIMESTAMP (stable) and pin the sha256 of the result"
            self.problems.add("trace.descending", what, remedy, numbers[index])


def _parse_block(block: bytes, release: Release) -> list[Int64] | None:
    """Return [ns since 1970, counts...] of a block whose every row has the published form; None when that cannot be said."""
    names = ["TIMESTAMP", *release.counts]
    reading = csv.ReadOptions(column_names=names, block_size=max(len(block), 1), use_threads=False)
    try:
        table = csv.read_csv(pa.py_buffer(block), reading, *_arrow_options(release))
    except pa.ArrowInvalid:
        return None
    if not _is_regular(block, table.num_rows, release):
        return None
    columns = [int64_view(table.column(name)) for name in names]
    in_range = columns[0].min() >= 0 and columns[0].max() < _LATEST_NS and max(column.max() for column in columns[1:]) <= TOKEN_LIMIT
    return columns if in_range else None


@cache
def _arrow_options(release: Release) -> tuple[csv.ParseOptions, csv.ConvertOptions]:
    """Nothing quoted, nothing missing, every column of its type."""
    types = {name: pa.int64() for name in release.counts} | {"TIMESTAMP": pa.timestamp("ns", "UTC" if release.zone else None)}
    return (
        csv.ParseOptions(quote_char=False, escape_char=False, newlines_in_values=False, ignore_empty_lines=False),
        csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False, timestamp_parsers=[csv.ISO8601]),
    )


def _is_regular(block: bytes, rows: int, release: Release) -> bool:
    """Whether the marks between the digits of a block that Arrow could parse leave only the published form.

    Arrow has made sure that each row holds an instant, with or without a fraction, and counts. Without digits, dots and carriage returns
    a row must read ``-- ::,,``: no shortened times, no signs, no blanks, no hexadecimal. A carriage return ends a row for Arrow, so one
    that stands alone makes more rows than there are line feeds.
    """
    last = b"" if block.endswith(b"\n") else b"\n"
    row = f"--{release.separator}::{release.zone.replace('0', '')}{',' * len(release.counts)}\n".encode()
    regular = block.translate(None, b"0123456789.\r") + last == row * rows
    return regular and (not release.zone.startswith("+") or block.count(release.zone.encode() + b",") == rows)


class _Azure:
    """One release."""

    options = NoOptions

    def __init__(self, release: Release, info: FormatInfo) -> None:
        self._release = release
        self.info = info

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the header and the first stamp tell
        """Whether the file begins with this header, and its first stamp is written as this release does."""
        header, _, data = head.partition(b"\n")
        return header.removesuffix(b"\r") == self._release.header and self._release.is_stamp(data.partition(b",")[0])

    def read(self, path: Path, options: NoOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing to choose or to draw
        """Read the whole file."""
        arrival, *counts = _read(line_blocks(path), path.name, self._release, size_of(path) // _SHORTEST_ROW)
        for column in (arrival, *counts):
            frozen(column)
        *images, tokens_in, tokens_out = counts
        return Trace(
            self._release.format,
            path.name,
            arrival,
            tokens_in,
            tokens_out,
            frozen(np.arange(len(arrival), dtype=np.int64)),
            clock="absolute",
            grid_ns=self._release.grid_ns,
            kind=_kinds(images[0]) if images else None,
            notes=tuple(self._notes(arrival, images)),
        )

    def _notes(self, arrival: Int64, images: list[Int64]) -> Iterator[str]:
        yield _NO_SHARING
        if not self._release.ascending and (back := int(np.count_nonzero(np.diff(arrival) < 0))):
            yield f"{back} rows arrive before the row above them; the transform sort puts them in order"
        for count in images:
            carried = f"{np.count_nonzero(count)} of {len(count)} rows carried images ({count.sum()} in all)"
            yield f"{carried}; images are not sent, only text of ContextTokens tokens"


def _kinds(images: Int64) -> Labels:
    return Labels(("image", "text"), frozen(np.where(images > 0, 0, 1).astype(np.int32)))


_LENGTHS = "input and output tokens as the service counted them"

READERS = (
    _Azure(
        AZURE_2023,
        FormatInfo(
            format=AZURE_2023.format,
            summary="Azure LLM inference traces 2023 (Splitwise): arrivals and token counts of two services",
            clock="absolute",
            time_unit="100 ns ticks, wall time without a zone",
            lengths=_LENGTHS,
            prefix=None,
            tested="full file",
        ),
    ),
    _Azure(
        AZURE_2024,
        FormatInfo(
            format=AZURE_2024.format,
            summary="Azure LLM inference traces 2024 (DynamoLLM): arrivals and token counts of two services over a week",
            clock="absolute",
            time_unit="microseconds, wall time in UTC",
            lengths=_LENGTHS,
            prefix=None,
            tested="sample",
        ),
    ),
    _Azure(
        AZURE_LMM_2025,
        FormatInfo(
            format=AZURE_LMM_2025.format,
            summary="Azure LMM inference trace 2025 (ModServe): arrivals, token counts and images of a multimodal service over a week",
            clock="absolute",
            time_unit="milliseconds, wall time in UTC",
            lengths=_LENGTHS,
            prefix=None,
            tested="sample",
        ),
    ),
)
