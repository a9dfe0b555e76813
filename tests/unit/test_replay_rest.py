"""How long the reader rests, against streams whose gaps are known."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.clock import NS_PER_MS, NS_PER_S
from harness.replay.rest import ENOUGH, FEW, FIRST_NS, LEAST_NS, MANY, MOST_NS, SHARE, Rest


def watch(rest: Rest, gaps: Iterable[int], from_ns: int = 0) -> list[tuple[int, int]]:
    """Look at one stream as a reader does; of each look, how many pieces were read together and after which rest."""
    looks = []
    at_ns = last_ns = before_ns = from_ns
    came = 0
    for piece_ns in accumulate(gaps, initial=from_ns):
        while piece_ns > at_ns + rest.ns:
            at_ns += rest.ns
            if came:
                looks.append((came, rest.ns))
                rest.saw(before_ns - last_ns)
                last_ns, came = before_ns, 0
            rest.settle()
        before_ns, came = piece_ns, came + 1
    return looks


def fitting(gap_ns: int) -> int:
    """The longest rest of those that doubling leads to, with ``SHARE`` of it in the gap."""
    return max((ns for ns in (LEAST_NS, FIRST_NS, 2 * FIRST_NS, MOST_NS) if SHARE * ns <= gap_ns), default=LEAST_NS)


@given(st.integers(LEAST_NS, 100 * NS_PER_MS))
def test_it_comes_to_a_quarter_of_the_gap_and_stays(gap_ns: int) -> None:
    rest = Rest()
    watch(rest, repeat(gap_ns, 4 * ENOUGH))
    assert rest.ns == fitting(gap_ns)
    looks = watch(rest, repeat(gap_ns, 4 * ENOUGH))
    assert {rested for _, rested in looks} == {fitting(gap_ns)}
    if gap_ns > LEAST_NS:
        assert max(came for came, _ in looks) == 1


@given(st.integers(SHARE * LEAST_NS, 40 * NS_PER_MS), st.integers(LEAST_NS // 10, 40 * NS_PER_MS))
def test_gaps_that_become_shorter_are_followed_after_a_few(slow_ns: int, fast_ns: int) -> None:
    rest = Rest()
    watch(rest, repeat(slow_ns, 4 * ENOUGH))
    started_ns = rest.ns
    looks = watch(rest, repeat(fast_ns, 20 * ENOUGH))
    # Three halvings lead from the most to the least, each after a few short gaps and one more; a look sees one gap at most.
    assert all(rested <= max(fitting(fast_ns), LEAST_NS) for _, rested in looks[3 * (FEW + 2) :] if fast_ns < SHARE * started_ns)


@pytest.mark.parametrize(("short", "then_ns"), [(FEW, FIRST_NS), (FEW + 1, FIRST_NS // 2)])
def test_single_short_gaps_do_not_count(short: int, then_ns: int) -> None:
    rest = Rest()
    for gap_ns in [SHARE * FIRST_NS - 1] * short + [SHARE * FIRST_NS] * (ENOUGH - short):
        rest.saw(gap_ns)
        rest.settle()
    assert rest.ns == then_ns


@pytest.mark.parametrize(("near", "then_ns"), [(FEW, 2 * FIRST_NS), (FEW + 1, FIRST_NS)])
def test_it_doubles_where_nearly_all_gaps_leave_room(near: int, then_ns: int) -> None:
    rest = Rest()
    for gap_ns in [2 * SHARE * FIRST_NS - 1] * near + [2 * SHARE * FIRST_NS] * (ENOUGH - near):
        assert not rest.settle()
        rest.saw(gap_ns)
    assert rest.settle() == (then_ns != FIRST_NS)
    assert rest.ns == then_ns


@pytest.mark.parametrize(
    ("a_look", "then_ns"), [(MANY, 2 * FIRST_NS), (2 * MANY, FIRST_NS), (4 * MANY, FIRST_NS), (8 * MANY, FIRST_NS // 2)]
)
def test_it_keeps_the_loop_from_reading_for_long(a_look: int, then_ns: int) -> None:
    rest = Rest()
    for _ in range(ENOUGH // a_look):
        for _ in range(a_look):
            rest.saw(NS_PER_S)
        rest.settle()
    assert rest.ns == then_ns


@given(st.lists(st.integers(0, 60 * NS_PER_MS), max_size=600), st.integers(1, ENOUGH))
def test_it_keeps_its_bounds_whatever_it_sees(gaps: list[int], looks_each: int) -> None:
    rest = Rest()
    for number, gap_ns in enumerate(gaps):
        before_ns = rest.ns
        rest.saw(gap_ns)
        if number % looks_each == 0:
            changed = rest.settle()
            assert LEAST_NS <= rest.ns <= MOST_NS
            assert rest.ns in (before_ns // 2, before_ns, 2 * before_ns)
            assert changed == (rest.ns != before_ns)


@pytest.mark.parametrize("gaps", [[], [LEAST_NS - 1], [0, 1, LEAST_NS // 2]])
def test_what_tells_nothing_changes_nothing(gaps: list[int]) -> None:
    rest = Rest()
    for _ in range(2 * ENOUGH):
        for gap_ns in gaps:
            rest.saw(gap_ns)
        assert not rest.settle()
    assert rest.ns == FIRST_NS


def test_one_bound_for_both_is_a_rest_of_that_length() -> None:
    rest = Rest(NS_PER_S, NS_PER_S)
    watch(rest, repeat(3 * NS_PER_S, 2 * ENOUGH))
    watch(rest, repeat(NS_PER_MS, 2 * ENOUGH))
    assert rest.ns == NS_PER_S
