"""A campaign from its first run to its last: what is finished stays finished, what was cut is run again."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.campaign.preflight import check_kept, preflight
from harness.campaign.replicate import Settings, execute, prepare
from harness.campaign.servers import Keeper
from harness.errors import HostError, TrigpointError
from harness.manifest import Campaign, PlannedRun
from harness.record.attempt import Attempt
from harness.record.journal import Journal, campaign_lock, write_campaign
from harness.record.reader import latest_sealed
from harness.record.segments import disk_refused

__all__ = ["Done", "header", "preflight", "run_campaign"]


_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR, errno.EEXIST})
"""Refusals of a file system; every other OSError is our own fault and keeps its traceback."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a call of ``run_campaign`` did: sealed attempts by (cell, replicate), and how many were there already."""

    folder: Path
    sealed: dict[tuple[str, int], Path]
    kept: int


def run_campaign(campaign: Campaign, settings: Settings) -> Done:
    """Run every planned replicate that is not sealed yet, in the campaign's order.

    Raises the first HostError of a run (a server that never gets ready, a pin that does not match, a disk that refuses) after journalling
    it; a later call goes on from there. A KeyboardInterrupt leaves the current attempt unsealed, which marks it as cut.
    """
    preflight(campaign, settings.search_path)
    folder = settings.results / campaign.name
    with _disk_told(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with campaign_lock(folder):
        write_campaign(folder, header(campaign))
        journal = Journal(folder / "journal.jsonl")
        sealed = latest_sealed(folder)
        check_kept(list(sealed.values()))
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
    try:
        with _disk_told(attempt.path):
            server = keeper.use(run)
            prepared = prepare(run, campaign, server, attempt, settings)
            root = execute(prepared, server, attempt, settings, campaign.text)
        journal.append("sealed", **where, root=root)
    except BaseException as error:
        # The disk may be what failed: a second refusal must not hide the first.
        with contextlib.suppress(HostError):
            if isinstance(error, TrigpointError) and not attempt.sealed:
                attempt.observe("error", problems=[str(p) for p in error.problems])
            journal.append("sealed" if attempt.sealed else "cut", **where)
        raise
    settings.say(f"sealed {run.cell} replicate {run.replicate} (attempt {attempt.number})")
    return attempt.path


@contextlib.contextmanager
def _disk_told(path: Path) -> Iterator[None]:
    """Turn what the system says of a file into an instruction, wherever it was written from (logs, copies, folders)."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK:
            raise
        raise disk_refused(Path(error.filename) if isinstance(error.filename, str) else path, error) from error
