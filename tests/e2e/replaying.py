"""Replaying against ``hostile.py`` in a process of its own: what the tests of the load engine share."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.clock import MonotonicClock
from harness.record.schema import REQUESTS, SAMPLES
from harness.record.segments import read_segments, segment_names
from harness.replay.contract import ReplayPlan, ReplaySummary
from harness.replay.session import ReplaySession
from harness.wire import PROTOCOLS
from harness.wire.contract import Ask
from workloads.schedule import Ragged

MS = 1_000_000
CLOCK = MonotonicClock()

Row = dict[str, Any]


class Served(NamedTuple):
    """A server of ours in a process of its own."""

    port: int
    pid: int


@contextlib.contextmanager
def hostile(*arguments: str) -> Iterator[int]:
    """Start the server; gives its port."""
    with serve(*arguments) as server:
        yield server.port


@contextlib.contextmanager
def serve(*arguments: str) -> Iterator[Served]:
    """Start the server; gives its port and process."""
    command = [sys.executable, str(Path(__file__).with_name("hostile.py")), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield Served(int(server.stdout.readline()), server.pid)
        finally:
            server.kill()


def plan(folder: Path, port: int, prompts: Sequence[str], *, every_ms: float = 20, end_ms: float = 4000, **changes: Any) -> ReplayPlan:
    protocol = PROTOCOLS["completions"]
    base: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": port,
        "path": protocol.path,
        "protocol": "completions",
        "arrival_ns": (np.arange(len(prompts)) * every_ms * MS).astype(np.int64),
        "bodies": [protocol.encode(Ask("tiny", prompt, 5, True, i)) for i, prompt in enumerate(prompts)],
        "stop_after": np.full(len(prompts), -1, dtype=np.int64),
        "end_ns": int(end_ms * MS),
        "segments": folder,
    }
    return ReplayPlan(**(base | changes))


def waiting(after: Sequence[Sequence[int]], think_ms: float = 0) -> dict[str, Any]:
    """Plan columns of requests that wait: ``after[i]`` for each, with one think time."""
    think = [int(think_ms * MS) if row else -1 for row in after]
    return {"after": Ragged.of(after, np.int64), "think_ns": np.array(think, dtype=np.int64)}


def start(made: ReplayPlan) -> ReplaySession:
    session = ReplaySession(made, CLOCK)
    session.start()
    session.go(CLOCK.now_ns() + made.workers * 300 * MS)  # each has to get a core before it can arm
    return session


def replay(made: ReplayPlan) -> tuple[list[Row], ReplaySummary]:
    summary = start(made).wait(30)
    return rows(made), summary


def rows(made: ReplayPlan) -> list[Row]:
    """What all workers recorded, by id."""
    tables = [read_segments(made.segments, name, REQUESTS)[0] for name in segment_names(made.segments, "requests")]
    return sorted((row for table in tables for row in table.to_pylist()), key=lambda row: int(row["request_id"]))


def samples(made: ReplayPlan, metric: str, worker: str = "w0") -> list[float]:
    table, _ = read_segments(made.segments, f"client-{worker}", SAMPLES)
    return [row["value"] for row in table.to_pylist() if row["metric"] == metric and row["source"] == "client"]
