"""A search for capacity as what it may ask for: any run of any arm, planned when it is asked for. Pure, like the expansion of fixed points.

Draws of the load have numbers. A replicate of the grid plays one draw at every load and on every arm; locating plays draws of its own, each
once, so that what the search has looked at is never measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from harness.errors import UsageError
from harness.manifest.capacity_rules import to_search
from harness.manifest.expand import Campaign, Cell, PlannedRun, campaign_of, expand_points, plan_run
from harness.manifest.load import LoadedManifest
from harness.manifest.pins import declared
from harness.manifest.playable import unplayable
from harness.manifest.resolve import slices_by_replicate
from harness.manifest.slices import Slice
from harness.record import spec
from harness.record.search import Search
from workloads.seeds import derive

Phase = Literal["locate", "grid"]

LOCATING = "+locate"
"""Ends the names of cells whose data are discarded, so that a folder says it too."""


def expand(loaded: LoadedManifest) -> Campaign:
    """Resolve a manifest into its runs, or into the searches that will ask for them.

    Raises UsageError with every problem of the first kind that has any; see ``expand_points``.
    """
    capacity = loaded.manifest.load.capacity
    if capacity is None:
        return expand_points(loaded)
    search = to_search(capacity, loaded.manifest.replicates)
    points = (spec.LoadPoint(kind=search.unit, value=search.limit),)
    slices, problems = slices_by_replicate(loaded, points, search.most_replicates + search.most_locating)
    if problems:
        raise UsageError(*problems)
    searches = Searches(loaded, search, None if slices is None else tuple(slices))
    problems = unplayable(loaded, searches.examples()[0].workload)
    if problems:
        raise UsageError(*problems)
    return campaign_of(loaded, (), searches)


@dataclass(frozen=True, slots=True)
class Searches:
    """The searches of a campaign: one for each arm, all by one procedure. ``slices``: part of the trace by draw, None without a trace."""

    loaded: LoadedManifest = field(repr=False)
    search: Search
    slices: tuple[Slice, ...] | None

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms by name."""
        return tuple(sorted(self.loaded.manifest.arms))

    @property
    def one_by_one(self) -> bool:
        """Arm after arm, instead of interleaved."""
        return self.loaded.manifest.replicates.order == "sequential"

    @property
    def most_runs(self) -> int:
        """The most runs that all of them can ask for."""
        return self.search.most_probes * len(self.arms)

    @property
    def most_starts(self) -> int:
        """The most server starts that all of them can come to."""
        return self.search.most_starts * len(self.arms)

    def run(self, arm: str, phase: Phase, rate: float, draw: int, *, server_start: int, index: int) -> PlannedRun:
        """Plan one run: draw number ``draw`` at ``rate`` on ``arm``."""
        manifest = self.loaded.manifest
        load = spec.LoadPoint(kind=self.search.unit, value=rate)
        slices = None if self.slices is None else list(self.slices)
        run = plan_run(index, self.loaded, Cell(arm, 0, load), draw, slices, declared(manifest.arms, manifest.pins)[arm])
        probe = spec.Probe(phase=phase, search=self.search)
        if not probe.discarded:
            return replace(run, server_start=server_start, probe=probe)
        # Under `vary: none` all replicates are one draw, and locating must not be that one.
        own = run.workload.model_copy(update={"seed": derive(manifest.replicates.seed, "locate", draw)})
        return replace(run, server_start=server_start, probe=probe, cell=run.cell + LOCATING, workload=own)

    def examples(self) -> tuple[PlannedRun, ...]:
        """Every draw on every arm, at both ends of the load axis."""
        return tuple(self._examples())

    def _examples(self) -> Iterator[PlannedRun]:
        count = self.search.most_replicates
        for index, arm in enumerate(self.arms):
            for draw in range(count + self.search.most_locating):
                for rate in dict.fromkeys((self.search.start, self.search.limit)):
                    yield self.run(arm, "grid" if draw < count else "locate", rate, draw, server_start=0, index=index)
