"""The same counts in the names of vLLM and SGLang, for whoever scrapes servers by those: only what corresponds, nothing made up.

vLLM's names as of 0.32.0, SGLang's as of 0.5. Bounds of the histograms are our own; sums and counts need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from harness.clock import NS_PER_S
from harness.reference.driver import Driver
from harness.reference.latencies import BOUNDS_NS, Histogram

Labels = Mapping[str, str]


def vllm_families(driver: Driver, model: str) -> Iterator[Metric]:
    """Yield vLLM's families of what this engine has too."""
    labels, engine, counts = {"model_name": model, "engine": "0"}, driver.engine, driver.counters
    capacity = engine.core.workload.budgets.kv_capacity
    yield _gauge("vllm:num_requests_running", engine.running, labels)
    yield _gauge("vllm:num_requests_waiting", engine.waiting, labels)
    yield _gauge("vllm:kv_cache_usage_perc", engine.kv_rows / capacity, labels)
    yield _counter("vllm:num_preemptions", engine.preemptions, labels)
    yield _counter("vllm:prompt_tokens", counts.prompt_tokens, labels)
    yield _counter("vllm:generation_tokens", counts.generation_tokens, labels)
    yield _counter("vllm:prefix_cache_queries", counts.prompt_tokens, labels)
    yield _counter("vllm:prefix_cache_hits", counts.cached_tokens, labels)
    success = CounterMetricFamily("vllm:request_success", "Requests that ended, by reason", labels=[*labels, "finished_reason"])
    for reason, count in (("stop", counts.stopped), ("length", counts.at_length), ("abort", counts.aborted)):
        success.add_metric([*labels.values(), reason], count)
    yield success
    yield from histograms(driver, labels, "vllm:")


def sglang_families(driver: Driver, model: str) -> Iterator[Metric]:
    """Yield SGLang's families of what this engine has too."""
    labels, engine, counts = {"model_name": model}, driver.engine, driver.counters
    capacity = engine.core.workload.budgets.kv_capacity
    yield _gauge("sglang:num_running_reqs", engine.running, labels)
    yield _gauge("sglang:num_queue_reqs", engine.waiting, labels)
    yield _gauge("sglang:num_used_tokens", engine.kv_rows, labels)
    yield _gauge("sglang:token_usage", engine.kv_rows / capacity, labels)
    yield _counter("sglang:prompt_tokens", counts.prompt_tokens, labels)
    yield _counter("sglang:generation_tokens", counts.generation_tokens, labels)
    yield _counter("sglang:cached_tokens", counts.cached_tokens, labels)
    yield _counter("sglang:num_requests", counts.stopped + counts.at_length, labels)
    yield from histograms(driver, labels, "sglang:")


FAMILIES: Final[Mapping[str, Callable[[Driver, str], Iterator[Metric]]]] = {"vllm": vllm_families, "sglang": sglang_families}
"""Other engines' families by the name under which ``--metrics-names`` asks for them."""


def _gauge(name: str, value: float, labels: Labels) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, "As of the reference engine", labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counter(name: str, value: float, labels: Labels) -> CounterMetricFamily:
    family = CounterMetricFamily(name, "As of the reference engine", labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def histograms(driver: Driver, labels: Labels, prefix: str) -> Iterator[Metric]:
    """Yield first tokens, gaps and whole requests under a prefix; every engine calls them the same."""
    kept = driver.latencies
    for name, histogram in (
        (f"{prefix}time_to_first_token_seconds", kept.first),
        (f"{prefix}inter_token_latency_seconds", kept.gaps),
        (f"{prefix}e2e_request_latency_seconds", kept.whole),
    ):
        yield _histogram(name, histogram, labels)


def _histogram(name: str, histogram: Histogram, labels: Labels) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, "As of the reference engine, from the instant a request was read", labels=list(labels))
    seen, buckets = 0, []
    for bound, count in zip((*(f"{ns / NS_PER_S:g}" for ns in BOUNDS_NS), "+Inf"), histogram.counts, strict=True):
        seen += count
        buckets.append((bound, float(seen)))
    family.add_metric(list(labels.values()), buckets, histogram.total_ns / NS_PER_S)
    return family
