"""A campaign's journal, its lock and its campaign.json: what was planned, what has happened, and who is at work (DESIGN 5)."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from harness.errors import HostError, Problem, UsageError
from harness.record.durable import append_line, read_lines, write_json
from harness.record.segments import disk_refused
from harness.record.spec import Frozen

JOURNAL = "journal.jsonl"
CAMPAIGN = "campaign.json"
LOCK = ".lock"


class Journal:
    """journal.jsonl: one event a line, durable when ``append`` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: str, **fields: Any) -> None:
        """Append an event in one write and fsync it; HostError when the disk refuses."""
        append_line(self.path, {**fields, "event": event}, sync=True)

    def events(self) -> list[dict[str, Any]]:
        """Every whole event in order; a last line torn by a kill is left out. Raises HostError on damage elsewhere."""
        return read_lines(self.path)[0]


class Campaign(Frozen):
    """campaign.json: the manifest as typed and as resolved, and the runs it plans as (cell, replicate); none if a search asks for them."""

    name: str
    digest: str
    question: str
    manifest: str
    resolved: dict[str, Any]
    planned: tuple[tuple[str, int], ...]
    clock: Literal["real", "virtual"] = Field("real", description="virtual: its runs are simulated and none of them took the time it says")


def write_campaign(folder: Path, campaign: Campaign | Mapping[str, Any]) -> Campaign:
    """Create ``folder`` and its campaign.json, or accept the one that is there when its digest and its clock are the same.

    Raises UsageError with a diff of the two manifests when the folder belongs to another digest: results of two manifests never mix; and
    ``clock_differs`` when it holds simulated runs and real ones are to be added, or the other way round.
    """
    new = Campaign.model_validate(campaign)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_refused(folder, error) from error
    if not (folder / CAMPAIGN).exists():
        write_json(folder / CAMPAIGN, new)
        return new
    old = read_campaign(folder)
    if old.digest != new.digest:
        raise _differs(folder, old, new)
    if old.clock != new.clock:
        raise _clock_differs(folder, old, new)
    return old


def read_campaign(folder: Path) -> Campaign:
    """Read campaign.json; HostError when it is missing or damaged."""
    path = folder / CAMPAIGN
    try:
        return Campaign.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError:
        what = "exists=no: this folder holds no campaign"
        raise HostError(Problem("campaign_missing", what, "give the folder of a campaign (results/NAME)", str(path))) from None
    except (OSError, ValueError, ValidationError) as error:
        what = f"{type(error).__name__}: the campaign's description cannot be read"
        raise HostError(Problem("campaign_damaged", what, "restore the file, or run under a new name", str(path))) from error


def _differs(folder: Path, old: Campaign, new: Campaign) -> UsageError:
    lines = difflib.unified_diff(
        old.manifest.splitlines(), new.manifest.splitlines(), f"{folder.name} (recorded)", f"{new.name} (given)", lineterm=""
    )
    what = f"digest={new.digest[:12]}: the folder holds runs of {old.digest[:12]}; one campaign is one manifest\n" + "\n".join(lines)
    return UsageError(Problem("campaign_differs", what, "give the changed manifest a new name, or restore the recorded one", str(folder)))


def _clock_differs(folder: Path, old: Campaign, new: Campaign) -> UsageError:
    what = f"clock={new.clock}: the folder holds runs of this manifest in {old.clock} time; the two never share a campaign"
    return UsageError(Problem("clock_differs", what, "give --results another folder, or the manifest another name", str(folder)))


@contextlib.contextmanager
def campaign_lock(folder: Path) -> Iterator[None]:
    """Hold the campaign for this process; HostError names the process that holds it already.

    The kernel drops the lock with its holder, so a kill -9 leaves nothing to clean up.
    """
    path = folder / LOCK
    try:
        # Not inherited over exec: a server that outlives us must not keep the campaign.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise disk_refused(path, error) from error
    try:
        _take(fd, path)
        yield
    finally:
        os.close(fd)


def _take(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        what = f"pid={holder}: another process is running this campaign"
        raise HostError(Problem("campaign_locked", what, "wait for it or stop it, then run again to resume", str(path.parent))) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
