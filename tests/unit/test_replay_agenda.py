"""Requests that wait for others, in virtual time, against a rule written down a second time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.replay.agenda import Agenda
from harness.replay.waits import Waits
from workloads.schedule import Ragged


def ragged(*rows: list[int]) -> Ragged:
    return Ragged.of(rows, np.int64)


def test_a_turn_comes_due_at_the_end_of_the_last_it_waits_for_plus_its_think_time() -> None:
    agenda = Agenda([0, 0, 0], 1000, ragged([], [], [0, 1]), [-1, -1, 50])
    assert agenda.due(0) == [(0, 0), (0, 1)]
    agenda.ended(1, 300)
    assert agenda.next_ns() == 1000
    agenda.ended(0, 200)  # its end is heard of later, and it ended earlier
    assert agenda.next_ns() == 350
    assert agenda.due(349) == []
    assert agenda.due(400) == [(350, 2)]


def test_a_pause_after_an_end_holds_back_those_whose_think_time_is_shorter() -> None:
    agenda = Agenda([0, 0, 0], 1000, ragged([], [0], [0]), [-1, 0, 80])
    agenda.due(0)
    agenda.ended(0, 100, 50)
    assert agenda.due(999) == [(150, 1), (180, 2)]


def test_equal_arrivals_leave_in_one_pass_in_order_whoever_set_them() -> None:
    agenda = Agenda([0, 0, 100, 100, 100], 1000, ragged([], [0], [], [], []), [-1, 60, -1, -1, -1])
    agenda.due(0)
    agenda.ended(0, 40)
    assert agenda.due(100) == [(100, 1), (100, 2), (100, 3), (100, 4)]


def test_what_waits_for_a_failure_is_lost_at_once_and_only_once() -> None:
    waits = Waits(ragged([], [0], [1], [1, 2], []), [0] * 5)
    assert sorted(waits.lost(0)) == [1, 2, 3]
    assert (waits.lost(0), waits.lost(1), waits.rest()) == ([], [], [])


def test_a_completed_branch_does_not_bring_back_a_lost_join() -> None:
    waits = Waits(ragged([], [], [0, 1]), [0] * 3)
    assert waits.lost(0) == [2]
    assert waits.ended(1, 5) == []


def test_a_predecessor_named_twice_ends_once() -> None:
    assert Waits(ragged([], [0, 0]), [0, 7]).ended(0, 5) == [(12, 1)]


def test_only_requests_that_others_wait_for_are_followed() -> None:
    agenda = Agenda([0, 0, 9], 10, ragged([], [0], []), [-1, 0, -1])
    assert [agenda.followed(i) for i in range(3)] == [True, False, False]
    assert not Agenda([0], 10).followed(0)


def test_arrivals_by_the_clock_are_all_but_those_that_wait() -> None:
    assert Agenda([0, 5, 9], 10, ragged([], [0], []), [-1, 0, -1]).by_clock == [0, 9]


def test_a_turn_due_at_the_drains_end_or_later_never_arrives() -> None:
    agenda = Agenda([0, 0, 120], 100, ragged([], [0], []), [-1, 40, -1])
    agenda.due(0)
    agenda.ended(0, 60)
    assert (agenda.next_ns(), agenda.due(500)) == (100, [])
    assert agenda.rest() == [(2, 120), (1, None)]
    assert agenda.rest() == []


@dataclass
class Load:
    """A random load: any graph without circles, any time for an answer, any pattern of outcomes."""

    arrivals: list[int]
    after: list[list[int]]
    think: list[int]
    takes: list[int]
    good: list[bool]
    end: int
    pause: int | None = None


@st.composite
def loads(draw: st.DrawFn) -> Load:
    n = draw(st.integers(0, 14))
    order = draw(st.permutations(range(n)))  # what a request may wait for comes before it here, whatever the ids are
    after: list[list[int]] = [[] for _ in range(n)]
    for place, request in enumerate(order):
        if place and draw(st.booleans()):
            after[request] = draw(st.lists(st.sampled_from(order[:place]), min_size=1, max_size=3, unique=True))
    numbers = st.lists(st.integers(0, 40), min_size=n, max_size=n)
    good = [draw(st.integers(0, 4)) > 0 for _ in range(n)]
    pause = draw(st.none() | st.integers(0, 30))
    return Load(sorted(draw(numbers)), after, draw(numbers), draw(numbers), good, draw(st.integers(1, 150)), pause)


def play(load: Load) -> dict[int, tuple[str, int | None]]:
    """Run a load through the agenda as the engine does: (end, arrival) by request; fails when one ends twice."""
    agenda = Agenda(load.arrivals, load.end, Ragged.of(load.after, np.int64), load.think)
    under_way: list[tuple[int, int]] = []
    arrived: dict[int, int] = {}
    ends: dict[int, tuple[str, int | None]] = {}

    def over(request: int, kind: str, arrival: int | None) -> None:
        assert request not in ends, f"request {request} ended twice"
        ends[request] = (kind, arrival)

    def fail(request: int, kind: str, end: int) -> None:
        over(request, kind, arrived[request])
        if load.pause is not None:
            agenda.ended(request, end, load.pause)
            return
        for other in agenda.lost(request):
            over(other, "never_due", None)

    while (now := min([agenda.next_ns(), *(end for end, _ in under_way[:1])])) < load.end:
        while under_way and under_way[0][0] <= now:
            end, request = heapq.heappop(under_way)
            if load.good[request]:
                over(request, "complete", arrived[request])
                agenda.ended(request, end)
            else:
                fail(request, "reset", end)
        for arrival, request in agenda.due(now):
            assert arrival <= now < load.end
            arrived[request] = arrival
            heapq.heappush(under_way, (arrival + load.takes[request], request))
    for _, request in under_way:
        fail(request, "drain_end", load.end)
    for request, planned in agenda.rest():
        over(request, "never_sent", planned)
    return ends


def expected(load: Load) -> dict[int, tuple[str, int | None]]:
    """The same from the definition: no heap, no clock."""
    known: dict[int, tuple[str, int | None]] = {}

    def arrival_of(request: int) -> int:
        if not load.after[request]:
            return load.arrivals[request]
        return max(arrival_of(p) + load.takes[p] + wait(p, request) for p in load.after[request])

    def wait(before: int, request: int) -> int:
        return max(load.think[request], 0 if load.good[before] or load.pause is None else load.pause)

    def of(request: int) -> tuple[str, int | None]:
        if request not in known:
            before = {of(p)[0] for p in load.after[request]}
            arrival = arrival_of(request)
            if load.pause is None and before & {"reset", "drain_end", "never_due"}:
                known[request] = ("never_due", None)
            elif before & {"never_sent", "drain_end"} or arrival >= load.end:
                known[request] = ("never_sent", None if before else arrival)
            elif arrival + load.takes[request] >= load.end:
                known[request] = ("drain_end", arrival)
            else:
                known[request] = ("complete" if load.good[request] else "reset", arrival)
        return known[request]

    return {request: of(request) for request in range(len(load.arrivals))}


@given(loads())
def test_every_request_ends_exactly_once_as_the_definition_says(load: Load) -> None:
    assert play(load) == expected(load)


@pytest.mark.parametrize("length", [5_000])
def test_a_long_chain_needs_no_recursion(length: int) -> None:
    waits = Waits(ragged([], *([i] for i in range(length))), [0] * (length + 1))
    assert len(waits.lost(0)) == length
