from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.clock import MonotonicClock
from harness.errors import UsageError
from harness.replay.children import Child
from harness.replay.contract import ReplayPlan
from harness.replay.session import ReplaySession, check_plan
from harness.replay.timers import SPIN_NS, SpinTimer, TimerFd
from harness.replay.worker import note_fault, request_head
from workloads.schedule import Ragged

PLAN = ReplayPlan("127.0.0.1", 80, "/v1/completions", "completions", np.array([0, 5]), [b"a", b"b"], np.full(2, -1), 10, Path("x"))


def rows(*after: list[int]) -> Ragged:
    return Ragged.of(after, np.int64)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"bodies": [b"a"]}, "plan_lengths"),
        ({"arrival_ns": np.array([5, 0])}, "plan_order"),
        ({"protocol": "smtp"}, "plan_protocol"),
        ({"concurrency_cap": 0}, "plan_cap"),
        ({"concurrency_cap": 3, "workers": 2}, "plan_cap"),
        ({"workers": 0}, "plan_workers"),
        ({"failed_pause_ns": -1}, "plan_pause"),
        ({"cancel_after_ns": np.array([1])}, "plan_lengths"),
        ({"after": rows([], [0])}, "plan_lengths"),
        ({"after": rows([], [2]), "think_ns": np.array([-1, 0])}, "plan_after"),
        ({"after": rows([], [-1]), "think_ns": np.array([-1, 0])}, "plan_after"),
        ({"after": rows([], [0]), "think_ns": np.array([-1, -1])}, "plan_think"),
        ({"after": rows([1], [0]), "think_ns": np.array([0, 0])}, "plan_circle"),
        ({"after": rows([], [1]), "think_ns": np.array([-1, 0])}, "plan_circle"),
        ({"headers": {"X-A": "b\r\nX-B: c"}}, "plan_header"),
        ({"headers": {"X A": "b"}}, "plan_header"),
        ({"path": "/v1 HTTP/1.1\r\nX: y"}, "plan_header"),
    ],
)
def test_a_plan_that_cannot_be_replayed_is_refused(changes: dict[str, Any], code: str) -> None:
    check_plan(PLAN)
    with pytest.raises(UsageError, match=code):
        check_plan(dataclasses.replace(PLAN, **changes))


def test_all_problems_come_at_once_and_no_header_value_is_shown() -> None:
    bad = dataclasses.replace(PLAN, protocol="smtp", headers={"Authorization": "hunter2\n"})
    with pytest.raises(UsageError) as caught:
        check_plan(bad)
    assert len(caught.value.problems) == 2
    assert "hunter2" not in str(caught.value)


def test_the_request_head_is_one_http_request() -> None:
    lines = request_head(dataclasses.replace(PLAN, host="::1", headers={"X-A": "b"}), 7).decode().split("\r\n")
    assert lines[0] == "POST /v1/completions HTTP/1.1"
    assert {"Host: [::1]:80", "Content-Length: 7", "Accept-Encoding: identity", "X-A: b"} <= set(lines)
    assert lines[-2:] == ["", ""]


def test_a_session_that_was_not_started_says_so() -> None:
    session = ReplaySession(PLAN, MonotonicClock())
    session.abort()
    with pytest.raises(ValueError, match="not been started"):
        session.summary()


def test_the_order_to_stop_is_given_once() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = Child("worker", context.Process(), ours, 0)
    child.stop("first")
    child.stop("second")
    assert theirs.recv() == ("abort", "first")
    assert not theirs.poll()
    theirs.close()
    child.over = True
    child.tell("abort", "to nobody")
    ours.close()


def test_a_deadline_in_the_past_fires_the_timerfd_at_once() -> None:
    async def fire() -> int:
        loop = asyncio.get_running_loop()
        fired = loop.create_future()
        timer = TimerFd(loop, lambda: fired.set_result(1))
        timer.arm(-5)
        got: int = await fired
        timer.close()
        timer.close()
        return got

    assert asyncio.run(fire()) == 1


def test_the_fallback_timer_never_fires_before_its_deadline() -> None:
    now = [1_000_000_000]
    fired: list[int] = []
    loop = asyncio.new_event_loop()
    timer = SpinTimer(loop, lambda: fired.append(now[0]), lambda: now[0])
    timer.arm(now[0] + SPIN_NS - 1)

    def step() -> None:
        now[0] += 500_000
        if not fired:
            loop.call_soon(step)
        else:
            loop.stop()

    loop.call_soon(step)
    loop.run_forever()
    loop.close()
    assert len(fired) == 1
    assert fired[0] >= 1_000_000_000 + SPIN_NS - 1


class Stopped:
    """An engine that writes down why it was stopped."""

    def __init__(self) -> None:
        self.why: list[str] = []

    def abort(self, why: str) -> None:
        self.why.append(why)


@pytest.mark.parametrize(
    ("error", "stops"),
    [
        (ConnectionResetError("reset"), False),
        (RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed"), False),
        (RuntimeError("a defect"), True),
        (ValueError("request 3 ended as reset and again as timeout"), True),
        (None, True),
    ],
)
def test_only_what_no_server_can_bring_about_stops_the_load(error: Exception | None, stops: bool) -> None:
    engine = Stopped()
    note_fault(engine, {"message": "m", "exception": error})  # type: ignore[arg-type]
    assert bool(engine.why) is stops
