"""The same small schedule in real time and in virtual time: the same decisions, the same stamps within the server's own lateness."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from harness.alarm import Alarm
from harness.clock import MonotonicClock
from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.reference.driver import Driver
from harness.reference.engine import Core, Engine, online_workload
from harness.reference.registry import make_policy
from harness.reference.tokens import Truth
from harness.simulate import Offered, simulate

pytestmark = pytest.mark.e2e

MS = 1_000_000
COSTS = CostModel(40 * MS, 100_000, 500_000, 1_000, transfer_base_ns=3 * MS, transfer_row_ns=700_000)
# Arrivals lie about the middle of iterations of 40 ms and more, so a wake-up some milliseconds late meets the same cut.
LOAD = ((0, 12, 6), (60, 30, 4), (65, 5, 8), (150, 20, 3), (330, 9, 5))
CROWDED = ((0, 10, 10), (60, 12, 9), (65, 9, 6))
"""Forty KV rows hold the prompts of all three, and not what they grow to."""
Load = tuple[tuple[int, int, int], ...]
"""(arrival in ms, prompt, output) of each request; a prompt of 30 takes two iterations under a budget of 16."""
TOLERANCE_NS = 2 * MS
"""Beside the lateness the driver reports: what lies between an instant taken and the call it is meant for."""


def budgets(policy: str, load: Load) -> Budgets:
    """Sixty KV rows, too few for the first three requests; as many again where two pools share them. Forty for ``CROWDED``."""
    if load is CROWDED:
        return Budgets(32, 3, 40)
    return Budgets(16, 3, 120 if policy == "distserve-like-split" else 60)


class Sink:
    """Stamps tokens as they come out."""

    def __init__(self, clock: MonotonicClock, done: asyncio.Future[None]) -> None:
        self.stamps: list[int] = []
        self._clock, self._done = clock, done

    def publish(self, token: int, finish: str | None) -> None:
        self.stamps.append(self._clock.now_ns())
        if finish is not None:
            self._done.set_result(None)

    def decline(self, reason: str) -> None:
        raise AssertionError(reason)


async def in_real_time(policy: str, load: Load) -> tuple[list[int], list[list[int]], int, int]:
    """Arrivals as they were, stamps of every token (ns from the first arrival), how late the driver ran in all, and preemptions."""
    loop, clock = asyncio.get_running_loop(), MonotonicClock()
    driver = Driver(Engine(make_policy(policy), budgets(policy, load), COSTS), clock, Alarm(), loop)
    sinks, arrivals, start = [], [], clock.now_ns()
    for index, (at, prompt, length) in enumerate(load):
        await asyncio.sleep(max(0.0, (start + at * MS - clock.now_ns()) / 1e9))
        sink = Sink(clock, loop.create_future())
        arrivals.append(clock.now_ns())
        driver.engine.submit(str(index), prompt, length, Truth(index, None), arrival_ns=arrivals[-1])
        driver.attach(str(index), sink)
        sinks.append(sink)
    await asyncio.gather(*(sink._done for sink in sinks))
    driver.close()
    late = driver.lateness
    allowed = late.worst_ns + (late.total_ns if late.restarts else 0)
    stamps = [[stamp - arrivals[0] for stamp in sink.stamps] for sink in sinks]
    return [at - arrivals[0] for at in arrivals], stamps, allowed, driver.engine.preemptions


def in_virtual_time(policy: str, load: Load, arrivals: list[int]) -> tuple[list[list[int]], int]:
    made = make_policy(policy)
    core = Core(online_workload(made, budgets(policy, load)), made, COSTS)
    columns: dict[str, Any] = {
        "arrival_ns": np.array(arrivals), "prompt": np.array([prompt for _, prompt, _ in load]),
        "maximum": np.array([length for _, _, length in load]), "natural": np.full(len(load), np.iinfo(np.int64).max),
    }  # fmt: skip
    none, zeros = np.full(len(load), -1), np.zeros(len(load), np.int64)
    run = simulate(core, Offered(**columns, stop_after=none, give_up_ns=none, priority=zeros, client=zeros), until_ns=60_000 * MS)
    return [run.token_ns[run.token_request == request].tolist() for request in range(len(load))], run.counts.preemptions


@pytest.mark.parametrize(
    ("policy", "load"),
    [
        *((policy, LOAD) for policy in ("vllm-shaped-fcfs", "sarathi-serve-shaped", "least-slack", "distserve-like-split", "layerkv-like")),
        *((policy, CROWDED) for policy in ("vllm-shaped-fcfs", "sarathi-serve-shaped")),
    ],
)
def test_virtual_and_real_time_agree(policy: str, load: Load) -> None:
    worst = []
    for _ in range(3):  # a busy host can push an arrival over a cut; three times in a row it is our fault
        arrivals, real, allowed, preempted = asyncio.run(in_real_time(policy, load))
        virtual, planned = in_virtual_time(policy, load, arrivals)
        assert planned > 0 or load is LOAD
        assert [len(stamps) for stamps in virtual] == [len(stamps) for stamps in real]
        gaps = [abs(a - b) for ours, theirs in zip(real, virtual, strict=True) for a, b in zip(ours, theirs, strict=True)]
        if max(gaps) <= allowed + TOLERANCE_NS and preempted == planned:
            return
        worst.append((max(gaps), allowed, preempted, planned))
    raise AssertionError(f"stamps differ by more than the driver was late (ns), or preemptions differ: {worst}")
