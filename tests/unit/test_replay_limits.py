from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.record.schema import EndKind
from harness.replay.exchange import Exchange
from harness.replay.limits import Limits


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=20), st.lists(st.integers(0, 30), max_size=5))
def test_the_living_are_given_up_at_their_limit_once_and_the_ended_never(entries: list[tuple[int, bool]], steps: list[int]) -> None:
    limits = Limits()
    given_up: list[int] = []
    for request, (at_ns, ended) in enumerate(entries):
        exchange = Exchange(request, 0, -1)
        limits.put(at_ns, exchange)
        if ended:
            exchange.end(EndKind.COMPLETE, 0, "")
    now = 0
    for step in steps:
        now += step
        given_up += [e.request_id for e in limits.due(now)]
        living = [at for at, ended in entries if not ended and at > now]
        assert limits.next_ns() == min(living, default=None)
    wanted = sorted((at, request) for request, (at, ended) in enumerate(entries) if not ended and at <= now and steps)
    assert given_up == [request for _, request in wanted]


def test_one_that_ends_while_another_is_given_up_is_not_given_up() -> None:
    limits, first, second = Limits(), Exchange(0, 0, -1), Exchange(1, 0, -1)
    limits.put(5, first)
    limits.put(5, second)
    given_up = []
    for exchange in limits.due(5):
        given_up.append(exchange)
        second.end(EndKind.RESET, 5, "")
    assert given_up == [first]
