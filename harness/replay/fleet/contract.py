"""What driver and host say to each other. All of it is pickled by name, so both need the same version of this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from harness.replay.contract import Progress


class Beside(Protocol):
    """What goes on beside the workers on their host; made on the driver and sent there, so it holds nothing that is of one machine."""

    def identity(self) -> str | None:
        """Machine and boot of the host this runs on; None when it cannot be told."""
        ...

    def source(self) -> str:
        """Digest of the source of this package there."""
        ...

    def begin(self, roles: Mapping[str, int], epoch_ns: int, folder: Path) -> Callable[[], None]:
        """Watch the processes of ``roles`` and write what is seen to ``folder``; return what ends it."""
        ...


@dataclass(frozen=True, slots=True)
class Hello:
    """Who hosts a worker. ``nice``: what its processes start with, above 0 they yield to all others. ``namespace``: of its process ids."""

    identity: str | None
    namespace: str | None
    source: str
    nice: int


class Piece(NamedTuple):
    """Bytes of a segment file from ``offset`` on."""

    name: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Look:
    """A host's answer to a look: ``over`` when its processes are; ``more`` when bytes are left behind ``pieces``."""

    over: bool
    progress: Progress
    pieces: tuple[Piece, ...]
    more: bool
