"""Statistical gates fire on healthy runs too: a search over many runs expects that, keeps those runs, and ends when there are too many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.capacity import Probe, ProbeRun, coordinate, estimate
from analysis.capacity_runs import is_alarm
from analysis.capacity_search import FALSE_ALARM, allowed_alarms, too_many_alarms
from analysis.gates import GATES
from analysis.model import CheckResult, Claim, Verdict
from tests.capacity_worlds import drive, falling, make_search

SEARCH = make_search(replicates=5)
WORLD = falling(10.0, (-0.02, -0.01, 0.0, 0.01, 0.02))


def run_with(firing: int, **changes: object) -> tuple[str, tuple[str, ...], int]:
    """Status, reasons and grid runs of a search whose first ``firing`` grid runs alarm."""
    left, spared = iter(range(firing)), set[float]()

    def world(probe: Probe) -> ProbeRun:
        fires = probe.phase == "grid" and probe.rate not in spared and next(left, None) is not None
        spared.update({probe.rate} if fires else ())  # never two at one load
        return replace(WORLD(probe), alarms=("steady_state",) if fires else (), **(changes if fires else {}))  # type: ignore[arg-type]

    history, _ = drive(SEARCH, world)
    found = estimate(history)
    return found.status, tuple(r.text for r in found.reasons), sum(run.phase == "grid" for run in history.runs)


@given(st.integers(1, 2000))
def test_more_alarms_than_allowed_come_by_chance_in_one_grid_of_a_hundred_at_most(runs: int) -> None:
    allowed = allowed_alarms(runs)
    assert stats.binom.sf(allowed, runs, FALSE_ALARM) <= FALSE_ALARM
    assert allowed == 0 or stats.binom.sf(allowed - 1, runs, FALSE_ALARM) > FALSE_ALARM


def test_as_many_as_chance_explains_are_kept_as_data() -> None:
    assert run_with(0)[::2] == run_with(allowed_alarms(25))[::2] == ("resolved", 25)


def test_one_more_ends_the_search_and_names_them() -> None:
    status, (reason,), made = run_with(allowed_alarms(25) + 1)
    assert (status, made) == ("unresolved", allowed_alarms(25) + 1)
    assert reason.startswith("3 of 25 grid runs fail steady_state (rate/replicate ")
    assert reason.endswith("chance explains 2")


def alarming_at(*replicates: int, place: int = 1, piled: tuple[int, ...] = ()) -> tuple[str, tuple[str, ...]]:
    """A search whose runs of some replicates alarm at one load of the grid; at the loads ``piled`` all runs are overloaded."""
    _, done = drive(SEARCH, WORLD)

    def world(probe: Probe) -> ProbeRun:
        run, at = WORLD(probe), done.rates.index(probe.rate) if probe.phase == "grid" else -1
        fires = at == place and probe.replicate in replicates
        return replace(run, alarms=("steady_state",) if fires else (), overloaded=at in piled)

    found = estimate(drive(SEARCH, world)[0])
    return found.status, tuple(r.text for r in found.reasons)


def test_alarms_gathered_at_one_load_are_no_chance() -> None:
    """A fault that shows near capacity leaves the other loads alone: two of 25 come by chance, two of the five at one load do not."""
    assert alarming_at(3)[0] == "resolved"
    status, (reason,) = alarming_at(1, 3)
    assert status == "unresolved"
    assert reason.startswith("2 of 5 runs at 9.66895 fail steady_state (rate/replicate 9.66895/1, 9.66895/3); chance explains 1")


def test_overloaded_runs_allow_for_no_alarm() -> None:
    """They cannot alarm, so chance has only the others to choose from: of ten runs it explains one."""
    runs = [WORLD(Probe("grid", rate, r)) for rate in (8.0, 9.0, 10.0, 11.0, 12.0) for r in range(5)]
    alarmed = [replace(run, alarms=("steady_state",) if (run.rate, run.replicate) in {(8.0, 0), (9.0, 1)} else ()) for run in runs]
    piled = [replace(run, overloaded=run.rate > 9.5) for run in alarmed]
    rates = (8.0, 9.0, 10.0, 11.0, 12.0)
    assert too_many_alarms(alarmed, rates, 5) is None
    found = too_many_alarms(piled, rates, 5)
    assert found is not None
    assert found.text.startswith("2 of 10 grid runs fail steady_state")


def test_a_healthy_grid_ends_for_its_alarms_once_in_fifty_times_at_most() -> None:
    """One in a hundred each for all runs and for one load, simulated over grids of the usual sizes."""
    rng = np.random.default_rng(5)
    for loads, count in ((5, 5), (7, 3), (11, 5)):
        rates = [1.05**i for i in range(loads)]
        plain = [replace(WORLD(Probe("grid", rate, r)), overloaded=False) for rate in rates for r in range(count)]
        fired = [
            too_many_alarms([replace(run, alarms=("steady_state",)) for run, one in zip(plain, own, strict=True) if one], rates, count)
            for own in rng.random((1500, len(plain))) < FALSE_ALARM
        ]
        assert np.mean([reason is not None for reason in fired]) <= 2 * FALSE_ALARM


def test_overload_explains_the_drift_that_it_is() -> None:
    assert run_with(4, overloaded=True, valid=0)[1] == run_with(0, overloaded=True, valid=0)[1]


def test_alarms_while_locating_are_nothing() -> None:
    history, _ = drive(SEARCH, lambda p: replace(WORLD(p), alarms=("steady_state",) if p.phase == "locate" else ()))
    assert estimate(history).status == "resolved"


@pytest.mark.parametrize("code", sorted(GATES))
@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.UNKNOWN])
def test_only_a_failed_test_with_published_rates_that_protects_no_integrity_is_an_alarm(code: str, verdict: Verdict) -> None:
    gate = GATES[code]
    check = CheckResult(code, verdict, "", gate.protects, "")
    assert is_alarm(check) == (verdict is Verdict.FAIL and gate.rates is not None and Claim.INTEGRITY not in gate.protects)


def test_steady_state_is_such_a_test_and_counts_are_not() -> None:
    def failed(code: str) -> bool:
        return is_alarm(CheckResult(code, Verdict.FAIL, "", GATES[code].protects, ""))

    assert failed("steady_state")
    assert not failed("counts_agree")
    assert not failed("client_slip")


def test_who_shares_a_server_is_part_of_the_procedure() -> None:
    shared = make_search(servers="replicate")
    assert coordinate(shared) != coordinate(make_search())
    assert make_search().most_starts == make_search().most_probes
    assert shared.most_starts == 1 + (1 + shared.widen) * shared.replicates
