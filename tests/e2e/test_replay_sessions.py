"""Real processes: requests that wait for others, that are given up on schedule, and a closed loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from harness.clock import NS_PER_S
from harness.record.schema import EventKind
from harness.replay.connection import Connection
from harness.replay.dialer import Address
from harness.replay.engine import Engine
from harness.replay.frames import FrameReader, RawExchange
from tests.e2e.replaying import CLOCK, MS, hostile, plan, replay, rows, start, waiting
from tests.e2e.test_replay_hostile import EXPECTED

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with hostile() as port:
        yield port


def test_each_turn_arrives_its_think_time_after_the_end_of_the_one_before(port: int, tmp_path: Path) -> None:
    made = plan(tmp_path, port, ["slow", "good", "bytewise", "good"], every_ms=0, **waiting([[], [0], [1], [2]], think_ms=30))
    got, summary = replay(made)
    assert (summary.fault, [r["end_kind"] for r in got]) == (None, ["complete"] * 4)
    assert [b["arrival_ns"] - a["end_ns"] for a, b in pairwise(got)] == [30 * MS] * 3
    assert all(r["send_ns"] >= r["arrival_ns"] for r in got)


def test_a_turn_comes_due_only_after_one_that_completed_as_its_row_says(port: int, tmp_path: Path) -> None:
    first = list(EXPECTED)
    n = len(first)
    # Every behaviour is a first turn; a second and a third wait for each.
    after = [[] for _ in first] + [[i] for i in range(n)] + [[n + i] for i in range(n)]
    made = plan(tmp_path, port, [*first, *["good"] * (2 * n)], every_ms=5, request_timeout_ns=1200 * MS, **waiting(after, think_ms=1))
    got, summary = replay(made)
    assert (summary.fault, summary.recorded) == (None, 3 * n)
    for turn, (one, two, three) in zip(first, zip(got[:n], got[n : 2 * n], got[2 * n :], strict=True), strict=True):
        assert (turn, one["end_kind"]) == (turn, EXPECTED[turn])
        wanted = "complete" if EXPECTED[turn] == "complete" else "never_due"
        assert (turn, two["end_kind"], three["end_kind"]) == (turn, wanted, wanted)
        if wanted == "never_due":
            stamps = ("arrival_ns", "send_ns", "headers_ns", "end_ns", "http_status", "reused_connection")
            assert [two[name] for name in stamps] == [None] * len(stamps)


def test_a_join_waits_for_the_later_branch_and_is_lost_with_either(port: int, tmp_path: Path) -> None:
    prompts = ["good", "slow", "good", "good", "slow", "status_429", "good", "good"]
    after: list[list[int]] = [[], [], [0, 1], [2], [], [], [4, 5], [6]]
    got, _ = replay(plan(tmp_path, port, prompts, every_ms=0, **waiting(after, think_ms=20)))
    assert [r["end_kind"] for r in got] == ["complete"] * 5 + ["http_error", "never_due", "never_due"]
    assert got[1]["end_ns"] > got[0]["end_ns"]
    assert got[2]["arrival_ns"] == got[1]["end_ns"] + 20 * MS


def test_a_stop_by_plan_lets_the_next_turn_come(port: int, tmp_path: Path) -> None:
    got, _ = replay(plan(tmp_path, port, ["slow", "good"], stop_after=np.array([2, -1]), **waiting([[], [0]], think_ms=5)))
    assert [r["end_kind"] for r in got] == ["client_stop", "complete"]
    assert got[1]["arrival_ns"] == got[0]["end_ns"] + 5 * MS


def test_a_closed_loop_keeps_its_users_and_no_more_in_flight(port: int, tmp_path: Path) -> None:
    users, turns = 3, 8
    after = [[i - users] if i >= users else [] for i in range(users * turns)]
    got, summary = replay(plan(tmp_path, port, ["bytewise"] * (users * turns), every_ms=0, end_ms=10_000, **waiting(after)))
    assert (summary.fault, {r["end_kind"] for r in got}) == (None, {"complete"})
    # At equal instants an end comes before a beginning: a user is never in flight twice.
    changes = sorted([(r["arrival_ns"], 1) for r in got] + [(r["end_ns"], -1) for r in got])
    assert max(np.cumsum([change for _, change in changes])) == users
    assert min(np.cumsum([change for _, change in changes])) == 0


def test_users_of_a_closed_loop_go_on_after_failures_and_not_in_a_hurry(port: int, tmp_path: Path) -> None:
    users, turns, pause = 3, 6, 150 * MS
    prompts = ["status_429", "good", "reset", "status_503", "early_close", "good"]
    after = [[i - users] if i >= users else [] for i in range(users * turns)]
    bodies = [prompt for prompt in prompts for _ in range(users)]
    made = plan(tmp_path, port, bodies, every_ms=0, failed_pause_ns=pause, workers=2, **waiting(after, think_ms=20))
    got, summary = replay(made)
    assert (summary.fault, [r["end_kind"] for r in got]) == (None, [EXPECTED[prompt] for prompt in bodies])
    for request, before in enumerate(after):
        if before:
            failed = got[before[0]]["end_kind"] != "complete"
            assert got[request]["arrival_ns"] == got[before[0]]["end_ns"] + (pause if failed else 20 * MS)


def test_users_of_a_server_that_is_gone_try_again_at_a_bounded_rate_until_the_end(tmp_path: Path) -> None:
    users, turns, pause = 4, 50, 300 * MS
    after = [[i - users] if i >= users else [] for i in range(users * turns)]
    with hostile() as port:
        made = plan(tmp_path, port, ["good"] * (users * turns), end_ms=1500, failed_pause_ns=pause, **waiting(after))
        session = start(made)
    # The server is dead by now, or at the latest soon after the epoch: from then on every connection is refused.
    summary = session.wait(30)
    got = rows(made)
    assert (summary.fault, len(got)) == (None, users * turns)
    refused = [r for r in got if r["end_kind"] == "connect_refused"]
    assert len(refused) >= users
    assert len(refused) <= users * (made.end_ns // pause + 1)
    assert {r["end_kind"] for r in got[-users:]} == {"never_sent"}


def test_what_the_end_of_the_run_keeps_from_arriving_is_told_apart(port: int, tmp_path: Path) -> None:
    # 0 stays open: 1 never comes due. 2 completes, but 3 thinks past the end, and 4 waits for that. 5 arrives by the clock, too late.
    prompts = ["stall", "good", "good", "good", "good", "good", "good"]
    made = plan(
        tmp_path, port, prompts, end_ms=1500, arrival_ns=np.array([0, 0, 0, 0, 0, 1700, 1700]) * MS,
        **waiting([[], [0], [], [2], [3], [], [5]], think_ms=1600),
    )  # fmt: skip
    got, summary = replay(made)
    assert summary.fault is None
    kinds = ["drain_end", "never_due", "complete", "never_sent", "never_sent", "never_sent", "never_sent"]
    assert [r["end_kind"] for r in got] == kinds
    assert [r["arrival_ns"] for r in got] == [0, None, 0, None, None, 1700 * MS, None]


def test_a_planned_cancellation_ends_what_still_lives_and_keeps_its_events(port: int, tmp_path: Path) -> None:
    prompts = ["stall", "good", "stall", "good", "slow"]
    cancel = np.array([300 * MS, 3000 * MS, 200 * MS, -1, -1])
    made = plan(tmp_path, port, prompts, every_ms=50, cancel_after_ns=cancel, **waiting([[], [], [], [0], [1]]))
    got, summary = replay(made)
    assert summary.fault is None
    assert [r["end_kind"] for r in got] == ["cancelled", "complete", "cancelled", "never_due", "complete"]
    assert [r["event_kind"] for r in (got[0], got[2])] == [[EventKind.TOKEN]] * 2
    assert got[0]["end_ns"] >= got[0]["arrival_ns"] + 300 * MS
    assert got[2]["end_ns"] >= got[2]["arrival_ns"] + 200 * MS


def test_of_a_cancellation_and_a_time_limit_the_earlier_holds(port: int, tmp_path: Path) -> None:
    cancel = np.array([100, 400]) * MS
    got, _ = replay(plan(tmp_path, port, ["stall", "stall"], request_timeout_ns=200 * MS, cancel_after_ns=cancel))
    assert [r["end_kind"] for r in got] == ["cancelled", "timeout"]


def test_a_request_held_by_the_cap_is_cancelled_without_having_been_sent(port: int, tmp_path: Path) -> None:
    cancel = np.array([1000 * MS, 100 * MS, -1])
    got, _ = replay(plan(tmp_path, port, ["stall", "good", "good"], concurrency_cap=1, cancel_after_ns=cancel))
    assert [r["end_kind"] for r in got] == ["cancelled", "cancelled", "complete"]
    assert (got[1]["send_ns"], got[1]["reused_connection"]) == (None, None)


def test_a_burst_leaves_in_one_pass_before_any_answer_is_read(port: int, tmp_path: Path) -> None:
    arrivals = np.array([100] * 40 + [600]) * MS
    got, _ = replay(plan(tmp_path, port, ["good"] * 40 + ["status_429"], arrival_ns=arrivals))
    assert [r["end_kind"] for r in got] == ["complete"] * 40 + ["http_error"]
    # A connection that was read to its end is the first to be taken again.
    assert not any(r["reused_connection"] for r in got[:40])


class Frames:
    """Keeps what the engine hands over."""

    def __init__(self) -> None:
        self.reader = FrameReader()
        self.found: list[RawExchange] = []

    def write(self, data: bytes) -> None:
        self.found += [frame for frame in self.reader.feed(data) if isinstance(frame, RawExchange)]


def lone(folder: Path, meanwhile: Callable[[Engine], None] = lambda _engine: None) -> RawExchange:
    """What becomes of a request that no connection stands for, and that is given up after 80 ms; ``meanwhile`` is called after 40 ms."""

    async def run(listener: socket.socket) -> Frames:
        made = plan(folder, listener.getsockname()[1], ["good"], cancel_after_ns=np.array([80 * MS]), warm_connections=1)
        loop, frames = asyncio.get_running_loop(), Frames()
        engine = Engine(loop, made, made.bodies, Address(socket.AF_INET, listener.getsockname()), [0] * 4)
        engine.arm(CLOCK.now_ns() + 20 * MS, frames)
        loop.call_later(0.06, meanwhile, engine)
        await asyncio.wait_for(engine.done, made.end_ns / NS_PER_S)
        await engine.close()
        return frames

    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # Its queue is full and nobody accepts: the handshake of a further connection never ends.
        for taker in (first, second):
            taker.setblocking(False)
            taker.connect_ex(listener.getsockname())
        frames = asyncio.run(run(listener))
    (row,) = frames.found
    return row


def test_a_request_without_a_connection_yet_is_cancelled_too(tmp_path: Path) -> None:
    row = lone(tmp_path)
    assert (row.kind.value, row.send_ns, row.status) == ("cancelled", None, None)
    assert row.end_ns is not None
    assert row.end_ns >= 80 * MS


def test_a_connection_that_the_server_closed_behind_its_answer_is_not_given_to_who_waits(tmp_path: Path) -> None:
    closed = mock.create_autospec(Connection, instance=True)
    closed.stale.return_value = True
    row = lone(tmp_path, lambda engine: engine.released(closed))
    closed.close.assert_called_once_with()
    closed.send.assert_not_called()
    assert (row.kind.value, row.send_ns) == ("cancelled", None)
