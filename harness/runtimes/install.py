"""Making environments of real servers, one per runtime, from a committed lock file and never shared with ours."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HostError
from harness.runtimes.environments import (
    MARKER,
    Environment,
    count_bytes,
    environment,
    find_environment,
    gpu_seen,
    installed,
    processes_of,
    root_of,
)
from harness.runtimes.recipes import PLATFORM_PROJECT, RECIPES, Recipe, recipe
from harness.runtimes.verify import changes, unmet_pins
from harness.system import Fact

__all__ = ["RECIPES", "Environment", "Recipe", "environment", "install", "installed", "probe", "recipe", "remove", "root_of"]

GIB = 2**30


def remove(name: str) -> bool:
    """Delete the environment of ``name`` and those of its earlier locks, with what lies beside them; False when there was none.

    Waits for an installation that is under way. Raises HostError ``runtime_in_use`` while a process runs from one, and deletes nothing
    of it.
    """
    current = root_of(recipe(name))
    roots = [p for p in current.parent.glob(f"{name}-*") if re.fullmatch(r"[0-9a-f]{12}", p.name.removeprefix(f"{name}-"))]
    removed = [_remove(root) for root in roots]
    return any(removed)


def _remove(root: Path) -> bool:
    with _locked(root):
        if not root.exists():
            return False  # somebody else removed it while we waited
        _require_unused(root)
        _clear(root)
    return True


def _clear(root: Path) -> None:
    """Delete an environment and what lies beside it, whole or with an OSError: leftovers would be part of the next one."""
    (root / MARKER).unlink(missing_ok=True)  # first, so that a cut deletion is never taken for ready
    if root.exists():
        shutil.rmtree(root)
    for beside in (".flags.json", ".install.log"):
        root.with_name(root.name + beside).unlink(missing_ok=True)


def _require_unused(root: Path) -> None:
    users = processes_of(root)
    if users:
        what = f"runtime={root.name}: pid {', '.join(map(str, users))} runs from {root}; its files would vanish under a measurement"
        raise HostError.single("runtime_in_use", what, "let the run end, or stop that process, and try again")


def probe(name: str) -> dict[str, Fact]:
    """Start ``name`` (a recipe, or ``reference``) on the tiny model, return what it says about itself, stop it. Takes about a minute.

    Raises HostError ``runtime_missing`` and whatever a start raises.
    """
    from harness.runtimes.probe import probe_runtime  # here, because adapters need this module to find their environment

    made = RECIPES.get(name)
    if made is None:
        return probe_runtime(name, None)
    served_by = find_environment(made.runtime, made.version)
    if environment(name) is None or (served_by is not None and served_by.name != name):
        instead = f"; arms of {made.runtime} run in {served_by.name} on this host" if served_by else ""
        what = f"runtime={name}: not installed here, or not what this host would start{instead}"
        raise HostError.single("runtime_missing", what, f"run `trigpoint runtime install {name}`, or probe what is installed")
    return probe_runtime(made.runtime, made.version)


def install(
    name: str, version: str | None = None, *, progress: Callable[[str], None] | None = None, python: str = sys.executable
) -> Environment:
    """Make the environment of ``name`` unless it is ready, and return it.

    Takes minutes and gigabytes; one that is no longer as it was installed is made again. ``progress`` gets one line a step. Raises
    UsageError ``version_not_locked``, HostError ``no_space``, ``runtime_in_use`` or ``install_failed`` (with the end of the installer's own
    output; the whole is kept in ``install.log`` beside the environment).
    """
    say = progress or (lambda _line: None)
    made = recipe(name, version)
    root = root_of(made)
    if made.needs_gpu and not gpu_seen():
        say(f"no GPU was found here: {name} installs, but does not serve on this host; {name}-cpu does")
    with _locked(root, say) as held:
        ready = environment(name)
        if ready is not None and not (wrong := changes(ready)):
            say(f"{name} is ready at {root}")
            return ready
        if ready is not None:
            say(f"making it afresh: {wrong}")
        _require_space(root.parent, made.room_gib)
        _require_unused(root)
        _clear(root)
        _make(made, root, python, say, held)
    done = environment(name)
    assert done is not None  # noqa: S101 - the marker was just written under the lock
    return done


def _make(made: Recipe, root: Path, python: str, say: Callable[[str], None], held: int) -> None:
    """Venv, pinned packages, what they lack, proof by versions and by import, marker."""
    steps = _Steps(root.with_suffix(".install.log"), held)
    inner = str(root / "bin" / "python")
    say(f"making {root}")
    steps.run([python, "-I", "-m", "venv", str(root)])
    lock = root / "lock.txt"
    lock.write_text(made.lock_text(), encoding="utf-8")
    say(f"installing {len(made.pins())} pinned packages (minutes)")
    steps.run([inner, "-I", "-m", "pip", "install", *pip_options(made), "--no-input", "-r", str(lock)])
    _cure_torch(made, inner, lock, steps, say)
    env = Environment(made.name, made.runtime, made.version, root, made.digest())
    _cure_metadata(env, made.alias)
    put_platform(env.site_packages, made)
    say(f"proving it: every pin, and import {made.module}")
    unmet = unmet_pins(made.pins(), env.packages())
    if unmet:
        raise HostError.single(
            "install_failed", f"{made.name}: pins that are not met: {', '.join(unmet)}", f"read {steps.log}, cure the cause"
        )
    steps.run([inner, "-I", "-c", _PROOF, made.module, made.version, *([PLATFORM_PROJECT] if made.platform else [])])
    _write_marker(env)
    say(f"{made.name} is ready at {root}")


def pip_options(made: Recipe) -> list[str]:
    """A closed set comes without dependencies: pip would add the GPU-only wheels that break an import beside a CPU torch."""
    return ["--no-deps"] if made.closed else []


def _cure_torch(made: Recipe, inner: str, lock: Path, steps: _Steps, say: Callable[[str], None]) -> None:
    """The torch pin may resolve to the default build, which does not import without libraries of its own: then take those too."""
    pins = [pin for pin in made.pins() if pin.startswith("torch==")]
    if not pins or steps.succeed([inner, "-I", "-c", "import torch"]):
        return
    say("torch does not import alone: installing it with its dependencies")
    steps.run([inner, "-I", "-m", "pip", "install", "--no-input", "-c", str(lock), pins[0]])


_PROOF = """
import importlib, sys
from importlib.metadata import entry_points
module = importlib.import_module(sys.argv[1])
found = module.__version__.split("+")[0]
if found != sys.argv[2]:
    sys.exit(f"version {found} where {sys.argv[2]} is pinned")
for project in sys.argv[3:]:
    points = [p for p in entry_points(group="sglang.srt.platforms") if p.dist.name == project]
    if not points:
        sys.exit(f"{project} names no platform")
    module, _, name = points[0].load()().rpartition(".")
    getattr(importlib.import_module(module), name)()
    importlib.import_module("torchvision")
"""


def _cure_metadata(env: Environment, alias: str | None) -> None:
    """Give the package a metadata-only twin under the name its own command line asks for (the CPU wheel calls itself otherwise)."""
    if alias is None or (env.site_packages / f"{alias}.dist-info").exists():
        return
    project, version = alias.split("-", 1)
    _write_metadata(env.site_packages, project, version, {}, ())


def put_platform(site_packages: Path, made: Recipe) -> None:
    """Install our own package into ``site_packages``: modules, metadata with its entry point, and the line that loads its cure at start.

    Written file by file, because an environment has no build tools and needs none. Its version is the digest of its source.
    """
    files = dict(made.platform_files())
    if not files:
        return
    points = files.pop("entry_points.txt").decode()
    pth = f"{PLATFORM_PROJECT.replace('-', '_')}.pth"
    files[pth] = f"import {PLATFORM_PROJECT.replace('-', '_')}.cure\n".encode()
    for name, body in files.items():
        (site_packages / name).parent.mkdir(exist_ok=True)
        (site_packages / name).write_bytes(body)
    _write_metadata(site_packages, PLATFORM_PROJECT, f"0+{made.digest()[:12]}", {"entry_points.txt": points}, files)


def _write_metadata(
    site_packages: Path, project: str, version: str, extra: Mapping[str, str], files: Sequence[str] | Mapping[str, bytes]
) -> None:
    """Write a ``dist-info`` folder as an installer would (PEP 376, 566)."""
    folder = site_packages / f"{project.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    texts = {"METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n", "INSTALLER": "trigpoint\n", **extra}
    names = [*files, *(f"{folder.name}/{name}" for name in (*texts, "RECORD"))]
    for name, text in {**texts, "RECORD": "".join(f"{name},,\n" for name in names)}.items():
        (folder / name).write_text(text, encoding="utf-8")


def _write_marker(env: Environment) -> None:
    """Write ``READY`` atomically, after everything else is on disk."""
    body = {
        "name": env.name,
        "version": env.version,
        "lock_digest": env.digest,
        "packages_digest": env.packages_digest(),
        "bytes": count_bytes(env.root),
    }
    part = env.root / f"{MARKER}.part"
    part.write_text(json.dumps(body, sort_keys=True) + "\n", encoding="utf-8")
    os.sync()  # gigabytes of packages must not be lost behind a marker that survived
    part.replace(env.root / MARKER)


@dataclass(frozen=True, slots=True)
class _Steps:
    """Commands of one installation, their output in ``log``.

    Each holds the lock ``held`` itself: one that outlives us (we were killed) must not write into what the next installation makes. They
    run isolated (``-I``): a folder ``vllm`` in the caller's directory is not the package that was installed.
    """

    log: Path
    held: int

    def run(self, argv: Sequence[str]) -> None:
        """Run one command; HostError ``install_failed`` with its last lines."""
        if self.succeed(argv):
            return
        tail = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        raise HostError.single(
            "install_failed",
            f"step `{' '.join(argv[2:5])} ...` failed; its last lines:\n      " + "\n      ".join(tail),
            f"read {self.log}, cure the cause (network, disk, python version) and run the installation again; it starts afresh",
        )

    def succeed(self, argv: Sequence[str]) -> bool:
        """Run one command; True on exit 0."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        clean = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}
        with self.log.open("ab") as out:
            done = subprocess.run(
                list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=clean, pass_fds=(self.held,), check=False
            )
        return done.returncode == 0


def _require_space(parent: Path, needed_gib: int) -> None:
    parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(parent).free
    if free < needed_gib * GIB:
        raise HostError.single(
            "no_space",
            f"free={free / GIB:.1f} GiB at {parent}: this environment needs about {needed_gib} GiB while it is made",
            "free some space or set TRIGPOINT_CACHE to a larger disk",
        )


@contextmanager
def _locked(root: Path, say: Callable[[str], None] = lambda _line: None) -> Iterator[int]:
    """Hold one installation at a time per environment; gives the lock's descriptor. It is free when nobody holds that any more."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with root.with_suffix(".lock").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting: another installation or removal of {root.name} is under way")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield held.fileno()
