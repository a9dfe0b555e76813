"""Attaching to a server that somebody else runs, against a real HTTP server on the loopback."""

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

from harness.errors import HostError, UsageError
from harness.record.spec import Arm, ModelPin, Pins
from harness.runtimes import asking, get_runtime
from harness.runtimes.endpoint import EndpointRuntime, authorisation
from harness.runtimes.vllm import VllmRuntime

PINS = Pins(model=ModelPin(id="m", dtype="bfloat16"))


class Site(ThreadingHTTPServer):
    """Answers GETs from a table: path -> (status, body)."""

    pages: dict[str, tuple[int, bytes]]
    seen: list[tuple[str, str | None]]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        site = self.server
        assert isinstance(site, Site)
        count = 5 if "messages" in asked else 2 if asked["add_special_tokens"] else 1
        site.pages["/tokenize"] = site.pages.get("/tokenize", (200, b"%d"))
        status, body = site.pages["/tokenize"]
        body = json.dumps({"count": count}).encode() if body == b"%d" else body
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        site = self.server
        assert isinstance(site, Site)
        site.seen.append((self.path, self.headers.get("Authorization")))
        status, body = site.pages.get(self.path, (404, b""))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's name
        return


@pytest.fixture
def site() -> Iterator[Site]:
    server = Site(("127.0.0.1", 0), Handler)
    server.pages, server.seen = {}, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TRIGPOINT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "trigpoint").mkdir()
    return tmp_path / "trigpoint"


def url(site: Site) -> str:
    return f"http://127.0.0.1:{site.server_address[1]}"


def models(**extra: Any) -> tuple[int, bytes]:
    return 200, json.dumps({"object": "list", "data": [{"id": "m", **extra}]}).encode()


def arm(**changes: Any) -> Arm:
    return Arm(**{"name": "a", "runtime": "endpoint", "base_url": "http://127.0.0.1:1", **changes})


def test_facts_say_what_is_stated_and_why_the_rest_is_not(site: Site) -> None:
    site.pages = {"/v1/models": models(max_model_len=4096), "/version": (200, b'{"version": "9"}'), "/health": (200, b"")}
    runtime = EndpointRuntime()
    assert runtime.ready(url(site))
    facts = runtime.facts(arm(), PINS, url(site), None)
    assert (facts["model.id"].value, facts["server.max_model_len"].value, facts["server.version"].value) == ("m", 4096, "9")
    assert facts["server.dtype"].value is None
    assert "cannot be seen" in (facts["server.dtype"].reason or "")
    target = runtime.target(arm(), PINS, url(site))
    assert (target.max_model_len, target.tokenizer, target.token_ids) == (4096, "bytes", False)


@pytest.mark.parametrize(
    ("config", "size"),
    [({"vocab_size": 500}, 500), ({"text_config": {"vocab_size": 500}}, 500), ({}, 0)],
    ids=["plain", "nested", "unsaid"],
)
def test_a_model_that_is_here_too_tells_its_vocabulary(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], size: int
) -> None:
    monkeypatch.setenv("TRIGPOINT_MODELS", str(tmp_path))
    folder = tmp_path / "m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    site.pages = {"/v1/models": models(max_model_len=64)}
    target = EndpointRuntime().target(arm(), PINS, url(site))
    assert (target.vocab_size, target.token_ids, target.tokenizer) == (size, True, str(folder / "tokenizer.json"))


def test_a_length_that_is_not_stated_must_be_attested(site: Site) -> None:
    site.pages = {"/v1/models": models()}
    with pytest.raises(HostError, match="attest"):
        EndpointRuntime().target(arm(), PINS, url(site))
    assert EndpointRuntime().target(arm(attested={"max_model_len": 100}), PINS, url(site)).max_model_len == 100


def test_a_model_that_is_not_served_is_refused(site: Site) -> None:
    site.pages = {"/v1/models": models()}
    with pytest.raises(HostError, match=r"lists \['m'\]"):
        EndpointRuntime().target(arm(), Pins(model=ModelPin(id="other", dtype="x")), url(site))


@pytest.mark.parametrize("page", [(404, b""), (200, b"<html>"), (200, b"[]"), (200, b'{"data": 3}'), (200, b'{"data": [1]}'), (302, b"")])
def test_other_answers_are_not_ready(site: Site, page: tuple[int, bytes]) -> None:
    site.pages = {"/v1/models": page, "/health": (200, b"")}
    assert not EndpointRuntime().ready(url(site))
    assert not VllmRuntime().ready(url(site))


def test_nobody_there_is_not_ready() -> None:
    assert not EndpointRuntime().ready("http://127.0.0.1:1")
    assert asking.ask("http://127.0.0.1:1", "/") is None


def test_vllm_needs_health_too(site: Site) -> None:
    site.pages = {"/v1/models": models(), "/health": (503, b"")}
    assert not VllmRuntime().ready(url(site))
    site.pages["/health"] = (200, b"")
    assert VllmRuntime().ready(url(site))
    with pytest.raises(HostError, match="max_model_len"):
        VllmRuntime().target(arm(), PINS, url(site))


def test_the_target_takes_token_counts_from_the_server(site: Site) -> None:
    site.pages = {"/v1/models": (200, b'{"data": [{"id": "tiny", "max_model_len": 64}]}')}
    pins = Pins(model=ModelPin(id="tiny", dtype="x"))
    target = VllmRuntime().target(arm(), pins, url(site))
    assert (target.chat_overhead, target.adds_bos, target.max_model_len, target.vocab_size) == (4, True, 64, 4096)
    for page in ((404, b""), (200, b"[]")):
        site.pages["/tokenize"] = page
        with pytest.raises(HostError, match="tokenize"):
            VllmRuntime().target(arm(), pins, url(site))


def test_a_page_too_large_is_no_page(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MAX_BODY", 10)
    site.pages = {"/": (200, b"x" * 11)}
    assert asking.ask(url(site), "/") is None


def test_what_cannot_be_set_on_an_endpoint_is_refused() -> None:
    found = EndpointRuntime().check(arm(base_url=None, args={"x": 1}, env={"A": "b"}), PINS)
    assert [p.code for p in found] == ["url_missing", "endpoint_fixed", "endpoint_fixed"]
    assert EndpointRuntime().check(arm(), PINS) == []
    with pytest.raises(RuntimeError, match="attached"):
        EndpointRuntime().command(arm(), PINS, 1, Path())


def write_keys(config: Path, text: str, mode: int = 0o600) -> None:
    (config / "keys.toml").write_text(text)
    (config / "keys.toml").chmod(mode)


def test_a_key_goes_to_its_host_and_port_only(site: Site, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = site.server_address[1]
    write_keys(config, f'[hosts."127.0.0.1:{port}"]\nbearer_env = "MY_KEY"\n[hosts."api.example.org"]\nbearer = "s3"\n')
    monkeypatch.setenv("MY_KEY", "k1")
    site.pages = {"/v1/models": models(max_model_len=9)}
    assert EndpointRuntime().ready(url(site))
    assert site.seen == [("/v1/models", "Bearer k1")]
    assert authorisation("https://api.example.org/v1") == {"Authorization": "Bearer s3"}
    for other in (
        "https://api.example.org:8443",
        "https://api.example.org.evil.net",
        f"http://127.0.0.1:{port + 1}",
        "https://example.org",
    ):
        assert authorisation(other) == {}


def test_a_key_never_travels_in_clear(config: Path) -> None:
    write_keys(config, '[hosts."api.example.org"]\nbearer = "s3cret"\n')
    with pytest.raises(UsageError) as caught:
        authorisation("http://api.example.org")
    assert caught.value.problems[0].code == "key_in_clear"
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("text", ['[hosts."h"]\nbearer = s3cret', '[hosts."h"]\nbearer = "s3cret\\nX: y"', '[hosts."h"]\nother = "s3cret"'])
def test_bad_keys_are_refused_without_telling_them(config: Path, text: str) -> None:
    write_keys(config, text)
    with pytest.raises(UsageError) as caught:
        authorisation("https://h")
    assert caught.value.problems[0].code == "bad_keys"
    assert "s3cret" not in str(caught.value)


def test_keys_that_others_can_read_are_refused(config: Path) -> None:
    write_keys(config, '[hosts."h"]\nbearer = "x"', 0o644)
    with pytest.raises(HostError, match="chmod 600"):
        authorisation("https://h")
    assert [p.code for p in EndpointRuntime().check(arm(base_url="https://h"), PINS)] == ["keys_exposed"]


@pytest.mark.parametrize(
    "bad", ["", "127.0.0.1:80", "ftp://h", "http://", "http://u:secret@h", "http://h?x=1", "http://h:99999", "http://h#f"]
)
def test_bad_urls_are_refused_without_their_password(bad: str) -> None:
    with pytest.raises(UsageError) as caught:
        asking.split_url(bad)
    assert "secret" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_url_or_a_usage_error(text: str) -> None:
    try:
        _tls, host, port, _path = asking.split_url(text)
    except UsageError:
        return
    assert host
    assert 0 < port < 65536


def test_counters_are_read_only_where_the_user_says_whose_they_are() -> None:
    assert (EndpointRuntime().metrics, EndpointRuntime().metrics_path) == ((), None)
    for engine in ("vllm", "sglang", "reference"):
        assert EndpointRuntime(engine).metrics_path == "/metrics"
        assert EndpointRuntime(engine).metrics == get_runtime(engine).metrics


def test_a_reference_server_is_known_for_one_and_no_other_engine_s_page_is_taken_for_it(site: Site) -> None:
    info = {"engine": "reference", "dtype": "float32", "quantization": "none", "model_digest": "d"}
    site.pages["/server_info"] = (200, json.dumps(info).encode())
    facts = EndpointRuntime().facts(arm(), PINS, url(site), None)
    assert {name: facts[f"server.{name}"].value for name in ("engine", "evidence_class", "dtype", "tensor_parallel")} == {
        "engine": "reference", "evidence_class": "synthetic", "dtype": "float32", "tensor_parallel": 1,
    }  # fmt: skip
    site.pages["/server_info"] = (200, json.dumps({**info, "engine": "other"}).encode())
    facts = EndpointRuntime().facts(arm(), PINS, url(site), None)
    assert facts["server.dtype"].value is None
    assert "server.evidence_class" not in facts


def test_what_sglang_states_of_itself_is_taken_and_what_it_leaves_open_stays_unknown(site: Site) -> None:
    info = {
        "version": "0.5.23",
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "quantization": None,
        "tp_size": 2,
        "max_total_num_tokens": 99,
    }
    site.pages["/server_info"] = (200, json.dumps({**info, "disable_radix_cache": False, "api_key": "k"}).encode())
    facts = EndpointRuntime("sglang").facts(arm(), PINS, url(site), None)
    names = ("engine", "version", "dtype", "tensor_parallel", "kv_capacity_tokens", "prefix_caching")
    assert [facts[f"server.{name}"].value for name in names] == ["sglang", "0.5.23", "bfloat16", 2, 99, True]
    assert facts["server.quantization"].value is None
    assert facts["server.quantization"].reason
    assert "api_key" not in json.dumps(facts["server.effective_config"].value)
    del info["tp_size"]
    site.pages["/server_info"] = (200, json.dumps(info).encode())
    assert EndpointRuntime("sglang").facts(arm(), PINS, url(site), None)["server.dtype"].value is None


ROUTED = {"metrics": "vllm"}
"""A reference server can print its counters under another engine's names."""


@pytest.mark.parametrize(
    ("own", "behind", "said", "simulated"),
    [
        ({}, {}, {}, False),
        ({"owned_by": "vllm"}, {"owned_by": "sglang"}, ROUTED | {"attested": {"runtime.name": "vllm"}}, False),
        ({"owned_by": "trigpoint"}, {}, ROUTED, True),
        ({"owned_by": "somebody"}, {"owned_by": "trigpoint"}, ROUTED, True),
        ({}, {}, {"metrics": "reference"}, True),
        ({}, {}, {"attested": {"runtime.name": "reference"}}, True),
    ],
)
def test_a_simulated_server_is_known_behind_a_router_that_hides_its_pages(
    site: Site, own: dict[str, Any], behind: dict[str, Any], said: dict[str, Any], *, simulated: bool
) -> None:
    site.pages = {"/v1/models": models(max_model_len=8, **own), "/member/v1/models": models(**behind)}
    facts = EndpointRuntime().facts(arm(members={"replicas": (f"{url(site)}/member",)}, **said), PINS, url(site), None)
    stated = facts.get("server.evidence_class")
    assert (stated is not None and stated.value == "synthetic") is simulated


@pytest.mark.parametrize("name", [[], {}, None, 3])
def test_a_model_whose_name_is_no_text_is_no_model(site: Site, name: Any) -> None:
    site.pages = {"/v1/models": (200, json.dumps({"data": [{"id": name}]}).encode())}
    runtime = EndpointRuntime()
    assert not runtime.ready(url(site))
    assert runtime.facts(arm(), PINS, url(site), None)["model.id"].value is None
