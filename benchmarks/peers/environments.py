"""Where the peers live: one environment each, in the user's cache, never in ours and never in a runtime's. Standard library only, because
``install`` runs before anything of ours is installed.

AIPerf and GuideLLM are installed from a committed lock. ``vllm bench serve`` and SGLang's ``bench_serving`` come with the engines: they are
run from the environments that ``trigpoint runtime install`` made, to which nothing is added.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from harness.runtimes.places import cache_dir

MARKER = "READY"
"""Written last, so that a folder without it is half made."""

LOCKS = Path(__file__).parent / "locks"


@dataclass(frozen=True, slots=True)
class Home:
    """Where one peer is found. ``lock``: file of its own pins, or None when ``runtime`` names the engine that brings it along.

    ``needs_bytes``: what making it takes at its widest, measured.
    """

    name: str
    version: str
    module: str
    lock: str | None = None
    runtime: str | None = None
    needs_bytes: int = 0

    def digest(self) -> str:
        """The sha256 of the lock's pins: another lock is another folder."""
        assert self.lock is not None
        pins = sorted(line.split("#")[0].strip() for line in (LOCKS / self.lock).read_text(encoding="utf-8").splitlines())
        return hashlib.sha256("\n".join(pin for pin in pins if pin).encode()).hexdigest()

    def root(self) -> Path | None:
        """Folder of the environment; for one that comes with an engine the ready one, or None."""
        if self.lock is not None:
            return cache_dir() / "peers" / f"{self.name}-{self.digest()[:12]}"
        ready = (marker for marker in sorted((cache_dir() / "runtimes").glob(f"{self.runtime}-*/{MARKER}")) if self._holds(marker))
        return next((marker.parent for marker in ready), None)

    def _holds(self, marker: Path) -> bool:
        try:
            return bool(json.loads(marker.read_text(encoding="utf-8")).get("version") == self.version)
        except (OSError, ValueError):
            return False

    def python(self) -> Path | None:
        """The interpreter of a ready environment, or None."""
        root = self.root()
        return root / "bin" / "python" if root is not None and (root / MARKER).exists() else None

    def remedy(self) -> str:
        """The command that makes it."""
        return f"benchmarks/peers/install {self.name}" if self.lock else f"trigpoint runtime install {self.runtime}"


HOMES = {
    home.name: home
    for home in (
        Home("aiperf", "0.13.0", "aiperf", lock="aiperf-0.13.0.lock.txt", needs_bytes=2 * 2**30),
        # The default build of torch brings 5 GB of GPU libraries along; where pip finds a CPU build it is 1.5 GB.
        Home("guidellm", "0.8.1", "guidellm", lock="guidellm-0.8.1.lock.txt", needs_bytes=7 * 2**30),
        Home("vllm", "0.32.0", "vllm", runtime="vllm-cpu"),
        Home("sglang", "0.5.23", "sglang", runtime="sglang-cpu"),
    )
}
