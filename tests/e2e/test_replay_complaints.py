"""What users reported of other tools' clients, hangs and memory, against a server in a process of its own.

``tests/unit/test_complaints_answered.py`` lists every thread and where it is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.record.schema import REQUESTS
from harness.record.segments import read_segments
from harness.replay.contract import ReplayPlan
from harness.replay.engine import Engine
from tests.e2e.engine_here import Left, drive
from tests.e2e.replaying import MS, hostile, plan, rows, start, waiting

pytestmark = pytest.mark.e2e

NOTHING = Left(descriptors=0, tasks=0, connections=0, requests=0)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with hostile() as port:
        yield port


def closed(folder: Path, port: int, users: int, prompts: list[str], **changes: object) -> ReplayPlan:
    """Each user sends the next of its requests when the one before has ended, whatever became of it."""
    after = [[] if i < users else [i - users] for i in range(len(prompts))]
    return plan(folder, port, prompts, every_ms=1, end_ms=60_000, failed_pause_ns=10 * MS, **waiting(after), **changes)


def test_llm_d_261_no_coroutine_stands_between_a_read_and_its_stamp(port: int, tmp_path: Path) -> None:
    """llm-d/llm-d-benchmark#261: each request was a coroutine, and waiting for its turn was measured as the server's latency."""
    most: list[int] = []

    def look(engine: Engine) -> None:
        most.append(len(asyncio.all_tasks()) - engine._dialer.opening)

    got, _ = drive(plan(tmp_path, port, ["slow"] * 100, every_ms=2, end_ms=60_000), look)
    assert {row["end_kind"] for row in got} == {"complete"}
    assert set(most) == {1}  # the test's own, with a hundred streams as with one


def test_guidellm_487_one_worker_holds_more_streams_than_a_hundred(port: int, tmp_path: Path) -> None:
    """vllm-project/guidellm#487: a worker had 100 connections, and what was above that waited unseen."""
    got, left = drive(plan(tmp_path, port, ["stall"] * 300, every_ms=1, end_ms=3000))
    assert {(row["end_kind"], row["client_tokens"]) for row in got} == {("drain_end", 1)}  # all open at once, each with its first token
    assert left == NOTHING


def test_guidellm_1041_a_burst_leaves_before_its_first_answer_is_read(port: int, tmp_path: Path) -> None:
    """vllm-project/guidellm#1041: the requests of a burst did not leave together."""
    got, _ = drive(plan(tmp_path, port, ["good"] * 100, every_ms=0, end_ms=60_000))
    assert {row["arrival_ns"] for row in got} == {0}
    # One that was read to its end is the first to be taken again: nobody waited for any, and a connection lay ready for each.
    assert {(row["end_kind"], row["reused_connection"]) for row in got} == {("complete", False)}


def test_inference_perf_282_connections_are_kept_and_not_made_for_each_request(tmp_path: Path) -> None:
    """kubernetes-sigs/inference-perf#282: every request made a session, and with it a connection."""
    events = tmp_path / "events"
    with hostile("--events", str(events)) as port:
        got, _ = drive(closed(tmp_path, port, 4, ["good"] * 200))
    said = events.read_text().splitlines()
    assert (len(got), said.count("asked good")) == (200, 200)
    assert said.count("open") <= 20  # four users, eight that lie ready, one that asked whether anybody is there, and a few renewed


def test_pegainfer_548_eight_users_come_to_their_end(port: int, tmp_path: Path) -> None:
    """pegainfer-project/pegainfer#548: at concurrency 8 all 160 requests were answered and the client never came back."""
    got, left = drive(closed(tmp_path, port, 8, ["good"] * 160))
    assert [row["end_kind"] for row in got] == ["complete"] * 160
    assert left == NOTHING


def test_inference_perf_435_the_last_requests_end_with_the_run_whatever_the_server_does(port: int, tmp_path: Path) -> None:
    """kubernetes-sigs/inference-perf#435: with a few requests left it hangs, and there is no report without Ctrl-C."""
    got, left = drive(plan(tmp_path, port, [*["good"] * 20, "stall", "slow_head", "endless_head", "half_closed"], every_ms=5, end_ms=1500))
    kinds = {row["request_id"]: row["end_kind"] for row in got}
    assert (kinds[20], kinds[21]) == ("drain_end", "drain_end")  # no time limit was set: the run's own end is one
    assert len(kinds) == 24
    assert left == NOTHING


def test_inference_perf_245_nothing_is_sent_once_the_run_is_over(port: int, tmp_path: Path) -> None:
    """kubernetes-sigs/inference-perf#245: stages were over while thousands of their requests had yet to be sent."""
    end_ns = 1000 * MS
    got, _ = drive(plan(tmp_path, port, ["slow"] * 60, every_ms=10, end_ms=1000, concurrency_cap=1))
    sent = [row for row in got if row["send_ns"] is not None]
    assert all(row["send_ns"] <= row["end_ns"] for row in sent)
    held = [row for row in got if row["send_ns"] is None]
    assert len(sent) + len(held) == 60
    assert {row["end_kind"] for row in held} == {"drain_end"}  # they had arrived: their wait is in the record, and they were not sent late
    assert all(row["arrival_ns"] < end_ns <= row["end_ns"] for row in held)


def test_vllm_51030_what_has_ended_is_on_disk_while_one_stream_is_stuck(port: int, tmp_path: Path) -> None:
    """vllm-project/vllm#51030: one stream that never ended cost the results of all others."""
    made = plan(tmp_path, port, ["stall", *["good"] * 50], every_ms=5, end_ms=60_000)
    session = start(made)
    while len(rows(made)) < 50:
        assert not session.finished(0.05)
    assert session.progress().in_flight == 1
    assert {row["end_kind"] for row in rows(made)} == {"complete"}
    session.abort()
    assert len(read_segments(made.segments, "requests-w0", REQUESTS)[0]) == 51


def test_perf_analyzer_320_a_server_that_breaks_under_many_streams_ends_each_of_them(port: int, tmp_path: Path) -> None:
    """triton-inference-server/perf_analyzer#320: at a concurrency of 64 and more, failures were logged and the process hung for ever."""
    prompts = ["reset", "no_answer", "status_503", "early_close"] * 32
    got, left = drive(plan(tmp_path, port, prompts, every_ms=0, end_ms=60_000))
    kinds = {row["request_id"]: row["end_kind"] for row in got}
    assert [kinds[i] for i in range(len(prompts))] == ["reset", "reset", "http_error", "reset"] * 32
    assert left == NOTHING


def test_llmperf_43_one_user_that_waits_holds_up_no_other(port: int, tmp_path: Path) -> None:
    """ray-project/llmperf#43: no new request was sent before all of the last round had ended."""
    prompts = ["good"] * 80
    prompts[0] = "stall"
    got, _ = drive(closed(tmp_path, port, 4, prompts, request_timeout_ns=5000 * MS))
    order = [row["request_id"] for row in got]
    others = [i for i in range(80) if i % 4]
    assert set(order[: len(others)]) == set(others)  # three users were through while the fourth waited
    assert order[len(others)] == 0
    assert {row["end_kind"] for row in got} == {"complete", "timeout"}
    assert len(got) == 80


def test_vllm_omni_7246_every_request_is_accounted_for_when_it_is_over(port: int, tmp_path: Path) -> None:
    """vllm-project/vllm-omni#7246: the run stops early."""
    got, _ = drive(plan(tmp_path, port, ["good", "reset", "gzip", "status_429", "bad_json"] * 10, every_ms=10, end_ms=60_000))
    assert sorted(row["request_id"] for row in got) == list(range(50))
    assert all(row["send_ns"] >= row["arrival_ns"] for row in got)


def test_llm_d_1339_nothing_is_held_of_a_request_that_has_ended(port: int, tmp_path: Path) -> None:
    """llm-d/llm-d-benchmark#1339: the client ran out of memory while it replayed a trace, since it kept all that it had received."""
    held: list[int] = []

    def look(engine: Engine) -> None:
        held.append(sum(len(part) for exchange in engine.live for part in exchange.chunks))

    # A hundred answers of 10 MB would be a gigabyte; a time limit far off keeps pointing at requests that are over.
    got, _ = drive(
        plan(tmp_path, port, ["long_line"] * 4 + ["good"] * 200, every_ms=5, end_ms=60_000, request_timeout_ns=50_000 * MS), look
    )
    assert {row["end_kind"] for row in got} == {"complete"}
    assert max(held) <= 4 * 11_000_000
    assert held[-1] == 0
