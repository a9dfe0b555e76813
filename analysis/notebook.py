"""Everything a notebook needs, in one import: read, measure, look at the numbers as data frames, measure a log of one's own.

    from analysis.notebook import read_campaign, figures_frame
    figures_frame(read_campaign("results/example"))

Nothing here decides or measures anything of its own; ``docs/library.md`` walks through it, and its code is run as a test.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from analysis.allocation import replicates_for_power, replicates_for_width
from analysis.bench_serve import bench_serve
from analysis.campaign import analyze
from analysis.frames import checks_frame, figures_frame, groups_frame, outcomes_frame, requests_frame
from analysis.model import CampaignAnalysis
from analysis.own_log import COLUMNS, Origin, record_from_frame
from analysis.pair import Contender, contender, hold
from analysis.regression import gate
from analysis.run import RunMeasures, measure_run
from harness.errors import HostError, Problem, TrigpointError, UsageError
from harness.record.journal import read_campaign as read_header
from harness.record.reader import RunRecord, find_attempts, latest_sealed, read_campaign_runs
from harness.record.reader import read_run as read_attempt
from harness.record.spec import Slo, Window

__all__ = [
    "COLUMNS",
    "CampaignAnalysis",
    "Contender",
    "Origin",
    "RunMeasures",
    "RunRecord",
    "Slo",
    "Window",
    "analyze",
    "bench_serve",
    "checks_frame",
    "figures_frame",
    "gate",
    "groups_frame",
    "hold",
    "measure_run",
    "outcomes_frame",
    "read_campaign",
    "read_cell",
    "read_run",
    "record_from_frame",
    "replicates_for_power",
    "replicates_for_width",
    "requests_frame",
]


def read_campaign(folder: str | os.PathLike[str]) -> CampaignAnalysis:
    """Read and analyze a campaign's folder: every cell, gate, comparison, and the ranking or its refusal.

    What was planned and is not sealed, or cannot be read, is listed under ``incomplete``. Raises HostError when the folder is no campaign
    or none of its sealed records can be read, UsageError ``no_sealed_run`` when there is none.
    """
    path = Path(folder)
    header, found, sealed = read_header(path), read_campaign_runs(path), latest_sealed(path)
    broken = [problem for _, problems in found.unreadable for problem in problems]
    if broken and not found.runs:
        raise HostError(*broken)  # nothing can be said, and running again would cure nothing
    if not found.runs:
        what = f"runs=0 sealed in {path}: there is nothing to analyze"
        raise UsageError.single("no_sealed_run", what, "run the campaign first")
    missing = [f"{cell} replicate {r}: {_state(path, cell, r)}" for cell, r in header.planned if (cell, r) not in sealed]
    missing += _unsearched(header.resolved, {run.spec.arm.name for run in found.runs})
    return analyze(found.runs, incomplete=(*missing, *(f"{p.where}: {p.what}" for p in broken)))


def read_cell(folder: str | os.PathLike[str], metric: str | None = None) -> Contender:
    """Read and analyze one cell's folder (``results/CAMPAIGN/CELL``) as a side for ``hold``, by ``metric`` or the declared one.

    The latest sealed attempt of each replicate is read; one that cannot be read stands against every claim. Raises HostError when none can
    be read, UsageError ``no_sealed_run`` when there is none, and what ``analysis.pair.contender`` raises.
    """
    path = Path(folder)
    runs: list[RunRecord] = []
    broken: list[Problem] = []
    for (cell, _), attempt in sorted(latest_sealed(path.parent).items()):
        if cell == path.name:
            try:
                runs.append(read_attempt(attempt))
            except TrigpointError as error:
                broken += error.problems
    if broken and not runs:
        raise HostError(*broken)
    if not runs:
        raise UsageError.single("no_sealed_run", f"runs=0 sealed in {path}: there is nothing to compare", "name a folder CAMPAIGN/CELL")
    return contender(runs, metric, str(folder), broken=[f"{p.where}: {p.what}" for p in broken])


def read_run(attempt: str | os.PathLike[str]) -> RunRecord:
    """Read one attempt (``results/CAMPAIGN/CELL/REPLICATE/ATTEMPT``): its tables, description, facts, and the state of its seal.

    Raises HostError with every problem at once when files are missing, damaged or of a newer format.
    """
    return read_attempt(Path(attempt))


def _unsearched(resolved: Mapping[str, Any], begun: Collection[str]) -> list[str]:
    """Arms whose search for capacity has no sealed run; a search plans none ahead, so nothing else would name them."""
    load, arms = resolved.get("load"), resolved.get("arms")
    if not isinstance(load, Mapping) or load.get("capacity") is None or not isinstance(arms, Mapping):
        return []
    return [f"{arm}: its search has no sealed run" for arm in sorted(arms.keys() - set(begun))]


def _state(folder: Path, cell: str, replicate: int) -> str:
    here = folder / cell / str(replicate)
    return "cut, not sealed" if any(a.is_relative_to(here) for a in find_attempts(folder)) else "not run"
