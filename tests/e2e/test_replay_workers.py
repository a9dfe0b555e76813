"""Real processes: one load shared by several workers, and the loss of one of them."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.clock import NS_PER_S
from harness.errors import HostError
from harness.record.attempt import Attempt
from harness.record.schema import SAMPLES, EndKind
from harness.record.segments import read_segments
from harness.replay.rest import LEAST_NS, MOST_NS
from harness.replay.session import ReplaySession, missing_rows
from harness.replay.shares import cores, share_out
from tests.e2e.replaying import CLOCK, hostile, plan, replay, rows, samples, start, waiting

pytestmark = pytest.mark.e2e

AFTER: list[list[int]] = [[] for _ in range(20)] + [[i] for i in range(20)] + [[20 + i] for i in range(10)]
PROMPTS = [*["good"] * 38, "status_429", *["good"] * 11]  # 38 is a second turn, without a third


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with hostile() as port:
        yield port


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_server_gets_the_same_bytes_from_any_number_of_workers(tmp_path: Path, workers: int) -> None:
    log = tmp_path / "bodies"
    with hostile("--bodies", str(log)) as port:
        made = plan(tmp_path / "segments", port, PROMPTS, every_ms=5, workers=workers, **waiting(AFTER, think_ms=3))
        got, summary = replay(made)
    assert (summary.fault, summary.offered, summary.recorded) == (None, 50, 50)
    assert Counter(log.read_text().split()) == Counter(hashlib.sha256(body).hexdigest() for body in made.bodies)
    # Each row stands under the id of the whole plan, with what that request did.
    assert [r["request_id"] for r in got] == list(range(50))
    assert [r["end_kind"] for r in got] == ["complete"] * 38 + ["http_error"] + ["complete"] * 11
    for request, before in enumerate(AFTER):
        wanted = got[before[0]]["end_ns"] + 3_000_000 if before else made.arrival_ns[request]
        assert got[request]["arrival_ns"] == wanted


def test_workers_show_up_apart_in_processes_cores_and_samples_and_together_in_counts(port: int, tmp_path: Path) -> None:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    made = plan(tmp_path, port, ["good"] * 30, every_ms=10, end_ms=1000, workers=2, cpus=cpus)
    session = start(made)
    roles = session.roles()
    assert sorted(roles) == ["client/w0", "client/w1", "spooler/w0", "spooler/w1"]
    assert len(set(roles.values())) == 4
    for worker in (0, 1):
        assert os.sched_getaffinity(roles[f"client/w{worker}"]) == set(cores(cpus, worker, 2))
    summary = session.wait(20)
    assert (summary.fault, summary.recorded, session.progress().sent, session.progress().ended) == (None, 30, 30, 30)
    assert summary.worker_cpu_s > 0
    for worker in ("w0", "w1"):
        assert len(samples(made, "loop_lag_s", worker)) > 10
        table, _ = read_segments(made.segments, f"client-{worker}", SAMPLES)
        assert set(table["labels"].to_pylist()) == {worker}


def test_compaction_merges_workers_by_arrival_and_puts_what_never_arrived_last(port: int, tmp_path: Path) -> None:
    attempt = Attempt.create(tmp_path, "campaign", "arm@1", 0)
    prompts = ["status_503", *["good"] * 7]
    after: list[list[int]] = [[], [], [], [], [0], [1], [4], [4]]
    made = plan(attempt.segments, port, prompts, workers=2, **waiting(after, think_ms=1))
    summary = start(made).wait(20)
    report = attempt.compact(lambda recorded: missing_rows(made, recorded, EndKind.CLIENT_FAULT))
    assert (summary.fault, report.recorded, report.filled, report.torn) == (None, 8, 0, ())
    table = pq.read_table(attempt.path / "requests.parquet")
    arrivals = table["arrival_ns"].to_pylist()
    assert arrivals[:5] == sorted(arrivals[:5])
    assert arrivals[5:] == [None] * 3
    assert table["request_id"].to_pylist()[5:] == [4, 6, 7]
    assert table["end_kind"].to_pylist()[5:] == ["never_due"] * 3


def test_workers_that_reach_no_server_end_before_the_run(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        session = ReplaySession(plan(tmp_path, taken.getsockname()[1], ["good"] * 4, workers=2), CLOCK)
        with pytest.raises(HostError, match="refused"):
            session.start()
    assert session.finished(0)


@pytest.mark.parametrize("waits", [False, True])
def test_how_long_answers_lie_unread_is_sampled_where_they_do(port: int, tmp_path: Path, waits: bool) -> None:
    more = waiting([[], [0], [1]]) if waits else {}
    made = plan(tmp_path, port, ["good"] * 3, every_ms=100, end_ms=2_000, **more)
    summary = start(made).wait(20)
    assert (summary.fault, summary.recorded) == (None, 3)
    rests = samples(made, "read_rest_s")
    assert samples(made, "reads_total")
    assert (rests == []) is waits
    assert all(LEAST_NS <= rest * NS_PER_S <= MOST_NS for rest in rests)


@pytest.mark.parametrize("victim", ["client", "spooler"])
def test_losing_one_of_two_costs_its_own_requests_only(port: int, tmp_path: Path, victim: str) -> None:
    count = 200
    after = [[i - 100] if i >= 100 and i % 10 == 0 else [] for i in range(count)]
    made = plan(tmp_path, port, ["good"] * count, every_ms=15, end_ms=15_000, workers=2, **waiting(after))
    session = start(made)
    while session.progress().ended < 60:
        assert not session.finished(0.05)
    os.kill(session.roles()[f"{victim}/w1"], signal.SIGKILL)
    summary = session.wait(30)
    assert summary.fault is not None
    assert {"client": "worker w1", "spooler": "spooler w1"}[victim] in summary.fault
    assert "w0" not in summary.fault
    left, hit = share_out(made)
    got = {r["request_id"]: r["end_kind"] for r in rows(made)}
    assert {got[i] for i in left.ids.tolist()} == {"complete"}
    lost = {r["request_id"] for r in missing_rows(made, got, EndKind.CLIENT_FAULT)}
    assert lost
    assert lost <= set(hit.ids.tolist())
    assert set(got) | lost == set(range(count))
