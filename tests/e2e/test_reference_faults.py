"""What the reference server does when something in it breaks, and when there are more users than it tells apart."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.campaign.servers import Server
from harness.clock import MonotonicClock
from harness.runtimes.contract import Command
from harness.runtimes.ports import free_port
from harness.runtimes.process import ServerProcess
from harness.runtimes.reference import ReferenceRuntime, environment
from tests.e2e.test_reference_server import PINS, SOON_S, client, metric, post, reference_arm, running, until

pytestmark = pytest.mark.e2e

BROKEN = """
import sys
from harness.reference import server
from harness.reference.policies.vllm import VllmShapedFcfs
sound, calls = VllmShapedFcfs.plan, []
def plan(self, workload, state):
    calls.append(1)
    if len(calls) == 12:
        {fault}
    return sound(self, workload, state)
VllmShapedFcfs.plan = plan
raise SystemExit(server.main(sys.argv[1:]))
"""
"""A server whose policy goes wrong at its twelfth plan, which is within the first answer (the warm-up makes three)."""
FAULTS = {
    "exception": ("raise RuntimeError('injected')", "RuntimeError: injected"),
    "contract": ("return sound(self, workload, state)._replace(decision_id=-1)", "stale_decision"),
}


@contextlib.contextmanager
def breaking(fault: str, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    argv = [sys.executable, "-c", BROKEN.format(fault=fault), "--port", str(port), "--max-model-len", "512", "--max-num-seqs", "1"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(argv, env=environment(), cwd=folder, stdout=log, stderr=log)
    base_url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: ReferenceRuntime().ready(base_url) or process.poll() is not None)
        yield base_url, process
    finally:
        process.kill()
        process.wait()


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 400, "ignore_eos": True} | fields


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_a_broken_engine_ends_its_answers_with_errors_and_exits(kind: str, tmp_path: Path) -> None:
    fault, said = FAULTS[kind]
    with breaking(fault, tmp_path) as (base_url, process), client(base_url) as streaming, client(base_url) as waiting:
        streaming.request("POST", "/v1/completions", json.dumps(completion(stream=True)))
        answer = streaming.getresponse()
        first = answer.fp.readline() + answer.fp.readline()
        waiting.request("POST", "/v1/completions", json.dumps(completion()))
        rest = answer.fp.read()
        whole = waiting.getresponse()
        assert (answer.status, whole.status, json.loads(whole.read())["error"]["type"]) == (200, 500, "InternalServerError")
        assert b"data: " in first
        assert b'"error":{"message":"The engine failed."' in rest
        assert b"[DONE]" not in rest
        assert not rest.endswith(b"0\r\n\r\n"), "an answer that was cut must not look whole"
        assert process.wait(20) == 3
    log = (tmp_path / "server.log").read_text()
    assert "the engine failed" in log
    assert said in log


def test_users_beyond_those_told_apart_are_declined_and_the_others_served_on(tmp_path: Path) -> None:
    arm = reference_arm(**{"max-clients": 2, "overload-status": 429})
    with running(ReferenceRuntime(), arm, PINS, tmp_path) as (base_url, _), client(base_url) as connection:
        found = [post(connection, completion(user=user, max_tokens=1)) for user in ("a", "b", "c", "a", "d", "b")]
        assert [status for status, _ in found] == [200, 200, 429, 200, 429, 200]
        assert json.loads(found[2][1])["error"]["param"] == "user"
        assert metric(base_url, "requests_finished_total") == 4


def test_metrics_speak_in_other_engines_names_when_asked_to(tmp_path: Path) -> None:
    arm = reference_arm(**{"metrics-names": "trigpoint,vllm,sglang"})
    with running(ReferenceRuntime(), arm, PINS, tmp_path) as (base_url, _), client(base_url) as connection:
        post(connection, completion(max_tokens=5))
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    lines = page.splitlines()
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 5.0' in lines
    assert 'sglang:generation_tokens_total{model_name="tiny"} 5.0' in lines
    assert "trigpoint:generation_tokens_total 5.0" in lines
    assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 1.0' in lines


def test_the_keeper_of_a_broken_server_says_that_it_did_not_survive(tmp_path: Path) -> None:
    port, runtime, process = free_port(), ReferenceRuntime(), ServerProcess()
    base_url = f"http://127.0.0.1:{port}"
    words = ("--port", str(port), "--max-model-len", "512")
    argv = (sys.executable, "-c", BROKEN.format(fault=FAULTS["exception"][0]), *words)
    process.start(Command(argv, environment(), tmp_path), tmp_path / "server.log")
    try:
        process.wait_ready(lambda: runtime.ready(base_url), SOON_S, MonotonicClock())
        server = Server(("a", 0), runtime, runtime.target(reference_arm(), PINS, base_url), process, tmp_path / "server.log", argv)
        assert server.exit_state().survived
        with client(base_url) as connection:
            assert post(connection, completion())[0] == 500
        until(lambda: not process.alive())
        state = server.exit_state()
    finally:
        process.stop()
    assert (state.survived, state.exit_code) == (False, 3)
    assert any("RuntimeError: injected" in line for line in state.log_tail)
