"""Trace readers by format name, extensible through the entry point group ``trigpoint.traces``."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.errors import Problem, UsageError
from workloads.plan import TraceSource
from workloads.schedule import Trace
from workloads.traces.contract import FormatInfo, Options, Reader
from workloads.traces.find import check_digest, file_digest, find_trace, sole_candidate
from workloads.traces.provenance import UNKNOWN, Provenance, provenance_of
from workloads.traces.registry import checked_options, formats, get_reader, guess_format

__all__ = [
    "FormatInfo",
    "Options",
    "Reader",
    "find_trace",
    "formats",
    "get_reader",
    "guess_format",
    "load_trace",
    "read_trace",
    "trace_ref",
]


def read_trace(format: str, path: Path, options: dict[str, Any] | None = None, seed: int = 0) -> Trace:  # noqa: A002 - the manifest's word
    """Read a whole trace file; ``seed`` is for formats that draw their rows.

    Raises UsageError: unknown format or option, unreadable file, or everything wrong in the file with line numbers.
    """
    reader = get_reader(format)
    checked = checked_options(reader, options or {})
    with ThreadPoolExecutor(1) as aside:  # hashing costs a quarter of a fast read, and both leave the interpreter's lock alone
        digest = aside.submit(file_digest, path)
        trace = reader.read(path, checked, seed)
        sha256 = digest.result()
    known = provenance_of(sha256)
    if known is UNKNOWN and trace.licence:  # our own exchange format carries the origin of what was converted
        known = Provenance(trace.licence, trace.attribution)
    return replace(trace, sha256=sha256, licence=known.licence, attribution=known.attribution)


def load_trace(source: TraceSource, search_path: Sequence[Path], seed: int = 0) -> Trace:
    """Find, verify and read a trace. Raises UsageError as ``find_trace`` and ``read_trace`` do, and for anything read that is not pinned.

    The last one read is kept, because a campaign asks for the same trace before each run; ``seed`` counts for drawn formats only.
    """
    return _load(source, tuple(search_path), seed if get_reader(source.format).info.drawn else 0)


@lru_cache(maxsize=1)
def _load(source: TraceSource, search_path: tuple[Path, ...], seed: int) -> Trace:
    # Where only one file can be meant, one pass of hashing beside the read decides; a search would hash it a first time.
    path = sole_candidate(source, search_path) or find_trace(source, search_path)
    try:
        trace = read_trace(source.format, path, source.options, seed)
    except UsageError:
        check_digest(source, path, file_digest(path))  # what is wrong inside another file than the one meant is of no interest
        raise
    check_digest(source, path, trace.sha256)
    if trace.unpinned:
        raise UsageError(*(_unpinned(source, option, value) for option, value in trace.unpinned.items()))
    return trace


def _unpinned(source: TraceSource, option: str, value: str) -> Problem:
    what = (
        f"{option}: {source.name} is read together with what lies beside it, and nothing pins that: another machine could send other bytes"
    )
    return Problem("trace.unpinned", what, f"write under options: {option}: {value}", f"trace {source.name}")


def trace_ref(trace: Trace) -> dict[str, str]:
    """What a record keeps about its trace: format, name, sha256, licence, attribution."""
    return {
        "format": trace.format,
        "name": trace.name,
        "sha256": trace.sha256,
        "licence": trace.licence,
        "attribution": trace.attribution,
    }
