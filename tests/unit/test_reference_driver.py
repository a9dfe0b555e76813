"""Real time, played by hand: tokens come out at planned ends, lateness never accumulates, a hopeless backlog is given up and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.clock import VirtualClock
from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.reference.driver import Driver
from harness.reference.engine import Engine
from harness.reference.metrics import Page
from harness.reference.registry import make_policy
from harness.reference.tokens import Truth

MS = 1_000_000
START = 7_000_000_000_000


class Stage:
    """Loop, alarm, clock and sink in one: nothing happens until ``fire``."""

    fd = 3

    def __init__(self) -> None:
        self.clock = VirtualClock(START)
        self.armed: int | None = None
        self.soon: list[Callable[[], None]] = []
        self.got: list[tuple[int, str | None]] = []
        engine = Engine(make_policy("vllm-shaped-fcfs"), Budgets(8, 2, 100), CostModel(4 * MS, 0, 0, 0))
        self.driver = Driver(engine, self.clock, self, self)  # type: ignore[arg-type]

    def add_reader(self, _fd: int, callback: Callable[[], None]) -> None:
        self.wake = callback

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def arm(self, at_ns: int) -> None:
        self.armed = at_ns

    def clear(self) -> None:
        self.armed = None

    def publish(self, _token: int, finish: str | None) -> None:
        self.got.append((self.clock.now_ns() - START, finish))

    def decline(self, reason: str) -> None:
        self.got.append((self.clock.now_ns() - START, reason))

    def submit(self, name: str = "r", tokens: int = 3) -> None:
        self.driver.engine.submit(name, 4, tokens, Truth(1, None))
        self.driver.attach(name, self)
        while self.soon:
            self.soon.pop()()

    def fire(self, late_ns: int = 0) -> None:
        assert self.armed is not None
        self.clock.advance(max(0, self.armed + late_ns - self.clock.now_ns()))
        self.wake()


def metrics(stage: Stage) -> dict[str, float]:
    lines = [line for line in Page(stage.driver).text().decode().splitlines() if not line.startswith("#")]
    return {line.rsplit(" ", 1)[0].removeprefix("trigpoint:"): float(line.rsplit(" ", 1)[1]) for line in lines}


def test_tokens_come_at_planned_ends() -> None:
    stage = Stage()
    stage.submit()
    for _ in range(3):
        stage.fire()
    assert stage.got == [(4 * MS, None), (8 * MS, None), (12 * MS, "length")]
    assert stage.armed is None


def test_lateness_does_not_move_the_next_deadline() -> None:
    stage = Stage()
    stage.submit()
    stage.fire(late_ns=1 * MS)
    assert stage.armed == START + 8 * MS
    stage.fire()
    assert [at for at, _ in stage.got] == [5 * MS, 8 * MS]
    assert (stage.driver.lateness.iterations, stage.driver.lateness.worst_ns, stage.driver.lateness.restarts) == (2, 1 * MS, 0)


def test_a_hopeless_backlog_is_given_up_and_counted() -> None:
    stage = Stage()
    stage.submit()
    stage.fire(late_ns=9 * MS)
    assert stage.driver.lateness.restarts == 1
    assert stage.armed == START + (4 + 9 + 4) * MS


def test_an_early_firing_publishes_nothing() -> None:
    stage = Stage()
    stage.submit()
    stage.clock.advance(1 * MS)
    stage.wake()
    assert stage.got == []
    assert stage.armed == START + 4 * MS


def test_an_arrival_in_the_middle_waits_for_the_cut() -> None:
    stage = Stage()
    stage.submit("a", 2)
    stage.clock.advance(2 * MS)
    stage.submit("b", 1)
    assert stage.armed == START + 4 * MS
    stage.fire()
    stage.fire()
    assert stage.got == [(4 * MS, None), (8 * MS, "length"), (8 * MS, "length")]


def test_a_client_that_leaves_is_counted_once_and_as_nothing_else() -> None:
    stage = Stage()
    stage.submit("a", 1)
    stage.driver.detach("a")
    stage.driver.detach("a")
    stage.fire()
    page = metrics(stage)
    assert stage.got == []
    assert page["requests_aborted_total"] == 1
    assert page['requests_finished_total{reason="length"}'] == 0
    assert (page["requests_running"], page["kv_usage_ratio"]) == (0, 0)


def test_the_page_counts_what_was_served() -> None:
    stage = Stage()
    stage.submit("a", 2)
    stage.fire()
    assert metrics(stage)["requests_running"] == 1
    assert metrics(stage)["kv_usage_ratio"] == 0.04
    stage.fire()
    page: dict[str, Any] = metrics(stage)
    assert (page["prompt_tokens_total"], page["generation_tokens_total"], page["iterations_total"]) == (4, 2, 2)
    assert page['requests_finished_total{reason="length"}'] == 1
