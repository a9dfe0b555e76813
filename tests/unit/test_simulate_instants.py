"""The server's driver, its clock moved by hand, and a simulation of the same load: the same tokens at the same instants, for every policy.

What is left between the two in real time is lateness alone, which ``tests/e2e/test_simulate_agrees.py`` holds against the driver's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.clock import VirtualClock
from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.reference.driver import Driver
from harness.reference.engine import Core, Engine, online_workload
from harness.reference.registry import POLICIES, make_policy
from harness.reference.tokens import Truth
from harness.simulate import Offered, simulate

MS = 1_000_000
COSTS = CostModel(7 * MS, 30_000, 110_000, 1_000)
Load = tuple[tuple[int, int, int], ...]
"""(arrival in ms, prompt, output) of each request."""

CHUNKED: Load = ((0, 40, 6), (5, 70, 4), (6, 5, 8), (61, 33, 3), (300, 9, 5))
CROWDED: Load = ((0, 10, 30), (3, 12, 25), (4, 9, 20), (90, 11, 6))
CASES: Mapping[str, tuple[Budgets, Load]] = {
    "chunked prefill": (Budgets(16, 3, 4000), CHUNKED),
    "preempting": (Budgets(32, 4, 60), CROWDED),
}


class Stage:
    """Loop, alarm and clock of a driver; time goes from event to event."""

    fd = 3

    def __init__(self, engine: Engine) -> None:
        self.clock, self.armed, self.soon = VirtualClock(0), -1, list[Callable[[], None]]()
        self.driver = Driver(engine, self.clock, self, self)  # type: ignore[arg-type]

    def add_reader(self, _fd: int, callback: Callable[[], None]) -> None:
        self.wake = callback

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def arm(self, at_ns: int) -> None:
        self.armed = at_ns

    def clear(self) -> None:
        self.armed = -1

    def until(self, at_ns: int | None) -> None:
        """Fire every alarm before an instant (None: as long as there is one), then go there."""
        while self.armed >= 0 and (at_ns is None or self.armed <= at_ns):
            self.clock.advance(self.armed - self.clock.now_ns())
            self.wake()
        if at_ns is not None:
            self.clock.advance(at_ns - self.clock.now_ns())


class Sink:
    """Instants of the tokens of one request."""

    def __init__(self, clock: VirtualClock) -> None:
        self.stamps: list[int] = []
        self._clock = clock

    def publish(self, _token: int, _finish: str | None) -> None:
        self.stamps.append(self._clock.now_ns())

    def decline(self, _reason: str) -> None:
        self.stamps.append(-1)

    def reused(self, tokens: int) -> None:
        raise AssertionError(tokens)

    def fail(self) -> None:
        raise AssertionError("the engine failed")


def arrivals(load: Load) -> list[int]:
    """Instants a ns apart from those of any iteration's end, which lie whole us after another arrival: who comes first is never a tie."""
    return [at * MS + index for index, (at, _, _) in enumerate(load)]


def driven(policy: str, budgets: Budgets, load: Load) -> tuple[list[list[int]], int]:
    """Stamps of each request, and preemptions, of the server's driver."""
    stage, sinks = Stage(Engine(make_policy(policy), budgets, COSTS)), []
    for index, (at, (_, prompt, length)) in enumerate(zip(arrivals(load), load, strict=True)):
        stage.until(at)
        sink = Sink(stage.clock)
        stage.driver.engine.submit(str(index), prompt, length, Truth(index, None), arrival_ns=at)
        stage.driver.attach(str(index), sink)
        sinks.append(sink)
        while stage.soon:
            stage.soon.pop()()
    stage.until(None)
    return [sink.stamps for sink in sinks], stage.driver.engine.preemptions


def simulated(policy: str, budgets: Budgets, load: Load) -> tuple[list[list[int]], int]:
    made = make_policy(policy)
    _, prompt, length = np.array(load, np.int64).T
    none, zeros = np.full(len(load), -1), np.zeros(len(load), np.int64)
    offered = Offered(np.array(arrivals(load)), prompt, length, none + 2**62, none, none, zeros, zeros)
    run = simulate(Core(online_workload(made, budgets), made, COSTS), offered, until_ns=60_000 * MS)
    declined = [[-1] if kind == "http_error" else [] for kind in run.kinds()]
    return [run.token_ns[run.token_request == request].tolist() + declined[request] for request in range(len(load))], run.counts.preemptions


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_driver_and_the_simulation_decide_the_same_at_the_same_instants(policy: str, case: str) -> None:
    assert driven(policy, *CASES[case]) == simulated(policy, *CASES[case])


def test_the_cases_are_what_they_are_called() -> None:
    stamps, preempted = simulated("vllm-shaped-fcfs", *CASES["preempting"])
    assert preempted > 0
    assert [len(of) for of in stamps] == [length for _, _, length in CROWDED]
    first = simulated("vllm-shaped-fcfs", *CASES["chunked prefill"])[0][0][0]
    assert first > 2 * COSTS.base_ns, "40 rows take three iterations under a budget of 16"


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["vllm-shaped-fcfs", "vllm-shaped-priority", "sarathi-serve-shaped", "least-slack", "vtc-shaped"]),
    st.integers(20, 90),
    st.lists(st.tuples(st.integers(0, 150), st.integers(1, 15), st.integers(1, 5)), min_size=1, max_size=10),
)
def test_any_small_load_agrees(policy: str, capacity: int, load: list[tuple[int, int, int]]) -> None:
    budgets, ordered = Budgets(8, 3, capacity), tuple(sorted(load))
    assert driven(policy, budgets, ordered) == simulated(policy, budgets, ordered)


PATIENCE_NS = 500
"""Beside whole ms: nobody leaves at the very instant at which an iteration ends."""


def left(policy: str, budgets: Budgets, load: Load, patience: list[int]) -> tuple[list[list[int]], int, int]:
    """As ``driven``, with clients that leave (after ms; -1: never): stamps each got, requests served to their end, requests aborted."""
    stage, sinks = Stage(Engine(make_policy(policy), budgets, COSTS)), [Sink(VirtualClock(0)) for _ in load]
    leave = [
        (at + wait * MS + PATIENCE_NS, index) for index, (at, wait) in enumerate(zip(arrivals(load), patience, strict=True)) if wait >= 0
    ]
    for at, index in sorted([*leave, *((at, index) for index, at in enumerate(arrivals(load)))]):
        stage.until(at)
        if at != arrivals(load)[index]:
            stage.driver.detach(str(index))
        else:
            sinks[index] = Sink(stage.clock)
            stage.driver.engine.submit(str(index), *load[index][1:], Truth(index, None), arrival_ns=at)
            stage.driver.attach(str(index), sinks[index])
        while stage.soon:
            stage.soon.pop()()
    stage.until(None)
    counters = stage.driver.counters
    return [sink.stamps for sink in sinks], counters.stopped + counters.at_length, counters.aborted


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=12, deadline=None)
@given(
    st.integers(40, 90),
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 15), st.integers(1, 5), st.integers(-1, 60)), min_size=1, max_size=8),
)
def test_whoever_leaves_leaves_both_alike(policy: str, capacity: int, asked: list[tuple[int, int, int, int]]) -> None:
    budgets, ordered = Budgets(8, 3, capacity), sorted(asked)
    load, patience = tuple((at, prompt, length) for at, prompt, length, _ in ordered), [wait for *_, wait in ordered]
    made = make_policy(policy)
    _, prompt, length = np.array(load, np.int64).T
    none, zeros = np.full(len(load), -1), np.zeros(len(load), np.int64)
    give_up = np.array([wait * MS + PATIENCE_NS if wait >= 0 else -1 for wait in patience])
    offered = Offered(np.array(arrivals(load)), prompt, length, none + 2**62, none, give_up, zeros, zeros)
    run = simulate(Core(online_workload(made, budgets), made, COSTS), offered, until_ns=60_000 * MS)
    stamps, served, aborted = left(policy, budgets, load, patience)
    assert [run.token_ns[run.token_request == request].tolist() for request in range(len(load))] == [
        [stamp for stamp in mine if stamp >= 0] for mine in stamps
    ]
    assert (run.counts.finished, run.counts.aborted) == (served, aborted)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_that_says_it_reads_no_limits_plans_the_same_under_any(policy: str) -> None:
    made = make_policy(policy)
    _, prompt, length = np.array(CROWDED, np.int64).T
    none, zeros = np.full(len(CROWDED), -1), np.zeros(len(CROWDED), np.int64)
    found = []
    for ttft, tbt in ((-1, -1), (20 * MS, 8 * MS), (900 * MS, 1 * MS)):
        limits = {"ttft_ns": np.array([ttft, -1, ttft, 5 * MS]), "tbt_ns": np.array([-1, tbt, tbt, tbt])}
        offered = Offered(np.array(arrivals(CROWDED)), prompt, length, none + 2**62, none, none, zeros, zeros, **limits)
        run = simulate(Core(online_workload(made, Budgets(32, 3, 60)), made, COSTS), offered, until_ns=60_000 * MS)
        found.append((run.token_ns.tolist(), run.token_request.tolist(), run.kinds()))
    assert made.reads_limits or found[0] == found[1] == found[2]
    assert not made.reads_limits or any(other != found[0] for other in found)
