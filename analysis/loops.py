"""What a loop kind means for a number (DESIGN 9: a coordinate, so results of different loops never compare)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from analysis.model import Figure
from harness.record.spec import WorkloadSpec

OPEN = "open"


def loop_name(workload: WorkloadSpec) -> str:
    """Name the loop, with its users where it has some."""
    return workload.loop if workload.users is None else f"{workload.loop} ({workload.users} users)"


def loop_words(loop: str) -> str:
    """What a reader must know of a loop that is not open; empty for the open loop, where the load is the experimenter's alone."""
    if loop == OPEN:
        return ""
    if loop.startswith("closed"):
        return f"{loop} loop: the server's own speed sets the load, so a rate is one of these users and never a capacity"
    return f"{loop} loop: later turns wait for earlier ones, so the server's own speed moves the load"


def labelled(figures: Mapping[str, Figure], loop: str) -> dict[str, Figure]:
    """Name a loop that is not open in the population of every figure."""
    words = loop_words(loop)
    return {name: replace(f, population=f"{f.population}; {words}") if words else f for name, f in figures.items()}
