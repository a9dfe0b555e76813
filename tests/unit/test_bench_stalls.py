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
    starved,
    tbt_errors,
    ttft_errors,
    within,
)
from harness.calibrate.joined import Exchange, Lags
from harness.calibrate.rig import Load, Place, Trial
from harness.calibrate.watch import Track, Watch
from harness.clock import MonotonicClock
from harness.replay.contract import ReplaySummary

MS = 1_000_000
EPOCH = 1_000 * MS
ANYWHERE = Place()
NONE = np.zeros(0, dtype=np.int64)


def numbers(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def delays(*points: tuple[int, int]) -> Track:
    """A track whose delay stood at ``ns`` at each instant."""
    return Track(at_ns=array("q", [at for at, _ in points]), delay_ns=array("q", [ns for _, ns in points]))


def used(*cpu_ns: int) -> Track:
    """A track of a process that had used so much CPU time at its readings, 1 s apart."""
    return Track(at_ns=array("q", range(0, len(cpu_ns) * 1000 * MS, 1000 * MS)), cpu_ns=array("q", cpu_ns))


def ran(*points: tuple[int, int]) -> Track:
    """A track of a process that had run for ``ns`` at each instant."""
    return Track(at_ns=array("q", [at for at, _ in points]), ran_ns=array("q", [ns for _, ns in points]))


def trial(
    *,
    late: tuple[int, int] | None = None,
    lag: tuple[int, int] | None = None,
    client: Track | None = None,
    steal: Track | None = None,
    exchanges: list[Exchange | None] | None = None,
    writes: tuple[Any, Any] | None = None,
    server: Track | None = None,
    spooler: Track | None = None,
    place: Place = ANYWHERE,
) -> Trial:
    """``late``/``writes``: when one token or many were due and how late they were written. The server spends 1 ms on all unless told."""
    watch = Watch(MonotonicClock(), {})
    watch.tracks = {"client": client or Track(), "server": server or used(0, MS), "spooler": spooler or Track()}
    watch.steal = steal or Track()
    load = Load(NONE, [], NONE, 0)
    at, lateness = writes or (([late[0]], [late[1]]) if late else ([], []))
    probes = Lags(*(numbers(*lag[i : i + 1]) if lag else NONE for i in range(2)))
    summary = ReplaySummary(0, 0, None, 0.0, 0.0)
    return Trial(load, EPOCH, exchanges or [], probes, numbers(*at), numbers(*lateness), {}, watch, summary, place=place)


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


BUSY = ran((490 * MS, 0), (520 * MS, 8 * MS))
"""A spooler of ours that ran for 8 ms about the time of the late values."""
APART = Place(client=(0,), server=(1,), spooler=(2,))
LATE_LOOP: dict[str, Any] = {"lag": (503 * MS, 5 * MS), "client": WAITED}


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (trial(**LATE_LOOP, spooler=BUSY), NOT_MET),  # it waited for a core that our own spooler had
        (trial(**LATE_LOOP, spooler=BUSY, place=APART), STALLED),
        (trial(late=(505 * MS, 9 * MS), spooler=BUSY), NOT_MET),  # so did the server
        (trial(late=(505 * MS, 9 * MS), spooler=BUSY, place=APART), STALLED),
        (trial(late=(505 * MS, 11 * MS), spooler=BUSY), STALLED),
        (trial(late=(505 * MS, 9 * MS), server=Track()), NOT_MET),  # what it did itself is not known
    ],
)
def test_what_our_own_processes_take_from_each_other_is_no_stall(found: Trial, verdict: str) -> None:
    assert judged(found) == verdict


def burst(cost_us: int, pause_ms: int = 0) -> Trial:
    """A server that owes 1,000 tokens at 505 ms and writes one each ``cost_us``, all CPU time, after a pause without a core."""
    late = pause_ms * MS + np.arange(1, 1001, dtype=np.int64) * cost_us * 1000
    return trial(writes=(np.full(1000, 505 * MS), late), server=used(0, 1000 * cost_us * 1000))


def test_a_server_that_is_late_because_it_has_too_much_to_write_is_no_stall() -> None:
    assert judged(burst(15)) == NOT_MET
    assert judged(burst(15, pause_ms=3)) == STALLED


@pytest.mark.parametrize(
    ("every_ms", "in_stalls", "verdict"),
    [
        (20, 4, STALLED),  # a fifth of all time has a stall beside it: 8 others stand for 10, as many as are allowed
        (20, 3, NOT_MET),  # 9 for 11.25
        (20, 1, NOT_MET),
        (1, 12, UNMEASURED),
    ],
)
def test_evidence_excuses_no_more_than_it_would_not_have_excused_by_chance(every_ms: int, in_stalls: int, verdict: str) -> None:
    due = np.arange(0, 1040, every_ms, dtype=np.int64) * MS
    found = trial(writes=(due, np.full(len(due), 3 * MS)))
    start = np.arange(1040, dtype=np.int64) * MS
    values = np.zeros(1040, dtype=np.int64)
    values[[20 * (k + 1) + (1 if k < in_stalls else 10) for k in range(12)]] = 9 * MS
    given_ = p99_within("x", Spans(values, start, start + MS // 2), 2 * MS, found)
    assert given_.verdict == verdict
    assert "stalls lie beside" in given_.words or verdict == NOT_MET


@given(st.integers(1, 400), st.floats(0.0, 1.0))
def test_a_pause_of_the_engine_itself_is_never_excused(pause_ms: int, share: float) -> None:
    """The loop stood still for as long as it took, and had a core all the while."""
    lag = (500 * MS, pause_ms * MS)
    client = Track(at_ns=array("q", [0, 2000 * MS]), delay_ns=array("q", [0, round(share * 0.9 * pause_ms * MS)]))
    found = trial(lag=lag, client=client, spooler=ran((0, 0), (2000 * MS, MS)))
    values = numbers(*[0] * 50, *[2 * MS + pause_ms * MS] * 3)
    start = np.full(53, 500 * MS, dtype=np.int64)
    assert p99_within("slip p99", Spans(values, start, start + values), 2 * MS, found).verdict == NOT_MET


@pytest.mark.parametrize(
    ("waited", "client_ran", "place", "answer"),
    [(300, 0, Place(), True), (300, 150, Place(), False), (300, 150, APART, True), (150, 0, Place(), False)],
)
def test_a_spooler_is_starved_by_others_than_us(waited: int, client_ran: int, place: Place, answer: bool) -> None:
    span = 0, 1000 * MS
    own = Track(*(array("q", [0, ns]) for ns in (1000 * MS, 200 * MS, waited * MS)), ran_ns=array("q", [0, 200 * MS]))
    found = trial(spooler=own, client=ran((0, 0), (1000 * MS, client_ran * MS)), server=ran((0, 0), (1000 * MS, 0)), place=place)
    assert starved(found, "spooler", *span) is answer
    assert not starved(trial(), "spooler", *span)


def test_a_bound_that_is_kept_needs_no_evidence() -> None:
    assert judged(trial(), late=2) == MET


def test_what_remains_may_be_the_hundredth_part_and_no_more() -> None:
    one_excused = Spans(numbers(*[0] * 198, 9 * MS, 9 * MS, 9 * MS), numbers(*[0] * 198, 0, 500 * MS, 700 * MS), numbers(*[1] * 201))
    one_excused.end[198:] = numbers(9 * MS, 509 * MS, 709 * MS)
    found = p99_within("x", one_excused, 2 * MS, trial(late=(505 * MS, 5 * MS)))
    assert (found.verdict, found.words) == (
        STALLED,
        "1 of 3 beyond the limit lie in stalls, 2 do not (allowed 2 of 201); stalls lie beside 0% of what was in time",
    )
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
