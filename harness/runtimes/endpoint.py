"""An OpenAI-compatible server that somebody else runs: we attach, we cannot see its host, and we say so."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import HostError, Problem, UsageError
from harness.runtimes.asking import ask, ask_json, served_models, split_url
from harness.runtimes.contract import Command, MetricRule, Target
from harness.runtimes.models import find_model, model_config
from harness.runtimes.placement import member_facts
from harness.runtimes.places import config_dir
from harness.runtimes.reference import ReferenceRuntime, reference_facts
from harness.runtimes.served import known
from harness.runtimes.sglang import SglangRuntime
from harness.runtimes.sglang_facts import stated_facts
from harness.runtimes.vllm import VllmRuntime
from harness.system import Arm, EvidenceClass, Fact, Pins, embedding_size
from harness.vocabulary import SIMULATED_OWNER

UNSEEN = "attached endpoint: it does not say, and its host cannot be seen from here"
MAPS: Mapping[str, Sequence[MetricRule]] = {r.name: r.metrics for r in (VllmRuntime, SglangRuntime, ReferenceRuntime)}
"""Counters by the runtime that an arm may name for those of its endpoint."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class EndpointRuntime:
    """The adapter for ``base_url`` of an arm. Whatever it cannot learn stays unknown until the user attests it.

    A reference server and SGLang say of themselves what they are: all that they state is taken. A server of our own, behind the address or
    behind its router, is known by the list of its models too: an endpoint makes no measured system of a simulated one.
    """

    name = "endpoint"
    evidence_class: EvidenceClass = "measured"
    managed = False

    def __init__(self, engine: str | None = None) -> None:
        """``engine``: whose counters its metrics page carries, as the arm's user says; None: nobody's, and the page is not read."""
        self.metrics: Sequence[MetricRule] = MAPS[engine] if engine is not None else ()
        self.metrics_path: str | None = "/metrics" if engine is not None else None

    def check(self, arm: Arm, pins: Pins) -> list[Problem]:
        """The URL, what cannot be set on somebody else's server, and keys that may not travel."""
        del pins
        problems: list[Problem] = []
        if arm.base_url is None:
            problems.append(Problem("url_missing", f"arm {arm.name}: an endpoint needs base_url", "write base_url: http://host:port"))
        for url in (*filter(None, [arm.base_url]), *(member for urls in arm.members.values() for member in urls)):
            try:
                authorisation(url)
            except (UsageError, HostError) as bad:
                problems += bad.problems
        for field in ("args", "env"):
            if getattr(arm, field):
                what = f"arm {arm.name}: {field} cannot be set on a server that somebody else runs"
                problems.append(Problem("endpoint_fixed", what, f"remove {field}, or attest what the server was started with"))
        return problems

    def command(self, arm: Arm, pins: Pins, port: int, workdir: Path) -> Command:
        """There is none; RuntimeError: the caller should have looked at ``managed``."""
        del pins, port, workdir
        raise RuntimeError(f"arm {arm.name}: an endpoint is attached, not started")

    def ready(self, base_url: str) -> bool:
        """Whether it lists a model; /health is not part of the OpenAI protocol and is not required."""
        return bool(served_models(base_url, authorisation(base_url)))

    def target(self, arm: Arm, pins: Pins, base_url: str) -> Target:
        """The pinned model as it is listed there. HostError ``model_not_served`` or ``length_unknown``."""
        listed = {m["id"]: m for m in served_models(base_url, authorisation(base_url))}
        if pins.model.id not in listed:
            raise HostError.single(
                "model_not_served",
                f"pins.model.id={pins.model.id}: {base_url} lists {sorted(listed) or 'no model'}",
                "pin a model that is served there",
            )
        folder = find_model(pins.model.id)
        here = folder is not None and (folder / "tokenizer.json").is_file()
        return Target(
            base_url=base_url,
            model=pins.model.id,
            tokenizer=str(folder / "tokenizer.json") if folder is not None and here else "bytes",
            vocab_size=embedding_size(model_config(folder)) or 0 if folder is not None and here else 256,
            max_model_len=_length(listed[pins.model.id], arm, base_url),
            token_ids=here,
        )

    def facts(self, arm: Arm, pins: Pins, base_url: str, log: Path | None) -> dict[str, Fact]:
        """What its pages state; the rest unknown."""
        del log
        headers = authorisation(base_url)
        listed = {m["id"]: m for m in served_models(base_url, headers)}
        served = pins.model.id if pins.model.id in listed else next(iter(listed), None)
        version = ask_json(base_url, "/version", headers=headers)
        health = ask(base_url, "/health", headers=headers)
        unseen = (
            "server.dtype", "server.quantization", "server.packages", "server.effective_config", "server.kv_capacity_tokens",
            "model.digest", "model.revision", "tokenizer.digest",
        )  # fmt: skip
        info = ask_json(base_url, "/server_info", headers=headers)
        page: Mapping[str, Any] = info if isinstance(info, dict) else {}
        facts = {name: Fact(reason=UNSEEN, source="endpoint") for name in unseen} | member_facts(arm, pins, authorisation)
        return facts | {
            "model.id": known(served, "GET /v1/models", "no model is listed"),
            "server.max_model_len": known(listed.get(served or "", {}).get("max_model_len"), "GET /v1/models", "not stated"),
            "server.version": known(version.get("version") if isinstance(version, dict) else None, "GET /version", UNSEEN),
            **reference_facts(page),
            **stated_facts(page, arm, pins),
            "server.health": known(health.status if health else None, "GET /health", "no answer"),
            **_simulated(arm, [*listed.values(), *_behind(arm)]),
        }

    def flush(self, base_url: str) -> bool | None:
        """None: what others' requests left in somebody else's cache is not ours to throw away."""
        del base_url
        return None


def _behind(arm: Arm) -> Iterator[Mapping[str, Any]]:
    """Models that the servers behind the address list."""
    for url in (member for urls in arm.members.values() for member in urls):
        yield from served_models(url, authorisation(url))


def _simulated(arm: Arm, listed: Iterable[Mapping[str, Any]]) -> dict[str, Fact]:
    """The class of an endpoint that is a server of our own, by what it lists or by what its user says that it is; {} otherwise."""
    if any(model.get("owned_by") == SIMULATED_OWNER for model in listed):
        source = "GET /v1/models"
    elif ReferenceRuntime.name in (arm.metrics, arm.attested.get("runtime.name")):
        source = "the arm says so"
    else:
        return {}
    return {"server.evidence_class": Fact(value="synthetic", source=source)}


def _length(entry: Mapping[str, Any], arm: Arm, base_url: str) -> int:
    """Longest prompt plus reply, as listed or attested; guessing it would send what the server must refuse."""
    for value in (entry.get("max_model_len"), arm.attested.get("max_model_len")):
        if isinstance(value, int) and value > 0:
            return value
    raise HostError.single(
        "length_unknown",
        f"{base_url} does not state max_model_len of {entry['id']}: prompts could not be kept within it",
        f"add to arms.{arm.name}: attest: {{max_model_len: N}}",
    )


def authorisation(base_url: str) -> dict[str, str]:
    """Return the headers for ``base_url`` from the user's ``keys.toml``; {} when no key is bound to exactly that host and port.

    Format: ``[hosts."api.example.org"]`` (with ``:port`` when it is not the scheme's own) and ``bearer = "..."`` or
    ``bearer_env = "NAME"``. Raises HostError ``keys_exposed`` when others can read the file, UsageError ``bad_keys`` when it cannot be
    read, ``key_in_clear`` when a key would leave this machine unencrypted.
    """
    tls, host, port, _path = split_url(base_url)
    bound = _read_keys(config_dir() / "keys.toml")
    names = [f"{host}:{port}"] + ([host] if port == (443 if tls else 80) else [])
    entry = next((bound[name] for name in names if isinstance(bound.get(name), dict)), None)
    if entry is None:
        return {}
    if not tls and host not in LOOPBACK:
        what = f"{host}:{port}: its key would travel without encryption"
        raise UsageError.single("key_in_clear", what, "use https, or a tunnel to 127.0.0.1")
    key = entry.get("bearer") or os.environ.get(str(entry.get("bearer_env", "")))
    if not isinstance(key, str) or not key or not key.isprintable():
        raise UsageError.single("bad_keys", f"keys.toml binds no usable key to {host}", 'write bearer = "..." or bearer_env = "NAME"')
    return {"Authorization": f"Bearer {key}"}


def _read_keys(path: Path) -> dict[str, Any]:
    try:
        mode = path.stat().st_mode
    except OSError:
        return {}
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise HostError.single("keys_exposed", f"{path} has mode {stat.S_IMODE(mode):o}: others can read your keys", f"chmod 600 {path}")
    try:
        hosts = tomllib.loads(path.read_text(encoding="utf-8")).get("hosts", {})
    except (OSError, ValueError) as bad:
        # tomllib quotes the offending text, which may be the key: only the kind of error is told.
        raise UsageError.single("bad_keys", f"{path}: {type(bad).__name__}", 'write [hosts."api.example.org"] and bearer = "..."') from None
    return hosts if isinstance(hosts, dict) else {}
