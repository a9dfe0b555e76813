"""The reference server as a real process, through its adapter and over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HostError, UsageError
from harness.runtimes.ports import free_port
from harness.runtimes.reference import ReferenceRuntime
from harness.runtimes.truth import LOG_NAME, TruthRuntime
from harness.runtimes.truth_log import lateness_of, read_log
from harness.system import Arm, ModelPin, ParallelismPin, Pins

pytestmark = pytest.mark.e2e

PINS = Pins(model=ModelPin(id="tiny", dtype="float32"))
ARGS: dict[str, Any] = {"max-num-seqs": 2, "max-queue": 1, "max-model-len": 512, "kv-cache-tokens": 1024, "cost-base": "2ms"}
SOON_S = 20.0  # generous: it bounds a hang, it measures nothing


def reference_arm(**args: Any) -> Arm:
    return Arm(name="a", runtime="reference", args=ARGS | args)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "condition not reached"
        time.sleep(0.01)


@contextlib.contextmanager
def running(runtime: ReferenceRuntime | TruthRuntime, arm: Arm, pins: Pins, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    command = runtime.command(arm, pins, port, folder)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command.argv, env=dict(command.env), cwd=command.cwd, stdout=log, stderr=log)
    base_url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: runtime.ready(base_url) or process.poll() is not None)
        assert process.poll() is None, (folder / "server.log").read_text()
        yield base_url, process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(ReferenceRuntime(), reference_arm(), PINS, tmp_path_factory.mktemp("server")) as (base_url, _):
        yield base_url


def connect(base_url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", int(base_url.rpartition(":")[2]), timeout=SOON_S)


@contextlib.contextmanager
def client(base_url: str) -> Iterator[http.client.HTTPConnection]:
    with contextlib.closing(connect(base_url)) as connection:
        yield connection


def post(connection: http.client.HTTPConnection, body: Any, path: str = "/v1/completions") -> tuple[int, bytes]:
    connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))
    response = connection.getresponse()
    return response.status, response.read()


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True} | fields


def metric(base_url: str, name: str) -> float:
    with client(base_url) as connection:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    values = [float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"trigpoint:{name}")]
    assert values, f"{name} is not on the page"
    return sum(values)


def data_events(body: bytes) -> list[Any]:
    return [json.loads(e.removeprefix("data: ")) if e != "data: [DONE]" else "done" for e in body.decode().split("\n\n") if e]


def test_a_stream_counts_tokens_by_ids_and_usage_on_one_kept_connection(server: str) -> None:
    with client(server) as connection:
        for _ in range(2):
            options = {"include_usage": True, "continuous_usage_stats": True}
            status, body = post(connection, completion(stream=True, stream_options=options, return_token_ids=True))
            events = data_events(body)
            assert status == 200
            assert sum(len(e["choices"][0]["token_ids"]) for e in events[:-2]) == 4
            assert [e["usage"]["completion_tokens"] for e in events[:-1]] == [1, 2, 3, 4, 4]
            assert events[-3]["choices"][0]["finish_reason"] == "length"
            assert events[-1] == "done"


@pytest.mark.parametrize(("code", "kind"), [(429, "RateLimitError"), (503, "ServiceUnavailableError")])
def test_what_the_policy_declines_is_answered_before_any_output(tmp_path: Path, code: int, kind: str) -> None:
    arm = reference_arm(policy="scorpio-like-deadline", **{"policy-parameters": "ttft_ns=1", "overload-status": code})
    with running(ReferenceRuntime(), arm, PINS, tmp_path) as (base_url, _), client(base_url) as connection:
        for stream in (True, False, True):  # the connection is kept
            status, body = post(connection, completion(stream=stream))
            assert (status, json.loads(body)["error"]["type"]) == (code, kind)
        assert metric(base_url, "requests_finished_total") == metric(base_url, "requests_aborted_total") == 0
        until(lambda: metric(base_url, "requests_waiting") == 0)


@pytest.mark.parametrize("policy", ["scorpio-like-deadline", "layerkv-like", "distserve-like-split"])
def test_policies_with_owners_beside_the_scheduler_serve_over_http(tmp_path: Path, policy: str) -> None:
    with running(ReferenceRuntime(), reference_arm(policy=policy), PINS, tmp_path) as (base_url, _), client(base_url) as connection:
        for stream in (True, False):
            status, body = post(connection, completion(stream=stream, max_tokens=6))
            answer = [e for e in data_events(body) if e != "done"] if stream else [json.loads(body)]
            assert status == 200
            assert sum(len(part["choices"][0]["text"]) for part in answer) == 6
        assert metric(base_url, "requests_finished_total") == 2
        assert metric(base_url, "kv_usage_ratio") == 0


def test_equal_seeds_give_equal_answers_on_both_forms(server: str) -> None:
    with client(server) as connection:
        _, one = post(connection, completion(seed=5, max_tokens=20))
        _, other = post(connection, completion(seed=5, max_tokens=20, stream=True))
    text = "".join(e["choices"][0]["text"] for e in data_events(other) if e != "done")
    assert json.loads(one)["choices"][0]["text"] == text
    assert len(text) == 20


def test_natural_stop_ends_before_the_maximum_for_some_seed(server: str) -> None:
    reasons = set()
    with client(server) as connection:
        for seed in range(8):
            _, body = post(connection, completion(seed=seed, ignore_eos=False, max_tokens=60))
            answer = json.loads(body)
            reasons.add(answer["choices"][0]["finish_reason"])
            assert answer["usage"]["completion_tokens"] <= 60
    assert reasons == {"stop", "length"}


def test_chat_has_a_role_event_first(server: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True, "ignore_eos": True}
    with client(server) as connection:
        status, answer = post(connection, body, "/v1/chat/completions")
    events = data_events(answer)
    assert status == 200
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert len(events) == 4


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b"{"),
        (400, b"[]"),
        (400, completion(prompt=[300])),
        (400, completion(prompt=[1] * 600)),
        (400, completion(max_tokens=511)),
        (400, completion(max_tokens=0)),
        (404, completion(model="nope")),
    ],
)
def test_nonsense_is_refused_in_openai_s_shape_and_the_connection_lives(server: str, status: int, body: Any) -> None:
    with client(server) as connection:
        found, answer = post(connection, body)
        assert (found, json.loads(answer)["error"]["code"]) == (status, status)
        assert post(connection, completion())[0] == 200


def test_routes_that_are_not_there(server: str) -> None:
    with client(server) as connection:
        assert post(connection, {}, "/nowhere")[0] == 404
        assert post(connection, {}, "/health")[0] == 405
        status, body = post(connection, {"prompt": "abc"}, "/tokenize")
    assert (status, json.loads(body)["tokens"]) == (200, [97, 98, 99])


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01garbage\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"A" * 70_000])
def test_bytes_that_are_no_http_close_the_connection_only(server: str, garbage: bytes) -> None:
    port = int(server.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=SOON_S) as raw, contextlib.suppress(OSError):
        raw.sendall(garbage)
        while raw.recv(65536):
            pass
    assert ReferenceRuntime().ready(server)


def test_pipelined_requests_are_answered_in_order(server: str) -> None:
    port = int(server.rpartition(":")[2])
    body = json.dumps(completion()).encode()
    one = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    last = b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=SOON_S) as raw:
        raw.sendall(one + last)
        answer = b""
        while data := raw.recv(65536):
            answer += data
    assert answer.index(b"text_completion") < answer.index(b'"version"')


def test_a_client_that_leaves_frees_its_cache(server: str) -> None:
    aborted = metric(server, "requests_aborted_total")
    port = int(server.rpartition(":")[2])
    body = json.dumps(completion(max_tokens=500, stream=True)).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=SOON_S) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        while b"data:" not in raw.recv(65536):
            pass
    until(lambda: metric(server, "requests_running") == 0 and metric(server, "kv_usage_ratio") == 0)
    assert metric(server, "requests_aborted_total") == aborted + 1


def test_counters_add_up(server: str) -> None:
    names = ("requests_finished_total", "prompt_tokens_total", "generation_tokens_total")
    before = [metric(server, name) for name in names]
    with client(server) as connection:
        for _ in range(3):
            post(connection, completion())
    assert [metric(server, name) - b for name, b in zip(names, before, strict=True)] == [3, 9, 12]


@pytest.mark.parametrize("elsewhere", [{}, {"prefix-remote": True, "cost-transfer-base": "20ms"}])
def test_a_prompt_that_came_before_is_taken_from_the_store_and_reported(server: str, tmp_path: Path, elsewhere: dict[str, Any]) -> None:
    prompt = [i % 251 for i in range(100)]
    options = {"include_usage": True, "continuous_usage_stats": True}
    arm = reference_arm(**({"prefix-cache-tokens": 4096} | elsewhere))
    with running(ReferenceRuntime(), arm, PINS, tmp_path) as (caching, _):
        for base_url, expected in ((caching, [0, 96, 96]), (server, [0, 0, 0])):
            before = metric(base_url, "cached_tokens_total")
            with client(base_url) as connection:
                whole = [json.loads(post(connection, completion(prompt=prompt))[1]) for _ in range(2)]
                _, stream = post(connection, completion(prompt=prompt, stream=True, stream_options=options))
            first, last = data_events(stream)[0], data_events(stream)[-2]
            said = [*(answer["usage"] for answer in whole), first["usage"]]
            assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in said] == expected  # floor(99 / 16) blocks of 16
            assert last["usage"]["prompt_tokens_details"] == first["usage"]["prompt_tokens_details"]
            assert metric(base_url, "cached_tokens_total") - before == sum(expected)
        facts = ReferenceRuntime().facts(arm, PINS, caching, None)
        assert (facts["server.prefix_caching"].value, facts["server.block_size"].value) == (True, 16)
        assert ReferenceRuntime().target(arm, PINS, caching).cacheable_block == 16
        assert ReferenceRuntime().target(arm, PINS, server).cacheable_block is None


def test_an_emptied_store_gives_nothing_and_is_not_emptied_while_a_request_runs(server: str, tmp_path: Path) -> None:
    prompt = [i % 251 for i in range(100)]
    with running(ReferenceRuntime(), reference_arm(**{"prefix-cache-tokens": 4096}), PINS, tmp_path) as (caching, _):
        with client(caching) as connection:
            cached = []
            for _ in range(2):
                usage = [json.loads(post(connection, completion(prompt=prompt))[1])["usage"] for _ in range(2)]
                cached.append([one["prompt_tokens_details"]["cached_tokens"] for one in usage])
                assert ReferenceRuntime().flush(caching) is True
            assert cached == [[0, 96], [0, 96]]
        with client(caching) as busy:
            busy.request("POST", "/v1/completions", json.dumps(completion(max_tokens=400, stream=True)))
            busy.getresponse().read(1)
            assert ReferenceRuntime().flush(caching) is False
    assert ReferenceRuntime().flush(server) is True  # no store, nothing in it


def test_facts_name_what_was_asked_for(server: str) -> None:
    runtime = ReferenceRuntime()
    facts = runtime.facts(reference_arm(), PINS, server, None)
    assert all(fact.value is not None for fact in facts.values())
    assert facts["server.dtype"].value == "float32"
    assert facts["server.kv_capacity_tokens"].value == 1024
    assert facts["server.effective_config"].value["max_num_seqs"] == 2
    target = runtime.target(reference_arm(), PINS, server)
    assert (target.tokenizer, target.vocab_size, target.max_model_len) == ("bytes", 256, 512)
    with pytest.raises(HostError, match="server_silent"):
        runtime.target(reference_arm(), Pins(model=ModelPin(id="other", dtype="float32")), server)


@pytest.mark.parametrize("status", [429, 503])
def test_a_full_queue_declines(tmp_path: Path, status: int) -> None:
    arm = reference_arm(**{"max-num-seqs": 1, "overload-status": status})
    with running(ReferenceRuntime(), arm, PINS, tmp_path) as (base_url, _), contextlib.ExitStack() as stack:
        for index in range(2):
            holder = stack.enter_context(client(base_url))
            holder.request("POST", "/v1/completions", json.dumps(completion(max_tokens=500)))
            until(lambda index=index: metric(base_url, "requests_running") + metric(base_url, "requests_waiting") == index + 1)  # type: ignore[misc]
            until(lambda: metric(base_url, "requests_running") == 1)
        with client(base_url) as connection:
            found, body = post(connection, completion())
    assert (found, json.loads(body)["error"]["code"]) == (status, status)


def test_sigterm_ends_it_cleanly_and_it_says_how_late_it_was(tmp_path: Path) -> None:
    with running(ReferenceRuntime(), reference_arm(), PINS, tmp_path) as (base_url, process):
        with client(base_url) as connection:
            post(connection, completion())
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0
    log = (tmp_path / "server.log").read_text()
    assert "stopped after 4 iterations" in log
    assert "Traceback" not in log


def test_the_adapter_refuses_before_a_start_and_collects_everything() -> None:
    arm = Arm(name="a", runtime="reference", args={"max-num-sqs": 3, "port": 1}, env={"LD_PRELOAD": "x"})
    pins = Pins(model=ModelPin(id="tiny", dtype="float32", quantization="int8"), parallelism=ParallelismPin(tensor=2))
    problems = {p.code: p for p in ReferenceRuntime().check(arm, pins)}
    assert set(problems) == {"flag_unknown", "flag_reserved", "env_not_allowed", "pin_unsupported"}
    assert "max-num-seqs" in problems["flag_unknown"].remedy
    with pytest.raises(UsageError, match="kv_too_small"):
        ReferenceRuntime().command(reference_arm(**{"kv-cache-tokens": 10}), PINS, free_port(), Path())


def test_a_taken_port_is_refused_by_adapter_and_server(server: str) -> None:
    port = int(server.rpartition(":")[2])
    with pytest.raises(HostError, match="port_in_use"):
        ReferenceRuntime().command(reference_arm(), PINS, port, Path())
    command = ReferenceRuntime().command(reference_arm(), PINS, free_port(), Path())
    argv = [str(port) if command.argv[i - 1] == "--port" else arg for i, arg in enumerate(command.argv)]
    done = subprocess.run(argv, env=dict(command.env), capture_output=True, timeout=SOON_S, check=False)
    assert done.returncode == 3
    assert b"Traceback" not in done.stderr


def test_the_truth_server_logs_every_write_it_makes(tmp_path: Path) -> None:
    pins = Pins(model=ModelPin(id="truth", dtype="none"))
    arm = Arm(name="t", runtime="truth", args={"ttft": 5, "gap": 2})
    with running(TruthRuntime(), arm, pins, tmp_path) as (base_url, process):
        with client(base_url) as connection:
            for index in range(2):
                _, body = post(connection, {"prompt": [1, 2], "max_tokens": 5, "user": f"c{index}", "stream": True})
                assert len(data_events(body)) == 6
            assert post(connection, {"prompt": [1], "max_tokens": 0})[0] == 400
            assert post(connection, b"nonsense")[0] == 400
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0
    table = read_log(tmp_path / LOG_NAME)
    rows = table.to_pylist()
    assert [row["request"] for row in rows] == ["c0", "c1"]
    for row in rows:
        due = [row["received_ns"] + 5_000_000 + k * 2_000_000 for k in range(5)]
        assert row["scheduled_ns"] == due
        assert all(actual >= scheduled for actual, scheduled in zip(row["actual_ns"], due, strict=True))
    assert lateness_of(table)["tokens"] == 10


def test_the_truth_server_writes_several_tokens_at_jittered_times(tmp_path: Path) -> None:
    pins = Pins(model=ModelPin(id="truth", dtype="none"))
    arm = Arm(name="t", runtime="truth", args={"ttft": 5, "gap": 2, "jitter": 3, "seed": 7, "per-write": 2})
    with running(TruthRuntime(), arm, pins, tmp_path) as (base_url, process):
        with client(base_url) as connection:
            _, body = post(connection, {"prompt": [1], "max_tokens": 5, "user": "c0", "stream": True})
            assert len(data_events(body)) == 6
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0
    (row,) = read_log(tmp_path / LOG_NAME).to_pylist()
    offsets = [at - row["received_ns"] for at in row["scheduled_ns"]]
    assert offsets[0] == offsets[1]
    assert offsets[2] == offsets[3]
    assert all(0 <= at - planned * 1_000_000 <= 3_000_000 for at, planned in zip(offsets, (5, 5, 9, 9, 13), strict=True))


def test_the_truth_server_survives_a_client_that_leaves(tmp_path: Path) -> None:
    pins = Pins(model=ModelPin(id="truth", dtype="none"))
    with running(TruthRuntime(), Arm(name="t", runtime="truth", args={"gap": 1}), pins, tmp_path) as (base_url, process):
        with client(base_url) as leaver:
            leaver.request("POST", "/v1/completions", json.dumps({"prompt": [1], "max_tokens": 5000, "user": "gone"}))
            leaver.getresponse().read(10)
        with client(base_url) as connection:
            assert post(connection, {"prompt": [1], "max_tokens": 3, "user": "stays"})[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0
    written = {row["request"]: len(row["actual_ns"]) for row in read_log(tmp_path / LOG_NAME).to_pylist()}
    assert written["stays"] == 3
    assert written["gone"] < 5000
