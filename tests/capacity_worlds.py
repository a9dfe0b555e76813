"""Worlds for capacity searches: functions that answer a probe, and a driver that carries a search out in one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from analysis.capacity import Done, History, Probe, ProbeRun, Search, next_probe

World = Callable[[Probe], ProbeRun]


def make_search(**changes: object) -> Search:
    """Return a search for 90% between 1 and 64 req/s over three replicates."""
    base: dict[str, object] = {"unit": "rate", "start": 1.0, "limit": 64.0, "attainment": 0.9, "replicates": 3}
    return Search(**(base | changes))  # type: ignore[arg-type]


def make_run(probe: Probe, share: float, **changes: object) -> ProbeRun:
    """Answer ``probe`` with a share of 1,000 requests; every run has a server start of its own, every replicate its own seed."""
    start = int(probe.rate * 1e6) * 1000 + probe.replicate
    run = ProbeRun(probe.phase, probe.rate, probe.replicate, start, 7000 + probe.replicate, round(1000 * share), 1000, overloaded=False)
    return replace(run, **changes)  # type: ignore[arg-type]


def falling(capacity: float, spread: Sequence[float] = (-0.02, 0.0, 0.02), slope: float = 20.0) -> World:
    """Attainment falls through 90% at ``capacity``, along a logit line; for each replicate of the grid at a factor exp(spread) of it."""

    def world(probe: Probe) -> ProbeRun:
        own = capacity * (math.exp(spread[probe.replicate % len(spread)]) if probe.phase == "grid" else 1.0)
        return make_run(probe, 1 / (1 + math.exp(-math.log(9) + slope * math.log(probe.rate / own))))

    return world


def drive(search: Search, world: World) -> tuple[History, Done]:
    """Carry the search out; it must end within the probes it states."""
    history = History(search)
    for _ in range(search.most_probes + 1):
        answer = next_probe(history)
        if isinstance(answer, Done):
            return history, answer
        history = replace(history, runs=(*history.runs, world(answer)))
    raise AssertionError(f"not done after {search.most_probes} probes")
