from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.replay.pool import FRESH_IDLE_NS, MAX_AIM, USED_IDLE_NS, Pool


def test_the_most_recently_used_connection_is_taken_first_and_fresh_ones_last() -> None:
    pool: Pool[str] = Pool(4)
    pool.put("fresh", 0, used=False)
    pool.put("old", 1, used=True)
    pool.put("new", 2, used=True)
    assert [pool.take(3) for _ in range(4)] == ["new", "old", "fresh", None]


def test_a_connection_that_served_too_long_ago_is_not_reused() -> None:
    pool: Pool[str] = Pool(4)
    pool.put("served", 0, used=True)
    pool.put("fresh", 0, used=False)
    assert pool.take(USED_IDLE_NS) == "fresh"
    assert pool.take(USED_IDLE_NS) is None
    assert pool.retire(USED_IDLE_NS) == ["served"]
    assert len(pool) == 0


def test_fresh_connections_are_retired_later() -> None:
    pool: Pool[str] = Pool(4)
    pool.put("fresh", 0, used=False)
    assert pool.retire(FRESH_IDLE_NS - 1) == []
    assert pool.retire(FRESH_IDLE_NS) == ["fresh"]


def test_a_closed_connection_is_forgotten() -> None:
    pool: Pool[str] = Pool(4)
    pool.put("a", 0, used=True)
    pool.put("b", 0, used=False)
    pool.drop("a")
    pool.drop("unknown")
    assert pool.drain() == ["b"]


def test_a_miss_raises_the_aim_up_to_its_bound() -> None:
    pool: Pool[str] = Pool(4)
    pool.take(0)
    assert pool.aim == 6
    for _ in range(40):
        pool.take(0)
    assert pool.aim == MAX_AIM


def test_waiting_requests_are_served_before_the_store_is_filled() -> None:
    pool: Pool[str] = Pool(10)
    assert pool.to_open(waiting=20, opening=0, at_once=8, room=None) == 20
    assert pool.to_open(waiting=0, opening=0, at_once=8, room=None) == 8
    assert pool.to_open(waiting=0, opening=8, at_once=8, room=None) == 0
    assert pool.to_open(waiting=2, opening=2, at_once=0, room=None) == 0
    assert pool.to_open(waiting=0, opening=0, at_once=8, room=3) == 3


COUNT = st.integers(0, 50)


@given(COUNT, COUNT, COUNT, COUNT, COUNT, st.none() | st.integers(-5, 50))
def test_demand_is_always_met_and_the_store_never_overfilled(
    aim: int, idle: int, waiting: int, opening: int, at_once: int, room: int | None
) -> None:
    pool: Pool[int] = Pool(aim)
    for i in range(idle):
        pool.put(i, 0, used=True)
    count = pool.to_open(waiting=waiting, opening=opening, at_once=at_once, room=room)
    assert count >= max(0, waiting - opening)
    ahead = count - max(0, waiting - opening)
    assert ahead == 0 or idle + opening + count - waiting <= pool.aim
    assert ahead == 0 or opening + count <= at_once
    assert ahead == 0 or room is None or count <= room
