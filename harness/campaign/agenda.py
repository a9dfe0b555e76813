"""What a campaign runs next: the runs that were planned, or those that its searches ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from harness.campaign.capacity import Key, SearchAgenda
from harness.manifest import Campaign, PlannedRun


class Agenda(Protocol):
    """Says what to run next, and is told of everything that was sealed."""

    def next(self) -> PlannedRun | None:
        """Return the run to make now, None when nothing is left; the same until it is told of that run."""

    def took(self, run: PlannedRun, attempt: Path) -> None:
        """Be told that ``run`` is sealed in ``attempt``."""

    def told(self, run: PlannedRun) -> dict[str, Any]:
        """Return what the journal says of ``run`` beside its name."""

    def conclusions(self) -> Iterator[dict[str, Any]]:
        """Say, once nothing is left, what the journal keeps of how it came to that."""


def agenda_of(campaign: Campaign, sealed: Mapping[Key, Path]) -> Agenda:
    """Return the campaign's agenda; ``sealed`` attempts are kept and not asked for again."""
    if campaign.searches is not None:
        return SearchAgenda(campaign.searches, sealed)
    return PlannedAgenda(campaign.runs, sealed)


class PlannedAgenda:
    """Planned runs in their order."""

    def __init__(self, runs: tuple[PlannedRun, ...], sealed: Mapping[Key, Path]) -> None:
        self._left = [run for run in runs if (run.cell, run.replicate) not in sealed]

    def next(self) -> PlannedRun | None:
        """Return the first run that is left."""
        return self._left[0] if self._left else None

    def took(self, run: PlannedRun, attempt: Path) -> None:
        """Strike the run off."""
        del attempt
        self._left.remove(run)

    def told(self, run: PlannedRun) -> dict[str, Any]:
        """A planned run has nothing to add to its name."""
        del run
        return {}

    def conclusions(self) -> Iterator[dict[str, Any]]:
        """Nothing was searched for."""
        return iter(())
