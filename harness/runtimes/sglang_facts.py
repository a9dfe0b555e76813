"""Facts about a running SGLang server: from its environment, its pages, its log and the model's files. Null always with a reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.runtimes.asking import ask_json, served_models
from harness.runtimes.environments import Environment
from harness.runtimes.models import find_model, model_config
from harness.runtimes.served import environment_facts, known, model_facts, read_head
from harness.system import Arm, Fact, Pins

_POOL_DTYPE = re.compile(r"KV Cache is allocated\. dtype: (?:torch\.)?(?P<dtype>\w+)")
_BINDING = re.compile(r"init_threads_binding: .*\blocal_omp_cpuid=(?P<cores>[\d,|]+)")

_PAGE = "GET /server_info"
_OWN_ENTRIES = frozenset({"tp_size", "max_total_num_tokens", "disable_radix_cache", "quantization"})
"""Entries by which the page is known for SGLang's."""

OF_THE_RUN = frozenset(
    {
        "host", "port", "nccl_port", "grpc_port", "gated_launch_port", "random_seed", "launch_command", "status", "startup_time",
        "internal_states", "kv_events", "hicache_object_layout", "served_model_name", "dist_init_addr", "version", "max_total_num_tokens",
        "max_req_input_len", "watermark_config", "watermark_key", "watermark_key_b", "api_key", "admin_api_key",
    }
)  # fmt: skip
"""Entries of GET /server_info about this start: its address and seed, its timings, its state. Capacity is a coordinate of its own."""

_ELSEWHERE = frozenset(
    {
        "path", "paths", "dir", "folder", "file", "port", "ports", "ip", "url", "urls", "endpoint", "endpoints", "socket", "addr", "key",
        "keyfile", "certfile", "password", "extra", "server", "domains",
    }
)  # fmt: skip
"""Words in the names of entries that hold addresses, places on a machine, or what a server's owner keeps secret."""


def served_facts(env: Environment | None, arm: Arm, pins: Pins, base_url: str, log: Path | None) -> dict[str, Fact]:
    """Collect every server.*, model.* and tokenizer.* fact; a page that does not answer leaves its facts unknown."""
    page = ask_json(base_url, "/server_info", timeout_s=10.0)
    info: Mapping[str, Any] = page if isinstance(page, dict) else {}
    lines = read_head(log)
    facts = _page_facts(pins, base_url) | _engine_facts(info, pins, lines) | _cache_facts(info)
    facts |= environment_facts(env) | model_facts(pins)
    facts["server.effective_config"] = _effective(info, arm)
    return facts


def stated_facts(info: Mapping[str, Any], arm: Arm, pins: Pins) -> dict[str, Fact]:
    """What an SGLang server says of itself to somebody who attaches to it; {} when ``info`` (GET /server_info) is another engine's page."""
    if not info.keys() >= _OWN_ENTRIES:
        return {}
    facts = _engine_facts(info, pins, []) | _cache_facts(info) | {"server.effective_config": _effective(info, arm)}
    if info["quantization"] is None:
        # The model's own config.json would have to say, and what lies here under that name need not be what is served there.
        del facts["server.quantization"]
    return {name: fact for name, fact in facts.items() if fact.value is not None} | {"server.engine": Fact(value="sglang", source=_PAGE)}


def cacheable_block(info: Any) -> int | None:
    """Tokens of the smallest prefix that can be a cache hit, from GET /server_info; None when the radix cache is off or unknown."""
    if not isinstance(info, dict) or info.get("disable_radix_cache") is not False:
        return None
    page = info.get("page_size")
    return page if _is_count(page) else None


def _page_facts(pins: Pins, base_url: str) -> dict[str, Fact]:
    listed = {m["id"]: m for m in served_models(base_url)}
    served = pins.model.id if pins.model.id in listed else next(iter(listed), None)
    length = listed.get(served or "", {}).get("max_model_len")
    return {
        "model.id": known(served, "GET /v1/models", "no model is listed"),
        "server.max_model_len": known(length, "GET /v1/models", "not stated"),
    }


def _engine_facts(info: Mapping[str, Any], pins: Pins, lines: list[str]) -> dict[str, Fact]:
    source, why = "GET /server_info", "GET /server_info does not state it"
    facts = {
        "server.version": known(info.get("version"), source, why),
        "server.dtype": _dtype(info, lines),
        "server.quantization": _quantization(info, pins),
        "server.omp_binding": known(_binding(lines), "server log", "the log names no thread binding"),
        "server.attention_backend": known(info.get("attention_backend"), source, why),
    }
    for axis, entry in (("tensor", "tp_size"), ("pipeline", "pp_size"), ("data", "dp_size"), ("expert", "ep_size")):
        degree = info.get(entry)
        facts[f"server.{axis}_parallel"] = known(degree if _is_count(degree) else None, source, why)
    return facts


def _dtype(info: Mapping[str, Any], lines: list[str]) -> Fact:
    """The element type the engine computes in: it allots its KV pool in that type unless told otherwise; its arguments only repeat ours."""
    found = next((m["dtype"] for m in map(_POOL_DTYPE.search, lines) if m), None)
    if found is not None and info.get("kv_cache_dtype") == "auto":
        return Fact(value=found, source="server log (type of the KV pool, which follows the model's)")
    asked = info.get("dtype")
    why = "the KV pool has a type of its own, and the server's arguments leave the model's open"
    return known(asked if isinstance(asked, str) and asked != "auto" else None, "GET /server_info (as asked for)", why)


def _quantization(info: Mapping[str, Any], pins: Pins) -> Fact:
    """What the server was told, or else what the model's own config says: a checkpoint quantized beforehand needs no argument."""
    source = "GET /server_info, config.json"
    if "quantization" not in info:
        return Fact(reason="GET /server_info does not state it", source=source)
    if info["quantization"] is not None:
        return Fact(value=str(info["quantization"]), source=source)
    folder = find_model(pins.model.id)
    if folder is None or not (folder / "config.json").is_file():
        return Fact(reason="the server was told none, and the model's config.json is not here to say", source=source)
    own = model_config(folder).get("quantization_config")
    method = own.get("quant_method") if isinstance(own, dict) else None
    if own is not None or (folder / "hf_quant_config.json").exists():
        return known(method, source, "the model carries a quantization whose method its config.json does not name")
    return Fact(value="none", source=source)


def _cache_facts(info: Mapping[str, Any]) -> dict[str, Fact]:
    source, why = "GET /server_info", "GET /server_info does not state it"
    off = info.get("disable_radix_cache")
    rows, page = info.get("max_total_num_tokens"), info.get("page_size")
    return {
        "server.kv_capacity_tokens": known(rows if _is_count(rows) else None, source, why),
        "server.block_size": known(page if _is_count(page) else None, source, why),
        "server.prefix_caching": known(not off if isinstance(off, bool) else None, source, why),
    }


def _effective(info: Mapping[str, Any], arm: Arm) -> Fact:
    """Every resolved argument that is on or has a value: what is left out is null, false or empty. No address, path, seed or capacity."""
    if not info:
        return Fact(reason="GET /server_info gave no answer", source="GET /server_info")
    # Zero equals False in Python, and is a setting.
    kept = {name: value for name, value in info.items() if _of_the_engine(name) and (value or value == 0) and value is not False}
    if "random-seed" in arm.args:
        kept["random_seed"] = info.get("random_seed")
    return Fact(value=dict(sorted(kept.items())), source="GET /server_info")


def _of_the_engine(name: str) -> bool:
    return name not in OF_THE_RUN and not _ELSEWHERE & set(name.strip("_").split("_"))


def _binding(lines: list[str]) -> dict[str, list[int]] | None:
    """Rank -> cores the server meant to bind its threads to (CPU only)."""
    found = next((m["cores"] for m in map(_BINDING.search, lines) if m), None)
    if found is None:
        return None
    return {str(rank): [int(c) for c in part.split(",") if c] for rank, part in enumerate(found.split("|"))}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
