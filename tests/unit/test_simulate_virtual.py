"""Virtual time: stamps by hand, the rules of the door, closing and giving up, turns that wait, and linear bookkeeping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.reference.engine import Core, online_workload
from harness.reference.registry import make_policy
from harness.reference.table import Terminal
from harness.simulate import Door, Offered, Simulated, simulate
from harness.simulate.offered import NEVER

MS = 1_000_000


def offered(*requests: tuple[int, int, int], **columns: Any) -> Offered:
    """Requests (arrival ms, prompt, realized length); the declared maximum is 50."""
    arrival, prompt, length = (np.array(column, np.int64) for column in zip(*requests, strict=True))
    none, zeros = np.full(len(requests), -1), np.zeros(len(requests), np.int64)
    base: dict[str, Any] = {
        "arrival_ns": arrival * MS, "prompt": prompt, "maximum": zeros + 50, "natural": length, "stop_after": none, "give_up_ns": none,
        "priority": zeros, "client": zeros,
    }  # fmt: skip
    return Offered(**(base | columns))


def core(policy: str = "vllm-shaped-fcfs", budgets: Budgets | None = None, base_ms: int = 10, **parameters: int) -> Core:
    made = make_policy(policy, parameters)
    return Core(online_workload(made, budgets or Budgets(8, 4, 200)), made, CostModel(base_ms * MS, 0, 0, 0))


def stamps(run: Simulated, request: int) -> list[int]:
    return (run.token_ns[run.token_request == request] // MS).tolist()


def test_every_token_is_stamped_at_the_end_of_its_iteration() -> None:
    run = simulate(core(), offered((0, 8, 3), (25, 4, 2)), until_ns=1000 * MS)
    assert stamps(run, 0) == [10, 20, 30]
    # Arrived while the third iteration ran; its end is the next cut.
    assert stamps(run, 1) == [40, 50]
    assert run.kinds() == ["complete", "complete"]
    assert run.terminal.tolist() == [Terminal.STOP, Terminal.STOP]
    assert (run.counts.iterations, run.counts.prompt_tokens, run.counts.generation_tokens) == (5, 12, 5)


def test_an_idle_engine_starts_at_the_arrival() -> None:
    run = simulate(core(), offered((7, 4, 1), (500, 4, 1)), until_ns=1000 * MS)
    assert (stamps(run, 0), stamps(run, 1)) == ([17], [510])


def test_what_comes_while_the_end_cuts_an_iteration_was_sent_and_is_open() -> None:
    late = {"give_up_ns": np.array([-1, -1, 2 * MS, -1])}
    run = simulate(core(), offered((0, 4, 40), (32, 4, 1), (31, 4, 1), (35, 4, 1), **late), until_ns=35 * MS)  # 30 to 40 is never done
    assert run.kinds() == ["drain_end", "drain_end", "cancelled", "never_sent"]
    assert run.arrival_ns.tolist() == [0, 32 * MS, 31 * MS, 35 * MS]
    assert run.end_ns.tolist() == [35 * MS, 35 * MS, 33 * MS, -1]


def test_who_gave_up_before_the_next_cut_is_never_scheduled() -> None:
    patience = {"give_up_ns": np.array([-1, 2 * MS, 40 * MS])}
    run = simulate(core(), offered((0, 4, 3), (12, 8, 5), (12, 4, 2), **patience), until_ns=1000 * MS)  # 20 is the cut after 12
    assert run.kinds() == ["complete", "cancelled", "complete"]
    assert (run.counts.finished, run.counts.aborted, run.counts.prompt_tokens, run.counts.generation_tokens) == (2, 1, 8, 5)
    alone = simulate(core(), offered((12, 8, 5), give_up_ns=np.array([0])), until_ns=1000 * MS)
    assert (alone.counts.aborted, alone.counts.iterations) == (1, 0)


def test_a_turn_still_thought_about_was_never_sent_and_one_after_a_cut_answer_never_came_due() -> None:
    after = {"waits_for": {1: [0], 3: [2]}, "think_ns": np.array([0, 50, 0, 0]) * MS}
    run = simulate(core(), offered((0, 4, 1), (0, 4, 1), (0, 4, 40), (0, 4, 1), **after), until_ns=35 * MS)
    assert run.kinds() == ["complete", "never_sent", "drain_end", "never_due"]
    assert run.arrival_ns.tolist() == [0, -1, 0, -1]


def test_what_the_drain_cuts_is_open_and_what_comes_later_was_never_sent() -> None:
    run = simulate(core(), offered((0, 4, 40), (5, 4, 1), (100, 4, 1)), until_ns=35 * MS)
    assert run.kinds() == ["drain_end", "complete", "never_sent"]
    assert stamps(run, 0) == [10, 20, 30]
    assert run.end_ns.tolist() == [35 * MS, 20 * MS, -1]


def test_a_client_that_closes_costs_the_row_that_was_under_way() -> None:
    run = simulate(core(), offered((0, 4, 1), natural=np.array([NEVER]), stop_after=np.array([3])), until_ns=1000 * MS)
    assert (run.kinds(), stamps(run, 0)) == (["client_stop"], [10, 20, 30])
    assert (run.counts.generation_tokens, run.counts.aborted, run.counts.iterations) == (4, 1, 4)


def test_the_planned_cancellation_ends_a_request_between_cuts() -> None:
    run = simulate(core(), offered((0, 4, 40), give_up_ns=np.array([25 * MS])), until_ns=1000 * MS)
    assert (run.kinds(), run.end_ns.tolist(), stamps(run, 0)) == (["cancelled"], [25 * MS], [10, 20])
    assert len(run.state.running) == 0


def test_who_leaves_while_its_last_token_is_made_has_left() -> None:
    run = simulate(core(), offered((0, 4, 2), give_up_ns=np.array([15 * MS])), until_ns=1000 * MS)
    assert (run.kinds(), run.end_ns.tolist(), stamps(run, 0)) == (["cancelled"], [15 * MS], [10])
    assert (run.counts.finished, run.counts.aborted, run.counts.generation_tokens) == (0, 1, 2)
    closed = simulate(core(), offered((0, 4, 2), stop_after=np.array([1])), until_ns=1000 * MS)
    assert (closed.kinds(), closed.counts.finished, closed.counts.aborted) == (["client_stop"], 0, 1)


def test_a_cancellation_that_comes_too_late_changes_nothing() -> None:
    run = simulate(core(), offered((0, 4, 2), give_up_ns=np.array([900 * MS])), until_ns=1000 * MS)
    assert (run.kinds(), run.counts.aborted) == (["complete"], 0)


def test_the_door_declines_whoever_finds_too_many_waiting() -> None:
    load = offered((0, 4, 5), (1, 4, 5), (2, 4, 5), (3, 4, 5))
    run = simulate(core(budgets=Budgets(8, 1, 200)), load, until_ns=1000 * MS, door=Door(waiting=2))
    # While the first iteration runs its request still stands in the waiting queue: one more finds room, the next two find two.
    assert run.kinds() == ["complete", "complete", "http_error", "http_error"]
    assert run.end_ns.tolist()[2:] == [2 * MS, 3 * MS]


def test_a_turn_comes_due_after_the_end_of_the_one_before_and_its_thinking_time() -> None:
    load = offered((0, 4, 2), (0, 4, 1), (0, 4, 1), waits_for={1: [0], 2: [1]}, think_ns=np.array([-1, 30 * MS, 0]))
    run = simulate(core(), load, until_ns=1000 * MS)
    assert run.arrival_ns.tolist() == [0, 50 * MS, 60 * MS]
    assert [stamps(run, request) for request in range(3)] == [[10, 20], [60], [70]]


def test_a_turn_after_one_that_failed_never_comes_due() -> None:
    load = offered((0, 4, 40), (0, 4, 1), waits_for={1: [0]}, think_ns=np.array([-1, 0]), give_up_ns=np.array([15 * MS, -1]))
    run = simulate(core(), load, until_ns=1000 * MS)
    assert run.kinds() == ["cancelled", "never_due"]
    assert run.arrival_ns.tolist() == [0, -1]


def test_gauges_and_counters_are_sampled_on_the_virtual_clock() -> None:
    run = simulate(core(base_ms=100), offered((0, 8, 6)), until_ns=1000 * MS)
    assert [sample[0] // MS for sample in run.samples] == [0, 250, 500, 750, 1000]
    assert [sample[1] for sample in run.samples] == [0, 1, 1, 0, 0]
    assert [sample[7] for sample in run.samples] == [0, 2, 5, 6, 6]


def test_the_last_wanted_token_may_be_the_last_of_all() -> None:
    run = simulate(core(), offered((0, 4, 3), stop_after=np.array([3])), until_ns=1000 * MS)
    assert (run.kinds(), run.counts.aborted) == (["complete"], 0)


@pytest.mark.parametrize("policy", ["fixed-batch", "vllm-shaped-fcfs", "least-slack", "fastserve-shaped", "vtc-shaped"])
def test_a_run_is_the_same_twice(policy: str) -> None:
    generator = np.random.default_rng(3)
    rows = [(int(at), int(prompt), int(length)) for at, prompt, length in generator.integers(1, 40, (60, 3))]
    rows.sort()
    runs = [simulate(core(policy), offered(*rows), until_ns=100_000 * MS) for _ in range(2)]
    assert runs[0].token_ns.tobytes() == runs[1].token_ns.tobytes()
    assert runs[0].token_request.tobytes() == runs[1].token_request.tobytes()
    assert set(runs[0].kinds()) == {"complete"}
    assert np.bincount(runs[0].token_request).tolist() == [length for _, _, length in rows]


def test_who_comes_while_the_last_iteration_runs_was_sent_and_is_open() -> None:
    run = simulate(core(), offered((0, 1, 50), (95, 1, 5)), until_ns=97 * MS)
    assert run.kinds() == ["drain_end", "drain_end"]
    assert run.arrival_ns.tolist() == [0, 95 * MS]
    assert len(stamps(run, 0)) == 9
