"""What a replay is given and what it gives back. The engine knows addresses, bytes and deadlines; it knows no manifests and no verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.record.facts import Fact
from workloads.schedule import Int64, Ragged


@dataclass(frozen=True, slots=True, eq=False)
class ReplayPlan:
    """One attempt's load, complete: after the start nothing is computed that could be computed before.

    ``arrival_ns`` (n,) ascending, relative to the epoch; ``bodies`` n encoded request bodies; ``stop_after`` (n,) -1 for none.
    ``after`` lists for each request those whose end it waits for; such a request arrives ``think_ns`` after the last of them completed
    (``complete`` or ``client_stop``); its own ``arrival_ns`` is the planner's guess and unused. It ends as ``never_due`` when one of them
    ended otherwise or was never due itself, and as ``never_sent`` when the drain's end came before its turn: both without an arrival.
    ``failed_pause_ns``, when given, lets it follow any end, as a user of a closed loop goes on whatever became of the last request: at
    least this long after an end without a complete answer, since a refused connection ends within microseconds and a user without think
    time would otherwise send as fast as a core allows. N users fail at most N times in such a pause.
    ``cancel_after_ns`` (n,): from its arrival, -1 never; a request that has not ended by then is closed as ``cancelled``.
    ``workers`` processes share the requests, sessions undivided.
    ``end_ns``: drain end, when whatever is open is closed and marked ``drain_end``. ``headers`` are sent and never recorded.
    ``cpus``/``spool_cpus``: cores to pin to, empty for none.
    """

    host: str
    port: int
    path: str
    protocol: str
    arrival_ns: Int64
    bodies: Sequence[bytes]
    stop_after: Int64
    end_ns: int
    segments: Path
    tls: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    request_timeout_ns: int | None = None
    concurrency_cap: int | None = None
    cpus: tuple[int, ...] = ()
    spool_cpus: tuple[int, ...] = ()
    warm_connections: int = 8
    after: Ragged | None = None
    think_ns: Int64 | None = None
    failed_pause_ns: int | None = None
    cancel_after_ns: Int64 | None = None
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """Live counts for a progress line; never used for results."""

    sent: int
    ended: int
    in_flight: int
    failed: int


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """What the engine says about itself when it is done. ``fault``: our own failure in words, None when there was none."""

    offered: int
    recorded: int
    fault: str | None
    worker_cpu_s: float
    spooler_cpu_s: float


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """What a fleet on several hosts found of them before and after the load, under ``fleet.<worker>.*``; empty on one host."""

    before: Mapping[str, Fact] = field(default_factory=dict)
    after: Mapping[str, Fact] = field(default_factory=dict)


class Replaying(Protocol):
    """One replay of one plan, wherever its workers run (``ReplaySession``: this host; ``RaySession``: the hosts of a Ray cluster).

    ``start`` -> ``go`` -> ``finished``/``wait`` -> ``summary``/``facts``; ``abort`` at any time. Nothing waits without an end.
    """

    def start(self) -> None:
        """Start all workers and wait until connections stand; HostError."""
        ...

    def go(self, epoch_ns: int) -> None:
        """Set the epoch (CLOCK_MONOTONIC of this host, ns, in the future); HostError."""
        ...

    def progress(self) -> Progress:
        """Live counts, for looking."""
        ...

    def finished(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for the end."""
        ...

    def summary(self) -> ReplaySummary:
        """What the engine says of itself, once it is over."""
        ...

    def facts(self) -> FleetFacts:
        """What was found of other hosts, once it is over."""
        ...

    def abort(self, why: str = "aborted by the parent") -> None:
        """Stop the load, keep what was recorded, end all processes."""
        ...

    def roles(self) -> dict[str, int]:
        """Process ids on this host by the source their samples have; empty where the workers' hosts sample them."""
        ...
