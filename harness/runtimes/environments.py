"""Environments of real servers as they lie on disk: which are ready, what is in them, and which one serves an arm.

An environment counts only when its ``READY`` marker, written last, names what it was made from; anything else is a half-made folder
and is made again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import HostError, Problem
from harness.runtimes.places import cache_dir
from harness.runtimes.recipes import RECIPES, Recipe, recipe

MARKER = "READY"

GPU_DEVICE = Path("/dev/nvidiactl")
"""There when the host has an NVIDIA driver: a hint about which of two builds to prefer. What a server runs on is found out apart."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One ready environment on disk."""

    name: str
    runtime: str
    version: str
    root: Path
    digest: str

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.root / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where its packages lie."""
        return next((self.root / "lib").glob("python3.*"), self.root / "lib" / "python3") / "site-packages"

    def packages(self) -> tuple[str, ...]:
        """Return ``name==version`` of every installed distribution, sorted; read from metadata folders without starting it."""
        stems = (p.name.removesuffix(".dist-info") for p in self.site_packages.glob("*.dist-info"))
        return tuple(sorted("==".join(stem.lower().replace("_", "-").rsplit("-", 1)) for stem in stems))

    def packages_digest(self) -> str:
        """Return the sha256 over ``packages()``: the coordinate ``runtime.packages``."""
        return hashlib.sha256("\n".join(self.packages()).encode()).hexdigest()

    def size_bytes(self) -> int | None:
        """Bytes of its files when it was made; None where the marker does not say (walking ten thousand files takes half a minute)."""
        noted = read_marker(self.root).get("bytes")
        return noted if isinstance(noted, int) else None


def count_bytes(root: Path) -> int:
    """Bytes of all files below ``root``."""
    return sum(p.lstat().st_size for p in root.rglob("*") if not p.is_dir())


def processes_of(root: Path) -> list[int]:
    """Ids of the processes that run from ``root``: named in their command line, or mapped into them; only those this user may see."""
    below = f"{root}/".encode()
    return sorted(
        int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and any(below in _told(p / of) for of in ("cmdline", "maps"))
    )


def _told(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it ended, or is somebody else's


def read_marker(root: Path) -> dict[str, Any]:
    """What the ``READY`` marker of ``root`` says, {} when there is none or it was cut."""
    try:
        marker = json.loads((root / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) else {}


def root_of(made: Recipe) -> Path:
    """Folder of a recipe's environment: a changed lock is another folder, so an old one is never half-upgraded."""
    return cache_dir() / "runtimes" / f"{made.name}-{made.digest()[:12]}"


def environment(name: str) -> Environment | None:
    """Return the ready environment of ``name``, or None."""
    made = recipe(name)
    root = root_of(made)
    if read_marker(root).get("lock_digest") != made.digest():
        return None
    return Environment(made.name, made.runtime, made.version, root, made.digest())


def installed() -> tuple[Environment, ...]:
    """Return every ready environment."""
    found = (environment(name) for name in sorted(RECIPES))
    return tuple(env for env in found if env is not None)


def gpu_seen() -> bool:
    """Whether this host seems to have a GPU that the default builds can use."""
    return GPU_DEVICE.exists()


def find_environment(runtime: str, version: str | None) -> Environment | None:
    """Return the ready environment that serves ``runtime`` in that version (None: any), of two builds the one for this host."""
    fitting = [e for e in installed() if e.runtime == runtime and version in (None, e.version)]
    return next((e for e in fitting if RECIPES[e.name].needs_gpu == gpu_seen()), next(iter(fitting), None))


def missing_install(runtime: str, version: str | None) -> Problem:
    """The problem of a runtime that is not installed, with the command that installs it."""
    have = sorted({e.version for e in installed() if e.runtime == runtime})
    known = [r for r in RECIPES.values() if r.runtime == runtime and version in (None, r.version)]
    fitting = sorted(known, key=lambda r: (r.needs_gpu != gpu_seen(), r.name))
    remedy = f"run `trigpoint runtime install {fitting[0].name}`" if fitting else "pin a version that has a committed lock file"
    return Problem("runtime_missing", f"runtime={runtime} version={version}: not installed here (installed: {have or 'none'})", remedy)


def require_environment(runtime: str, version: str | None) -> Environment:
    """Return what ``find_environment`` finds; HostError ``runtime_missing``."""
    env = find_environment(runtime, version)
    if env is None:
        raise HostError(missing_install(runtime, version))
    return env
