"""The keeper with real processes: one server at a time, shared by its replicates, refused when it is not ours, gone at the end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from harness.campaign import servers
from harness.campaign.servers import Keeper, Server
from harness.clock import MonotonicClock
from harness.errors import HostError, UsageError
from harness.manifest import PlannedRun, expand, load_manifest
from harness.runtimes.contract import Command, Target
from harness.runtimes.reference import ReferenceRuntime, environment
from harness.system import Arm, Pins
from tests.e2e.test_bad_input import FEW, write

pytestmark = pytest.mark.e2e


@pytest.fixture
def runs(tmp_path: Path) -> tuple[PlannedRun, ...]:
    """Two arms, two replicates on one server start each, arm after arm."""
    path = write(tmp_path, b"never read", ("count: 1,", "count: 2, server-starts: 1, order: sequential,"))
    return expand(load_manifest(path, known_gates=frozenset())).runs


def keeper(folder: Path, ready_deadline_s: float = 60.0) -> Keeper:
    return Keeper(folder / ".servers", MonotonicClock(), lambda _line: None, ready_deadline_s)


def pid_of(server: Server) -> int:
    assert server.process is not None
    return server.process.pid


def test_replicates_share_their_server_and_the_next_arm_gets_its_own(tmp_path: Path, runs: tuple[PlannedRun, ...]) -> None:
    with keeper(tmp_path) as ours:
        first, again, other = (ours.use(run) for run in runs[:3])
        assert again is first
        assert first.exit_state().survived is False  # stopped to make room, never two at once
        assert other is not first
        last = pid_of(other)
        assert other.exit_state().survived is True
    assert not psutil.pid_exists(last)


def test_a_server_that_died_is_started_again(tmp_path: Path, runs: tuple[PlannedRun, ...]) -> None:
    with keeper(tmp_path) as ours:
        first = ours.use(runs[0])
        psutil.Process(pid_of(first)).kill()
        deadline = time.monotonic() + 20
        while first.exit_state().survived and time.monotonic() < deadline:  # its keeper has yet to notice
            time.sleep(0.01)
        second = ours.use(runs[1])
        assert second is not first
        assert second.exit_state().survived is True
    assert first.exit_state().exit_code == -9


class Odd(ReferenceRuntime):
    """A runtime that starts another program than the one that was asked for."""

    program = "print('loading weights'); print('still loading', flush=True); import time; time.sleep(60)"
    answers = False

    def command(self, arm: Arm, pins: Pins, port: int, workdir: Path) -> Command:
        del arm, pins, port
        return Command((sys.executable, "-c", self.program), environment(), workdir)

    def ready(self, base_url: str) -> bool:
        return self.answers and super().ready(base_url)


def test_a_server_that_never_gets_ready_shows_its_last_lines_and_is_stopped(
    tmp_path: Path, runs: tuple[PlannedRun, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "get_runtime", lambda _name: Odd())
    before = set(psutil.Process().children(recursive=True))
    with keeper(tmp_path, ready_deadline_s=1.0) as ours, pytest.raises(HostError) as caught:
        ours.use(runs[0])
    (problem,) = caught.value.problems
    assert problem.code == "server_not_ready"
    assert "ready within 1 s: no" in problem.what
    assert "loading weights\n      still loading" in problem.what
    assert str(tmp_path / ".servers" / "few-0.log") in problem.remedy
    assert set(psutil.Process().children(recursive=True)) == before


def test_a_server_that_dies_at_once_shows_why(tmp_path: Path, runs: tuple[PlannedRun, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Odd()
    odd.program = "raise SystemExit('no such model')"
    monkeypatch.setattr(servers, "get_runtime", lambda _name: odd)
    with keeper(tmp_path) as ours, pytest.raises(HostError, match=r"exit_code=1.*\n.*no such model"):
        ours.use(runs[0])


class Busy(ReferenceRuntime):
    """Answers every third probe in time."""

    asked = 0

    def ready(self, base_url: str) -> bool:
        del base_url
        self.asked += 1
        return self.asked % 3 == 0


def test_a_server_that_lets_two_probes_wait_has_not_died() -> None:
    target = Target("http://127.0.0.1:9", "m", "t.json", 1, 1, token_ids=True)
    assert Server(("far", 0), Busy(), target, None, None, ()).exit_state().survived is True


class Healthy(BaseHTTPRequestHandler):
    """Answers every page with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - same
        del format, args


@contextmanager
def stranger(port: int) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", port), Healthy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_stranger_that_answers_on_the_port_is_not_measured(
    tmp_path: Path, runs: tuple[PlannedRun, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = servers.free_port()
    odd = Odd()
    odd.answers = True
    monkeypatch.setattr(servers, "get_runtime", lambda _name: odd)
    monkeypatch.setattr(servers, "free_port", lambda: port)
    with stranger(port), keeper(tmp_path) as ours, pytest.raises(HostError) as caught:
        ours.use(runs[0])
    (problem,) = caught.value.problems
    assert problem.code == "stale_server"
    assert f"port={port}" in problem.what
    assert f"pid {psutil.Process().pid}" in problem.what


def test_a_taken_port_is_refused_before_the_start(tmp_path: Path, runs: tuple[PlannedRun, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    port = servers.free_port()
    monkeypatch.setattr(servers, "free_port", lambda: port)
    with stranger(port), keeper(tmp_path) as ours, pytest.raises(HostError) as caught:
        ours.use(runs[0])
    (problem,) = caught.value.problems
    assert problem.code == "port_in_use"
    assert f"taken by pid {psutil.Process().pid}" in problem.what


def test_an_arm_that_cannot_start_is_refused_with_every_problem(tmp_path: Path) -> None:
    path = write(tmp_path, b"never read", (FEW, FEW.replace("max-num-seqs: 2", "max-num-seq: 2, cost-bas: 1ms")))
    (bad, _) = sorted(expand(load_manifest(path, known_gates=frozenset())).runs, key=lambda run: run.arm.name)
    with keeper(tmp_path) as ours, pytest.raises(UsageError) as caught:
        ours.use(bad)
    assert [p.code for p in caught.value.problems] == ["flag_unknown", "flag_unknown"]
