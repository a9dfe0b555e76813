"""A campaign from its first run to its last: what is finished stays finished, what was cut is run again."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from harness.campaign.agenda import Agenda, agenda_of
from harness.campaign.fleet import refuse_mode
from harness.campaign.kept import refuse_other_way
from harness.campaign.preflight import check_kept, preflight
from harness.campaign.replicate import Settings, execute, prepare
from harness.campaign.servers import Keeper
from harness.errors import HostError, TrigpointError
from harness.manifest import Campaign, PlannedRun
from harness.record.attempt import Attempt
from harness.record.journal import Journal, campaign_lock, write_campaign
from harness.record.reader import latest_sealed
from harness.record.segments import disk_refused

__all__ = ["CarryOut", "Done", "Way", "header", "preflight", "run_all", "run_campaign"]

CarryOut = Callable[[PlannedRun, Attempt], str]
"""Makes one planned run in its attempt and returns the seal's root."""


_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR, errno.EEXIST})
"""Refusals of a file system; every other OSError is our own fault and keeps its traceback."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a call of ``run_campaign`` did: sealed attempts by (cell, replicate), and how many were there already."""

    folder: Path
    sealed: dict[tuple[str, int], Path]
    kept: int


@dataclass(frozen=True, slots=True)
class Way:
    """How the runs of a campaign are made. ``opened`` holds for as long as runs are made what they share (a server, for one).

    ``keeps`` raises when runs that are kept were made in another way than those that would be added.
    """

    clock: Literal["real", "virtual"]
    opened: AbstractContextManager[CarryOut]
    say: Callable[[str], None]
    keeps: Callable[[Iterable[Path]], None] = lambda _sealed: None


def run_campaign(campaign: Campaign, settings: Settings) -> Done:
    """Measure every planned replicate that is not sealed yet, in the campaign's order, on servers started for it.

    Raises the first HostError of a run (a server that never gets ready, a pin that does not match, a disk that refuses) after journalling
    it; a later call goes on from there. A KeyboardInterrupt leaves the current attempt unsealed, which marks it as cut.
    """
    refuse_mode(campaign, settings.sessions.mode)
    preflight(campaign, settings.search_path)
    keeps = partial(refuse_other_way, launches=settings.launches, mode=settings.sessions.mode)
    return run_all(campaign, settings.results, Way("real", _measuring(campaign, settings), settings.say, keeps))


@contextlib.contextmanager
def _measuring(campaign: Campaign, settings: Settings) -> Iterator[CarryOut]:
    folder = settings.results / campaign.name / ".servers"
    with Keeper(folder, settings.clock, settings.say, launches=settings.launches) as keeper:

        def _measure(run: PlannedRun, attempt: Attempt) -> str:
            server = keeper.use(run)
            prepared = prepare(run, campaign, server, attempt, settings)
            return execute(prepared, server, attempt, settings, campaign.text)

        yield _measure


def run_all(campaign: Campaign, results: Path, way: Way) -> Done:
    """Make what is not sealed yet, under the campaign's lock and with a journal, whichever way its runs are made.

    Runs of a search are asked for one after the other, each when those before it are sealed.
    """
    folder = results / campaign.name
    with _disk_told(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with campaign_lock(folder):
        write_campaign(folder, header(campaign, way.clock))
        journal = Journal(folder / "journal.jsonl")
        sealed = latest_sealed(folder)
        check_kept(list(sealed.values()))
        kept = len(sealed)
        agenda = agenda_of(campaign, sealed)
        if agenda.next() is not None:
            way.keeps(sealed.values())
        journal.append("campaign", digest=campaign.digest, planned=campaign.most_runs, kept=kept)
        with way.opened as carry_out:
            while (run := agenda.next()) is not None:
                attempt = Attempt.create(results, campaign.name, run.cell, run.replicate)
                _one(run, attempt, carry_out, journal, agenda)
                sealed[run.cell, run.replicate] = attempt.path
                agenda.took(run, attempt.path)
                way.say(f"sealed {run.cell} replicate {run.replicate} (attempt {attempt.number})")
        for conclusion in agenda.conclusions():
            journal.append("search", **conclusion)
            way.say(f"search of {conclusion['search']}: {conclusion['state']}, {conclusion['reason']}")
    return Done(folder, sealed, kept)


def header(campaign: Campaign, clock: Literal["real", "virtual"] = "real") -> dict[str, Any]:
    """campaign.json: what the folder holds the runs of."""
    return {
        "name": campaign.name,
        "digest": campaign.digest,
        "question": campaign.question,
        "manifest": campaign.text,
        "resolved": campaign.resolved,
        "planned": [(run.cell, run.replicate) for run in campaign.runs],
        "clock": clock,
    }


def _one(run: PlannedRun, attempt: Attempt, carry_out: CarryOut, journal: Journal, agenda: Agenda) -> None:
    where = {"cell": run.cell, "replicate": run.replicate, "attempt": attempt.number} | agenda.told(run)
    journal.append("started", **where)
    try:
        with _disk_told(attempt.path):
            root = carry_out(run, attempt)
        journal.append("sealed", **where, root=root)
    except BaseException as error:
        # The disk may be what failed: a second refusal must not hide the first.
        with contextlib.suppress(HostError):
            if isinstance(error, TrigpointError) and not attempt.sealed:
                attempt.observe("error", problems=[str(p) for p in error.problems])
            journal.append("sealed" if attempt.sealed else "cut", **where)
        raise


@contextlib.contextmanager
def _disk_told(path: Path) -> Iterator[None]:
    """Turn what the system says of a file into an instruction, wherever it was written from (logs, copies, folders)."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK:
            raise
        raise disk_refused(Path(error.filename) if isinstance(error.filename, str) else path, error) from error
