"""The SGLang adapter against pages that a real server wrote (recorded from 0.5.23 on a CPU, cut), served again on the loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HostError
from harness.observe.metrics import canonical_values
from harness.observe.pins import check_pins
from harness.record.metric_names import SERVER
from harness.record.spec import Arm, ModelPin, ParallelismPin, Pins
from harness.runtimes import get_runtime, install
from harness.runtimes.flags import OUTSIDE
from harness.runtimes.sglang import ALLOWED_ENV, SglangRuntime, server_env
from harness.runtimes.sglang_facts import cacheable_block, served_facts
from harness.runtimes.sglang_flags import reserved
from tests.environments import engine_source, make_ready

RECORDED = Path(__file__).parent.parent / "fixtures" / "sglang"
INFO: dict[str, Any] = json.loads((RECORDED / "server_info-0.5.23-cpu.json").read_text())
FLAGS = (RECORDED / "flags-0.5.23-cpu.json").read_text()
LOG = RECORDED / "banner-0.5.23-cpu.log"
PINS = Pins(model=ModelPin(id="tiny", dtype="bfloat16"))


def arm(**changes: Any) -> Arm:
    return Arm(**{"name": "a", "runtime": "sglang", "version": "0.5.23", **changes})


class Site(ThreadingHTTPServer):
    """Answers from a table path -> (status, JSON), and remembers what was posted."""

    pages: dict[str, tuple[int, Any]]
    posted: list[tuple[str, Any]]
    has_template: bool = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        site = self.server
        assert isinstance(site, Site)
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        site.posted.append((self.path, asked))
        if self.path == "/tokenize":
            chat = 200 if site.has_template else 400
            site.pages["/tokenize"] = (chat, {"count": 5}) if "messages" in asked else (200, {"count": 1, "tokens": [93, 631, 631]})
        self._answer()

    def _answer(self) -> None:
        site = self.server
        assert isinstance(site, Site)
        status, page = site.pages.get(self.path.partition("?")[0], (404, {}))
        body = json.dumps(page).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's name
        return


@pytest.fixture
def site() -> Iterator[Site]:
    server = Site(("127.0.0.1", 0), Handler)
    server.posted = []
    server.pages = {
        "/health": (200, {}),
        "/server_info": (200, INFO),
        "/v1/models": (200, {"object": "list", "data": [{"id": "some", "max_model_len": 4096}]}),
        "/generate": (200, {}),
        "/flush_cache": (200, {}),
    }
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIGPOINT_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TRIGPOINT_MODELS", str(tmp_path / "models"))
    return tmp_path


@pytest.fixture
def ready() -> install.Environment:
    """A folder that looks like a finished environment, with the real parser's answer beside it."""
    return make_ready("sglang-cpu", flags=FLAGS)


@pytest.fixture
def model(cache: Path) -> Pins:
    """A model of the user's with a vocabulary of 512."""
    (cache / "models/some").mkdir(parents=True)
    (cache / "models/some/config.json").write_text('{"vocab_size": 512}')
    return Pins(model=ModelPin(id="some", dtype="bfloat16"))


def test_the_registry_knows_it() -> None:
    assert get_runtime("sglang").name == "sglang"
    assert get_runtime("sglang").managed


def test_the_command_is_the_pins_ours_and_the_arguments(ready: install.Environment, model: Pins, tmp_path: Path) -> None:
    made = arm(args={"schedule-policy": "lpm", "disable-radix-cache": True, "max-running-requests": 4}, env={"OMP_NUM_THREADS": "2"})
    command = SglangRuntime().command(made, model, 18871, tmp_path)
    text = " ".join(command.argv)
    assert text.startswith(f"{ready.root}/bin/python -m sglang.launch_server --model-path {tmp_path}/models/some --served-model-name some")
    assert "--dtype bfloat16 --host 127.0.0.1 --port 18871 --enable-metrics --enable-cache-report --device cpu" in text
    assert "--attention-backend torch_native --cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled" in text
    assert text.endswith("--max-total-tokens 65536 --disable-radix-cache --max-running-requests 4 --schedule-policy lpm")
    assert command.env["SGLANG_PLATFORM"] == "trigpoint_cpu"
    assert (command.env["OMP_NUM_THREADS"], command.env["HF_HUB_OFFLINE"]) == ("2", "1")
    assert server_env(ready, arm())["OMP_NUM_THREADS"] == "1"


def test_an_environment_that_was_changed_since_is_refused(ready: install.Environment, model: Pins, tmp_path: Path) -> None:
    """Packages and our own part of it whenever it is asked about, the engine's own files before each start."""
    runtime = SglangRuntime()
    source = engine_source(ready)
    whole = source.read_bytes()
    source.write_bytes(whole.replace(b"0", b"1"))
    assert runtime.check(arm(), model) == []
    with pytest.raises(HostError, match=r"not as released: sglang/__init__\.py") as caught:
        runtime.command(arm(), model, 18874, tmp_path)
    assert caught.value.problems[0].code == "runtime_changed"
    source.write_bytes(whole)
    assert runtime.command(arm(), model, 18874, tmp_path).argv
    cure = ready.site_packages / "trigpoint_sglang_cpu/cure.py"
    cure.write_bytes(cure.read_bytes() + b"#")
    (problem,) = runtime.check(arm(), model)
    assert (problem.code, "edited: trigpoint_sglang_cpu/cure.py" in problem.what) == ("runtime_changed", True)
    (ready.site_packages / "numpy-9.dist-info").mkdir()
    (problem,) = runtime.check(arm(), model)
    assert (problem.code, "its packages are not those" in problem.what) == ("runtime_changed", True)


def test_the_arm_s_pool_wins_over_ours(ready: install.Environment, model: Pins, tmp_path: Path) -> None:
    words = SglangRuntime().command(arm(args={"max-total-tokens": 2048}), model, 18872, tmp_path).argv
    assert [words[i + 1] for i, word in enumerate(words) if word == "--max-total-tokens"] == ["2048"]


def test_degrees_of_parallelism_are_passed_on(ready: install.Environment, model: Pins, tmp_path: Path) -> None:
    split = model.model_copy(update={"parallelism": ParallelismPin(tensor=4, pipeline=2, data=2, expert=4)})
    text = " ".join(SglangRuntime().command(arm(), split, 18873, tmp_path).argv)
    assert "--tp-size 4 --pp-size 2 --dp-size 2 --ep-size 4" in text


def test_everything_wrong_comes_at_once(ready: install.Environment) -> None:
    args = {"shedule-policy": "lpm", "tp": 2, "tp-size": 2, "port": 1, "forward-hooks": "os.system", "disable-radix-cache": 1}
    found = SglangRuntime().check(arm(args=args, env={"LD_PRELOAD": "x"}), Pins(model=ModelPin(id="absent", dtype="bfloat16")))
    assert sorted(p.code for p in found) == [
        "env_not_allowed", "flag_reserved", "flag_reserved", "flag_reserved", "flag_unknown", "flag_unknown", "flag_value", "model_missing",
    ]  # fmt: skip
    assert any("`schedule-policy`" in p.remedy for p in found)


def test_a_missing_install_names_the_command() -> None:
    (problem,) = SglangRuntime().check(arm(), PINS)
    assert (problem.code, problem.remedy) == ("runtime_missing", "run `trigpoint runtime install sglang-cpu`")


def test_a_model_without_a_vocabulary_is_refused_before_the_start(ready: install.Environment, model: Pins, cache: Path) -> None:
    (cache / "models/some/config.json").write_text("{}")
    (problem,) = SglangRuntime().check(arm(), model)
    assert problem.code == "vocabulary_unknown"


def test_every_spelling_of_what_is_reserved_is_reserved() -> None:
    groups = [[f[2:] for f in a["flags"]] for a in json.loads(FLAGS)]
    names = reserved([name for group in groups for name in group], cpu=True)
    for group in groups:
        kept = {name for name in group if name in names}
        assert not kept or kept == set(group) - {""}, group


def test_nothing_that_reaches_outside_is_a_manifest_s() -> None:
    names = [f[2:] for a in json.loads(FLAGS) for f in a["flags"] if f.startswith("--")]
    kept = reserved(names, cpu=True)
    assert all(name in kept for name in names if OUTSIDE & set(name.split("-")))
    assert {"trust-remote-code", "forward-hooks", "tool-server", "api-key", "crash-dump-folder", "ssl-keyfile", "device"} <= kept.keys()
    # Weights that are not the model's files, and a cache that is warm at the next start, would make facts and `cache: cold` untrue.
    assert {"load-format", "hicache-storage-backend", "enable-lmcache"} <= kept.keys()
    assert not {"schedule-policy", "chunked-prefill-size", "disable-radix-cache", "max-running-requests", "page-size"} & kept.keys()
    assert "attention-backend" not in reserved(names, cpu=False)
    assert not [n for n in ALLOWED_ENV if any(word in n for word in ("PATH", "PRELOAD", "PLUGIN", "PLATFORM", "KEY", "URL", "HOST"))]


def test_ready_is_health_and_a_model(site: Site) -> None:
    assert SglangRuntime().ready(site.url)
    site.pages["/health"] = 503, {}
    assert not SglangRuntime().ready(site.url)
    site.pages |= {"/health": (200, {}), "/v1/models": (200, {"data": []})}
    assert not SglangRuntime().ready(site.url)


def test_the_target_is_what_the_server_says_and_leaves_the_cache_empty(site: Site, model: Pins) -> None:
    target = SglangRuntime().target(arm(), model, site.url)
    assert (target.vocab_size, target.max_model_len, target.cacheable_block, target.chat_overhead) == (512, 4096, 1, 4)
    assert not target.adds_bos
    posted = [path for path, _ in site.posted]
    assert posted[:4] == ["/tokenize", "/generate", "/generate", "/flush_cache?timeout=10"]
    assert site.posted[1] == site.posted[2]
    assert site.posted[1][1]["input_ids"] == [93, 631, 631]


def test_without_a_radix_cache_nothing_is_cacheable_and_nothing_is_sent(site: Site, model: Pins) -> None:
    site.pages["/server_info"] = 200, INFO | {"disable_radix_cache": True}
    assert SglangRuntime().target(arm(), model, site.url).cacheable_block is None
    assert {path for path, _ in site.posted} == {"/tokenize"}


def test_a_model_without_a_chat_template_can_still_be_asked_for_completions(site: Site, model: Pins) -> None:
    site.has_template = False
    assert SglangRuntime().target(arm(), model, site.url).chat_overhead == 0


def test_a_server_of_another_model_is_no_target(site: Site, model: Pins) -> None:
    site.pages["/v1/models"] = 200, {"data": [{"id": "other", "max_model_len": 4096}]}
    with pytest.raises(HostError, match=r"lists \['other'\]"):
        SglangRuntime().target(arm(), model, site.url)


def test_a_flush_is_what_the_server_answers(site: Site) -> None:
    assert SglangRuntime().flush(site.url) is True
    site.pages["/flush_cache"] = 400, {}
    assert SglangRuntime().flush(site.url) is False
    assert SglangRuntime().flush("http://127.0.0.1:1") is False


def test_facts_are_the_engine_s_own(site: Site, ready: install.Environment, model: Pins) -> None:
    facts = SglangRuntime().facts(arm(), model, site.url, LOG)
    found = {name: fact.value for name, fact in facts.items()}
    assert (found["server.version"], found["server.dtype"], found["server.quantization"]) == ("0.5.23", "bfloat16", "none")
    assert (found["server.kv_capacity_tokens"], found["server.block_size"], found["server.prefix_caching"]) == (65536, 1, True)
    assert (found["server.environment"], found["server.lock_digest"]) == ("sglang-cpu", ready.digest)
    assert found["server.omp_binding"] == {"0": [0]}
    assert {p.result for p in check_pins(model, facts)} == {"matched"}
    wrong = check_pins(Pins(model=ModelPin(id="some", dtype="float16")), facts)
    assert [p.pin for p in wrong if p.result == "mismatched"] == ["model.dtype"]


def test_the_effective_configuration_names_no_place_no_seed_and_no_state(site: Site) -> None:
    def effective(changes: dict[str, Any], **of_arm: Any) -> Any:
        site.pages["/server_info"] = 200, INFO | changes
        return served_facts(None, arm(**of_arm), PINS, site.url, None)["server.effective_config"].value

    plain = effective({})
    assert (plain["schedule_policy"], plain["chunked_prefill_size"], plain["max_running_requests"]) == ("fcfs", 4096, 4)
    assert not [v for v in json.dumps(plain).split('"') if v.startswith("/")]
    other = {"port": 1, "random_seed": 1, "model_path": "/x", "tokenizer_path": "/y", "startup_time": {"a": 1}, "max_total_num_tokens": 9}
    secret = {"api_key": "s", "ssl_keyfile_password": "s", "hicache_storage_backend_extra_config": "s", "tool_server": "s"}
    assert effective(other | secret) == plain
    assert effective({"schedule_policy": "lpm"}) != plain
    assert effective({"disable_radix_cache": True}) != plain
    assert [effective({"decode_log_interval": v}).get("decode_log_interval", "off") for v in (0, 0.0, None, False, [])] == [
        0,
        0.0,
        "off",
        "off",
        "off",
    ]
    assert effective({"random_seed": 5}, args={"random-seed": 5})["random_seed"] == 5


def test_a_pool_with_a_type_of_its_own_proves_no_model_type(site: Site) -> None:
    site.pages["/server_info"] = 200, INFO | {"kv_cache_dtype": "fp8_e5m2", "dtype": "auto"}
    fact = served_facts(None, arm(), PINS, site.url, LOG)["server.dtype"]
    assert fact.value is None
    assert fact.reason


def test_a_quantized_checkpoint_is_known_by_its_own_config(site: Site, model: Pins, cache: Path) -> None:
    def quantization() -> Any:
        return served_facts(None, arm(), model, site.url, LOG)["server.quantization"].value

    assert quantization() == "none"
    (cache / "models/some/config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    assert quantization() == "fp8"
    (cache / "models/some/config.json").write_text('{"quantization_config": {}}')
    assert quantization() is None
    site.pages["/server_info"] = 200, INFO | {"quantization": "awq"}
    assert quantization() == "awq"


def test_a_silent_server_leaves_facts_unknown_with_reasons() -> None:
    facts = served_facts(None, arm(), PINS, "http://127.0.0.1:1", None)
    assert all(fact.value is not None or fact.reason for fact in facts.values())
    assert {n for n, f in facts.items() if f.value is not None} <= {"tokenizer.digest", "model.digest"}


ODD = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=1)


@given(ODD, ODD, st.sampled_from([dict, list]))
def test_a_block_is_a_positive_page_of_a_cache_that_is_on_and_nothing_else(off: Any, page: Any, kind: type) -> None:
    block = cacheable_block({"disable_radix_cache": off, "page_size": page} if kind is dict else [off, page])
    assert (block is None) == (kind is list or off is not False or type(page) is not int or page < 1)
    assert block in (None, page)


def test_a_real_page_gives_canonical_metrics() -> None:
    """The page of one server, and the lines of another for what it put back: those appear with the first event only."""
    found = canonical_values((RECORDED / "metrics-0.5.23-cpu.txt").read_text(), SglangRuntime.metrics)
    assert found.keys() <= SERVER.keys()
    assert {name: found[name] for name in found if name.endswith("_total")} == {
        "requests_finished_total": 7, "requests_aborted_total": 1, "prompt_tokens_total": 48, "generation_tokens_total": 31,
        "cached_tokens_total": 17, "prefix_queries_total": 48, "preemptions_total": 2, "retracted_input_tokens_total": 400,
        "retracted_output_tokens_total": 521,
    }  # fmt: skip
    assert {
        "requests_running", "requests_waiting", "kv_usage_ratio", "generation_rate", "requests_retracted", "queue_time_s_sum",
        "prefill_time_s_count", "server_ttft_s_sum", "server_tpot_s_count", "server_gap_s_sum", "server_e2e_s_count",
    } <= found.keys()  # fmt: skip
