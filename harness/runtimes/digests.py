"""Content digests of files and folders: what was served, not what it was called."""

from __future__ import annotations

import hashlib
from pathlib import Path

_CHUNK = 1 << 20


def file_digest(path: Path) -> str:
    """Return the hex sha256 of one file's bytes."""
    state = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(_CHUNK):
            state.update(block)
    return state.hexdigest()


def directory_digest(folder: Path) -> str:
    """Return the hex sha256 over (relative name, file digest) of every regular file below ``folder``, in name order.

    Hidden files are left out: version control and download caches are not the model.
    """
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            state.update(f"{name.as_posix()}\0{file_digest(path)}\n".encode())
    return state.hexdigest()
