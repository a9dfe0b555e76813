"""A campaign in virtual time: the same manifest, expansion, checks, journal and records, with every run simulated instead of measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from harness.campaign.coordinates import build_coordinates
from harness.campaign.layout import freeze_layout, instrument_facts, lay_out, refuse_mismatch, refuse_version
from harness.campaign.plan import schedule_table, truth_table
from harness.campaign.preflight import preflight
from harness.campaign.runner import Done, Way, run_all
from harness.errors import Problem, UsageError
from harness.manifest import Campaign, PlannedRun
from harness.observe import check_pins
from harness.record.attempt import Attempt
from harness.record.coordinates import VIRTUAL_TIME
from harness.record.facts import Fact, Facts
from harness.reference.api import CHAT_GENERATION_OVERHEAD, CHAT_MESSAGE_OVERHEAD
from harness.reference.arguments import parse
from harness.reference.tokens import VOCAB_SIZE, model_digest
from harness.runtimes.contract import Target
from harness.runtimes.reference import ReferenceRuntime, arguments
from harness.simulate import EngineSetup, SimulatedRun, simulate_run, virtual_facts
from workloads import reusable_tokens


@dataclass(frozen=True, slots=True)
class VirtualSettings:
    """Where results go, where traces are looked for, and who is told."""

    results: Path
    search_path: tuple[Path, ...]
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Engine:
    """An arm as it is simulated: its command line, the engine built from that, and the model the server would say it serves."""

    argv: tuple[str, ...]
    setup: EngineSetup
    model_digest: str


def simulate_campaign(campaign: Campaign, settings: VirtualSettings) -> Done:
    """Simulate every planned replicate that is not sealed yet, in the campaign's order.

    Raises UsageError with every arm that cannot be simulated and every part of the manifest that only a real client has, before anything is
    written; then what ``run_campaign`` raises.
    """
    problems = list(_not_virtual(campaign))
    if problems:
        raise UsageError(*problems)
    preflight(campaign, settings.search_path)
    engines = _engines(campaign)

    def _simulate(run: PlannedRun, attempt: Attempt) -> str:
        return simulate_run(attempt, _prepare(run, campaign, engines[run.arm.name], attempt.number, settings.search_path))

    return run_all(campaign, settings.results, Way("virtual", nullcontext(_simulate), settings.say))


def _not_virtual(campaign: Campaign) -> Iterator[Problem]:
    """What a simulation would have to leave out: other people's engines, and a client that limits or closes by the clock."""
    for name, runtime in sorted({(run.arm.name, run.arm.runtime) for run in campaign.examples}):
        if runtime != ReferenceRuntime.name:
            what = f"arms.{name}.runtime={runtime}: only the reference engine runs in virtual time; other systems can only be measured"
            yield Problem("not_simulated", what, "use `trigpoint run`, or leave the arm out of a simulated campaign")
    run = campaign.examples[0]  # runs of one manifest share their client
    fleet = None if run.workers == 1 and run.fleet == "processes" else f"{run.workers} workers ({run.fleet})"
    if run.cache != "cold":
        what = f"workload.cache={run.cache}: every simulated replicate has an engine of its own, whose cache begins empty"
        yield Problem("not_simulated", what, "use cache: cold, or `trigpoint run`")
    limits = {"concurrency-cap": run.concurrency_cap, "request-timeout": run.request_timeout_ns, "fleet": fleet}
    for name, value in limits.items():
        if value is not None:
            what = f"client.{name}={value}: there is no client in virtual time, so this would be recorded and never hold"
            yield Problem("not_simulated", what, "remove it, or use `trigpoint run`")


def _engines(campaign: Campaign) -> Mapping[str, _Engine]:
    """Every arm's engine; UsageError with all problems of all arms."""
    found, problems = {}, []
    for run in {run.arm.name: run for run in campaign.examples}.values():
        argv = arguments(run.arm, run.pins)
        try:
            setup = EngineSetup.from_arguments(argv)
        except UsageError as error:
            problems += [Problem(p.code, f"arms.{run.arm.name}: {p.what}", p.remedy, p.where) for p in error.problems]
            continue
        if run.loop == "closed" and (setup.door.waiting is not None or run.workload.cancellations is not None):
            what = f"arms.{run.arm.name}: some requests end without an answer, and in virtual time their user would never send again"
            problems.append(Problem("not_simulated", what, "use an open loop, or `trigpoint run`"))
        found[run.arm.name] = _Engine(tuple(argv), setup, model_digest(parse(argv).natural_mean))
    if problems:
        raise UsageError(*problems)
    return found


def _prepare(run: PlannedRun, campaign: Campaign, engine: _Engine, attempt: int, search_path: tuple[Path, ...]) -> SimulatedRun:
    """Everything decided before the engine starts, under the names a measured run has it."""
    layout = lay_out(run, _target(run, engine.setup), search_path)
    before = virtual_facts(engine.setup, model=run.pins.model.id, dtype=run.pins.model.dtype, model_digest=engine.model_digest)
    before |= instrument_facts() | {"server.launch": Fact(value=VIRTUAL_TIME, source="simulation")}
    # The server's own parser has taken the command line in ``preflight``.
    facts = Facts(before=before, pins=check_pins(run.pins, before), flags_checked=True, argv=engine.argv)
    refuse_mismatch(run, facts)
    refuse_version(run, facts)
    spec = freeze_layout(layout, campaign, attempt=attempt, evidence_class="synthetic", certificate=None, bodies_digest=None)
    return SimulatedRun(
        manifest_text=campaign.text,
        spec=spec,
        schedule=layout.schedule,
        schedule_table=schedule_table(layout.schedule, reusable_tokens(layout.schedule)),
        truth_table=truth_table(layout.schedule),
        setup=engine.setup,
        facts=facts,
        coordinates=build_coordinates(spec, facts),
    )


def _target(run: PlannedRun, setup: EngineSetup) -> Target:
    """What the reference server would say of itself; nothing listens anywhere."""
    overhead = CHAT_MESSAGE_OVERHEAD + CHAT_GENERATION_OVERHEAD
    return Target("", run.pins.model.id, "bytes", VOCAB_SIZE, setup.max_model_len, chat_overhead=overhead)
