"""validate, plan, run, simulate, resume, status."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from analysis.gates import GATES
from harness.calibrate import find_certificate
from harness.campaign.launching import choose
from harness.campaign.replicate import Settings
from harness.campaign.runner import Done, preflight, run_campaign
from harness.campaign.status import campaign_status
from harness.campaign.virtual import VirtualSettings, simulate_campaign
from harness.cli.certificates import unfit
from harness.cli.fleets import Where, fleet_options
from harness.cli.output import OK, answers, console, emit_json, json_option, printable
from harness.cli.places import results_option, search_path, traces_option
from harness.cli.searches import campaign_states, search_lines, search_plan, state_lines
from harness.clock import MonotonicClock
from harness.errors import UsageError
from harness.manifest import Campaign, PlannedRun, Searches, expand, load_manifest, parse_manifest
from harness.observe import host_facts
from harness.record.journal import read_campaign
from harness.record.schema import MEASUREMENT_PROTOCOL
from harness.record.spec import CertificateRef
from harness.replay.contract import Progress as Live
from harness.runtimes.endpoint import authorisation
from harness.runtimes.places import cache_dir

KNOWN_GATES = frozenset(GATES)

manifest_argument = click.argument("manifest", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.command()
@manifest_argument
@json_option
@answers
def validate(manifest: Path, as_json: bool) -> int:
    """Check a manifest: schema, units, names, cross-references; all errors at once.

    Example: trigpoint validate manifests/quickstart.yaml
    """
    campaign = expand(load_manifest(manifest, known_gates=KNOWN_GATES))
    if as_json:
        most = {} if campaign.searches is None else {"search": search_plan(campaign.searches)}
        emit_json({"valid": True, "campaign": campaign.name, "digest": campaign.digest, "runs": len(campaign.runs)} | most)
    else:
        runs = f"{len(campaign.runs)} runs" if campaign.searches is None else f"at most {campaign.most_runs} runs"
        console().print(f"{manifest}: valid; campaign {campaign.name}, {runs}, digest {campaign.digest[:16]}")
    return OK


def plan_rows(campaign: Campaign) -> list[dict[str, Any]]:
    """Return the runs in execution order, as the plan command lists them."""
    return [
        {"cell": r.cell, "replicate": r.replicate, "server_start": r.server_start, "window_s": r.window_s, "load_s": r.window.end_ns / 1e9}
        for r in campaign.runs
    ]


@click.command()
@manifest_argument
@traces_option
@json_option
@answers
def plan(manifest: Path, traces: tuple[Path, ...], as_json: bool) -> int:
    """Show what a campaign would run, in order, and check arms and traces without starting anything.

    Example: trigpoint plan manifests/quickstart.yaml
    """
    campaign = expand(load_manifest(manifest, known_gates=KNOWN_GATES))
    preflight(campaign, search_path(manifest, traces))
    if campaign.searches is not None:
        return _plan_search(campaign, campaign.searches, as_json=as_json)
    rows = plan_rows(campaign)
    total = sum(float(r["load_s"]) for r in rows)
    if as_json:
        emit_json({"campaign": campaign.name, "digest": campaign.digest, "runs": rows, "load_s": total})
        return OK
    out = console()
    for i, row in enumerate(rows):
        window = row["window_s"]
        part = f"trace [{window[0]:g}, {window[1]:g}) s" if window else "synthetic"
        out.print(f"{i + 1:4d}  {row['cell']}  replicate {row['replicate']}  start {row['server_start']}  {part}  {row['load_s']:g} s")
    out.print(f"{len(rows)} runs, {total:g} s of load plus server starts")
    return OK


def _plan_search(campaign: Campaign, searches: Searches, *, as_json: bool) -> int:
    """A search plans no run ahead: say the most that it can come to."""
    if as_json:
        found = search_plan(searches)
        emit_json({"campaign": campaign.name, "digest": campaign.digest, "runs": [], "load_s": found["most_load_s"], "search": found})
    else:
        for line in search_lines(searches):
            console().print(printable(line))
    return OK


launch_option = click.option(
    "--launch",
    "launch",
    multiple=True,
    metavar="[ARM=]NAME",
    help="Start servers behind the prefix NAME of launch.toml in your configuration folder: all arms, or one. Repeatable.",
)


@click.command()
@manifest_argument
@results_option
@traces_option
@launch_option
@fleet_options
@json_option
@answers
def run(manifest: Path, results: Path, traces: tuple[Path, ...], launch: tuple[str, ...], where: Where, as_json: bool) -> int:
    """Run a campaign; on an existing one, run what is missing.

    Example: trigpoint run manifests/quickstart.yaml --results results
    """
    campaign = expand(load_manifest(manifest, known_gates=KNOWN_GATES))
    return _run(campaign, results, search_path(manifest, traces), launch, where, as_json=as_json)


@click.command()
@manifest_argument
@results_option
@traces_option
@json_option
@answers
def simulate(manifest: Path, results: Path, traces: tuple[Path, ...], as_json: bool) -> int:
    """Run a campaign of the reference engine in virtual time: no server is started, nothing sleeps, all of it is synthetic.

    On an existing one, run what is missing. Arms of other runtimes are refused: those can only be measured.

    Example: trigpoint simulate manifests/policies-virtual.yaml --results results
    """
    campaign = expand(load_manifest(manifest, known_gates=KNOWN_GATES))
    return _simulate(campaign, results, search_path(manifest, traces), as_json=as_json)


@click.command()
@click.argument("campaign_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@traces_option
@launch_option
@fleet_options
@json_option
@answers
def resume(campaign_dir: Path, traces: tuple[Path, ...], launch: tuple[str, ...], where: Where, as_json: bool) -> int:
    """Go on with a campaign from the manifest kept in its folder, in the time it was begun in: real or virtual.

    Example: trigpoint resume results/quickstart --traces manifests/traces
    """
    header = read_campaign(campaign_dir)
    campaign = expand(parse_manifest(header.manifest, f"{header.name}.yaml", known_gates=KNOWN_GATES))
    search = search_path(None, traces)
    if header.clock == "virtual":
        if launch:
            what = f"--launch {launch[0]}: {header.name} was begun in virtual time, where no server is started"
            raise UsageError.single("launch_virtual", what, "leave it out, or run the manifest with `trigpoint run` into another folder")
        return _simulate(campaign, campaign_dir.parent, search, as_json=as_json)
    return _run(campaign, campaign_dir.parent, search, launch, where, as_json=as_json)


def _certificate(campaign: Campaign, say: Callable[[str], None]) -> CertificateRef | None:
    """The certificate that the runs cite; says before they start when analysis will not take it for what it has to prove."""
    workers = max(run.workers for run in campaign.examples)
    found = find_certificate(cache_dir(), str(host_facts()["host.identity"].value), MEASUREMENT_PROTOCOL, workers)
    wanted = "trigpoint calibrate" + (f" --workers {workers}" if workers > 1 else "")
    if found is None:
        say(f"no calibration certificate for this host and boot: client_headroom will be UNKNOWN; run `{wanted}`")
    elif why := unfit(found, workers):
        say(f"{why}: client_headroom will be UNKNOWN; run `{wanted}`")
    return found


def _run(campaign: Campaign, results: Path, search: tuple[Path, ...], launch: tuple[str, ...], where: Where, *, as_json: bool) -> int:
    launches = choose(launch, campaign)
    with where.opened(campaign) as sessions, _Live(campaign.most_runs, quiet=as_json) as live:
        settings = Settings(
            results=results,
            search_path=search,
            certificate=_certificate(campaign, live.say),
            clock=MonotonicClock(),
            on_progress=live.update,
            say=live.say,
            headers=authorisation,
            launches=launches,
            sessions=sessions,
        )
        done = run_campaign(campaign, settings)
    _announce(done, as_json=as_json)
    return OK


def _simulate(campaign: Campaign, results: Path, search: tuple[Path, ...], *, as_json: bool) -> int:
    with _Live(campaign.most_runs, quiet=as_json) as live:
        done = simulate_campaign(campaign, VirtualSettings(results, search, live.say))
    _announce(done, as_json=as_json)
    return OK


def _announce(done: Done, *, as_json: bool) -> None:
    if as_json:
        emit_json({"folder": str(done.folder), "sealed": len(done.sealed), "kept": done.kept})
    else:
        console().print(f"{len(done.sealed)} replicates sealed in {done.folder} ({done.kept} were there already)")


class _Live:
    """Progress on standard error: a bar with rate and ETA on a terminal, plain lines elsewhere."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, transient=True, disable=quiet or not sys.stderr.isatty(), refresh_per_second=2)
        self._task = self._bar.add_task("campaign", total=float(total), counts="")
        self._quiet = quiet
        self._finished = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._bar.stop()

    def update(self, run: PlannedRun, live: Live, elapsed_s: float) -> None:
        """Show one run's live counts."""
        share = min(max(elapsed_s / (run.window.end_ns / 1e9), 0.0), 1.0)
        counts = f"{live.sent} sent, {live.ended} ended, {live.in_flight} in flight, {live.failed} failed"
        self._bar.update(self._task, completed=self._finished + share, description=printable(f"{run.cell}/{run.replicate}"), counts=counts)

    def say(self, line: str) -> None:
        """Print one line above the bar."""
        if line.startswith("sealed"):
            self._finished += 1
        if not self._quiet:
            click.echo(printable(line), err=True)


@click.command()
@click.argument("campaign_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
@answers
def status(campaign_dir: Path, as_json: bool) -> int:
    """Show which replicates of a campaign are sealed, cut or outstanding.

    Example: trigpoint status results/quickstart
    """
    rows = campaign_status(campaign_dir)
    counts = Counter(row.state for row in rows)
    searches = campaign_states(campaign_dir)
    if as_json:
        told = {"searches": [state._asdict() for state in searches]} if searches else {}
        emit_json({"runs": [row._asdict() for row in rows], "counts": counts} | told)
        return OK
    out = console()
    for row in rows:
        out.print(f"{row.state:12s} {row.cell} replicate {row.replicate}  attempts {row.attempts}")
    out.print(", ".join(f"{n} {state}" for state, n in sorted(counts.items())))
    for line in state_lines(searches):
        out.print(printable(line))
    return OK


COMMANDS = (validate, plan, run, simulate, resume, status)
