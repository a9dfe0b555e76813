"""What the comparison needs of every client: how to start it on a load, and how to read what it wrote."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from benchmarks.peers.environments import Home
from benchmarks.peers.load import Load
from benchmarks.peers.seen import Seen
from harness.runtimes.models import TINY, model_dir
from harness.runtimes.ports import HOST

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}
"""No tool may wait for a network that a benchmark host need not have."""


@dataclass(frozen=True, slots=True)
class Command:
    """One start: arguments and what is added to the environment."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


class Peer(ABC):
    """One client.

    ``constant``: it can send at constant intervals; otherwise it is given its own nearest arrival process. ``spread``: it works in several
    processes or threads and may use every core; another gets the cores that the server does not have, which is best for it.
    ``compiled``: it is not written in Python, so it stands in the ratios twice, with the others and left out. ``notes``: what a reader must
    know of its line.
    """

    name: ClassVar[str]
    home: ClassVar[Home | None] = None
    constant: ClassVar[bool] = True
    spread: ClassVar[bool] = False
    compiled: ClassVar[bool] = False
    notes: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def command(self, load: Load, port: int, folder: Path) -> Command:
        """Write what it reads into ``folder`` and say how it is started."""

    @abstractmethod
    def read(self, folder: Path, load: Load, wall_ns: int) -> list[Seen]:
        """Read what it wrote. ``wall_ns``: CLOCK_MONOTONIC minus the wall clock, for stamps of the latter. Raises OSError, ValueError and
        KeyError on a missing or strange file.
        """

    def decoded_ns(self, folder: Path) -> int | None:
        """When all was decoded, for a client that decodes behind the load: its CPU time is counted until then. None: during the load."""
        del folder
        return None

    def python(self) -> Path:
        """The interpreter of its environment; FileNotFoundError says what makes it."""
        assert self.home is not None
        python = self.home.python()
        if python is None:
            raise FileNotFoundError(f"{self.name} is not installed; make it with: {self.home.remedy()}")
        return python


def url(port: int) -> str:
    """Where the truth server listens."""
    return f"http://{HOST}:{port}"


def tokenizer() -> str:
    """Folder of a tokenizer; every tool asks for one, and none needs it while the load runs."""
    return str(model_dir(TINY))


def write_lines(path: Path, rows: Sequence[object]) -> Path:
    """JSON, one value a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def ns(seconds: float) -> int:
    """Seconds to whole nanoseconds."""
    return round(seconds * 1e9)
