"""A server's fault is told from ours, and a server of somebody else's from the one that was started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from analysis.model import Outcome, Verdict
from harness.campaign import servers
from harness.clock import MonotonicClock
from harness.errors import HostError
from harness.record.journal import Journal
from harness.runtimes.ports import free_port
from harness.runtimes.process import ServerProcess
from harness.runtimes.reference import ReferenceRuntime
from harness.system import Arm, ModelPin, Pins
from tests.e2e.test_workload_campaigns import analysed, checks, columns, led, manifest, processes, the_record

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
WORKLOAD = (
    "lengths: {input: {kind: constant, value: 20}, output: {kind: constant, value: 4}}",
    "arrivals: {process: constant}",
    "output-length: forced",
)
LOAD = "{rate: [40/s]}"
SERVER_ENDS = {"complete", "reset", "malformed", "connect_refused", "connect_failed"}
"""How exchanges with a server end that is killed on the way."""


def ends(campaign: Path) -> Counter[str]:
    return Counter(str(row["end_kind"]) for row in columns(the_record(campaign))[1])


def verdicts(campaign: Path, *codes: str) -> list[Verdict]:
    found = checks(campaign)
    return [found[code].verdict for code in codes]


@contextmanager
def reference(folder: Path, port: int) -> Iterator[ServerProcess]:
    """A reference server that no campaign started."""
    runtime, process = ReferenceRuntime(), ServerProcess()
    pins = Pins(model=ModelPin(id="tiny", dtype="float32"))
    try:
        process.start(runtime.command(Arm(name="a", runtime="reference"), pins, port, folder), folder / "other.log")
        process.wait_ready(lambda: runtime.ready(f"http://127.0.0.1:{port}"), 60, MonotonicClock())
        yield process
    finally:
        process.stop()


def test_a_server_that_dies_is_no_fault_of_the_client(tmp_path: Path) -> None:
    def kill_server() -> None:
        for server in processes()[0]:
            server.kill()

    campaign = led(manifest(tmp_path, "died", *WORKLOAD, load=LOAD), kill_server, 1.5)
    found = ends(campaign)
    assert found["complete"] > 0
    assert found["connect_refused"] > 0
    assert found.keys() <= SERVER_ENDS
    assert verdicts(campaign, "server_survived", "requests_wellformed", "partition_closes") == ["FAIL", "PASS", "PASS"]
    state = the_record(campaign).facts.server_exit
    assert state is not None
    assert (state.survived, state.exit_code) == (False, -9)
    assert analysed(campaign).cells[0].runs[0].outcomes.counts[Outcome.FAILED] > 0


def test_a_worker_that_dies_is_no_fault_of_the_server(tmp_path: Path) -> None:
    campaign = led(manifest(tmp_path, "ours", *WORKLOAD, load=LOAD), lambda: processes()[1][0].kill(), 1.5)
    found = ends(campaign)
    assert found["client_fault"] > 0
    assert not found.keys() & (SERVER_ENDS - {"complete"})
    assert verdicts(campaign, "server_survived", "requests_wellformed") == ["PASS", "FAIL"]
    assert "client fault" in checks(campaign)["requests_wellformed"].reason


def test_an_endpoint_that_serves_and_then_refuses_did_not_survive(tmp_path: Path) -> None:
    workload = (
        "lengths: {input: {kind: constant, value: 8}, output: {kind: constant, value: 1}}",
        *WORKLOAD[1:],
        "prompts: {source: text}",
    )
    with subprocess.Popen([sys.executable, "-m", "tests.e2e.bad_server"], stdout=subprocess.PIPE, text=True, cwd=ROOT) as theirs:
        assert theirs.stdout is not None
        arms = f"{{them: {{runtime: endpoint, url: 'http://127.0.0.1:{int(theirs.stdout.readline())}'}}}}"
        campaign = led(manifest(tmp_path, "left", *workload, load=LOAD, arms=arms), theirs.kill, 1.5)
    found = ends(campaign)
    assert found["complete"] > 0
    assert found["connect_refused"] > 0
    assert found.keys() <= SERVER_ENDS
    assert verdicts(campaign, "server_survived", "requests_wellformed") == ["FAIL", "PASS"]


def test_a_frozen_server_is_alive_and_its_requests_stay_open(tmp_path: Path) -> None:
    """Nothing ends, nothing is refused: the run ends when its drain does, and no side is blamed for a fault that nobody saw."""

    def freeze() -> None:
        for server in processes()[0]:
            server.suspend()

    campaign = led(manifest(tmp_path, "frozen", *WORKLOAD, load=LOAD), freeze, 1.5)
    found = ends(campaign)
    assert found["drain_end"] > 0
    assert found.keys() <= {"complete", "drain_end", "never_sent"}
    outcomes = analysed(campaign).cells[0].runs[0].outcomes
    assert outcomes.counts[Outcome.OPEN] > 0
    assert verdicts(campaign, "requests_wellformed", "partition_closes") == ["PASS", "PASS"]


def test_a_server_left_over_from_an_earlier_run_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers every question as ours would; only whose it is tells the two apart."""
    port = free_port()
    with reference(tmp_path, port) as stale:
        monkeypatch.setattr(servers, "free_port", lambda: port)
        with pytest.raises(HostError) as caught:
            led(manifest(tmp_path, "stale", *WORKLOAD, load=LOAD), lambda: None, 0.0)
        (problem,) = caught.value.problems
        assert problem.code == "port_in_use"
        assert f"pid {stale.pid}" in problem.what
        assert stale.alive()  # it is not ours to stop


def test_a_server_that_dies_at_its_start_shows_why_and_leaves_a_campaign_to_resume(tmp_path: Path) -> None:
    path = manifest(tmp_path, "start", *WORKLOAD, load=LOAD)
    config = tmp_path / "config" / "trigpoint"
    config.mkdir(parents=True)
    entry = '[dies]\nprefix = ["sh", "-c", "echo no memory is left >&2; exit 9"]\nwhere = "same-host"\n'
    (config / "launch.toml").write_text(entry)
    (config / "launch.toml").chmod(0o600)
    command = [sys.executable, "-m", "harness.cli", "run", str(path), "--results", str(tmp_path / "results")]
    env = os.environ | {"XDG_CONFIG_HOME": str(config.parent)}
    done = subprocess.run([*command, "--launch", "dies"], capture_output=True, text=True, timeout=120, cwd=ROOT, env=env, check=False)
    assert done.returncode == 3
    assert all(words in done.stderr for words in ("[server_died]", "exit_code=9", "no memory is left", "one-0.log")), done.stderr
    assert Journal(tmp_path / "results" / "start" / "journal.jsonl").events()[-1]["event"] == "cut"
    assert not [p for p in psutil.Process().children(recursive=True) if "harness.reference.server" in " ".join(p.cmdline())]
    again = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=env, check=False)
    assert again.returncode == 0, again.stderr
