"""Trace readers by format name. A reader is a module with ``FORMAT`` and ``parse(raw, name)``; adding one is adding it to ``_READERS``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from harness.errors import UsageError
from workloads.plan import TraceSource
from workloads.schedule import Int64, Trace
from workloads.traces import azure
from workloads.traces.find import find_trace, unreadable
from workloads.traces.provenance import provenance_of

__all__ = ["find_trace", "formats", "load_trace", "read_trace", "trace_ref"]

Parse = Callable[[bytes, str], tuple[Int64, Int64, Int64]]
"""(file bytes, file name for messages) -> arrival_ns from the first row, input_tokens, output_tokens."""

_READERS: dict[str, Parse] = {azure.FORMAT: azure.parse}


def formats() -> tuple[str, ...]:
    """Names of the trace formats that can be read."""
    return tuple(sorted(_READERS))


def read_trace(format: str, path: Path) -> Trace:  # noqa: A002 - the word manifests and records use for it
    """Read a whole trace file; columns are read-only and ``arrival_ns`` starts at 0.

    Raises UsageError: unknown format, unreadable file, or everything wrong in the file with line numbers.
    """
    if format not in _READERS:
        what = f"format={format!r}: no reader of that name"
        raise UsageError.single("trace.format", what, f"use one of: {', '.join(formats())}", str(path))
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    arrival, tokens_in, tokens_out = _READERS[format](raw, path.name)
    rows = np.arange(len(arrival), dtype=np.int64)
    for column in (arrival, tokens_in, tokens_out, rows):
        column.flags.writeable = False
    sha256 = hashlib.sha256(raw).hexdigest()
    licence, attribution = provenance_of(sha256)
    return Trace(format, path.name, sha256, licence, attribution, arrival, tokens_in, tokens_out, rows)


def load_trace(source: TraceSource, search_path: Sequence[Path]) -> Trace:
    """Find, verify and read a trace. Raises UsageError as ``find_trace`` and ``read_trace`` do."""
    trace = read_trace(source.format, find_trace(source, search_path))
    if trace.sha256 != source.sha256:  # the file changed between the search and the read
        what = f"sha256={trace.sha256}: the manifest pins {source.sha256} for {source.name!r}"
        raise UsageError.single("trace.digest_mismatch", what, "the file changed while it was read; let its writer finish first")
    return trace


def trace_ref(trace: Trace) -> dict[str, str]:
    """What a record keeps about its trace: format, name, sha256, licence, attribution."""
    return {
        "format": trace.format,
        "name": trace.name,
        "sha256": trace.sha256,
        "licence": trace.licence,
        "attribution": trace.attribution,
    }
