"""JSON lines as a stream of objects with their line numbers: strict syntax, no key twice, nothing kept of the text.

``orjson`` refuses what JSON does not have (NaN, comments, broken UTF-8, nesting beyond 1,024) and turns an integer beyond 64 bits into a
float, which the typed accessors of ``fields`` then refuse: no id is ever wrapped. It keeps the last of two equal keys without a word,
therefore ``repeated_key``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import orjson

from workloads.traces.problems import ProblemList
from workloads.traces.streams import line_blocks

REPIN = "take the published file again and pin its sha256"
DEEPEST = 64
"""Levels of nesting that are read. Published rows have at most six; an exporter's attributes may have a few more."""

_BOM = b"\xef\xbb\xbf"
_LFS = b"version https://git-lfs"
_SPACED = re.compile(rb'"\s+:')


class Sink(Protocol):
    """Where problems go: a ``ProblemList``, or ``Placed`` in front of one."""

    def add(self, code: str, what: str, remedy: str, line: int | None = None) -> None:
        """Record one problem."""
        ...


class Placed:
    """A sink that begins every problem with a place inside a document, for files whose rows are no lines."""

    __slots__ = ("_place", "_sink")

    def __init__(self, sink: Sink, place: str) -> None:
        self._sink = sink
        self._place = place

    def add(self, code: str, what: str, remedy: str, line: int | None = None) -> None:
        """Record one problem at this place."""
        self._sink.add(code, f"{self._place}: {what}", remedy, line)

    def at(self, place: str) -> Placed:
        """A place further inside."""
        return Placed(self._sink, f"{self._place}{place}")


class JsonLines:
    """Iterate over (line number, object) of a file, plain or gzip; blank lines are fine at its end only.

    Lines that are no JSON object are recorded in ``problems``; a file without any row is too. ``seen`` gathers the keys met on the way.
    Iterating raises UsageError ``trace.unreadable`` when the file cannot be read or its gzip member is torn.
    """

    def __init__(self, path: Path, problems: ProblemList) -> None:
        self._path = path
        self._problems = problems
        self.seen: set[str] = set()
        self.rows = 0

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in content_lines(self._path, self._problems):
            if number == 1 and self._is_no_trace(line):
                return
            row = self._object(line, number)
            if row is not None:
                self.rows += 1
                self.seen.update(row)
                yield number, row
        if not self.rows and not len(self._problems):
            self._problems.add("trace.no_rows", "rows=0: the file holds no row", REPIN)

    def unread(self, known: frozenset[str]) -> tuple[str, ...]:
        """One note that names the keys a reader has no column for, or none."""
        extra = sorted(self.seen - known)
        return (f"keys not read: {', '.join(map(show, extra))}",) if extra else ()

    def _is_no_trace(self, line: bytes) -> bool:
        """Whether the first line shows that something else was downloaded."""
        if line.startswith(_LFS):
            what = "the file is a Git LFS pointer, not the trace"
            self._problems.add("trace.lfs_pointer", what, "fetch it with `git lfs pull`, or from a release that holds the file", 1)
        elif line.lstrip()[:1] == b"<":
            what = f"line={show(line)}: a web page or XML, not the trace; a redirect was saved instead of followed"
            self._problems.add("trace.web_page", what, "download the raw file and follow redirects (curl needs -L)", 1)
        return len(self._problems) > 0

    def _object(self, line: bytes, number: int) -> dict[str, Any] | None:
        value = parse(line, number, self._problems)
        if value is None or isinstance(value, dict):
            return value
        what = f"row={show(line)}: {type(value).__name__} where a row is an object"
        self._problems.add("trace.row_type", what, "name the right format; rows of this one are JSON objects", number)
        return None


def content_lines(path: Path, problems: Sink) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line with its end) of a file, plain or gzip; blank lines are left out at its end and recorded before.

    Raises UsageError ``trace.unreadable``.
    """
    number, blank = 0, 0
    for block in line_blocks(path):
        for line in by_line_feed(block):
            number += 1
            if not line.strip():
                blank = blank or number
                continue
            if blank:
                problems.add("trace.blank_row", "a blank line between rows: a row may be missing", f"remove it; or {REPIN}", blank)
                blank = 0
            yield number, line


def parse(text: bytes, line: int | None, problems: Sink) -> Any:
    """Value of one JSON text; None after recording why it has none (``null`` itself is recorded too)."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        _explain(text, str(error), line, problems)
        return None
    try:
        key = repeated_key(text, value)
    except TooDeepError:
        problems.add("trace.nested", f"nested more than {DEEPEST} levels deep", f"name the right format; or {REPIN}", line)
        return None
    if key is not None:
        what = f"key={show(key)}: stands twice in one object, and which of the two is meant cannot be known"
        problems.add("trace.repeated_key", what, "leave each key once", line)
        return None
    if value is None:
        problems.add("trace.row_type", "row=null: no object", f"remove it; or {REPIN}", line)
    return value


def repeated_key(text: bytes, value: Any) -> str | None:
    """First key that stands twice in one object of valid JSON ``text``, parsed as ``value``; None when there is none.

    Every member of an object writes `":` once (unless white space stands before the colon), so equal counts of it and of keys prove that no
    key was lost; only when they differ, as they do for text inside strings, is the slow exact parser asked. Raises TooDeepError.
    """
    if text.count(b'":') == members(value) and not _SPACED.search(text):
        return None
    try:
        json.loads(text, object_pairs_hook=_unique, parse_int=len, parse_float=len)  # values do not matter here
    except _RepeatedKeyError as error:
        return str(error.args[0])
    return None


def members(value: Any, depth: int = 0) -> int:
    """Keys of all objects in ``value``. Raises TooDeepError beyond ``DEEPEST`` levels, so that nothing after it can run out of stack."""
    if depth > DEEPEST:
        raise TooDeepError
    mapping = type(value) is dict
    items = value.values() if mapping else value if type(value) is list else ()
    count = len(value) if mapping else 0
    kinds = set(map(type, items))
    if dict in kinds or list in kinds:
        count += sum(members(item, depth + 1) for item in items if type(item) in (dict, list))
    return count


def show(value: object) -> str:
    """Printable, bounded form of file content for a message."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    shown = ascii(text[:60] if isinstance(text, str) else text)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def first_object(head: bytes) -> dict[str, Any]:
    """Object on the first line of a file's head, empty when there is none: for ``sniff``."""
    try:
        value = orjson.loads(head.split(b"\n", 1)[0])
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


class TooDeepError(Exception):
    """JSON nested beyond ``DEEPEST``."""


class _RepeatedKeyError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise _RepeatedKeyError(key)
        members[key] = value
    return members


def by_line_feed(block: bytes) -> Iterator[bytes]:
    """Lines of a block with their ends, split at line feeds only: a carriage return alone is white space to JSON and ends no line."""
    start = 0
    while start < len(block):
        end = block.find(b"\n", start) + 1 or len(block)
        yield block[start:end]
        start = end


def _explain(text: bytes, error: str, line: int | None, problems: Sink) -> None:
    if text.startswith(_BOM):
        what = "a UTF-8 byte-order mark, which the published files do not have: an editor rewrote the file"
        problems.add("trace.bom", what, f"{REPIN}; or drop its first three bytes and pin the sha256 of the result", line)
    elif b"\0" in text:
        problems.add("trace.nul", f"row={show(text)}: NUL bytes, as a cut or preallocated file has them", REPIN, line)
    elif "UTF-8" in error:
        problems.add("trace.encoding", f"row={show(text)}: bytes that are not UTF-8", REPIN, line)
    elif not text.endswith(b"\n"):
        what = f"row={show(text)}: the last line of the file is cut off ({error})"
        problems.add("trace.torn_row", what, f"{REPIN}; or remove the line on purpose", line)
    else:
        problems.add("trace.json", f"row={show(text)}: not JSON ({error})", f"name the right format; or {REPIN}", line)
