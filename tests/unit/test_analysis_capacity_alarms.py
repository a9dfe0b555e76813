"""Statistical gates fire on healthy runs too: a search over many runs expects that, keeps those runs, and ends when there are too many."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.capacity import Probe, ProbeRun, coordinate, estimate
from analysis.capacity_runs import is_alarm
from analysis.capacity_search import FALSE_ALARM, allowed_alarms
from analysis.gates import GATES
from analysis.model import CheckResult, Claim, Verdict
from tests.capacity_worlds import drive, falling, make_search

SEARCH = make_search(replicates=5)
WORLD = falling(10.0, (-0.02, -0.01, 0.0, 0.01, 0.02))


def run_with(firing: int, **changes: object) -> tuple[str, tuple[str, ...], int]:
    """Status, reasons and grid runs of a search whose first ``firing`` grid runs alarm."""
    left = iter(range(firing))

    def world(probe: Probe) -> ProbeRun:
        fires = probe.phase == "grid" and next(left, None) is not None
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
