"""Where the workers of a campaign run: on this host, or on the hosts of a Ray cluster."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from harness.clock import Clock, MonotonicClock
from harness.errors import Problem, UsageError
from harness.manifest import Campaign
from harness.observe import host_facts
from harness.observe.sampler import HostWatch
from harness.record.facts import Fact, Facts
from harness.record.provenance import source_digest
from harness.record.schema import SAMPLES
from harness.record.segments import SegmentWriter
from harness.replay.contract import FleetFacts, Replaying, ReplayPlan
from harness.replay.fleet.cluster import Cluster
from harness.replay.fleet.session import RaySession
from harness.replay.session import ReplaySession

Mode = Literal["processes", "ray"]

PERIOD_S = 0.25
"""As often as the driver samples its own host."""

IDENTITY = "client.identity"


class Sessions(Protocol):
    """Makes the session of each replicate. ``mode`` is sealed in the record."""

    @property
    def mode(self) -> Mode:
        """Where its workers run."""
        ...

    def session(self, plan: ReplayPlan, clock: Clock, memory: int | None) -> Replaying:
        """Make one; ``memory``: bytes to reserve for each worker."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessSessions:
    """Workers are processes of this host."""

    mode: Mode = "processes"

    def session(self, plan: ReplayPlan, clock: Clock, memory: int | None) -> Replaying:  # noqa: ARG002 - a manifest cannot ask for it here
        """Make a session of local processes."""
        return ReplaySession(plan, clock)


@dataclass(frozen=True, slots=True)
class RaySessions:
    """Workers are actors on ``cluster``, which is open for as long as sessions are made."""

    cluster: Cluster
    mode: Mode = "ray"

    def session(self, plan: ReplayPlan, clock: Clock, memory: int | None) -> Replaying:
        """Make a session of actors."""
        return RaySession(plan, clock, self.cluster, Watch(), memory)


@contextlib.contextmanager
def opened_sessions(campaign: Campaign, asked: Mode | None, address: str | None) -> Iterator[Sessions]:
    """Hold open what the workers of a campaign run on: ``asked`` by the user, else what its manifest declares.

    ``address``: of the user's Ray cluster, None for one on this host. UsageError (``fleet_mode``); HostError of ``Cluster``.
    """
    run = campaign.examples[0]  # runs of one manifest share their client
    mode = asked or run.fleet
    refuse_mode(campaign, mode)
    if mode == "processes":
        yield ProcessSessions()
        return
    with Cluster(address, run.workers) as cluster:
        yield RaySessions(cluster)


def refuse_mode(campaign: Campaign, mode: Mode) -> None:
    """UsageError when the manifest declares a Ray fleet and the workers are to run as processes of one host."""
    declared = campaign.examples[0].fleet
    if declared == "ray" and mode != "ray":
        what = f"client.fleet.mode={declared} and the workers would run as {mode}: the load would come from one host, and not as declared"
        raise UsageError(Problem("fleet_mode", what, "run it with `--fleet ray`, or declare mode: processes"))


def client_facts(facts: Facts, found: FleetFacts) -> Facts:
    """Put what a fleet found into the facts: its own, and who the client was, one host or all of them."""
    if not found.before:
        return facts
    hosts = {name: fact for name, fact in found.before.items() if name.endswith(".host")}
    unknown = sorted(name for name, fact in hosts.items() if fact.value is None)
    identities = sorted({str(fact.value) for fact in hosts.values() if fact.value is not None})
    if unknown:
        who = Fact(reason=f"{', '.join(unknown)}: {hosts[unknown[0]].reason}", source="fleet")
    else:
        who = Fact(value=identities[0] if len(identities) == 1 else identities, source="the hosts of the fleet")
    before = {**facts.before, **found.before, IDENTITY: who}
    after = {name: fact for name, fact in facts.after.items() if name != IDENTITY}  # that of this host, which is not the client
    return facts.model_copy(update={"before": before, "after": {**after, **found.after}})


@dataclass(frozen=True, slots=True)
class Watch:
    """What goes on beside a fleet's workers: samples of their processes, by the sampler's own rules."""

    def identity(self) -> str | None:
        """Machine and boot of this host."""
        found = host_facts()["host.identity"].value
        return None if found is None else str(found)

    def source(self) -> str:
        """Digest of this package's source here."""
        return source_digest()

    def begin(self, roles: Mapping[str, int], epoch_ns: int, folder: Path) -> Callable[[], None]:
        """Sample the processes of ``roles`` until told to stop; host values are left out, since they say nothing of the server's host."""
        label = next((role.partition("/")[2] for role in roles), "") or "w0"
        stopping = threading.Event()
        thread = threading.Thread(target=_watch, args=(dict(roles), epoch_ns, folder, label, stopping), name="watch", daemon=True)
        thread.start()

        def _stop() -> None:
            stopping.set()
            thread.join()

        return _stop


def _watch(roles: dict[str, int], epoch_ns: int, folder: Path, label: str, stopping: threading.Event) -> None:
    clock = MonotonicClock()
    watch = HostWatch(clock, roles)
    draw = random.Random(epoch_ns)  # noqa: S311 - spreads instants, hides nothing
    sources = {role.partition("/")[0] for role in roles}
    with SegmentWriter(folder, f"fleet-{label}", SAMPLES, clock=clock) as writer:
        while True:
            rows = watch.rows(clock.now_ns() - epoch_ns)
            writer.append([row for row in rows if row["source"] in sources])
            writer.tick()
            if stopping.wait(PERIOD_S * draw.uniform(0.5, 1.5)):
                return
