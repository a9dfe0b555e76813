"""One attempt at one replicate, from the started server to the seal."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.campaign.attached import evidence_class, held_pins
from harness.campaign.bodies import encode_bodies
from harness.campaign.cache import Means, prepare_cache
from harness.campaign.coordinates import OBSERVED, build_coordinates
from harness.campaign.fleet import ProcessSessions, Sessions, client_facts
from harness.campaign.launching import launched_facts
from harness.campaign.layout import freeze_layout, instrument_facts, lay_out, refuse_mismatch, refuse_version
from harness.campaign.plan import over_tls, replay_plan, schedule_table, truth_table
from harness.campaign.servers import Server
from harness.campaign.token_check import check_tokens
from harness.clock import NS_PER_S, Clock
from harness.errors import HostError
from harness.manifest import Campaign, PlannedRun
from harness.observe import Sampler, host_facts
from harness.record.attempt import Attempt
from harness.record.facts import Fact, Facts
from harness.record.schema import SAMPLES, EndKind
from harness.record.segments import DISK_REFUSED, SegmentWriter
from harness.record.spec import CertificateRef, RunSpec
from harness.replay.contract import FleetFacts, Progress, Replaying, ReplayPlan
from harness.replay.reader import stamped_by
from harness.replay.session import missing_rows
from harness.runtimes.launch import Launch
from workloads import Schedule, reusable_tokens
from workloads.seeds import derive

LEAD_NS = 500_000_000
"""Between the go signal and the epoch: enough for a worker to have armed its first deadline on a busy host."""

LEAD_A_WORKER_NS = 100_000_000
"""More for every further worker, since they may share a core: arming takes milliseconds, and a turn on a busy one tens of them."""

SAMPLE_PERIOD_S = 0.25
"""Four server gauges a second: an in-flight area over a 10 s window from 40 samples, at a cost of about 1% of a core."""


OVERTIME_S = 60.0
"""The worker closes everything when the drain ends; spooling what is left takes seconds. A minute later it hangs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What belongs to the user and the machine, never to the manifest."""

    results: Path
    search_path: tuple[Path, ...]
    certificate: CertificateRef | None
    clock: Clock
    on_progress: Callable[[PlannedRun, Progress, float], None]
    """called about five times a second with the run, live counts and seconds since the epoch"""
    say: Callable[[str], None]
    headers: Callable[[str], Mapping[str, str]] = lambda _url: {}
    """authorisation headers for a base URL, from the user's configuration"""
    sessions: Sessions = field(default_factory=ProcessSessions)
    """where workers run: processes of this host, or actors on the user's cluster"""
    launches: Mapping[str, Launch] = field(default_factory=dict)
    """launch prefix by arm, from the user's configuration"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything decided before the load starts."""

    run: PlannedRun
    spec: RunSpec
    schedule: Schedule
    plan: ReplayPlan
    facts: Facts


def prepare(run: PlannedRun, campaign: Campaign, server: Server, attempt: Attempt, settings: Settings) -> Prepared:
    """Build the schedule under the server's tokenizer, find facts, hold pins against them, and freeze the spec.

    Raises HostError (exit 3), and no load is sent, when a pin does not match and the manifest says to stop, when the server counts
    tokens otherwise, or when its prefix cache cannot be brought to what the manifest says.
    """
    run = dataclasses.replace(run, fleet=settings.sessions.mode)
    target = server.target
    layout = lay_out(run, target, settings.search_path)
    schedule = layout.schedule
    facts = _facts_before(run, server)
    refuse_mismatch(run, facts)
    refuse_version(run, facts)
    attempt.observe("tokens_counted", **check_tokens(schedule, run, target, settings.headers(target.base_url)))
    attempt.observe("cache_prepared", **_cache(run, server, schedule, facts, settings))
    encoded = encode_bodies(schedule, run, target)
    spec = freeze_layout(
        layout,
        campaign,
        attempt=attempt.number,
        evidence_class=evidence_class(server.runtime.evidence_class, facts.before),
        certificate=settings.certificate,
        bodies_digest=encoded.digest,
    )
    plan = replay_plan(schedule, encoded.bodies, run, target, attempt.segments, settings.headers(target.base_url))
    return Prepared(run, spec, schedule, plan, facts)


def _cache(run: PlannedRun, server: Server, schedule: Schedule, facts: Facts, settings: Settings) -> dict[str, Any]:
    stated = facts.before.get("server.prefix_caching")
    caches = stated.value if stated is not None and isinstance(stated.value, bool) else None
    headers = settings.headers(server.target.base_url)
    return prepare_cache(run, server, schedule, headers, Means(settings.clock, settings.say), caches=caches)


def _facts_before(run: PlannedRun, server: Server) -> Facts:
    before = _all_facts(run, server)
    return Facts(
        before=before,
        pins=held_pins(run.pins, run.arm, before, OBSERVED),
        flags_checked=True if server.argv else None,  # check_arm raised already if the parser knew a flag not
        argv=server.argv,
    )


def _all_facts(run: PlannedRun, server: Server) -> dict[str, Fact]:
    host = host_facts(server_pid=server.pid)
    stamps = Fact(value=stamped_by(tls=over_tls(server.target.base_url)), source="replay")
    client = {"client.identity": host["host.identity"], "client.stamps": stamps}
    if not server.runtime.managed:
        reason = "attached endpoint: its host cannot be seen from here"
        host = {name: Fact(reason=reason, source="endpoint") for name in host}
    own = server.runtime.facts(run.arm, run.pins, server.target.base_url, server.log)
    return launched_facts(host | own, server.launch, managed=server.runtime.managed) | client | instrument_facts()


def refuse_disk_fault(fault: str | None, segments: Path) -> None:
    """Raise when the engine stopped because the disk refused its rows: the attempt stays cut and is run again on resume."""
    if fault is not None and f"[{DISK_REFUSED}]" in fault:
        what = f"the load engine could not write its rows and stopped: {fault.partition(' [')[0]}"
        remedy = "free space (or raise the limit), then run the same command again; finished replicates are untouched"
        raise HostError.single(DISK_REFUSED, what, remedy, str(segments))


def execute(prepared: Prepared, server: Server, attempt: Attempt, settings: Settings, manifest_text: str) -> str:
    """Replay, observe, compact and seal; return the seal's root.

    A server that dies on the way does not raise: its requests end in their outcomes, the record says it did not survive, and is sealed.
    """
    attempt.write_manifest(manifest_text)
    attempt.write_spec(prepared.spec)
    attempt.write_schedule(schedule_table(prepared.schedule, reusable_tokens(prepared.schedule)))
    attempt.write_truth(truth_table(prepared.schedule))
    session = settings.sessions.session(prepared.plan, settings.clock, prepared.run.worker_memory)
    try:
        session.start()
        epoch_ns, wall = _drive(session, prepared, server, attempt, settings)
    except BaseException:
        session.abort()
        raise
    fleet = session.facts()
    if fleet.before:
        attempt.observe("fleet", **_values(fleet))
    facts = client_facts(_facts_after(prepared, server, epoch_ns, wall), fleet)
    attempt.write_facts(facts)
    attempt.write_coordinates(build_coordinates(prepared.spec, facts))
    server.copy_log(attempt.server_log)
    attempt.compact(lambda recorded: missing_rows(prepared.plan, recorded, EndKind.CLIENT_FAULT))
    return attempt.seal()


def _values(fleet: FleetFacts) -> dict[str, dict[str, Any]]:
    """What was found of a fleet, null where a worker was lost."""
    return {when: {name: fact.value for name, fact in found.items()} for when, found in (("before", fleet.before), ("after", fleet.after))}


def _drive(session: Replaying, prepared: Prepared, server: Server, attempt: Attempt, settings: Settings) -> tuple[int, str]:
    lead_ns = LEAD_NS + (prepared.plan.workers - 1) * LEAD_A_WORKER_NS
    epoch_ns = settings.clock.now_ns() + lead_ns
    wall = datetime.fromtimestamp(time.time() + lead_ns / NS_PER_S, UTC).isoformat()
    with contextlib.ExitStack() as files:
        names = ("server-s0", "host-h0")
        writers = [files.enter_context(SegmentWriter(attempt.segments, name, SAMPLES, clock=settings.clock)) for name in names]
        sampler = _sampler(session, prepared, server, epoch_ns, settings, writers)
        attempt.observe("epoch", monotonic_ns=epoch_ns, wall=wall)
        sampler.scrape_now(settings.clock.now_ns() - epoch_ns)
        session.go(epoch_ns)
        sampler.start()
        try:
            _watch(session, prepared, epoch_ns, settings)
        finally:
            sampler.stop()
        summary = session.summary()
        refuse_disk_fault(summary.fault, attempt.segments)
        sampler.scrape_now(settings.clock.now_ns() - epoch_ns)
    for failure in sampler.failures():
        attempt.observe("scrape_failed", **failure)
    for failure in sampler.gpu_failures():
        attempt.observe("gpu_sample_failed", **failure)
    attempt.observe("replay", offered=summary.offered, recorded=summary.recorded, fault=summary.fault)
    return epoch_ns, wall


def _sampler(
    session: Replaying, prepared: Prepared, server: Server, epoch_ns: int, settings: Settings, writers: list[SegmentWriter]
) -> Sampler:
    roles = session.roles()
    if server.pid is not None:
        roles["server"] = server.pid
    path = server.runtime.metrics_path
    return Sampler(
        *writers,
        clock=settings.clock,
        epoch_ns=epoch_ns,
        period_s=SAMPLE_PERIOD_S,
        jitter_seed=derive(prepared.run.workload.seed, "sampling-jitter", prepared.run.arm.name),
        roles=roles,
        metrics_url=server.target.base_url + path if path else None,
        rules=server.runtime.metrics,
    )


def _watch(session: Replaying, prepared: Prepared, epoch_ns: int, settings: Settings) -> None:
    limit_s = prepared.plan.end_ns / NS_PER_S + OVERTIME_S
    while not session.finished(0.2):
        elapsed = (settings.clock.now_ns() - epoch_ns) / NS_PER_S
        settings.on_progress(prepared.run, session.progress(), elapsed)
        if elapsed > limit_s:
            session.abort(f"still running {OVERTIME_S:g} s after the drain")


def _facts_after(prepared: Prepared, server: Server, epoch_ns: int, wall: str) -> Facts:
    state = server.exit_state()
    after: dict[str, Fact] = {}
    if state.survived:
        after = _all_facts(prepared.run, server)
    elif server.runtime.managed:
        after = launched_facts(host_facts(), server.launch, managed=True)
    changes: dict[str, Any] = {"after": after, "server_exit": state, "epoch_monotonic_ns": epoch_ns, "epoch_wall": wall}
    return prepared.facts.model_copy(update=changes)
