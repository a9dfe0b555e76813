"""Whether an environment is still what was installed: packages against lock and marker, the server's own files against their digests."""

from __future__ import annotations

import base64
import csv
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from harness.errors import HostError, Problem
from harness.runtimes.environments import Environment, find_environment, missing_install, read_marker
from harness.runtimes.recipes import RECIPES

SHOWN = 3
"""Names that a message lists: the first ones show whose they are."""


def unmet_pins(pins: Iterable[str], packages: Iterable[str]) -> list[str]:
    """Pins (``project==version``) of which ``packages`` has not exactly that version, each with what is there instead.

    A build of a version (``2.13.0+cpu`` for ``2.13.0``) is that version: which one an index gives is a host's matter, and part of the
    coordinate ``runtime.packages``.
    """
    have: dict[str, list[str]] = defaultdict(list)
    for package in packages:
        project, _, version = package.partition("==")
        have[_project(project)].append(_version(version))
    unmet = []
    for pin in pins:
        project, _, version = pin.partition("==")
        found = have[_project(project)]
        if found != [_version(version)]:
            unmet.append(f"{pin} ({', '.join(found) or 'not there'})")
    return unmet


def _project(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _version(text: str) -> str:
    return re.sub(r"(\.0)+$", "", text.partition("+")[0].lower())


def sound_environment(runtime: str, version: str | None) -> Environment | Problem:
    """The ready environment that serves ``runtime`` in that version (None: any), or why there is none. Takes milliseconds.

    Problems: ``runtime_missing``; ``runtime_changed`` when packages were added, removed or replaced since it was made, or our own part
    of it was edited.
    """
    env = find_environment(runtime, version)
    if env is None:
        return missing_install(runtime, version)
    wrong = changes(env)
    return _changed(env, wrong) if wrong else env


def changes(env: Environment) -> str:
    """What differs in ``env`` from what was installed, judging by package metadata and our own files; empty for nothing."""
    if read_marker(env.root).get("packages_digest") != env.packages_digest():
        return "its packages are not those that were installed"
    ours = [n for n, body in RECIPES[env.name].platform_files() if n != "entry_points.txt" and _read(env.site_packages / n) != body]
    return f"edited: {_few(ours)}" if ours else ""


def require_unaltered(env: Environment) -> None:
    """Raise HostError ``runtime_changed`` when files of the server itself are not those of its release. Takes about a second."""
    altered = list(altered_files(env.site_packages, RECIPES[env.name].module))
    if altered:
        raise HostError(_changed(env, f"not as released: {_few(altered)}"))


def altered_files(site_packages: Path, module: str) -> Iterator[str]:
    """Files of the distribution that brought ``module`` which are gone or differ from its RECORD (PEP 376): Python sources by their
    sha256, everything else by its size in bytes. Yields ``module`` itself when no such list is there.
    """
    listed = next((rows for rows in _records(site_packages, module) if any(row[0] == f"{module}/__init__.py" for row in rows)), None)
    if listed is None:
        yield f"the list of files of {module}"
        return
    for name, digest, size in listed:
        path = site_packages / name
        if not digest:
            continue  # compiled when it was installed
        if (_sha256(_read(path)) != digest) if name.endswith(".py") else (_size(path) != int(size)):
            yield name


def _records(site_packages: Path, module: str) -> Iterator[list[list[str]]]:
    for record in sorted(site_packages.glob(f"{module}*.dist-info/RECORD")):
        with record.open(encoding="utf-8", newline="") as source:
            yield [row for row in csv.reader(source) if len(row) == 3]


def _sha256(content: bytes | None) -> str | None:
    if content is None:
        return None
    digest = hashlib.sha256(content).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _changed(env: Environment, what: str) -> Problem:
    return Problem(
        "runtime_changed",
        f"runtime={env.name} at {env.root}: {what}; what ran would not be what its lock file says",
        f"run `trigpoint runtime remove {env.name}` and `trigpoint runtime install {env.name}`",
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
