from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.clock import VirtualClock
from harness.replay.pacer import Pacer, burst

ARRIVALS = st.lists(st.integers(0, 1000), max_size=40).map(sorted)


def test_everything_due_at_a_late_wake_up_is_taken_in_order() -> None:
    pacer = Pacer([0, 10, 10, 20, 90], end_ns=100)
    assert list(pacer.due(15)) == [0, 1, 2]
    assert pacer.next_ns() == 20
    assert list(pacer.due(19)) == []
    assert list(pacer.due(500)) == [3, 4]
    assert pacer.next_ns() == 100


def test_an_arrival_at_the_drains_end_never_happens() -> None:
    pacer = Pacer([5, 100, 120], end_ns=100)
    assert list(pacer.due(1000)) == [0]
    assert pacer.next_ns() == 100
    assert list(pacer.rest()) == [1, 2]
    assert list(pacer.rest()) == []


def test_a_plan_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        Pacer([2, 1], end_ns=10)


@given(ARRIVALS, st.integers(1, 1200), st.lists(st.integers(0, 300), max_size=20))
def test_each_request_is_due_once_never_early_and_the_rest_is_left(arrivals: list[int], end: int, steps: list[int]) -> None:
    clock, pacer, start = VirtualClock(), Pacer(arrivals, end), VirtualClock().now_ns()
    sent: list[int] = []
    for step in steps:
        clock.advance(step)
        now = clock.now_ns() - start
        for request in pacer.due(now):
            assert arrivals[request] <= now
            assert arrivals[request] < end
            sent.append(request)
        assert pacer.next_ns() > now or pacer.next_ns() == end
    assert sent + list(pacer.rest()) == list(range(len(arrivals)))


@given(ARRIVALS, st.integers(0, 100))
def test_burst_is_the_fullest_window(arrivals: list[int], within: int) -> None:
    slow = max((sum(a <= b <= a + within for b in arrivals) for a in arrivals), default=0)
    assert burst(arrivals, within) == slow
