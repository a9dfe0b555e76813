"""vLLM's own words, recorded from a real start of 0.32.0 on CPU, read back as values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runtimes import vllm_log as log
from harness.runtimes.served import read_head

FIXTURES = Path(__file__).parent.parent / "fixtures" / "vllm"
BANNER = FIXTURES / "banner-0.32.0-cpu.log"
METRICS = (FIXTURES / "metrics-0.32.0-cpu.txt").read_text()


def test_engine_config_has_the_dtype_as_resolved_and_no_path() -> None:
    engine = log.engine_config(read_head(BANNER))
    assert engine["dtype"] == "torch.bfloat16"
    assert engine["quantization"] == "None"
    assert engine["engine_version"] == "0.32.0"
    assert engine["compilation_config"].startswith("{'mode'")
    assert "/models/tiny" not in str(engine)


def test_arguments_capacity_and_binding() -> None:
    lines = read_head(BANNER)
    assert log.non_default_args(lines) == {"dtype": "bfloat16", "max_model_len": 8192, "enforce_eager": True}
    assert log.kv_capacity_tokens(lines) == 2_097_152
    assert log.thread_binding(lines) == {"0": [1]}


def test_cache_config_from_the_metrics_page() -> None:
    labels = log.cache_config(METRICS)
    assert labels["block_size"] == "128"
    assert log.as_int(labels["kv_cache_size_tokens"]) == 2_097_152
    assert log.as_int(labels["num_gpu_blocks_override"]) is None
    assert log.cache_config('broken{ "') == {}
    assert log.cache_config("") == {}


def test_a_log_that_says_nothing_gives_nothing(tmp_path: Path) -> None:
    assert read_head(None) == read_head(tmp_path / "absent") == []
    assert log.engine_config(["hello"]) == {}
    assert log.non_default_args(["non-default args: {broken}"]) == {}
    assert log.kv_capacity_tokens(["KV cache"]) is None
    assert log.thread_binding([]) == {}


def test_colours_are_removed(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\x1b[0;36mGPU KV cache size: 1,234 tokens\x1b[0m\xff\n")
    assert log.kv_capacity_tokens(read_head(tmp_path / "log")) == 1234


def test_fields_nest() -> None:
    text = "a=1, b=Config(c=[2, 3], d='x, y)'), e={'k': (1, 2)}, f=\"it's\", noise"
    assert dict(log.split_fields(text)) == {"a": "1", "b": "Config(c=[2, 3], d='x, y)')", "e": "{'k': (1, 2)}", "f": '"it\'s"'}


values = st.recursive(
    st.integers() | st.text(alphabet="ab,=()[]{}'\" \\") | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), values, min_size=1, max_size=5))
def test_any_python_values_survive_the_split(fields: dict[str, object]) -> None:
    text = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    assert dict(log.split_fields(text)) == {name: repr(value) for name, value in fields.items()}


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    lines = text.splitlines()
    log.engine_config(lines)
    log.non_default_args([f"non-default args: {{{text}}}"])
    log.kv_capacity_tokens(lines)
    log.thread_binding(lines)
    list(log.split_fields(text))


@pytest.mark.parametrize("text", ["{'a': __import__('os')}", "{" * 500 + "}"])
def test_arguments_are_data_never_code(text: str) -> None:
    assert log.non_default_args([f"non-default args: {text}"]) == {}
