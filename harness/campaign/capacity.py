"""The capacity driver: the one loop of the house (DESIGN 2). Every arm's search is asked in turn what to run next.

Which arm comes next is a function of what is sealed and of nothing else, so that a campaign that was cut goes on with the very run that it
would have made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from analysis.capacity import Done, History, Probe, ProbeRun, next_probe
from analysis.capacity_answers import answer_of
from harness.manifest import PlannedRun, Searches
from harness.record.reader import latest_sealed, read_run
from workloads.seeds import generator

Key = tuple[str, int]
"""(cell, replicate)"""
Answer = Callable[[Path], ProbeRun]
"""Reads what a sealed attempt says to the search that asked for it."""


def measured_answer(attempt: Path) -> ProbeRun:
    """Read a sealed attempt as the answer to its probe."""
    return answer_of(read_run(attempt))


@dataclass(frozen=True, slots=True)
class ArmSearch:
    """One arm's search so far.

    ``asked``: the next probe, or the end. ``starts``: server starts begun; ``block``: what the last one serves.
    """

    arm: str
    history: History
    asked: Probe | Done
    starts: int = 0
    block: tuple[str, int] | None = None

    @property
    def server_start(self) -> int:
        """Index of the server process that the next run is made on."""
        return self.starts - 1 if self.goes_on else self.starts

    @property
    def goes_on(self) -> bool:
        """Whether the next run is made on the server that made the last one."""
        return isinstance(self.asked, Probe) and self.history.search.servers == "replicate" and self.block == _block(self.asked)

    def after(self, run: ProbeRun) -> ArmSearch:
        """The search once ``run`` has answered what it asked."""
        if isinstance(self.asked, Done) or run.key != (self.asked.phase, self.asked.rate, self.asked.replicate):
            raise ValueError(f"{run.key} answers another probe than {self.asked}")
        history = replace(self.history, runs=(*self.history.runs, run))
        return ArmSearch(self.arm, history, next_probe(history), self.server_start + 1, _block(self.asked))


def _block(probe: Probe) -> tuple[str, int]:
    """What one server start serves when not every run has its own: all that locates, or a replicate of the grid."""
    return probe.phase, 0 if probe.phase == "locate" else probe.replicate


class SearchState(NamedTuple):
    """Where one arm's search stands. ``state``: locate, grid, finished or ended early; ``reason``: what is next, or how it ended."""

    arm: str
    state: str
    runs: int
    discarded: int
    reason: str


class SearchAgenda:
    """All searches of a campaign, interleaved by arm. ``answer`` reads a sealed attempt."""

    def __init__(self, searches: Searches, sealed: Mapping[Key, Path], answer: Answer = measured_answer) -> None:
        self._searches = searches
        self._answer = answer
        self._sealed = dict(sealed)
        begun = History(searches.search)
        self._arms = {arm: ArmSearch(arm, begun, next_probe(begun)) for arm in searches.arms}
        self._last: str | None = None
        self._made = 0

    def next(self) -> PlannedRun | None:
        """Return the run that is missing first; what is sealed answers on the way."""
        while (arm := self._turn()) is not None:
            run = self._plan(self._arms[arm])
            attempt = self._sealed.get((run.cell, run.replicate))
            if attempt is None:
                return run
            self._take(arm, attempt)
        return None

    def took(self, run: PlannedRun, attempt: Path) -> None:
        """Keep the sealed attempt; ``next`` lets it answer."""
        self._sealed[run.cell, run.replicate] = attempt

    def told(self, run: PlannedRun) -> dict[str, Any]:
        """Phase, load and server of a probe, and that the data of a locating one are thrown away."""
        discarded = run.probe is not None and run.probe.discarded
        return {
            "phase": "locate" if discarded else "grid",
            "load": run.load.value,
            "server_start": run.server_start,
            "discarded": discarded,
        }

    def conclusions(self) -> Iterator[dict[str, Any]]:
        """How each arm's search ended."""
        for state in self.states():
            yield {"search": state.arm, "state": state.state, "runs": state.runs, "discarded": state.discarded, "reason": state.reason}

    def states(self) -> list[SearchState]:
        """Where every arm's search stands, by arm; call ``next`` first to let everything sealed answer."""
        return [_state(self._arms[arm], self._searches.search.unit) for arm in self._searches.arms]

    def _take(self, arm: str, attempt: Path) -> None:
        self._arms[arm] = self._arms[arm].after(self._answer(attempt))
        self._last, self._made = arm, self._made + 1

    def _plan(self, at: ArmSearch) -> PlannedRun:
        assert isinstance(at.asked, Probe)  # noqa: S101 - only an arm that asks has a turn
        probe = at.asked
        return self._searches.run(at.arm, probe.phase, probe.rate, probe.replicate, server_start=at.server_start, index=self._made)

    def _turn(self) -> str | None:
        """The arm whose server is up and wanted; else the one that is furthest behind, in an order drawn for each step."""
        asking = {arm: at for arm, at in self._arms.items() if isinstance(at.asked, Probe)}
        if not asking:
            return None
        if self._last in asking and (self._searches.one_by_one or asking[self._last].goes_on):
            return self._last
        return min(asking, key=lambda arm: self._behind(asking[arm]))

    def _behind(self, at: ArmSearch) -> tuple[int | str, ...]:
        """Locating before the grid, then by replicate, then by runs made of it: arms meet a trace replicate next to each other in time."""
        if self._searches.one_by_one:
            return (at.arm,)
        assert isinstance(at.asked, Probe)  # noqa: S101 - as above
        phase, replicate = _block(at.asked)
        made = sum(_block(Probe(*run.key)) == (phase, replicate) for run in at.history.runs)
        place = self._searches.arms.index(at.arm)
        drawn = generator(self._searches.search.order_seed, "turn", phase, replicate, made).permutation(len(self._searches.arms))
        return int(phase == "grid"), replicate, made, int(drawn[place])


def search_states(searches: Searches, folder: Path) -> list[SearchState]:
    """Where every search of the campaign in ``folder`` stands, read off what is sealed there."""
    agenda = SearchAgenda(searches, latest_sealed(folder))
    agenda.next()
    return agenda.states()


def _state(at: ArmSearch, unit: str) -> SearchState:
    runs = at.history.runs
    discarded = sum(run.phase == "locate" for run in runs)
    name = " req/s" if unit == "rate" else "x"
    if isinstance(at.asked, Probe):
        words = f"next: {at.asked.phase} at {at.asked.rate:g}{name}, replicate {at.asked.replicate}"
        return SearchState(at.arm, at.asked.phase, len(runs), discarded, words)
    if at.asked.reason is not None:
        return SearchState(at.arm, "ended early", len(runs), discarded, at.asked.reason.text)
    rates = ", ".join(f"{rate:g}" for rate in at.asked.rates)
    return SearchState(at.arm, "finished", len(runs), discarded, f"{at.asked.replicates} replicates at {rates}{name}")
