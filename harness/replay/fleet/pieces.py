"""Segments on their way from the host that wrote them to the record: read in pieces there, put together here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from harness.record.segments import SUFFIX, disk_refused
from harness.replay.fleet.contract import Piece

LOOK_BYTES = 1024 * 1024
"""At most a megabyte an answer: it is copied three times on its way, and a second one follows at once when there is more."""


def read_pieces(folder: Path, have: Mapping[str, int], limit: int = LOOK_BYTES) -> tuple[tuple[Piece, ...], bool]:
    """Bytes of all segments in ``folder`` behind those that are had (name -> count), up to ``limit``, and whether more are left."""
    pieces, left = [], limit
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        offset = have.get(path.name, 0)
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(left + 1)  # one more than is taken shows whether anything is left
        if data[:left]:
            pieces.append(Piece(path.name, offset, data[:left]))
        if len(data) > left:
            return tuple(pieces), True
        left -= len(data)
    return tuple(pieces), False


class Landing:
    """Puts pieces together under their names in ``folder``; a piece is handed to the kernel at once, as the writer's own flush was.

    Raises HostError when the disk refuses, ValueError for a piece that does not follow on what came or a name that is none of ours.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, int] = {}
        self.have: dict[str, int] = {}

    def put(self, piece: Piece) -> None:
        """Append one piece."""
        if piece.offset != self.have.get(piece.name, 0):
            raise ValueError(f"{piece.name}: a piece at {piece.offset} does not follow {self.have.get(piece.name, 0)} bytes")
        path = self._folder / piece.name
        try:
            file = self._files[piece.name] if piece.name in self._files else self._open(path)
            view = memoryview(piece.data)
            while view:
                view = view[os.write(file, view) :]
        except OSError as error:
            raise disk_refused(path, error) from error
        self.have[piece.name] = piece.offset + len(piece.data)

    def _open(self, path: Path) -> int:
        if path.parent != self._folder or path.suffix != SUFFIX:
            raise ValueError(f"{path.name!r} is no name of a segment")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files[path.name] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return self._files[path.name]

    def close(self) -> None:
        """Close all files; safe to call twice."""
        while self._files:
            os.close(self._files.popitem()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
