"""Real processes: the engine against a server that misbehaves in every way we know, and against the loss of its own parts."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from harness.errors import HostError
from harness.record.schema import EndKind, EventKind
from harness.replay.session import ReplaySession, missing_rows
from tests.e2e.replaying import CLOCK, MS, hostile, plan, replay, rows, samples, start

pytestmark = pytest.mark.e2e


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
    "reset": "reset",
    "early_close": "reset",
    "no_answer": "reset",
    "stall": "timeout",
    "endless_head": "malformed",
    "half_character": "malformed",
    "bad_json": "malformed",
    "no_done": "malformed",
    "gzip": "malformed",
    "error_event": "error_event",
    "status_302": "http_error",
    "status_429": "http_error",
    "status_503": "http_error",
}


def test_each_request_ends_in_its_one_kind(port: int, tmp_path: Path) -> None:
    prompts = [*EXPECTED, *EXPECTED]
    made = plan(tmp_path, port, prompts, request_timeout_ns=1500 * MS)
    got, summary = replay(made)
    assert (summary.fault, summary.offered, summary.recorded) == (None, len(prompts), len(prompts))
    assert [(p, r["end_kind"]) for p, r in zip(prompts, got, strict=True)] == [(p, EXPECTED[p]) for p in prompts]
    assert all(r["send_ns"] >= r["arrival_ns"] for r in got)
    # What ended without a response must have given its descriptor back: no more open than idle ones kept ready.
    assert samples(made, "in_flight")[-1] == 0
    assert 0 < samples(made, "open_connections")[-1] <= len(EXPECTED)
    assert min(samples(made, "spool_backlog_bytes")) >= 0
    by_name = dict(zip(prompts, got, strict=True))
    assert by_name["bytewise"]["client_tokens"] == 5
    assert len(set(by_name["bytewise"]["event_ns"])) > 1
    assert (by_name["error_event"]["error_status"], by_name["status_429"]["error_status"]) == (503, 429)
    assert by_name["stall"]["event_kind"] == [EventKind.TOKEN]
    assert by_name["reset"]["client_tokens"] == 2


def test_a_session_leaves_no_descriptor_and_no_process_behind(port: int, tmp_path: Path) -> None:
    replay(plan(tmp_path / "0", port, ["good", "reset"]))  # the first one starts what this process keeps for all later ones
    before, children = psutil.Process().num_fds(), len(psutil.Process().children())
    replay(plan(tmp_path / "1", port, ["good", "reset"]))
    assert (psutil.Process().num_fds(), len(psutil.Process().children())) == (before, children)


def test_connections_are_reused(port: int, tmp_path: Path) -> None:
    got, _ = replay(plan(tmp_path, port, ["good"] * 40))
    assert [r["end_kind"] for r in got] == ["complete"] * 40
    assert sum(r["reused_connection"] for r in got) > 20


def test_a_large_body_does_not_hold_up_the_streams(port: int, tmp_path: Path) -> None:
    prompts = ["slow"] * 10 + ["slow " + "x" * 1_000_000] * 3 + ["slow"] * 5
    got, summary = replay(plan(tmp_path, port, prompts))
    assert summary.fault is None
    assert [r["end_kind"] for r in got] == ["complete"] * len(prompts)
    assert {r["client_tokens"] for r in got} == {20}


def test_the_drain_closes_what_is_open_and_keeps_its_events(port: int, tmp_path: Path) -> None:
    got, summary = replay(plan(tmp_path, port, ["stall", "good", "good"], every_ms=400, end_ms=600))
    assert [r["end_kind"] for r in got] == ["drain_end", "complete", "never_sent"]
    assert got[0]["event_kind"] == [EventKind.TOKEN]
    assert got[0]["end_ns"] >= 600 * MS
    assert (got[2]["send_ns"], summary.fault) == (None, None)


def test_client_stop_ends_each_request_at_its_count(port: int, tmp_path: Path) -> None:
    got, _ = replay(plan(tmp_path, port, ["slow"] * 4, stop_after=np.array([3, 1, 20, -1])))
    assert [r["end_kind"] for r in got][:2] == ["client_stop", "client_stop"]
    assert got[3]["end_kind"] == "complete"
    assert got[0]["client_tokens"] >= 3
    assert got[0]["client_tokens"] < 20


def test_the_cap_holds_and_its_queue_counts_in_the_clocks(port: int, tmp_path: Path) -> None:
    made = plan(tmp_path, port, ["slow"] * 4, every_ms=1, concurrency_cap=2)
    got, _ = replay(made)
    assert [r["end_kind"] for r in got] == ["complete"] * 4
    assert got[2]["send_ns"] >= min(got[0]["end_ns"], got[1]["end_ns"])
    assert got[3]["send_ns"] >= max(got[0]["end_ns"], got[1]["end_ns"])
    assert got[2]["arrival_ns"] == 2 * MS


def test_an_unreachable_server_is_named_before_the_run(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        session = ReplaySession(plan(tmp_path, port, ["good"]), CLOCK)
        with pytest.raises(HostError, match=f"port={port}.*refused"):
            session.start()
    assert session.finished(0)


def test_a_server_that_stops_listening_gives_refused_requests(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        session = ReplaySession(plan(tmp_path, listener.getsockname()[1], ["good"] * 3, every_ms=50), CLOCK)
        session.start()
    session.go(CLOCK.now_ns() + 300 * MS)
    assert session.wait(20).fault is None
    kinds = {r["end_kind"] for r in rows(plan(tmp_path, 1, []))}
    assert kinds == {"connect_refused"}


def test_an_epoch_that_has_passed_is_an_error_and_not_a_late_start(port: int, tmp_path: Path) -> None:
    session = ReplaySession(plan(tmp_path, port, ["good"]), CLOCK)
    session.start()
    with pytest.raises(HostError, match="epoch_passed"):
        session.go(CLOCK.now_ns() - 1)
    assert session.finished(0)
    assert rows(plan(tmp_path, 1, [])) == []


@pytest.mark.parametrize("victim", ["worker", "spooler"])
def test_losing_a_process_ends_with_a_fault_and_every_request_can_be_accounted_for(port: int, tmp_path: Path, victim: str) -> None:
    made = plan(tmp_path, port, ["good"] * 200, every_ms=20, end_ms=20_000)
    session = start(made)
    while session.progress().ended < 100:
        assert not session.finished(0.05)
    os.kill(session.roles()["client" if victim == "worker" else victim], signal.SIGKILL)
    summary = session.wait(20)
    assert summary.fault is not None
    assert victim in summary.fault
    recorded = {r["request_id"] for r in rows(made)}
    # A worker's death costs what was in flight; a spooler's costs its last unflushed second (50 requests) as well.
    assert len(recorded) >= (90 if victim == "worker" else 40)
    filled = missing_rows(made, recorded, EndKind.CLIENT_FAULT)
    assert recorded | {r["request_id"] for r in filled} == set(range(200))


def test_abort_ends_both_processes_and_keeps_what_was_recorded(port: int, tmp_path: Path) -> None:
    made = plan(tmp_path, port, ["good", "stall", *["good"] * 50], every_ms=100, end_ms=60_000)
    session = start(made)
    while session.progress().sent < 3:
        assert not session.finished(0.05)
    session.abort()
    session.abort()
    summary = session.summary()
    assert summary.fault is not None
    got = rows(made)
    assert len(got) == 52
    assert {r["end_kind"] for r in got} == {"complete", "client_fault", "never_sent"}
