"""The interface that requests use, against the systems that are to answer them."""

from __future__ import annotations

import pytest

from harness.manifest import expand
from tests.unit.test_manifest_load import changed, fault, parse

API = ("  output-length:", "  api: generate\n  output-length:")
VLLM = "{runtime: vllm, version: 0.32.0, args: {max-num-batched-tokens: %d}}"
SGLANG, ENDPOINT = "{runtime: sglang, version: 0.5.23, args: {schedule-policy: lpm}}", "{runtime: endpoint, url: 'http://127.0.0.1:9'}"


def test_generate_is_sent_to_those_who_serve_it() -> None:
    assert parse(changed(API, (VLLM % 512, SGLANG), (VLLM % 8192, ENDPOINT))).manifest.workload.api == "generate"
    loaded = parse(changed(API, (VLLM % 512, ENDPOINT), (VLLM % 8192, ENDPOINT)))
    assert {run.workload.api for run in expand(loaded).runs} == {"generate"}


@pytest.mark.parametrize("runtime", [VLLM % 8192, "{runtime: reference}"])
def test_an_arm_that_does_not_serve_it_is_named_with_the_way_out(runtime: str) -> None:
    problem = fault(API, (VLLM % 512, SGLANG), (VLLM % 8192, runtime))
    assert (problem.code, problem.where) == ("unknown_api", "m.yaml:13")
    assert "budget-8192" in problem.what
    assert "budget-512" not in problem.what
    assert "completions" in problem.remedy
