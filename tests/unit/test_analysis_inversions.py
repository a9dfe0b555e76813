"""Priority inversions against a reader's own count, and the seed's aging at tick 8."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.inversions import MOST_LEVELS, Queue, inverted
from analysis.run import measure_run
from harness.errors import UsageError
from harness.record.fairness import default_fairness
from tests.builders import MS, S, make_record, make_request, make_spec


def queue(requests: list[tuple[int, int, int]]) -> Queue:
    """(arrival, wait to the first token, priority) of each request."""
    arrival, wait, priority = (np.array(list(c), dtype=np.int64) for c in (zip(*requests, strict=True) if requests else ((), (), ())))
    return Queue(arrival, arrival + wait, priority)


def by_hand(requests: list[tuple[int, int, int]], quantum: int | None) -> list[bool]:
    """The definition, pair by pair."""

    def level(one: tuple[int, int, int], now: int) -> int:
        return one[2] if quantum is None else one[2] - (now - one[0]) // quantum

    found = []
    for mine in requests:
        now = mine[0] + mine[1]
        waiting = [other for other in requests if other[0] < now < other[0] + other[1]]
        found.append(any(level(other, now) < level(mine, now) for other in waiting))
    return found


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(-3, 3)), max_size=14),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_inversions_are_what_a_reader_counts_pair_by_pair(requests: list[tuple[int, int, int]], quantum: int | None) -> None:
    made = queue(requests)
    assert inverted(made, np.arange(len(requests)), quantum).tolist() == by_hand(requests, quantum)


def test_the_seeds_low_request_served_at_tick_8_is_an_inversion_to_static_priority_and_none_under_aging() -> None:
    """Base priorities 4 and 0, a step every two ticks: at tick 8 the old request's number has fallen to 0, that of one just come."""
    low, high = (0, 8, 4), (7, 2, 0)  # the high one waits from 7 to 9
    assert inverted(queue([low, high]), np.array([0]), None).tolist() == [True]
    assert inverted(queue([low, high]), np.array([0]), 2).tolist() == [False]
    assert inverted(queue([(0, 7, 4), (6, 3, 0)]), np.array([0]), 2).tolist() == [True]  # a tick earlier its number is 1


def test_a_quantum_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="value_too_small"):
        inverted(queue([(0, 1, 0)]), np.array([0]), 0)


def three(priorities: tuple[int | None, ...], **declared: Any) -> Any:
    """Requests at 3.0, 3.1 and 3.2 s, answered in order of arrival a second later each."""
    rows = [make_request(i, 3 * S + i * 100 * MS, ttft_ns=(i + 1) * S - i * 100 * MS) for i in range(3)]
    spec = make_spec(fairness=default_fairness(10 * S).model_copy(update=declared))
    plan = {i: {"client": "ab"[i % 2], "priority": p} for i, p in enumerate(priorities)}
    found = measure_run(make_record(rows, spec=spec, plan=plan)).fairness
    assert found is not None
    return found.inversions


def test_inversions_of_a_run() -> None:
    found = three((5, 1, 0))  # the first passes both others, the second the third
    assert (found.first_tokens, found.static, found.aged, found.reason) == (3, 2, None, "no aging quantum is declared")
    aged = three((5, 1, 0), aging_quantum_ns=10 * MS)
    assert (aged.static, aged.aged) == (2, 0)  # a tenth of a second of age outweighs any of these numbers
    assert three((0, 1, 5)).static == 0
    assert three((5, None, 5)).static == 1  # an engine takes the one without a priority as 0, and the first passes it


@pytest.mark.parametrize(
    ("priorities", "reason"),
    [
        ((None, None, None), "no priorities were sent"),
        ((0, None, 0), "every request was sent with one priority"),
        ((3, 3, 3), "every request was sent with one priority"),
    ],
)
def test_without_priorities_there_is_no_number_and_the_reason_why(priorities: tuple[int | None, ...], reason: str) -> None:
    found = three(priorities)
    assert (found.static, found.aged, found.reason) == (None, None, reason)


def test_more_priorities_than_are_looked_at_are_no_zero() -> None:
    rows = [make_request(i, 3 * S + i) for i in range(MOST_LEVELS + 1)]
    found = measure_run(make_record(rows, plan={i: {"client": "ab"[i % 2], "priority": i} for i in range(len(rows))})).fairness
    assert found is not None
    assert found.inversions.static is None
    assert "257 distinct priorities" in found.inversions.reason
