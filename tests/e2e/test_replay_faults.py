"""Every fault that a server can commit, in a real process: one outcome each, within its deadline, with nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.record.schema import EventKind
from harness.wire import PROTOCOLS
from harness.wire.contract import Ask
from tests.e2e.engine_here import Left, drive
from tests.e2e.replaying import MS, hostile, plan, replay, rows, serve, start

pytestmark = pytest.mark.e2e

GENEROUS_NS = 30_000 * MS
"""Far longer than an answer takes on a crowded host: nothing that ends at all comes near it."""
NOTHING = Left(descriptors=0, tasks=0, connections=0, requests=0)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with hostile() as port:
        yield port


EXPECTED = {
    "good": "complete",
    "bytewise": "complete",
    "interim": "complete",
    "until_eof": "complete",
    "slow": "complete",
    "long_line": "complete",  # 10 MB of one token: large, and nothing wrong with it
    "good_then_half_closed": "complete",
    "length_too_short": "malformed",  # the length cuts the stream inside an event
    "length_too_long": "reset",
    "length_no_number": "malformed",
    "two_lengths": "malformed",
    "reset": "reset",
    "early_close": "reset",
    "half_closed": "reset",
    "no_answer": "reset",
    "endless_head": "malformed",
    "interim_flood": "malformed",
    "endless_line": "malformed",
    "half_character": "malformed",
    "bad_json": "malformed",
    "no_done": "malformed",
    "gzip": "malformed",
    "error_event": "error_event",
    "status_302": "http_error",
    "status_429": "http_error",
    "status_503": "http_error",
}


def test_each_fault_ends_in_its_one_kind_and_leaves_nothing(port: int, tmp_path: Path) -> None:
    names = list(EXPECTED)
    prompts = [*names, *names]
    got, left = drive(plan(tmp_path, port, prompts, every_ms=30, end_ms=60_000, request_timeout_ns=GENEROUS_NS))
    assert Counter(row["request_id"] for row in got) == Counter(range(len(prompts)))  # each ended, and once
    ends = {row["request_id"]: row["end_kind"] for row in got}
    assert [(p, ends[i]) for i, p in enumerate(prompts)] == [(p, EXPECTED[p]) for p in prompts]
    assert left == NOTHING


def test_what_a_server_never_ends_its_deadline_does(port: int, tmp_path: Path) -> None:
    prompts = ["stall", "slow_head"] * 10
    got, left = drive(plan(tmp_path, port, prompts, every_ms=5, end_ms=60_000, request_timeout_ns=500 * MS))
    assert [row["end_kind"] for row in got] == ["timeout"] * 20
    assert [row["request_id"] for row in got] == list(range(20))  # in the order of their deadlines, each its own
    assert all(row["end_ns"] - row["arrival_ns"] >= 500 * MS for row in got)
    assert left == NOTHING


def test_what_a_fault_let_through_is_kept(port: int, tmp_path: Path) -> None:
    prompts = ["long_line", "endless_line", "half_closed", "length_too_short", "interim_flood"]
    got, left = drive(plan(tmp_path, port, prompts, end_ms=60_000, request_timeout_ns=GENEROUS_NS))
    row = {prompts[r["request_id"]]: r for r in got}
    assert (row["long_line"]["client_tokens"], max(row["long_line"]["event_bytes"]) > 10_000_000) == (1, True)
    assert row["endless_line"]["event_kind"] == [EventKind.TOKEN, EventKind.MALFORMED]
    assert "longer than 16777216 bytes" in row["endless_line"]["error"]
    assert (row["half_closed"]["client_tokens"], row["half_closed"]["http_status"]) == (1, 200)
    assert row["half_closed"]["error"] == "closed by the server before the response ended"
    assert row["interim_flood"]["http_status"] is None
    assert left == NOTHING


def test_a_hundred_redirects_are_a_hundred_answers_and_none_is_followed(tmp_path: Path) -> None:
    events = tmp_path / "events"
    with hostile("--events", str(events)) as port:
        got, left = drive(plan(tmp_path, port, ["status_302"] * 100, every_ms=5))
    assert {(r["end_kind"], r["http_status"]) for r in got} == {("http_error", 302)}
    assert events.read_text().splitlines().count("asked status_302") == len(got) == 100
    assert left == NOTHING


def test_a_connection_that_was_half_closed_behind_its_answer_is_given_to_nobody(port: int, tmp_path: Path) -> None:
    got, left = drive(plan(tmp_path, port, ["good_then_half_closed"] * 30))
    assert [r["end_kind"] for r in got] == ["complete"] * 30
    assert not any(r["reused_connection"] for r in got)
    assert left == NOTHING


def test_refused_connections_are_outcomes_and_leave_nothing(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        session_plan = plan(tmp_path, listener.getsockname()[1], ["good"] * 50, every_ms=10)
        session = start(session_plan)
    summary = session.wait(20)
    assert (summary.fault, summary.recorded) == (None, 50)
    assert {r["end_kind"] for r in rows(session_plan)} <= {"connect_refused", "reset"}


def test_a_server_that_never_accepts_costs_each_request_its_deadline_and_no_more(tmp_path: Path) -> None:
    """The kernel shakes hands for a process that is not there: connections stand, requests leave, nobody reads them."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        got, left = drive(plan(tmp_path, listener.getsockname()[1], ["good"] * 20, every_ms=5, request_timeout_ns=400 * MS))
    assert {r["end_kind"] for r in got} == {"timeout"}
    assert all(r["send_ns"] is not None and r["headers_ns"] is None for r in got)
    assert left == NOTHING


def test_a_server_slow_to_accept_serves_what_it_was_sent_meanwhile(tmp_path: Path) -> None:
    with serve() as server:
        session = start(plan(tmp_path, server.port, ["good"] * 30, every_ms=10))
        os.kill(server.pid, signal.SIGSTOP)
        while session.progress().sent < 30:
            assert not session.finished(0.01)
        os.kill(server.pid, signal.SIGCONT)
        summary = session.wait(20)
    got = rows(plan(tmp_path, server.port, []))
    assert (summary.fault, [r["end_kind"] for r in got]) == (None, ["complete"] * 30)


def test_a_server_that_dies_and_comes_back_costs_only_what_fell_into_its_absence(tmp_path: Path) -> None:
    count = 300
    with serve() as first:
        made = plan(tmp_path, first.port, ["slow"] * count, every_ms=10, end_ms=60_000)
        session = start(made)
        while session.progress().ended < 50:
            assert not session.finished(0.01)
        os.kill(first.pid, signal.SIGKILL)
        while session.progress().failed < 30:
            assert not session.finished(0.01)
        with serve("--port", str(first.port)):
            summary = session.wait(40)
    kinds = [r["end_kind"] for r in rows(made)]
    assert (summary.fault, len(kinds)) == (None, count)
    assert set(kinds) == {"complete", "reset", "connect_refused"}
    failed = [i for i, kind in enumerate(kinds) if kind != "complete"]
    # One run of failures: whole before, whole again after.
    assert kinds[:30] == ["complete"] * 30
    assert kinds[-30:] == ["complete"] * 30
    assert len(failed) >= 30
    assert failed[-1] - failed[0] <= len(failed) + 40  # at most what was under way while the first and the last of them fell


@pytest.mark.parametrize("kind", ["plain", "waiting"])
def test_generate_streams_are_read_whole_whether_live_or_later(port: int, tmp_path: Path, kind: str) -> None:
    protocol = PROTOCOLS["generate"]
    bodies = [protocol.encode(Ask("tiny", "generate", 5, True, i)) for i in range(10)]
    stop = np.full(10, -1 if kind == "plain" else 3, dtype=np.int64)
    made = plan(tmp_path, port, ["x"] * 10, bodies=bodies, protocol="generate", path=protocol.path, stop_after=stop)
    got, summary = replay(made)
    assert summary.fault is None
    assert {r["end_kind"] for r in got} == {"complete" if kind == "plain" else "client_stop"}
    assert all(r["client_tokens"] == 5 if kind == "plain" else 3 <= r["client_tokens"] < 5 for r in got)
