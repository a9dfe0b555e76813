"""Facts about a running vLLM server: from its environment, its pages, its log and the model's files. Null always with a reason."""

from __future__ import annotations

from pathlib import Path

from harness.runtimes.asking import ask, ask_json, served_models
from harness.runtimes.environments import Environment
from harness.runtimes.served import environment_facts, known, model_facts, read_head
from harness.runtimes.vllm_log import (
    OF_THE_CAPACITY,
    as_int,
    cache_config,
    engine_config,
    kv_capacity_tokens,
    non_default_args,
    thread_binding,
)
from harness.system import Fact, Pins


def served_facts(env: Environment | None, pins: Pins, base_url: str, log: Path | None) -> dict[str, Fact]:
    """Collect every server.*, model.* and tokenizer.* fact; a page that does not answer leaves its facts unknown."""
    lines = read_head(log)
    engine = engine_config(lines)
    page = ask(base_url, "/metrics")
    cache = cache_config(page.body.decode("utf-8", errors="replace")) if page else {}
    facts = _page_facts(pins, base_url) | _engine_facts(engine, lines)
    facts |= _cache_facts(cache, lines) | environment_facts(env) | model_facts(pins)
    facts["server.effective_config"] = _effective(engine, cache, lines)
    return facts


def _page_facts(pins: Pins, base_url: str) -> dict[str, Fact]:
    version = ask_json(base_url, "/version")
    listed = {m["id"]: m for m in served_models(base_url)}
    served = pins.model.id if pins.model.id in listed else next(iter(listed), None)
    length = listed.get(served or "", {}).get("max_model_len")
    return {
        "server.version": known(version.get("version") if isinstance(version, dict) else None, "GET /version", "no answer"),
        "model.id": known(served, "GET /v1/models", "no model is listed"),
        "server.max_model_len": known(length, "GET /v1/models", "not stated"),
    }


def _engine_facts(engine: dict[str, str], lines: list[str]) -> dict[str, Fact]:
    why = "the log has no engine configuration line"
    source = "server log"
    quantization = engine.get("quantization")
    facts = {
        "server.dtype": known(engine["dtype"].removeprefix("torch.") if "dtype" in engine else None, source, why),
        "server.quantization": known("none" if quantization == "None" else quantization, source, why),
        "server.omp_binding": known(thread_binding(lines) or None, source, "the log names no thread binding"),
    }
    for axis in ("tensor", "pipeline", "data"):
        facts[f"server.{axis}_parallel"] = known(as_int(engine.get(f"{axis}_parallel_size")), source, why)
    ranks = [facts[f"server.{axis}_parallel"].value for axis in ("tensor", "data")]
    spread = non_default_args(lines).get("enable_expert_parallel") is True
    expert = None if None in ranks else ranks[0] * ranks[1] if spread else 1
    facts["server.expert_parallel"] = known(expert, source, why)
    return facts


def _cache_facts(cache: dict[str, str], lines: list[str]) -> dict[str, Fact]:
    logged = kv_capacity_tokens(lines)
    counted = as_int(cache.get("kv_cache_size_tokens"))
    source = "server log" if logged is not None else "GET /metrics"
    caching = {"True": True, "False": False}.get(cache.get("enable_prefix_caching", ""))
    return {
        "server.kv_capacity_tokens": known(logged if logged is not None else counted, source, "neither log nor metrics state it"),
        "server.block_size": known(as_int(cache.get("block_size")), "GET /metrics", "not stated"),
        "server.prefix_caching": known(caching, "GET /metrics", "not stated"),
    }


def _effective(engine: dict[str, str], cache: dict[str, str], lines: list[str]) -> Fact:
    """What the engine says its configuration is. No address, path or capacity: those are other facts, and differ between equal starts."""
    if not engine:
        return Fact(reason="the log has no engine configuration line", source="server log")
    kept = {k: v for k, v in cache.items() if k not in OF_THE_CAPACITY}
    return Fact(value={"engine": engine, "args": non_default_args(lines), "cache": kept}, source="server log, GET /metrics")
