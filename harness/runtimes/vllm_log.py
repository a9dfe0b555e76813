"""What vLLM says about itself in its log and on its metrics page, turned into plain values. Pure; text in, values out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

_ENGINE = re.compile(r"Initializing a V\d+ LLM engine \(v(?P<version>[^)]+)\) with config: (?P<config>.*)")
_ARGS = re.compile(r"non-default args: (?P<args>\{.*\})\s*$")
_CAPACITY = re.compile(r"\bKV cache size: (?P<tokens>[\d,]+) tokens")
_BINDING = re.compile(r"\blocal_rank=(?P<rank>\d+), core ids=\[(?P<cores>[\d, ]*)\]")
OF_THE_RUN = frozenset({"host", "port", "model", "model_tag", "tokenizer", "served_model_name", "download_dir", "uds", "seed_instance"})
"""Fields that name this start's address and paths; they are other facts' business and would make equal servers look different."""

OF_THE_CAPACITY = frozenset({"num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency", "num_cpu_blocks", "engine"})
"""Fields that follow from free memory at start; capacity is a coordinate of its own."""


def split_fields(text: str) -> Iterator[tuple[str, str]]:
    """Split ``a=1, b=Config(c=[2, 3]), d='x, y'`` at its top level into (name, raw value).

    Brackets and quotes nest as in Python's repr; text without ``=`` at the top level is skipped.
    """
    for piece in _pieces(text):
        name, equals, value = piece.partition("=")
        if equals and name.strip().isidentifier():
            yield name.strip(), value.strip()


def _pieces(text: str) -> Iterator[str]:
    depth, quote, start, escaped = 0, "", 0, False
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
        elif char in "'\"":
            quote, escaped = char, False
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth = max(0, depth - 1)
        elif char == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    yield text[start:]


def engine_config(lines: list[str]) -> dict[str, str]:
    """Fields of the engine's own configuration line (``dtype`` as the engine resolved it), {} when the log has none."""
    for line in lines:
        found = _ENGINE.search(line)
        if found:
            fields = {name: value for name, value in split_fields(found["config"]) if name not in OF_THE_RUN}
            return fields | {"engine_version": found["version"]}
    return {}


def non_default_args(lines: list[str]) -> dict[str, object]:
    """Arguments that the server says differ from its defaults, without address and paths."""
    for line in lines:
        found = _ARGS.search(line)
        if found:
            try:
                args = ast.literal_eval(found["args"])
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return {}
            if not isinstance(args, dict):
                return {}
            return {str(k): v if isinstance(v, int | float | str | bool) else str(v) for k, v in args.items() if k not in OF_THE_RUN}
    return {}


def kv_capacity_tokens(lines: list[str]) -> int | None:
    """KV cache capacity in tokens as logged (``GPU KV cache size: 1,234 tokens``; the device's name varies)."""
    found = (m for m in map(_CAPACITY.search, lines) if m)
    return next((int(m["tokens"].replace(",", "")) for m in found), None)


def thread_binding(lines: list[str]) -> dict[str, list[int]]:
    """Rank -> cores its OpenMP threads were bound to (CPU only), {} when the log does not say."""
    found = (m for m in map(_BINDING.search, lines) if m)
    return {m["rank"]: [int(c) for c in m["cores"].split(",") if c.strip()] for m in found}


def cache_config(page: str) -> dict[str, str]:
    """Labels of ``vllm:cache_config_info``, {} when the page has no such metric or is not a metrics page."""
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == "vllm:cache_config_info":
                    return dict(sample.labels)
    except ValueError:
        return {}
    return {}


def as_int(text: str | None) -> int | None:
    """Return the integer of a label, None for absent or ``None``."""
    return int(text) if text is not None and text.isdigit() else None
