"""Which instrument wrote a record: version, digest of its own source, commit. Provenance only; never a coordinate (DESIGN 9)."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import harness

PACKAGES = ("analysis", "harness", "workloads")
_GIT_TIMEOUT_S = 2.0  # a healthy repository answers in milliseconds; provenance is not worth a longer wait


@dataclass(frozen=True, slots=True)
class GitState:
    """Commit (hex) the source was checked out from, and whether the source differs from it: a tracked file, or a new one in a package."""

    commit: str
    dirty: bool


def source_root() -> Path:
    """Folder that holds the packages of this instrument."""
    return Path(str(harness.__file__)).resolve().parent.parent


def source_digest(root: Path | None = None) -> str:
    """Hex sha256 over name, size and bytes of every .py file of the three packages, names relative and sorted."""
    root = root or source_root()
    files = {p.relative_to(root).as_posix(): p for package in PACKAGES for p in (root / package).rglob("*.py")}
    total = hashlib.sha256()
    for name in sorted(files):
        data = files[name].read_bytes()
        total.update(f"{name}\0{len(data)}\0".encode())
        total.update(data)
    return total.hexdigest()


def version() -> str:
    """Version of the installed distribution; "unknown" when it runs from a bare folder."""
    try:
        return importlib.metadata.version("trigpoint")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def git_state(root: Path | None = None) -> GitState | None:
    """Commit and dirtiness of the source; None where there is no repository, no git, or no answer within two seconds."""
    root = root or source_root()
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    commit = _git(git, root, "rev-parse", "HEAD")
    changes = _git(git, root, "status", "--porcelain", "--untracked-files=no")
    # A new file in a package is part of the source digest, so a commit without it would not be the source that ran.
    added = _git(git, root, "ls-files", "--others", "--exclude-standard", "--", *PACKAGES)
    if commit is None or changes is None or added is None:
        return None
    return GitState(commit=commit.strip(), dirty=bool(changes.strip() or added.strip()))


def _git(git: str, root: Path, *args: str) -> str | None:
    # No optional locks: a record must not disturb the repository it describes. No fsmonitor: a query must not start a program.
    command = [git, "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(root), *args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
