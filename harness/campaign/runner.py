"""A campaign from its first run to its last: what is finished stays finished, what was cut is run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.campaign.replicate import Settings, execute, prepare
from harness.campaign.servers import Keeper, check_arm
from harness.errors import TrigpointError
from harness.manifest import Campaign, PlannedRun
from harness.record.attempt import Attempt
from harness.record.journal import Journal, campaign_lock, write_campaign
from harness.record.reader import latest_sealed
from harness.runtimes import get_runtime
from workloads import find_trace


@dataclass(frozen=True, slots=True)
class Done:
    """What a call of ``run_campaign`` did: sealed attempts by (cell, replicate), and how many were there already."""

    folder: Path
    sealed: dict[tuple[str, int], Path]
    kept: int


def preflight(campaign: Campaign, search_path: Sequence[Path]) -> None:
    """Find everything that can be known to be wrong before a server is started: arms, flags, traces; all problems at once."""
    problems = []
    seen_arms: set[str] = set()
    for run in campaign.runs:
        if run.arm.name in seen_arms:
            continue
        seen_arms.add(run.arm.name)
        try:
            check_arm(get_runtime(run.arm.runtime), run)
            if run.workload.trace:
                find_trace(run.workload.trace, search_path)
        except TrigpointError as error:
            problems += [p for p in error.problems if p not in problems]
            kind = type(error)
    if problems:
        raise kind(*problems)


def run_campaign(campaign: Campaign, settings: Settings) -> Done:
    """Run every planned replicate that is not sealed yet, in the campaign's order.

    Raises the first HostError of a run (a server that never gets ready, a pin that does not match) after journalling it; a later call goes
    on from there. A KeyboardInterrupt leaves the current attempt unsealed, which marks it as cut.
    """
    preflight(campaign, settings.search_path)
    folder = settings.results / campaign.name
    folder.mkdir(parents=True, exist_ok=True)
    with campaign_lock(folder):
        write_campaign(folder, header(campaign))
        journal = Journal(folder / "journal.jsonl")
        sealed = latest_sealed(folder)
        kept = len(sealed)
        todo = [run for run in campaign.runs if (run.cell, run.replicate) not in sealed]
        journal.append("campaign", digest=campaign.digest, planned=len(campaign.runs), kept=kept)
        with Keeper(folder / ".servers", settings.clock, settings.say) as keeper:
            for run in todo:
                sealed[run.cell, run.replicate] = _one(run, campaign, settings, keeper, journal)
    return Done(folder, sealed, kept)


def header(campaign: Campaign) -> dict[str, Any]:
    """campaign.json: what the folder holds the runs of."""
    return {
        "name": campaign.name,
        "digest": campaign.digest,
        "question": campaign.question,
        "manifest": campaign.text,
        "resolved": campaign.resolved,
        "planned": [(run.cell, run.replicate) for run in campaign.runs],
    }


def _one(run: PlannedRun, campaign: Campaign, settings: Settings, keeper: Keeper, journal: Journal) -> Path:
    attempt = Attempt.create(settings.results, campaign.name, run.cell, run.replicate)
    where = {"cell": run.cell, "replicate": run.replicate, "attempt": attempt.number}
    journal.append("started", **where)
    outcome = "cut"  # what it is called unless it gets to the end
    try:
        server = keeper.use(run)
        prepared = prepare(run, campaign, server, attempt, settings)
        root = execute(prepared, server, attempt, settings, campaign.text)
        outcome = "sealed"
    except TrigpointError as error:
        attempt.observe("error", problems=[str(p) for p in error.problems])
        raise
    finally:
        journal.append(outcome, **where, **({"root": root} if outcome == "sealed" else {}))
    settings.say(f"sealed {run.cell} replicate {run.replicate} (attempt {attempt.number})")
    return attempt.path
