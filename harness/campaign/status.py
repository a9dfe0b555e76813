"""What a campaign folder holds: each planned replicate is sealed, cut or outstanding."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Literal, NamedTuple

from harness.record.journal import read_campaign
from harness.record.reader import find_attempts, latest_sealed


class RunStatus(NamedTuple):
    """State of one planned replicate; ``attempts`` counts folders, sealed or cut."""

    cell: str
    replicate: int
    state: Literal["sealed", "cut", "outstanding"]
    attempts: int


def campaign_status(folder: Path) -> list[RunStatus]:
    """Return the state of every planned replicate, in the planned order; of a search, which plans none, that of every run it made."""
    sealed = latest_sealed(folder)
    tries: dict[tuple[str, int], int] = {}
    for path in find_attempts(folder):
        key = (path.parent.parent.name, int(path.parent.name))
        tries[key] = tries.get(key, 0) + 1
    return [_row(cell, replicate, sealed.keys(), tries) for cell, replicate in read_campaign(folder).planned or tries]


def _row(cell: str, replicate: int, sealed: Container[tuple[str, int]], tries: dict[tuple[str, int], int]) -> RunStatus:
    key = (cell, replicate)
    attempts = tries.get(key, 0)
    if key in sealed:
        return RunStatus(cell, replicate, "sealed", attempts)
    return RunStatus(cell, replicate, "cut" if attempts else "outstanding", attempts)
