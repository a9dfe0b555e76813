"""Members of a tar archive, read in memory: nothing is unpacked to disk, no link is followed, no size is believed."""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from harness.errors import Problem, UsageError
from workloads.traces.csvcols import show
from workloads.traces.find import opened, unreadable

MAX_BYTES = 1 << 29
"""Most bytes of an archive once decompressed, 512 MiB: twenty times the largest collection published, and little enough to hold."""

MAX_MEMBERS = 20_000
"""Most members of an archive. A published collection has hundreds."""

_BROKEN = (tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError, IndexError, KeyError, MemoryError)
"""What the tar module raises on bytes that are no archive, or half of one."""


def read_members(path: Path, pattern: re.Pattern[str]) -> dict[str, bytes]:
    """Contents of the regular members whose whole name matches ``pattern``, by name, in the archive's order; others are passed over.

    Raises UsageError: unreadable or torn archive, too many bytes or members, a matching member that is no plain file or is there twice.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(_unpacked(path)), mode="r:") as archive:
            for member, content in _matching(archive, pattern, path):
                if member in found:
                    raise _refused(path, f"member={show(member)}: is in the archive twice", "leave it once")
                found[member] = content
    except OSError as error:
        raise unreadable(path, error) from error
    except _BROKEN as error:
        what = f"not a tar archive, or only a part of one ({str(error)[:80] or type(error).__name__})"
        raise _refused(path, what, "take the published archive again, or pack the published files with tar czf") from error
    return found


def _unpacked(path: Path) -> bytes:
    with opened(path) as stream:
        raw = stream.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise _refused(path, f"bytes>{MAX_BYTES}: the archive is larger than any collection of traces", "pack fewer members")
    return raw


def _matching(archive: tarfile.TarFile, pattern: re.Pattern[str], path: Path) -> Iterator[tuple[str, bytes]]:
    for number, member in enumerate(archive):
        if number >= MAX_MEMBERS:
            raise _refused(path, f"members>{MAX_MEMBERS}: more than any collection of traces has", "pack fewer members")
        if not pattern.fullmatch(member.name):
            continue
        # A sparse member may claim any size with no bytes behind it; a link may name another file.
        handle = archive.extractfile(member) if member.isreg() and not member.issparse() else None
        if handle is None:
            raise _refused(path, f"member={show(member.name)}: not a plain file", "pack the file itself, without links or holes")
        yield member.name, handle.read()


def _refused(path: Path, what: str, remedy: str) -> UsageError:
    return UsageError(Problem("trace.archive", what, remedy, path.name))
