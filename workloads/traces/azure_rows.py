"""Rows of the Azure releases one by one: what a row may look like, and what is wrong with one that does not.

Time is parsed with integers only: ``strptime`` refuses the seventh digit of 2023 and ``fromisoformat`` drops it without a word. This is
the slow half of ``workloads.traces.azure``; it sees only blocks of a file that the fast half did not find regular.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

import numpy as np

from workloads.schedule import Int64
from workloads.traces.csvcols import show
from workloads.traces.problems import TOKEN_LIMIT, ProblemList

REPIN = "take the published file again and pin its sha256"


@dataclass(frozen=True, slots=True)
class Release:
    """How one published release writes its rows: a stamp, then counts.

    ``separator`` stands between date and time, ``zone`` after the time; the fraction has up to 9 digits or is absent. ``counts``: the
    columns after the stamp, in the file's order. ``ascending``: the whole published file was seen to be in order of time, so a step back
    is damage; without it a step back is kept and noted.
    """

    format: str
    counts: tuple[str, ...]
    separator: str
    zone: str
    form: str
    grid_ns: int
    ascending: bool

    @property
    def header(self) -> bytes:
        """First line of the file, without its end."""
        return ",".join(("TIMESTAMP", *self.counts)).encode()

    def is_stamp(self, field: bytes) -> bool:
        """Whether ``field`` is written as this release writes an instant."""
        return _stamp(self.separator, self.zone).fullmatch(field) is not None


AZURE_2023 = Release(
    "azure-2023",
    ("ContextTokens", "GeneratedTokens"),
    " ",
    "",
    "YYYY-MM-DD HH:MM:SS.fffffff (at most 9 digits, no zone)",
    100,
    ascending=True,
)
AZURE_2024 = Release(
    "azure-2024",
    ("ContextTokens", "GeneratedTokens"),
    " ",
    "+00:00",
    "YYYY-MM-DD HH:MM:SS.ffffff+00:00 (at most 9 digits, or none on a whole second)",
    1_000,
    ascending=False,
)
AZURE_LMM_2025 = Release(
    "azure-lmm-2025",
    ("NumImages", "ContextTokens", "GeneratedTokens"),
    "T",
    "Z",
    "YYYY-MM-DDTHH:MM:SS.fffZ (at most 9 digits)",
    1_000_000,
    ascending=False,
)
RELEASES = (AZURE_2023, AZURE_2024, AZURE_LMM_2025)


def parse_lines(block: bytes, first_line: int, release: Release, problems: ProblemList) -> tuple[list[int], list[Int64]]:
    """Return (line numbers, [ns since 1970 (k,), each count (k,)]) of the k good rows; what is wrong with the others is recorded."""
    lines = [line.removesuffix(b"\r") for line in block.removesuffix(b"\n").split(b"\n")]
    good = [(number, row) for number, line in enumerate(lines, first_line) if (row := _row(line, number, release, problems)) is not None]
    columns = np.array([row for _, row in good], dtype=np.int64).reshape(-1, 1 + len(release.counts))
    return [number for number, _ in good], [column.copy() for column in columns.T]


def check_head(header: bytes, row: bytes, release: Release, problems: ProblemList) -> None:
    """Record a header or a first row that is not this release's, naming the release whose they are.

    2023 and 2024 share a header, and only the stamp tells them apart.
    """
    stamp = row.split(b",")[0]
    owners = [other for other in RELEASES if other.header == header and other is not release]
    owner = next((other.format for other in owners if other.is_stamp(stamp)), None)
    if header != release.header:
        what = f"header={show(header)}: format {release.format} needs {release.header.decode()}"
        remedy = f"name the format of this file: {owner}" if owner else "name the right format, or restore the header as the first line"
        problems.add("trace.header", what, remedy, 1)
    elif owner and not release.is_stamp(stamp):
        what = f"TIMESTAMP={show(stamp)}: format {release.format} writes {release.form}; this is how {owner} writes it"
        problems.add("trace.release", what, f"name the format of this file: {owner}", 2)


@lru_cache(maxsize=8)
def _stamp(separator: str, zone: str) -> re.Pattern[bytes]:
    return re.compile(rf"(\d{{4}})-(\d\d)-(\d\d){separator}(\d\d):(\d\d):(\d\d)(?:\.(\d{{1,9}}))?{re.escape(zone)}".encode())


def _row(line: bytes, number: int, release: Release, problems: ProblemList) -> tuple[int, ...] | None:
    """Return (ns since 1970, counts...), or None after recording what is wrong."""
    stamp, *counts = line.split(b",")
    if len(counts) == len(release.counts) and all(re.fullmatch(rb"\d{1,18}", count) for count in counts):
        tick, numbers = _instant(stamp, release), [int(count) for count in counts]
        if tick is not None and max(numbers) <= TOKEN_LIMIT:
            return (tick, *numbers)
    _explain(line, number, release, problems)
    return None


def _instant(field: bytes, release: Release) -> int | None:
    """Exact nanoseconds since 1970; None for what names no instant."""
    match = _stamp(release.separator, release.zone).fullmatch(field)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    days = _ordinal(year, month, day)
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    whole = ((days * 24 + hour) * 60 + minute) * 60 + second
    return whole * 1_000_000_000 + int((match[7] or b"0").ljust(9, b"0"))


@lru_cache(maxsize=64)  # a trace spans few days; the cache makes the date cost nothing
def _ordinal(year: int, month: int, day: int) -> int | None:
    # Nanoseconds since 1970 fit int64 until 2262; no server was traced before 1970.
    try:
        return date(year, month, day).toordinal() - date(1970, 1, 1).toordinal() if 1970 <= year < 2262 else None
    except ValueError:
        return None


def _explain(line: bytes, number: int, release: Release, problems: ProblemList) -> None:
    """Record every problem of a row that did not parse."""
    if b"\0" in line:
        problems.add("trace.nul", f"row={show(line)}: NUL bytes, as a cut or preallocated file has them", REPIN, number)
        return
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        problems.add("trace.encoding", f"row={show(line)}: byte {error.start} of the row is not UTF-8", REPIN, number)
        return
    fields, wanted = line.split(b","), 1 + len(release.counts)
    if len(fields) != wanted:
        what = f"row={show(line)}: {len(fields) if line else 0} fields where the header has {wanted}; the row is torn"
        problems.add("trace.torn_row", what, f"remove or restore the row; or {REPIN}", number)
        return
    if _instant(fields[0], release) is None:
        what = f"TIMESTAMP={show(fields[0])}: not an instant of the form {release.form}"
        problems.add("trace.timestamp", what, "restore the published form; a time that cannot be read cannot be replayed", number)
    for column, field in zip(release.counts, fields[1:], strict=True):
        _explain_count(column, field, number, problems)


def _explain_count(column: str, field: bytes, number: int, problems: ProblemList) -> None:
    if re.fullmatch(rb"\d+", field):
        if len(field) > 18 or int(field) > TOKEN_LIMIT:
            what = f"{column}={show(field)}: above {TOKEN_LIMIT}, which no served model can hold in one request"
            problems.add("trace.huge_count", what, "check the column and its unit", number)
    elif re.fullmatch(rb"-\d+", field):
        what = f"{column}={show(field)}: a count is at least 0"
        problems.add("trace.negative_count", what, "remove the row on purpose, and pin the sha256 of the result", number)
    else:
        what = f"{column}={show(field)}: not a whole number"
        problems.add("trace.count", what, "write counts as digits only", number)
