"""The seal of an attempt: a sha256 per file and one root over all of them. A finished attempt is never changed again (DESIGN 5)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.record.canonical import digest
from harness.record.durable import write_json
from harness.record.provenance import source_digest
from harness.record.schema import FORMAT_MAJOR, FORMAT_MINOR

SEAL = "SEAL"
_READ_ONLY = 0o444


@dataclass(frozen=True, slots=True)
class SealState:
    """``intact`` None: no seal (the attempt was cut); False: a sealed file changed, is missing, or an unsealed one appeared."""

    intact: bool | None
    root: str | None
    problems: tuple[str, ...] = ()


def seal(path: Path) -> str:
    """Hash every file below ``path``, write SEAL, make all of it read-only, and return the root (hex).

    The root covers the format, the source digest and the list of (name, sha256). Raises HostError when the disk refuses, ValueError when
    the attempt is sealed already or holds something that is no plain file.
    """
    if (path / SEAL).exists():
        raise ValueError(f"{path}: is sealed already")
    names = _names(path)
    odd = [n for n in names if not _is_plain(path / n)]
    if odd:
        raise ValueError(f"{path}: {odd} are no plain files and cannot be sealed")
    body = {
        "format": f"{FORMAT_MAJOR}.{FORMAT_MINOR}",
        "source_digest": source_digest(),
        "files": {name: file_digest(path / name) for name in names},
    }
    root = digest(body)
    for name in names:
        (path / name).chmod(_READ_ONLY)
    write_json(path / SEAL, body | {"root": root})
    (path / SEAL).chmod(_READ_ONLY)
    return root


def check_seal(path: Path) -> SealState:
    """Hold an attempt against its seal; every changed, missing or extra file is named, nothing is raised."""
    if not (path / SEAL).exists():
        return SealState(intact=None, root=None, problems=("no SEAL: the attempt was cut before it was finished",))
    stated = _read_seal(path)
    if stated is None:
        return SealState(intact=False, root=None, problems=("SEAL: unreadable",))
    root = str(stated["root"])
    problems = [] if digest({k: v for k, v in stated.items() if k != "root"}) == root else ["SEAL: its root does not match its list"]
    problems += _differences(path, stated["files"])
    return SealState(intact=not problems, root=root, problems=tuple(problems))


def file_digest(path: Path) -> str:
    """Hex sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _names(path: Path) -> list[str]:
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if (p.is_symlink() or not p.is_dir()) and p != path / SEAL)


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _read_seal(path: Path) -> dict[str, Any] | None:
    try:
        stated = json.loads((path / SEAL).read_bytes())
    except (OSError, ValueError):
        return None
    whole = isinstance(stated, dict) and isinstance(stated.get("files"), dict) and isinstance(stated.get("root"), str)
    return stated if whole else None


def _differences(path: Path, files: dict[str, str]) -> list[str]:
    present = set(_names(path))
    missing = [f"{n}: missing" for n in sorted(files.keys() - present)]
    extra = [f"{n}: appeared after sealing" for n in sorted(present - files.keys())]
    return [*missing, *(f"{n}: changed" for n in sorted(present & files.keys()) if not _matches(path / n, files[n])), *extra]


def _matches(path: Path, expected: str) -> bool:
    try:
        return _is_plain(path) and file_digest(path) == expected
    except OSError:
        return False
