"""SGLang itself, in its own environment, on the tiny model: started, asked, replayed against, flushed, killed by one bad id. Minutes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from harness.clock import MonotonicClock
from harness.observe.metrics import canonical_values
from harness.observe.pins import check_pins
from harness.record.facts import Fact
from harness.record.reader import latest_sealed
from harness.record.spec import Arm, ModelPin, Pins
from harness.runtimes.asking import ask
from harness.runtimes.contract import Target
from harness.runtimes.install import environment
from harness.runtimes.ports import check_port, free_port
from harness.runtimes.process import ServerProcess
from harness.runtimes.sglang import SglangRuntime, flush_cache, options_of
from harness.runtimes.sglang_flags import RESERVED
from harness.runtimes.tokenize import count_tokens
from harness.wire import PROTOCOLS
from harness.wire.contract import Ask
from tests.e2e.replaying import plan, replay

pytestmark = pytest.mark.real

ARM = Arm(
    name="a",
    runtime="sglang",
    version="0.5.23",
    args={
        "max-running-requests": 12, "context-length": 4096, "schedule-policy": "lpm", "max-total-tokens": 4096,
        "schedule-conservativeness": 0.05,
    },
)  # fmt: skip
"""A pool so small, and an admission so bold, that running requests have to be put back."""

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
    if environment("sglang-cpu") is None:
        pytest.fail("run `trigpoint runtime install sglang-cpu` first")
    folder = tmp_path_factory.mktemp("sglang")
    runtime, process, port = SglangRuntime(), ServerProcess(), free_port()
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
    assert (found["server.version"], found["server.dtype"], found["server.quantization"]) == ("0.5.23", "bfloat16", "none")
    assert (found["server.max_model_len"], found["server.kv_capacity_tokens"], found["server.block_size"]) == (4096, 4096, 1)
    assert found["server.prefix_caching"] is True
    assert found["server.omp_binding"] == {"0": [0]}
    assert found["server.effective_config"]["schedule_policy"] == "lpm"
    assert not [text for text in json.dumps(found["server.effective_config"]).split('"') if text.startswith("/")]
    assert {p.pin: p.result for p in check_pins(PINS, server.facts)} == {
        "model.id": "matched", "model.dtype": "matched", "model.quantization": "matched", "parallelism.tensor": "matched",
        "parallelism.pipeline": "matched", "parallelism.data": "matched", "parallelism.expert": "matched",
    }  # fmt: skip
    wrong = check_pins(Pins(model=ModelPin(id="tiny", dtype="float32")), server.facts)
    assert [p.pin for p in wrong if p.result == "mismatched"] == ["model.dtype"]


def test_facts_asked_twice_are_equal(server: Running) -> None:
    again = SglangRuntime().facts(ARM, PINS, server.url, server.log)
    assert again == server.facts


def test_the_target_is_what_the_server_counts(server: Running) -> None:
    target = server.target
    assert (target.vocab_size, target.max_model_len, target.cacheable_block, target.adds_bos) == (4096, 4096, 1, False)
    assert target.chat_overhead == 4  # <|begin|> <|user|> ... <|end|> <|assistant|>


def test_every_process_is_on_the_given_core(server: Running) -> None:
    tree = server.process.tree_pids()
    assert len(tree) >= 3
    assert {tuple(psutil.Process(p).cpu_affinity() or ()) for p in tree} == {(0,)}


def bodies(server: Running, prompts: list[Any], max_tokens: int, protocol: str = "completions") -> list[bytes]:
    return [PROTOCOLS[protocol].encode(Ask(server.target.model, prompt, max_tokens, True, i)) for i, prompt in enumerate(prompts)]


def run(folder: Path, server: Running, sent: list[bytes], *, every_ms: float = 150, **changes: Any) -> list[dict[str, Any]]:
    protocol = PROTOCOLS[changes.pop("protocol", "completions")]
    wanted = {"bodies": sent, "path": protocol.path, "protocol": protocol.name} | changes
    port = int(server.url.rsplit(":", 1)[1])
    return replay(plan(folder, port, ["x"] * len(sent), every_ms=every_ms, end_ms=20_000, **wanted))[0]


@pytest.mark.parametrize("protocol", ["completions", "chat", "generate"])
def test_tokens_are_counted_as_the_server_counts_them(server: Running, tmp_path: Path, protocol: str) -> None:
    texts = ["a b c", "d", "e f", "g h i j"]
    ids = [np.arange(10, 74) + i for i in range(2)]
    prompts: list[Any] = texts if protocol == "chat" else [*ids, *texts[2:]]
    before = counters(server.url)
    rows = run(tmp_path, server, bodies(server, prompts, 16, protocol), protocol=protocol)
    assert [(row["end_kind"], row["client_tokens"], row["usage_completion_tokens"]) for row in rows] == [("complete", 16, 16)] * 4
    around = server.target.chat_overhead if protocol == "chat" else 0
    counted = [around + count_tokens(server.url, prompt=text, add_special_tokens=around == 0) for text in texts]
    assert [row["usage_prompt_tokens"] for row in rows] == (counted if protocol == "chat" else [64, 64, *counted[2:]])
    assert all(row["usage_cached_tokens"] is not None for row in rows)
    moved = settled(server.url, before, "requests_finished_total", 4)
    assert moved["prompt_tokens_total"] == sum(row["usage_prompt_tokens"] for row in rows)
    assert moved["generation_tokens_total"] == 64
    assert moved["cached_tokens_total"] == sum(row["usage_cached_tokens"] for row in rows)


def test_the_client_stops_where_it_was_told_and_the_server_gives_the_rest_up(server: Running, tmp_path: Path) -> None:
    before = counters(server.url)
    rows = run(tmp_path, server, bodies(server, [np.arange(100, 120), np.arange(200, 240)], 400), stop_after=np.array([3, 5]))
    assert [row["end_kind"] for row in rows] == ["client_stop"] * 2
    assert [row["usage_prompt_tokens"] for row in rows] == [20, 40]
    assert all(row["client_tokens"] == row["usage_completion_tokens"] for row in rows)
    moved = settled(server.url, before, "requests_aborted_total", 2)
    assert moved["generation_tokens_total"] < 800
    assert moved["requests_finished_total"] == 2  # SGLang counts what it gave up among them


def test_what_it_refuses_is_the_sender_s_fault(server: Running, tmp_path: Path) -> None:
    rows = run(tmp_path, server, bodies(server, [np.arange(4095), np.arange(10, 20)], 8))
    assert [(row["end_kind"], row["http_status"]) for row in rows] == [("http_error", 400), ("complete", 200)]
    assert "4096" in rows[0]["error"]


def test_a_flush_empties_the_cache_when_nothing_runs(server: Running) -> None:
    flush = SglangRuntime().flush
    assert flush(server.url) is True
    assert [generate(server, list(range(300, 364)))["cached_tokens"] for _ in range(2)] == [0, 63]
    assert flush(server.url) is True
    assert generate(server, list(range(300, 364)))["cached_tokens"] == 0
    running = threading.Thread(target=generate, args=(server, list(range(400, 464)), 200))
    running.start()
    wait_for(lambda: counters(server.url)["requests_running"] > 0)
    assert flush_cache(server.url, 0) is False
    running.join()
    assert flush(server.url) is True


def test_requests_that_are_put_back_are_counted_apart(server: Running) -> None:
    before = counters(server.url)
    with ThreadPoolExecutor(12) as threads:
        ended = list(threads.map(lambda i: generate(server, list(range(10 + 50 * i, 210 + 50 * i)), 400, ignore_eos=False), range(12)))
    assert sum(end["completion_tokens"] for end in ended) > 4096 - 12 * 200  # more than the pool holds beside the prompts
    moved = settled(server.url, before, "requests_finished_total", 12)
    assert moved["preemptions_total"] >= 1
    assert moved["retracted_input_tokens_total"] >= 200
    assert moved["prompt_tokens_total"] == 12 * 200  # once each, however often they were computed
    assert moved["generation_tokens_total"] == sum(end["completion_tokens"] for end in ended)


def test_an_unknown_flag_is_refused_before_any_start() -> None:
    (problem,) = SglangRuntime().check(ARM.model_copy(update={"args": {"max-runing-requests": 4}}), PINS)
    assert problem.code == "flag_unknown"
    assert "`max-running-requests`" in problem.remedy


def test_what_is_reserved_exists_in_the_installed_parser() -> None:
    env = environment("sglang-cpu")
    assert env is not None
    assert RESERVED.keys() <= options_of(env).keys()


MISTAKEN = """
trigpoint: 1
question: Is it stopped before it measures something else?
pins: {model: {id: tiny, dtype: float32}}
arms: {a: {runtime: endpoint, url: "URL", metrics: sglang}}
workload:
  lengths: {input: {kind: constant, value: 16}, output: {kind: constant, value: 4}}
  arrivals: {process: constant}
  prompts: {source: random-ids}
  output-length: forced
  cache: as_trace
window: {warm-up: 1s, measured: 2s, drain: 1s}
load: {rate: [1/s]}
replicates: {count: 1, vary: none, seed: 20261130}
"""


def test_another_dtype_than_the_server_s_is_stopped_before_load(server: Running, tmp_path: Path) -> None:
    path, results = tmp_path / "mistaken.yaml", tmp_path / "results"
    path.write_text(MISTAKEN.replace("URL", server.url), encoding="utf-8")
    before = counters(server.url)["requests_finished_total"]
    argv = [sys.executable, "-m", "harness.cli", "run", str(path), "--results", str(results)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    assert all(words in done.stderr for words in ("pins_match", "model.dtype='float32'", "bfloat16")), done.stderr
    assert not latest_sealed(results / "mistaken")
    assert counters(server.url)["requests_finished_total"] == before


def test_one_bad_id_kills_the_server_and_not_the_reading_of_it(server: Running, tmp_path: Path) -> None:
    """Last: it ends the shared server. Sent past the check that holds every id against the vocabulary."""
    tree = server.process.tree_pids()
    sent = bodies(server, [np.arange(500, 520), np.array([server.target.vocab_size]), np.arange(600, 620)], 2000)
    rows = run(tmp_path, server, sent, every_ms=1500, arrival_ns=np.array([0, 1_500_000_000, 15_000_000_000]))
    kinds = [row["end_kind"] for row in rows]
    assert kinds[2] == "connect_refused"
    assert set(kinds[:2]) <= {"reset", "malformed", "error_event"}
    assert rows[0]["client_tokens"] > 0
    assert not [row for row in rows if row["http_status"] in (400, 404, 422)]
    assert not server.process.alive()
    assert server.process.exit_code() != 0
    assert "index out of range" in server.log.read_text(encoding="utf-8", errors="replace")
    server.process.stop()
    assert not any(psutil.pid_exists(p) for p in tree)
    check_port(int(server.url.rsplit(":", 1)[1]))


def generate(server: Running, ids: list[int], tokens: int = 1, *, ignore_eos: bool = True) -> Any:
    """Ask for one answer. A request that ignores the end token is only admitted when its whole maximum fits, and never put back."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": ignore_eos}
    reply = ask(server.url, "/generate", timeout_s=120, post={"input_ids": ids, "sampling_params": sampling})
    assert reply is not None
    return reply.json()["meta_info"]


def counters(url: str) -> dict[str, float]:
    reply = ask(url, "/metrics")
    assert reply is not None
    return canonical_values(reply.body.decode(), SglangRuntime.metrics)


def settled(url: str, before: dict[str, float], name: str, grown: int) -> dict[str, float]:
    """Growth of every counter once ``name`` has grown: a request is counted when its end has gone through three processes."""
    wait_for(lambda: counters(url).get(name, 0) - before.get(name, 0) >= grown)
    after = counters(url)
    return {counter: value - before.get(counter, 0) for counter, value in after.items() if counter.endswith("_total")}


def wait_for(true: Callable[[], bool]) -> None:
    for _ in range(200):
        if true():
            return
        time.sleep(0.05)
    pytest.fail("it did not come about within 10 s")
