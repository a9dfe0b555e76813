from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.fairness import (
    Gap,
    ServiceLog,
    VtcPremises,
    aged_priority,
    aging_crossover,
    backlog,
    check_bound,
    contended,
    counter_charge,
    covers,
    droughts,
    jain,
    largest_gap,
    pair_gap,
    service,
    service_bound,
    shared,
    starved,
    weighted_cost,
    windowed_gap,
    windowed_service,
)
from analysis.model import Verdict
from harness.errors import UsageError

A, B = HOT, COLD = LOW, HIGH = 0, 1

Job = tuple[int, int]
"""(client, arrival tick)"""


def replay(jobs: list[Job], ticks: int, choose: Callable[[list[Job], int, list[int]], Job]) -> tuple[ServiceLog, tuple[np.ndarray, ...]]:
    """Serve one job a tick, cost 2, published at the tick's end: small enough to check by hand. Unserved jobs end at ``ticks``."""
    waiting, done, service_so_far = sorted(jobs, key=lambda job: job[1]), [], [0, 0]
    for tick in range(ticks):
        ready = [job for job in waiting if job[1] <= tick]
        if ready:
            job = choose(ready, tick, service_so_far)
            waiting.remove(job)
            service_so_far[job[0]] += 2
            done.append((job, tick + 1))
    events = [(client, at) for (client, _), at in done]
    rows = [(client, arrival, at) for (client, arrival), at in done] + [(client, arrival, ticks) for client, arrival in waiting]
    client, arrival, end = ints([r[0] for r in rows]), ints([r[1] for r in rows]), ints([r[2] for r in rows])
    return log_of(events), backlog(client, arrival, end, 2)


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def log_of(events: list[tuple[int, int]], cost: list[float] | None = None, clients: int = 2) -> ServiceLog:
    costs = np.full(len(events), 2.0) if cost is None else np.array(cost, dtype=np.float64)
    return ServiceLog(ints([c for c, _ in events]), ints([at for _, at in events]), costs, clients)


# The seed's worked numbers (section 0x09A)

FLOOD = [(A, 0)] * 8 + [(B, 0)] * 4


def fifo(ready: list[Job], tick: int, served: list[int]) -> Job:
    return min(ready, key=lambda job: (job[1], job[0]))


def least_service(ready: list[Job], tick: int, served: list[int]) -> Job:
    return min(ready, key=lambda job: (served[job[0]], job[0]))


@pytest.mark.parametrize(("policy", "gap"), [(fifo, 16), (least_service, 2)])
def test_first_come_opens_a_gap_of_16_where_least_service_keeps_2(policy: Callable[..., Job], gap: int) -> None:
    log, stretches = replay(FLOOD, 12, policy)
    assert shared(*stretches).tolist() == [[0, 8]]
    assert largest_gap(log, stretches) == pair_gap(log, A, B, shared(*stretches))
    assert largest_gap(log, stretches).value == gap
    assert service(log, 0, 12).tolist() == [16, 8]  # the same in the end: the final difference is no unfairness
    assert starved(log, stretches, 0, 8).tolist() == [False, policy is fifo]
    assert not starved(log, stretches, 0, 12).any()


def test_the_conditional_bound_of_the_fixture() -> None:
    charge = counter_charge(w_p=1, w_q=2, longest_input=8, batch_tokens=4)
    assert charge == 8
    assert service_bound(charge, VtcPremises(True, True, True, True, True)).value == 16


def static(ready: list[Job], tick: int, served: list[int]) -> Job:
    return max(ready, key=lambda job: (job[0], -job[1]))


def aging(ready: list[Job], tick: int, served: list[int]) -> Job:
    base = {LOW: 4, HIGH: 0}
    return min(ready, key=lambda job: (int(aged_priority(base[job[0]], tick - job[1], 2)), job[1]))


PRESSURE = [(LOW, 0), *((HIGH, tick) for tick in range(10))]
"""One request of low priority, and one of high priority every tick. Priorities 4 and 0 and the quantum 2 are those of the seed's base."""


def test_aging_lets_the_old_request_win_at_tick_8_where_static_priority_starves_it() -> None:
    log, stretches = replay(PRESSURE, 10, static)
    assert starved(log, stretches, 0, 10).tolist() == [True, False]
    log, _ = replay(PRESSURE, 10, aging)
    assert log.at[log.client == LOW].tolist() == [8 + 1]  # chosen at tick 8, published at its end
    assert aging_crossover(low=4, high=0, quantum=2) == 8


def greedy(ready: list[Job], tick: int, served: list[int]) -> Job:
    return min(ready, key=lambda job: (job[0], job[1]))


def quota(ready: list[Job], tick: int, served: list[int]) -> Job:
    turn = COLD if tick % 3 == 2 else HOT
    return min(ready, key=lambda job: (job[0] != turn, job[1]))


@pytest.mark.parametrize(("policy", "hot", "cold"), [(greedy, 9, 0), (quota, 8, 1)])
def test_a_quota_lets_the_cold_group_progress_where_greedy_reuse_starves_it(policy: Callable[..., Job], hot: int, cold: int) -> None:
    """The seed gives one new hot request a tick and the results; that one cold request waits from the start, over nine ticks, is
    reconstructed from them."""
    log, stretches = replay([(COLD, 0), *((HOT, tick) for tick in range(9))], 9, policy)
    assert np.bincount(log.client, minlength=2).tolist() == [hot, cold]
    assert starved(log, stretches, 0, 9).tolist() == [False, cold == 0]


def test_failed_work_is_no_service() -> None:
    """The failure trace: an input of four tokens fails at tick 0 and completes at tick 1; only the second publishes."""
    log = ServiceLog(ints([A]), ints([2]), weighted_cost([4], [0], w_p=1, w_q=2), 2)
    assert [service(log, 0, 1)[A], service(log, 0, 2)[A]] == [0, 4]


# What holds for every log

EVENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 15), st.integers(0, 9)), max_size=25)
REQUESTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 15), st.integers(0, 8)), max_size=15)


def log_from(events: list[tuple[int, int, int]]) -> ServiceLog:
    return log_of([(c, at) for c, at, _ in events], [float(cost) for *_, cost in events], 3)


def backlog_of(requests: list[tuple[int, int, int]]) -> tuple[np.ndarray, ...]:
    client, arrival, stay = (ints(list(column)) for column in (zip(*requests, strict=True) if requests else ((), (), ())))
    return backlog(client, arrival, arrival + stay, 3)


@given(EVENTS, st.integers(0, 16), st.integers(0, 16))
def test_service_adds_up_over_clients_and_over_time(events: list[tuple[int, int, int]], t: int, u: int) -> None:
    log, (low, high) = log_from(events), sorted((t, u))
    assert (service(log, 0, low) + service(log, low, high) + service(log, high, 16)).tolist() == service(log, 0, 16).tolist()
    assert service(log, 0, 16).sum() == sum(cost for *_, cost in events)


@given(EVENTS, st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(1, 8))
def test_windows_are_service_in_them(events: list[tuple[int, int, int]], starts: list[int], width: int) -> None:
    log = log_from(events)
    found = windowed_service(log, ints(starts), width)
    assert found.tolist() == [service(log, s, s + width).tolist() for s in starts]


@given(REQUESTS)
def test_a_client_is_backlogged_in_just_the_ticks_some_request_of_it_is_open(requests: list[tuple[int, int, int]]) -> None:
    for client, stretches in enumerate(backlog_of(requests)):
        open_ticks = {t for c, a, stay in requests if c == client for t in range(a, a + stay)}
        assert {t for a, b in stretches.tolist() for t in range(a, b)} == open_ticks
        assert (stretches[1:, 0] > stretches[:-1, 1]).all()
        assert (stretches[:, 1] > stretches[:, 0]).all()


@given(REQUESTS)
def test_shared_stretches_are_the_ticks_of_both(requests: list[tuple[int, int, int]]) -> None:
    def ticks(s: np.ndarray) -> set[int]:
        return {t for a, b in s.tolist() for t in range(a, b)}

    for one, two in combinations(backlog_of(requests), 2):
        both = shared(one, two)
        assert ticks(both) == ticks(one) & ticks(two)
        assert both.tolist() == shared(two, one).tolist()
        assert all(covers(one, a, b) and covers(two, a, b) for a, b in both.tolist())
        assert (both[:, 1] > both[:, 0]).all()


@given(EVENTS, REQUESTS)
def test_the_gap_is_the_greatest_over_all_stretches_of_time(
    events: list[tuple[int, int, int]], requests: list[tuple[int, int, int]]
) -> None:
    log, stretches = log_from(events), backlog_of(requests)
    differences: list[float] = []
    for f, g in combinations(range(3), 2):
        for start, stop in shared(stretches[f], stretches[g]).tolist():
            for t1, t2 in combinations(range(start, stop + 1), 2):
                got = service(log, t1, t2)
                differences.append(abs(got[f] - got[g]))
    gap = largest_gap(log, stretches)
    assert (None if gap is None else gap.value) == max(differences, default=None)
    if gap is not None:  # and it arose where it says
        got = service(log, gap.t1, gap.t2)
        assert abs(got[gap.f] - got[gap.g]) == gap.value


@given(EVENTS, REQUESTS, st.permutations(range(3)), st.data())
def test_the_order_of_rows_and_the_names_of_clients_change_nothing(
    events: list[tuple[int, int, int]], requests: list[tuple[int, int, int]], name: list[int], data: st.DataObject
) -> None:
    mixed = [(name[c], at, cost) for c, at, cost in data.draw(st.permutations(events))]
    others = [(name[c], a, stay) for c, a, stay in data.draw(st.permutations(requests))]
    one, two = log_from(events), log_from(mixed)
    assert service(one, 0, 16).tolist() == service(two, 0, 16)[name].tolist()
    here, there = largest_gap(one, backlog_of(requests)), largest_gap(two, backlog_of(others))
    assert (here and here.value) == (there and there.value)
    assert starved(one, backlog_of(requests), 2, 5).tolist() == starved(two, backlog_of(others), 2, 5)[name].tolist()


@given(EVENTS, REQUESTS, st.integers(0, 8), st.integers(1, 8))
def test_starved_is_eligible_throughout_and_nothing_completed(
    events: list[tuple[int, int, int]], requests: list[tuple[int, int, int]], t1: int, horizon: int
) -> None:
    found = starved(log_from(events), backlog_of(requests), t1, t1 + horizon)
    for client in range(3):
        open_ticks = {t for c, a, stay in requests if c == client for t in range(a, a + stay)}
        eligible = open_ticks >= set(range(t1, t1 + horizon))
        assert found[client] == (eligible and not any(c == client and t1 < at <= t1 + horizon for c, at, _ in events))


@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-200, 1e6)), min_size=1, max_size=20), st.floats(0.001, 1000))
def test_jain_lies_between_one_nth_and_one_and_knows_no_scale(shares: list[float], scale: float) -> None:
    found = jain(np.array(shares))
    if found is None:
        assert not any(shares)
        return
    assert 1 / len(shares) - 1e-9 <= found <= 1 + 1e-9
    assert jain(np.array(shares) * scale) == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize(
    ("shares", "index"), [([5.0, 5.0, 5.0], 1.0), ([7.0, 0.0], 0.5), ([3.0, 1.0], 0.8), ([], None), ([0.0, 0.0], None)]
)
def test_jain_by_hand(shares: list[float], index: float | None) -> None:
    assert jain(np.array(shares)) == (index if index is None else pytest.approx(index, rel=1e-12))


@pytest.mark.parametrize(
    ("served", "requested", "gap"),
    [
        ([10.0, 4.0], [10.0, 10.0], 6.0),  # behind by 6, and asked for 6 more
        ([10.0, 4.0], [10.0, 5.0], 1.0),  # behind by 6, but asked for only 1 more: its own doing
        ([10.0, 4.0, 1.0], [10.0, 9.0, 2.0], 6.0),
        ([10.0, 4.0], [30.0, 4.0], 0.0),  # the best served is behind no one, however much it wants
    ],
)
def test_the_windowed_gap_by_hand(served: list[float], requested: list[float], gap: float) -> None:
    assert windowed_gap(np.array([served]), np.array([requested])).tolist() == [gap]


@given(st.integers(-5, 5), st.integers(-5, 5), st.integers(1, 4))
def test_the_crossover_is_the_first_wait_that_suffices(low: int, high: int, quantum: int) -> None:
    waits = np.arange(60)
    wins = waits[aged_priority(low, waits, quantum) <= high]
    assert aging_crossover(low, high, quantum) == wins[0]


# The bound and its premises


@given(st.lists(st.sampled_from([True, False, None]), min_size=5, max_size=5))
def test_there_is_no_bound_unless_every_premise_holds(answers: list[bool | None]) -> None:
    bound = service_bound(8, VtcPremises(*answers))
    assert (bound.value is None) == (answers != [True] * 5)
    assert bound.reason.count("unknown") == answers.count(None)
    assert bound.reason.count("does not hold") == answers.count(False)


def test_a_gap_is_held_against_a_bound_only_where_there_is_one() -> None:
    bound = service_bound(8, VtcPremises(True, True, True, True, True))
    none = service_bound(8, VtcPremises(True, True, None, False, True))
    assert check_bound(Gap(16, 0, 1, 0, 8), bound) == (Verdict.PASS, "gap 16 of clients 0 and 1 over (0, 8], bound 16")
    assert check_bound(Gap(16.5, 0, 1, 0, 8), bound)[0] is Verdict.FAIL
    assert check_bound(None, bound)[0] is Verdict.UNKNOWN
    assert check_bound(Gap(1, 0, 1, 0, 8), none) == (Verdict.UNKNOWN, "no bound: work_conserving unknown, no_preemption does not hold")


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 8)), max_size=40))
def test_serving_the_smallest_counter_keeps_twice_the_charge(costs: list[tuple[int, int]]) -> None:
    """A check of the measure: both clients always wait, no charge is above U, and least counter first stays within F58 and F60."""
    counters, events = [0, 0], []
    for tick, (tie, cost) in enumerate(costs, start=1):
        client = tie if counters[0] == counters[1] else counters.index(min(counters))
        counters[client] += cost
        events.append((client, tick, cost))
        assert max(counters) - min(counters) <= 8
    log = log_from(events)
    always = ints([[0, 50]])
    assert pair_gap(log, A, B, always).value <= service_bound(8, VtcPremises(True, True, True, True, True)).value


# What is refused


def test_what_no_log_can_hold() -> None:
    for call, code in (
        (lambda: ServiceLog(ints([0]), ints([1, 2]), np.array([1.0]), 1), "columns_differ"),
        (lambda: ServiceLog(ints([2]), ints([1]), np.array([1.0]), 2), "client_unknown"),
        (lambda: ServiceLog(ints([0]), ints([1]), np.array([-1.0]), 1), "value_too_small"),
        (lambda: ServiceLog(ints([0]), ints([1]), np.array([np.nan]), 1), "value_too_small"),
        (lambda: weighted_cost([1], [1], -1, 2), "value_too_small"),
        (lambda: backlog(ints([0]), ints([5]), ints([4]), 1), "end_before_arrival"),
        (lambda: backlog(ints([0]), ints([5]), ints([]), 1), "columns_differ"),
        (lambda: backlog(ints([-1]), ints([5]), ints([6]), 1), "client_unknown"),
        (lambda: starved(log_from([]), backlog_of([]), 3, 3), "value_too_small"),
        (lambda: jain(np.array([-1.0])), "value_too_small"),
        (lambda: aged_priority(1, 1, 0), "value_too_small"),
        (lambda: counter_charge(1, 1, -1, 1), "value_too_small"),
    ):
        with pytest.raises(UsageError, match=code):
            call()


# Droughts and contention


@given(EVENTS, REQUESTS)
def test_a_drought_is_the_longest_run_of_eligible_ticks_without_an_event(
    events: list[tuple[int, int, int]], requests: list[tuple[int, int, int]]
) -> None:
    log, stretches = log_from(events), backlog_of(requests)
    for client, found in enumerate(droughts(log, stretches).tolist()):
        at = {t for c, t, _ in events if c == client}
        longest = 0
        for start, stop in stretches[client].tolist():
            for t1, t2 in combinations(range(start, stop + 1), 2):
                if not any(t1 < t < t2 for t in at):
                    longest = max(longest, t2 - t1)
        assert found == longest


@given(EVENTS, REQUESTS, st.integers(1, 12))
def test_who_is_starved_by_any_horizon_has_a_drought_as_long(
    events: list[tuple[int, int, int]], requests: list[tuple[int, int, int]], horizon: int
) -> None:
    log, stretches = log_from(events), backlog_of(requests)
    longest = droughts(log, stretches)
    for t in range(25 - horizon):
        assert (longest[starved(log, stretches, t, t + horizon)] >= horizon).all()


@given(REQUESTS)
def test_contended_ticks_are_those_in_which_two_clients_are_eligible(requests: list[tuple[int, int, int]]) -> None:
    by_client = [{t for c, a, stay in requests if c == client for t in range(a, a + stay)} for client in range(3)]
    wanted = sum(1 for t in range(24) if sum(t in ticks for ticks in by_client) >= 2)
    assert contended(backlog_of(requests)) == wanted


@given(EVENTS)
def test_splitting_a_log_at_once_gives_what_each_client_is_given(events: list[tuple[int, int, int]]) -> None:
    log = log_from(events)
    for client, (at, cost) in enumerate(log.by_client()):
        assert (at.tolist(), cost.tolist()) == tuple(column.tolist() for column in log.of(client))


@given(EVENTS, REQUESTS)
def test_pairing_fewer_clients_finds_no_wider_gap(events: list[tuple[int, int, int]], requests: list[tuple[int, int, int]]) -> None:
    log, stretches = log_from(events), backlog_of(requests)
    some, every = largest_gap(log, stretches, [0, 2]), largest_gap(log, stretches)
    assert some is None or (every is not None and some.value <= every.value)
    assert some is None or {some.f, some.g} == {0, 2}
