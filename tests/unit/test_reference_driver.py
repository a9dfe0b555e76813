"""Real time, played by hand: tokens come out at planned ends, lateness never accumulates, a hopeless backlog is given up and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from harness.clock import VirtualClock
from harness.reference.contract import Budgets, IterationResult
from harness.reference.cost import CostModel
from harness.reference.driver import Driver
from harness.reference.engine import Engine
from harness.reference.metrics import Page
from harness.reference.registry import make_policy
from harness.reference.tokens import Truth
from harness.runtimes.vllm import VllmRuntime

MS = 1_000_000
NOT_KEPT = ("queue_time", "prefill_time", "decode_time", "server_tpot", "iteration_tokens")
"""What vLLM's page has and this engine does not keep under vLLM's names."""
START = 7_000_000_000_000


class Stage:
    """Loop, alarm, clock and sink in one: nothing happens until ``fire``."""

    fd = 3

    def __init__(self, policy: str = "vllm-shaped-fcfs", costs: CostModel | None = None, **parameters: int) -> None:
        self.clock = VirtualClock(START)
        self.armed: int | None = None
        self.soon: list[Callable[[], None]] = []
        self.got: list[tuple[int, str | None]] = []
        engine = Engine(make_policy(policy, parameters), Budgets(8, 2, 100), costs or CostModel(4 * MS, 0, 0, 0))
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

    def fail(self) -> None:
        self.got.append((self.clock.now_ns() - START, "failed"))

    def decline(self, reason: str) -> None:
        self.got.append((self.clock.now_ns() - START, reason))

    def submit(self, name: str = "r", tokens: int = 3, arrival_ns: int = 0) -> None:
        self.driver.engine.submit(name, 4, tokens, Truth(1, None), arrival_ns=arrival_ns)
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


def test_the_page_tells_iterations_by_their_tokens() -> None:
    """Three steps of one request of 4 prompt tokens: 4 and the first token, then a token each; then two requests together."""
    stage = Stage()
    stage.submit("a", 3)
    for _ in range(3):
        stage.fire()
    page = metrics(stage)
    assert (page["iteration_tokens_count"], page["iteration_tokens_sum"]) == (3, 7)
    assert (page['iteration_tokens_bucket{le="1.0"}'], page['iteration_tokens_bucket{le="8.0"}']) == (2, 3)
    assert page['iteration_tokens_bucket{le="+Inf"}'] == 3
    stage.submit("b", 2)
    stage.submit("c", 1)
    stage.fire()  # b began at once, so c waits for the next
    stage.fire()
    assert metrics(stage)["iteration_tokens_sum"] == 7 + 5 + (1 + 5)


def broken(_now_ns: int) -> IterationResult:
    raise RuntimeError("injected")


def test_an_exception_ends_every_answer_with_an_error_and_is_told_once() -> None:
    stage, told = Stage(), []
    stage.driver._on_fault = lambda: told.append(stage.driver.fault)
    stage.submit("a")
    stage.submit("b")
    stage.driver.engine.complete = broken  # type: ignore[method-assign]
    stage.fire()
    assert stage.got == [(4 * MS, "failed"), (4 * MS, "failed")]
    assert [str(fault) for fault in told] == ["injected"]
    stage.submit("c")
    stage.wake()
    assert stage.got[2:] == [(4 * MS, "failed")]
    assert len(told) == 1


def test_other_engines_names_say_the_same() -> None:
    stage = Stage()
    stage.submit("a", 3)
    for _ in range(2):
        stage.fire()
    stage.submit("gone")
    stage.driver.detach("gone")
    stage.fire()
    text = Page(stage.driver, ("trigpoint", "vllm", "sglang"), "tiny").text().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    ours = {name: sum_of(text, f"trigpoint:{name}") for name in ("prompt_tokens_total", "generation_tokens_total")}
    for engine in ("vllm", "sglang"):
        assert {name: sum_of(text, f"{engine}:{name}") for name in ours} == ours
        waits = {
            s.name.partition("_seconds_")[2]: s.value
            for s in families[f"{engine}:time_to_first_token_seconds"].samples
            if "le" not in s.labels
        }
        assert (waits["count"], waits["sum"]) == (1, 0.004)
        buckets = {s.labels["le"]: s.value for s in families[f"{engine}:inter_token_latency_seconds"].samples if "le" in s.labels}
        assert (buckets["0.0025"], buckets["0.005"], buckets["+Inf"]) == (0, 2, 2)
        assert sum_of(text, f"{engine}:e2e_request_latency_seconds_count") == 1
    rules = {
        rule.canonical: sum_of(text, rule.name, dict(rule.where))
        for rule in VllmRuntime.metrics
        if rule.where.get("finished_reason") != "repetition" and not rule.canonical.startswith(NOT_KEPT)
    }
    assert rules["requests_finished_total"] == 1
    assert sum_of(text, "vllm:request_success_total", {"finished_reason": "abort"}) == 1
    assert set(rules) == {rule.canonical for rule in VllmRuntime.metrics if not rule.canonical.startswith(NOT_KEPT)}


def test_without_other_names_nothing_else_is_on_the_page() -> None:
    text = Page(Stage().driver, ("trigpoint",), "tiny").text().decode()
    assert {line.split(":")[0] for line in text.splitlines() if not line.startswith("#")} == {"trigpoint"}


def sum_of(text: str, name: str, where: dict[str, str] | None = None) -> float:
    """Sum of the samples called ``name`` whose labels contain ``where``; there is one at least."""
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and (where or {}).items() <= sample.labels.items()
    ]
    assert found, name
    return sum(found)
