"""The readers there are: our own, and those of installed packages that offer the entry point group ``trigpoint.traces``."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.errors import HostError, Problem, UsageError
from workloads.traces.contract import Options, Reader
from workloads.traces.find import opened

GROUP = "trigpoint.traces"
"""Entry point group: name = format, value = an object that is a ``Reader``."""

HEAD_BYTES = 1 << 20
"""What ``sniff`` sees of a file, 1 MiB: more than a first row with an id for every 16 of a million tokens, little enough to look at every
file of a folder."""

_MODULES = (
    "lengths",
    "azure",
    "burstgpt",
    "vtc",
    "servegen",
    "weka",
    "otel",
    "mooncake",
    "bailian",
    "ragpulse",
    "tracelab",
    "sharegpt",
    "hf",
    "own",
    "table",
)
"""Modules of this package; each has ``READERS``, a tuple of readers. Files are sniffed in this order, special before general."""


@cache
def _readers() -> dict[str, Reader]:
    found: dict[str, Reader] = {}
    for module in _MODULES:
        found |= {reader.info.format: reader for reader in import_module(f"workloads.traces.{module}").READERS}
    for point in entry_points(group=GROUP):
        if point.name not in found:  # a package may add a format, never replace one of ours under its name
            found[point.name] = _loaded(point)
    return found


def _loaded(point: EntryPoint) -> Reader:
    try:
        reader: Reader = point.load()
    except Exception as error:  # a package's module may raise anything while it is imported
        what = f"plug-in {point.name}={point.value}: cannot be loaded ({type(error).__name__}: {str(error)[:100]})"
        raise HostError.single("trace.plugin", what, "mend or uninstall the package that offers it") from error
    return reader


def formats() -> tuple[str, ...]:
    """Names of the trace formats that can be read."""
    return tuple(sorted(_readers()))


def get_reader(format: str) -> Reader:  # noqa: A002 - the word manifests and records use for it
    """Return the reader of a format. Raises UsageError ``trace.format``."""
    if format not in _readers():
        what = f"format={format!r}: no reader of that name"
        raise UsageError.single("trace.format", what, f"use one of: {', '.join(formats())}")
    return _readers()[format]


def guess_format(path: Path) -> str:
    """Return the first format whose reader knows the file by its name and head. Raises UsageError ``trace.unknown_format``."""
    head = _head(path)
    for name, reader in _readers().items():
        if reader.sniff(path.name, head):
            return name
    what = f"path={path.name}: no reader knows this file by its name and first lines"
    raise UsageError.single("trace.unknown_format", what, f"name the format: one of {', '.join(formats())}", str(path))


def checked_options(reader: Reader, options: dict[str, Any]) -> Options:
    """Options as the reader's own type. Raises UsageError ``trace.options`` with every problem."""
    try:
        return reader.options.model_validate(options)
    except ValidationError as error:
        raise UsageError(*(_option_problem(reader, dict(e)) for e in error.errors(include_url=False))) from error


def _option_problem(reader: Reader, error: dict[str, Any]) -> Problem:
    name = ".".join(str(part) for part in error["loc"]) or "options"
    known = ", ".join(reader.options.model_fields) or "none"
    what = f"{name}={error['input']!r}: {error['msg']} (format {reader.info.format})"
    return Problem("trace.options", what, f"options of this format: {known}", f"workload.trace.options.{name}")


def _head(path: Path) -> bytes:
    with opened(path) as stream:
        return stream.read(HEAD_BYTES)
