"""One map for every engine: what each page becomes, in the one list of canonical names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.observe.metrics import canonical_values
from harness.record.metric_names import GPU, HOST, PROCESS, SERVER
from harness.runtimes.contract import MetricRule, histogram
from harness.runtimes.reference import ReferenceRuntime
from harness.runtimes.sglang import SglangRuntime
from harness.runtimes.vllm import VllmRuntime

PAGES = Path(__file__).parent.parent / "fixtures" / "metrics"
TIMES = ("queue_time_s", "prefill_time_s", "server_ttft_s", "server_gap_s", "server_tpot_s", "server_e2e_s")


def page(name: str) -> str:
    return (PAGES / f"{name}.txt").read_text(encoding="utf-8")


def test_vllm_s_page() -> None:
    found = canonical_values(page("vllm"), VllmRuntime.metrics)
    assert found.items() >= {
        "requests_running": 5.0, "requests_waiting": 1.0, "kv_usage_ratio": 0.7, "requests_finished_total": 10.0,
        "prompt_tokens_total": 1000.0, "generation_tokens_total": 120.0, "cached_tokens_total": 192.0,
        "prefix_queries_total": 1000.0, "preemptions_total": 5.0, "queue_time_s_sum": 1.5, "queue_time_s_count": 10.0,
        "decode_time_s_sum": 4.25, "server_ttft_s_count": 12.0, "iteration_tokens_sum": 928.0, "iteration_tokens_count": 70.0,
        "iteration_tokens_bucket/8.0": 50.0, "iteration_tokens_bucket/256.0": 68.0, "iteration_tokens_bucket/+Inf": 70.0,
    }.items()  # fmt: skip
    assert "requests_aborted_total" not in found  # its page has a line for it, which does not count what clients close


def test_sglang_s_page() -> None:
    found = canonical_values(page("sglang"), SglangRuntime.metrics)
    assert found.items() >= {
        "requests_running": 5.0, "requests_waiting": 2.0, "requests_retracted": 1.0, "kv_usage_ratio": 0.75, "generation_rate": 123.5,
        "requests_finished_total": 12.0, "requests_aborted_total": 2.0, "prompt_tokens_total": 1000.0, "generation_tokens_total": 120.0,
        "cached_tokens_total": 200.0, "prefix_queries_total": 1000.0, "preemptions_total": 3.0, "retracted_input_tokens_total": 96.0,
        "retracted_output_tokens_total": 24.0, "queue_time_s_sum": 0.65, "prefill_time_s_sum": 0.91, "prefill_time_s_count": 13.0,
        "server_ttft_s_sum": 1.8,
    }.items()  # fmt: skip
    assert "iteration_tokens_sum" not in found  # what it does not count has no sample
    assert "decode_time_s_sum" not in found


@pytest.mark.parametrize(("name", "rules"), [("vllm", VllmRuntime.metrics), ("sglang", SglangRuntime.metrics)])
def test_every_rule_finds_its_line_and_every_name_is_canonical(name: str, rules: Sequence[MetricRule]) -> None:
    found = canonical_values(page(name), rules)
    assert {key.partition("/")[0] for key in found} == {rule.canonical for rule in rules}
    assert {rule.canonical for rule in rules} <= SERVER.keys()
    assert {f"{time}_{part}" for time in TIMES for part in ("sum", "count")} <= {rule.canonical for rule in rules}
    for rule in rules:
        assert (rule.how == "mean") == (SERVER[rule.canonical].unit == "ratio"), rule
        assert (rule.by is not None) == (SERVER[rule.canonical].kind == "bucket"), rule


def test_the_reference_engine_speaks_the_same_names() -> None:
    own = {rule.canonical for rule in ReferenceRuntime.metrics}
    shared = {"requests_running", "requests_waiting", "kv_usage_ratio", "preemptions_total", "recomputed_rows_total", "cached_tokens_total"}
    assert shared <= own & SERVER.keys()


def test_names_say_what_they_are() -> None:
    for table in (SERVER, GPU, HOST, PROCESS):
        for name, metric in table.items():
            assert metric.meaning, name
            if name.endswith(("_total", "_sum", "_count")):
                assert metric.kind == "counter", name


def test_a_histogram_is_two_rules() -> None:
    assert histogram("a_s", "x:a_seconds", {"stage": "p"}) == (
        MetricRule("a_s_sum", "x:a_seconds_sum", {"stage": "p"}), MetricRule("a_s_count", "x:a_seconds_count", {"stage": "p"}),
    )  # fmt: skip


@given(st.dictionaries(st.integers(0, 9), st.floats(0, 1, width=32), max_size=6))
def test_shares_of_several_engines_are_averaged_and_counts_added(engines: dict[int, float]) -> None:
    text = "".join(f'x:a{{engine="{e}"}} {v!r}\n' for e, v in engines.items())
    rules = (MetricRule("share", "x:a", how="mean"), MetricRule("count", "x:a"), MetricRule("apart", "x:a", by="engine"))
    found = canonical_values(text, rules)
    if not engines:
        assert found == {}
        return
    assert found.pop("count") == pytest.approx(sum(engines.values()))
    assert found.pop("share") == pytest.approx(sum(engines.values()) / len(engines))
    assert found == {f"apart/{e}": pytest.approx(v) for e, v in engines.items()}


@given(st.lists(st.tuples(st.sampled_from([rule.name for rule in VllmRuntime.metrics]), st.text(max_size=40)), max_size=6))
def test_any_text_after_a_wanted_name_is_values_or_a_value_error(lines: list[tuple[str, str]]) -> None:
    try:
        found = canonical_values("\n".join(name + rest for name, rest in lines), VllmRuntime.metrics)
    except ValueError:
        return
    assert all(math.isfinite(value) for value in found.values())


@given(st.sampled_from(["vllm", "sglang"]), st.data())
def test_a_damaged_page_gives_no_name_it_does_not_carry(name: str, data: st.DataObject) -> None:
    text = page(name)
    cut = data.draw(st.integers(0, len(text)))
    rules = VllmRuntime.metrics if name == "vllm" else SglangRuntime.metrics
    try:
        found = canonical_values(text[:cut], rules)
    except ValueError:  # the cut line is not one
        return
    assert found.keys() <= canonical_values(text, rules).keys()
