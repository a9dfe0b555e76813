"""The capacity driver without a server: which run comes next, on which server, and that a crash anywhere changes none of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.capacity import Done, History, Probe, ProbeRun, next_probe
from harness.campaign.agenda import PlannedAgenda, agenda_of
from harness.campaign.capacity import ArmSearch, SearchAgenda
from harness.manifest import PlannedRun, Searches, expand, parse_manifest
from tests.capacity_worlds import World, falling

MANIFEST = """\
trigpoint: 1
question: Which policy carries more?
pins: {{model: {{id: tiny, dtype: float32}}}}
arms:
  a: {{runtime: reference, args: {{policy: fixed-batch}}}}
  b: {{runtime: reference, args: {{policy: orca-shaped}}}}
  c: {{runtime: reference, args: {{policy: sarathi-shaped}}}}
workload:
  arrivals: {{process: poisson}}
  lengths: {{input: {{kind: constant, value: 32}}, output: {{kind: constant, value: 4}}}}
  output-length: {{control: forced}}
slo: {{ttft: 250ms}}
window: {{warm-up: 1s, measured: 10s, drain: 1s}}
load: {{capacity: {{start: 1/s, limit: 64/s, attainment: 0.9{search}}}}}
replicates: {{count: 3, vary: {vary}, order: {order}, seed: 7}}
"""

Row = tuple[str, int, int, float]
"""cell, draw, server start, load"""


def searches_of(search: str = "", order: str = "interleaved", vary: str = "seed") -> Searches:
    campaign = expand(parse_manifest(MANIFEST.format(search=search, order=order, vary=vary), "m.yaml"))
    assert campaign.searches is not None
    assert campaign.runs == ()
    return campaign.searches


WORLDS: dict[str, World] = {"a": falling(10.0), "b": falling(17.0), "c": falling(4.0)}


class Laboratory:
    """Carries runs out in the worlds of their arms; the attempts are names and nothing is written."""

    def __init__(self, worlds: dict[str, World] | None = None) -> None:
        self.worlds = worlds or WORLDS
        self.sealed: dict[tuple[str, int], Path] = {}
        self.runs: dict[Path, PlannedRun] = {}
        self.order: list[Row] = []

    def carry_out(self, run: PlannedRun) -> Path:
        attempt = Path(run.cell) / str(run.replicate) / "1"
        assert attempt not in self.runs, "asked for twice"
        self.runs[attempt] = run
        self.sealed[run.cell, run.replicate] = attempt
        self.order.append((run.cell, run.replicate, run.server_start, run.load.value))
        return attempt

    def answer(self, attempt: Path) -> ProbeRun:
        run = self.runs[attempt]
        assert run.probe is not None
        found = self.worlds[run.arm.name](Probe(run.probe.phase, run.load.value, run.replicate))
        return replace(found, server_start=run.server_start, seed=run.workload.seed)

    def go_on(self, searches: Searches, most: int | None = None, shuffle: Callable[[list[tuple[str, int]]], None] | None = None) -> bool:
        """A process that makes at most ``most`` runs and is then killed; True when the campaign ended."""
        keys = list(self.sealed)
        if shuffle is not None:
            shuffle(keys)
        agenda = SearchAgenda(searches, {key: self.sealed[key] for key in keys}, self.answer)
        made = 0
        while (run := agenda.next()) is not None:
            if most is not None and made == most:
                return False
            assert agenda.next() == run, "asking changes nothing"
            agenda.took(run, self.carry_out(run))
            made += 1
        return True


def uninterrupted(searches: Searches) -> list[Row]:
    laboratory = Laboratory()
    assert laboratory.go_on(searches)
    return laboratory.order


PLAIN, SHARED = searches_of(), searches_of(", servers: replicate")
WHOLE = {id(searches): uninterrupted(searches) for searches in (PLAIN, SHARED)}


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 30), max_size=4), st.randoms(use_true_random=False), st.booleans())
def test_a_crash_after_any_number_of_runs_loses_none_and_changes_none(cuts: list[int], rng: random.Random, shared: bool) -> None:
    searches = SHARED if shared else PLAIN
    laboratory = Laboratory()
    for most in cuts:
        laboratory.go_on(searches, most, rng.shuffle)
    assert laboratory.go_on(searches, None, rng.shuffle)
    assert laboratory.order == WHOLE[id(searches)]


def test_it_ends_where_the_search_alone_would_and_within_what_it_states() -> None:
    for arm, world in WORLDS.items():
        history = History(PLAIN.search)
        while isinstance(probe := next_probe(history), Probe):
            history = replace(history, runs=(*history.runs, world(probe)))
        asked = [(rate, draw) for cell, draw, _, rate in WHOLE[id(PLAIN)] if cell.startswith(f"{arm}@")]
        assert asked == [(run.rate, run.replicate) for run in history.runs]
    assert len(WHOLE[id(PLAIN)]) <= PLAIN.most_runs


def test_every_run_has_a_server_of_its_own_or_a_replicate_has_one() -> None:
    starts = [(cell.partition("@")[0], start) for cell, _, start, _ in WHOLE[id(PLAIN)]]
    assert len(set(starts)) == len(starts) <= PLAIN.most_starts
    shared = WHOLE[id(SHARED)]
    blocks = [key for key, _ in groupby((cell.partition("@")[0], start) for cell, _, start, _ in shared)]
    assert len(blocks) == len(set(blocks)) <= SHARED.most_starts, "a server is started once: its runs follow each other"
    for arm, start in blocks:
        served = {
            "locate" if cell.endswith("+locate") else str(draw) for cell, draw, s, _ in shared if cell.startswith(f"{arm}@") and s == start
        }
        assert len(served) == 1


@pytest.mark.parametrize("searches", [PLAIN, SHARED])
def test_arms_meet_a_trace_replicate_next_to_each_other(searches: Searches) -> None:
    order = [(cell.partition("@")[0], draw) for cell, draw, _, _ in WHOLE[id(searches)] if not cell.endswith("+locate")]
    first = list(dict.fromkeys(draw for _, draw in order))
    assert first == [0, 1, 2]
    for draw in first[1:]:
        begun = order.index(next(row for row in order if row[1] == draw))
        assert {arm for arm, d in order[:begun] if d == draw - 1} == {"a", "b", "c"}, "no arm is a replicate ahead of another"


def test_no_arm_is_always_first() -> None:
    draws = {draw: cell for cell, draw, _, _ in reversed(WHOLE[id(PLAIN)])}
    assert len({cell.partition("@")[0] for cell in draws.values()}) > 1


def test_sequential_goes_arm_by_arm() -> None:
    arms = [cell.partition("@")[0] for cell, *_ in uninterrupted(searches_of(order="sequential"))]
    assert [arm for arm, _ in groupby(arms)] == ["a", "b", "c"]


@pytest.mark.parametrize("vary", ["seed", "none"])
def test_draws_are_common_to_arms_and_loads_and_locating_has_its_own(vary: str) -> None:
    laboratory = Laboratory()
    laboratory.go_on(searches_of(vary=vary))
    grid: dict[int, set[int]] = {}
    locating: list[int] = []
    for run in laboratory.runs.values():
        assert run.probe is not None
        if run.probe.discarded:
            locating.append(run.workload.seed)
        else:
            grid.setdefault(run.replicate, set()).add(run.workload.seed)
    assert all(len(seeds) == 1 for seeds in grid.values())
    assert len({min(seeds) for seeds in grid.values()}) == (3 if vary == "seed" else 1)
    assert not {min(seeds) for seeds in grid.values()} & set(locating)


def test_an_arm_that_ends_early_leaves_the_others_to_their_end() -> None:
    def spoiled(probe: Probe) -> ProbeRun:
        return replace(WORLDS["b"](probe), blocked=("tokens_agree",) if probe.phase == "grid" else ())

    laboratory = Laboratory({**WORLDS, "b": spoiled})
    searches = searches_of()
    assert laboratory.go_on(searches)
    agenda = SearchAgenda(searches, laboratory.sealed, laboratory.answer)
    assert agenda.next() is None
    states = {s.arm: s for s in agenda.states()}
    assert {arm: s.state for arm, s in states.items()} == {"a": "finished", "b": "ended early", "c": "finished"}
    assert "tokens_agree" in states["b"].reason
    assert [c["search"] for c in agenda.conclusions()] == ["a", "b", "c"]


def test_states_say_what_comes_next() -> None:
    laboratory = Laboratory()
    searches = searches_of()
    laboratory.go_on(searches, 4)
    agenda = SearchAgenda(searches, laboratory.sealed, laboratory.answer)
    agenda.next()
    states = agenda.states()
    assert [s.state for s in states] == ["locate"] * 3
    assert sum(s.runs for s in states) == sum(s.discarded for s in states) == 4
    assert all(s.reason.startswith("next: locate at ") for s in states)


def test_the_journal_is_told_that_locating_is_discarded() -> None:
    laboratory, searches = Laboratory(), searches_of()
    agenda = SearchAgenda(searches, {}, laboratory.answer)
    seen: set[tuple[str, bool]] = set()
    while (run := agenda.next()) is not None:
        told = agenda.told(run)
        seen.add((told["phase"], told["discarded"]))
        assert told["load"] == run.load.value
        assert run.cell.endswith("+locate") == told["discarded"]
        agenda.took(run, laboratory.carry_out(run))
    assert seen == {("locate", True), ("grid", False)}


def test_an_answer_to_another_probe_is_refused() -> None:
    history = History(PLAIN.search)
    at = ArmSearch("a", history, next_probe(history))
    with pytest.raises(ValueError, match="answers another probe"):
        at.after(WORLDS["a"](Probe("grid", 3.0, 0)))
    with pytest.raises(ValueError, match="answers another probe"):
        replace(at, asked=Done((), 0)).after(WORLDS["a"](Probe("locate", 1.0, 3)))


def test_a_campaign_of_fixed_loads_has_an_agenda_too() -> None:
    text = MANIFEST.format(search="", order="interleaved", vary="seed").replace(
        "{capacity: {start: 1/s, limit: 64/s, attainment: 0.9}}", "{rate: [1/s]}"
    )
    campaign = expand(parse_manifest(text, "m.yaml"))
    kept = campaign.runs[2]
    agenda = agenda_of(campaign, {(kept.cell, kept.replicate): Path("x")})
    assert isinstance(agenda, PlannedAgenda)
    made: list[PlannedRun] = []
    while (run := agenda.next()) is not None:
        assert agenda.told(run) == {}
        agenda.took(run, Path("x"))
        made.append(run)
    assert made == [r for r in campaign.runs if r is not kept]
    assert list(agenda.conclusions()) == []


def runs_of(rows: Sequence[Row], arm: str) -> list[Row]:
    return [row for row in rows if row[0].startswith(f"{arm}@")]


def test_a_wider_grid_meets_every_replicate_on_a_new_server() -> None:
    """A replicate far off widens the grid; the loads that are added are served by processes of their own."""
    searches = searches_of(", servers: replicate")
    laboratory = Laboratory({**WORLDS, "a": falling(10.0, spread=(0.25, 0.0, -0.25))})
    assert laboratory.go_on(searches)
    rows = [row for row in runs_of(laboratory.order, "a") if not row[0].endswith("+locate")]
    rates = {rate for *_, rate in rows}
    assert len(rates) > searches.search.grid
    starts = {(draw, start) for _, draw, start, _ in rows}
    assert len(starts) == 3 * (1 + len(rates) - searches.search.grid)
