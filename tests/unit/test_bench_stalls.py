"""The rule that tells a slow engine from a host that stalled: evidence beside the value, or it counts against us."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.stalls import (
    MET,
    NOT_MET,
    STALLED,
    UNMEASURED,
    Spans,
    at_least,
    growth_within,
    p99_within,
    peak_open,
    slips,
    tbt_errors,
    ttft_errors,
    within,
)
from harness.calibrate.joined import Exchange, Lags
from harness.calibrate.rig import Load, Trial
from harness.calibrate.watch import Track, Watch
from harness.clock import MonotonicClock
from harness.replay.contract import ReplaySummary

MS = 1_000_000
EPOCH = 1_000 * MS
NONE = np.zeros(0, dtype=np.int64)


def numbers(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def delays(*points: tuple[int, int]) -> Track:
    """A track whose delay stood at ``ns`` at each instant."""
    return Track(at_ns=array("q", [at for at, _ in points]), delay_ns=array("q", [ns for _, ns in points]))


def trial(
    *,
    late: tuple[int, int] | None = None,
    lag: tuple[int, int] | None = None,
    client: Track | None = None,
    steal: Track | None = None,
    exchanges: list[Exchange | None] | None = None,
) -> Trial:
    watch = Watch(MonotonicClock(), {})
    watch.tracks["client"] = client or Track()
    watch.steal = steal or Track()
    load = Load(NONE, [], NONE, 0)
    at, lateness = ([late[0]], [late[1]]) if late else ([], [])
    probes = Lags(*(numbers(*lag[i : i + 1]) if lag else NONE for i in range(2)))
    summary = ReplaySummary(0, 0, None, 0.0, 0.0)
    return Trial(load, EPOCH, exchanges or [], probes, numbers(*at), numbers(*lateness), {}, watch, summary)


def spans(late: int = 10) -> Spans:
    """A hundred values of 0.1 ms and two of ``late`` ms that came about from 500 ms on."""
    values = numbers(*[100_000] * 100, late * MS, late * MS)
    start = numbers(*[0] * 100, 500 * MS, 500 * MS)
    return Spans(values, start, start + values)


def judged(found: Trial, late: int = 10) -> str:
    return p99_within("slip p99", spans(late), 2 * MS, found).verdict


WAITED = delays((480 * MS, 0), (490 * MS, 0), (520 * MS, 9 * MS), (540 * MS, 9 * MS))


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (trial(), NOT_MET),
        (trial(late=(505 * MS, 2 * MS)), STALLED),  # due then, written so much later
        (trial(late=(505 * MS, 2 * MS - 1)), NOT_MET),  # later than ever, but within the limit
        (trial(late=(511 * MS, 50 * MS)), NOT_MET),  # at another time
        (trial(late=(400 * MS, 50 * MS)), NOT_MET),
        (trial(late=(400 * MS, 101 * MS)), STALLED),  # due long before, not written yet
        (trial(lag=(503 * MS, 5 * MS), client=WAITED), STALLED),
        (trial(lag=(503 * MS, 3 * MS), client=WAITED), NOT_MET),  # the probe says less than half of it
        (trial(lag=(503 * MS, 5 * MS)), NOT_MET),  # late loop, and nobody took its core: the loop was busy
        (trial(lag=(503 * MS, 5 * MS), client=delays((490 * MS, 0), (520 * MS, 7 * MS))), NOT_MET),  # waited less than the excess
        (trial(client=WAITED), NOT_MET),
        (trial(steal=delays((490 * MS, 0), (520 * MS, 10 * MS))), STALLED),
    ],
)
def test_only_evidence_beside_the_value_lays_it_to_the_host(found: Trial, verdict: str) -> None:
    assert judged(found) == verdict


def test_a_bound_that_is_kept_needs_no_evidence() -> None:
    assert judged(trial(), late=2) == MET


def test_what_remains_may_be_the_hundredth_part_and_no_more() -> None:
    one_excused = Spans(numbers(*[0] * 198, 9 * MS, 9 * MS, 9 * MS), numbers(*[0] * 198, 0, 500 * MS, 700 * MS), numbers(*[1] * 201))
    one_excused.end[198:] = numbers(9 * MS, 509 * MS, 709 * MS)
    found = p99_within("x", one_excused, 2 * MS, trial(late=(505 * MS, 5 * MS)))
    assert (found.verdict, found.words) == (STALLED, "1 of 3 beyond the limit lie in stalls, 2 do not (allowed 2 of 201)")
    assert p99_within("x", one_excused, 2 * MS, trial()).verdict == NOT_MET


@given(st.lists(st.integers(0, 10 * MS), min_size=1, max_size=400))
def test_without_evidence_the_verdict_is_the_p99_and_nothing_else(values: list[int]) -> None:
    found = p99_within("x", Spans(numbers(*values), numbers(*values), numbers(*values)), 5 * MS, trial())
    beyond = sum(value > 5 * MS for value in values)
    assert found.verdict == (MET if beyond <= len(values) // 100 else NOT_MET)


@pytest.mark.parametrize(
    ("late", "backlog", "starved", "verdict"),
    [
        (110e6, 0, False, MET),
        (111e6, 50_000_000, False, NOT_MET),  # it had its core: then it is too slow, and that is ours
        (160e6, 50_000_000, True, STALLED),
        (161e6, 50_000_000, True, NOT_MET),
        (None, 0, True, UNMEASURED),
    ],
)
def test_memory_that_waits_for_a_starved_spooler_is_the_hosts(late: float | None, backlog: int, starved: bool, verdict: str) -> None:
    assert growth_within("memory", 100e6, late, 1.1, backlog, starved=starved).verdict == verdict


def test_nothing_measured_is_neither_met_nor_missed() -> None:
    assert p99_within("x", Spans(NONE, NONE, NONE), MS, trial()).verdict == UNMEASURED
    assert within("x", None, 1, "us").verdict == at_least("x", None, 1, "%").verdict == UNMEASURED
    assert [within("x", v, 20, "us").verdict for v in (20, 20.1)] == [MET, NOT_MET]
    assert [at_least("x", v, 100, "%").verdict for v in (100, 99.9)] == [MET, NOT_MET]


def test_values_come_with_the_time_over_which_they_came_about() -> None:
    seen = Exchange(2, numbers(30, 45), numbers(20, 30), True, 7)
    lost = Exchange(None, NONE, NONE, False, 9)
    found = trial(exchanges=[seen, None, lost])
    every = numbers(0, 1, 2)
    for made, values, start in ((slips, [2], 7), (ttft_errors, [10], 20), (tbt_errors, [5], 20)):
        given_ = made(found, every)
        assert (given_.values.tolist(), given_.start.tolist()) == (values, [EPOCH + start])
    assert slips(found, every).end.tolist() == [EPOCH + 9]
    assert tbt_errors(found, every).end.tolist() == [EPOCH + 45]
    assert tbt_errors(found, numbers(1, 2)).values.tolist() == []
    assert peak_open(found) == 1
