"""Find a trace by name and content, so that a manifest means the same on every machine."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from harness.errors import Problem, UsageError
from workloads.plan import TraceSource

MAX_DEPTH = 4
"""Folders below a search directory that are looked into. Trace collections are shallow; a home directory given by mistake is not."""

MAX_ENTRIES = 20_000
"""Directory entries looked at below one search directory before the search stops and says so (about a second of a cold disk)."""


MAX_WHOLE = 1 << 31
"""Most bytes of a file that is read at once, decompressed, 2 GiB: several times the largest published one. Gzip packs a thousand to one."""


def find_trace(source: TraceSource, search_path: Sequence[Path]) -> Path:
    """Return the first file called ``source.name`` (with or without its ending) whose sha256 is the pinned one.

    Directories are searched in order, shallow before deep, names in sorted order, without following links to directories. Raises
    UsageError ``trace.not_found`` with every directory searched, or ``trace.digest_mismatch`` with both digests of every candidate.
    """
    if Path(source.name).name != source.name:
        what = f"trace.name={source.name!r}: a file name is wanted, without folders"
        raise UsageError.single("trace.name", what, "give the bare name, and its folder in the search path")
    searched: list[str] = []
    wrong: list[tuple[Path, str]] = []
    for directory in search_path:
        notes: list[str] = []
        for candidate in _candidates(source.name, directory, notes):
            digest = file_digest(candidate)
            if digest == source.sha256:
                return candidate
            wrong.append((candidate, digest))
        searched.append(" ".join([str(directory), *notes]))
    raise UsageError(*(_mismatches(source, wrong) if wrong else [_not_found(source, searched)]))


def sole_candidate(source: TraceSource, search_path: Sequence[Path]) -> Path | None:
    """Return the one file called ``source.name``, not yet verified; None when there is none or several to choose from by content."""
    if Path(source.name).name != source.name:
        return None
    found = {path.resolve(): path for directory in search_path for path in _candidates(source.name, directory, [])}
    return next(iter(found.values())) if len(found) == 1 else None


def check_digest(source: TraceSource, path: Path, digest: str) -> None:
    """Raise ``trace.digest_mismatch`` unless ``digest``, that of the file at ``path``, is the pinned one."""
    if digest != source.sha256:
        raise UsageError(*_mismatches(source, [(path, digest)]))


def file_digest(path: Path) -> str:
    """Sha256 of a file's bytes, hex. Raises UsageError when it cannot be read."""
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def read_bytes(path: Path) -> bytes:
    """All bytes of a file, decompressed when it is gzip.

    Raises UsageError ``trace.unreadable``, also for a torn gzip member, and ``trace.too_large`` beyond ``MAX_WHOLE``.
    """
    with opened(path) as stream:
        raw = stream.read(MAX_WHOLE + 1)
    if len(raw) > MAX_WHOLE:
        what = f"path={path.name}: more than {MAX_WHOLE} bytes, and a file of this format is read at once"
        raise UsageError.single("trace.too_large", what, "cut it into files by time", str(path))
    return raw


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed when it is gzip. Raises UsageError ``trace.unreadable``, also while it is read."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            yield cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if packed else raw
    except (OSError, EOFError, zlib.error) as error:  # a torn gzip member ends with one of the last two
        raise unreadable(path, error if isinstance(error, OSError) else OSError(str(error))) from error


def unreadable(path: Path, error: OSError) -> UsageError:
    """Build the error for a trace file that the system does not let us read."""
    what = f"path={path}: cannot be read ({error.strerror or error})"
    return UsageError(Problem("trace.unreadable", what, "check that the file exists and that you may read it", str(path)))


def _candidates(name: str, directory: Path, notes: list[str]) -> Iterator[Path]:
    """Yield regular files that bear the name; what limited the search goes to ``notes``."""
    if not directory.is_dir():
        notes.append("(no such directory)")
        return
    level, entries = [directory], 0
    for depth in range(MAX_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            for entry in _sorted_entries(folder):
                entries += 1
                if entries > MAX_ENTRIES:
                    notes.append(f"(stopped after {MAX_ENTRIES} entries)")
                    return
                if entry.is_dir(follow_symlinks=False):
                    below.append(Path(entry.path))
                elif (entry.name == name or entry.name.startswith(f"{name}.")) and entry.is_file():
                    yield Path(entry.path)
        level = below
        if level and depth == MAX_DEPTH:
            notes.append(f"(not deeper than {MAX_DEPTH} folders)")


def _sorted_entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:  # a folder we may not read holds no trace we could read
        return []


def _not_found(source: TraceSource, searched: list[str]) -> Problem:
    places = "; ".join(searched) or "nowhere, the search path is empty"
    what = f"trace.name={source.name!r}: no file of that name; searched {places}"
    remedy = f"put the file (sha256 {source.sha256}) into one of these, or add its folder to the search path"
    return Problem("trace.not_found", what, remedy)


def _mismatches(source: TraceSource, wrong: list[tuple[Path, str]]) -> list[Problem]:
    remedy = "fetch the file the manifest means; or, if this one is meant, pin its sha256: results of the two never compare"
    return [
        Problem("trace.digest_mismatch", f"sha256={digest}: the manifest pins {source.sha256} for {source.name!r}", remedy, str(path))
        for path, digest in wrong
    ]
