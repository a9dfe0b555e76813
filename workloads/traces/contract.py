"""What a trace reader is: a format's facts, its options, and one function from a file to rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from workloads.schedule import ClockKind, Trace

Tested = Literal["full file", "sample", "schema"]
"""What a reader was tried on: a whole published file, some published rows, or only the published description of its columns."""


class Options(BaseModel):
    """Base of a reader's options, as a manifest writes them under ``trace.options``: immutable, unknown keys refused.

    Words of a name may be joined by hyphens, as everywhere in a manifest, or by underscores.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=lambda name: name.replace("_", "-"), validate_by_name=True, validate_by_alias=True
    )


PIN_OR_NONE = r"^(?:[0-9a-f]{64}|none)$"
"""Option that pins what lies beside the trace file: its sha256, or ``none`` where nothing may lie there."""


class NoOptions(Options):
    """A format with nothing to choose."""


@dataclass(frozen=True, slots=True)
class PrefixRule:
    """How a format names shared prefixes: tokens per block, what happens to the partial last block, and where ids are unique."""

    block_size: int
    rounding: Literal["ceil", "floor"]
    scope: Literal["trace", "session"]


@dataclass(frozen=True, slots=True)
class FormatInfo:
    """What a user should know of a format before using it. ``drawn``: rows are sampled from distributions, with a seed."""

    format: str
    summary: str
    clock: ClockKind
    time_unit: str
    lengths: str
    prefix: PrefixRule | None
    tested: Tested
    drawn: bool = False


class Reader(Protocol):
    """One format. Pure but for the file; the same file, options and seed give the same rows.

    Where its rows hold texts, the module of the reader's class also has ``read_texts(path, options)``, their prompts by row of the trace.
    """

    info: FormatInfo
    options: type[Options]

    def sniff(self, name: str, head: bytes) -> bool:
        """Whether a file of this name that starts with ``head`` (1 MiB, decompressed when it is gzip) looks like this format."""
        ...

    def read(self, path: Path, options: Any, seed: int) -> Trace:
        """Read the whole file; raises UsageError with every problem and its line (see ``ProblemList``).

        Rows keep the file's order. What the format holds and ``Trace`` cannot represent is refused; what is left out is counted by reason
        in ``skipped``. ``sha256``, ``licence`` and ``attribution`` are filled in by the caller. ``seed`` is used by drawn formats only.
        """
        ...
