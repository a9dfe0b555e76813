"""The /metrics page, made at scrape time from the driver's own counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from harness.clock import NS_PER_S
from harness.reference.accounts import COUNTERS, GAUGES, NAMES, PLAIN, account_values, plain_values
from harness.reference.driver import Driver
from harness.reference.iterations import BOUNDS
from harness.reference.metric_names import FAMILIES, histograms

PREFIX = "trigpoint:"


class Page:
    """Prometheus text of one driver, beside our own names in those of other engines (``names``, keys of ``FAMILIES``)."""

    def __init__(self, driver: Driver, names: Sequence[str] = (), model: str = "") -> None:
        self._driver = driver
        self._others = [FAMILIES[name] for name in names if name in FAMILIES]
        self._model = model
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """Render now."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield metric families (the collector protocol of prometheus_client)."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._accounts()
        yield self._iterations()
        yield from histograms(self._driver, {}, PREFIX)
        for families in self._others:
            yield from families(self._driver, self._model)

    def _gauges(self) -> Iterator[Metric]:
        engine = self._driver.engine
        capacity = engine.core.workload.budgets.kv_capacity
        for name, value, meaning in (
            ("requests_running", engine.running, "Requests in the running queue"),
            ("requests_waiting", engine.waiting, "Requests that hold no place in the running queue"),
            ("kv_usage_ratio", engine.kv_rows / capacity, "KV rows held, over capacity"),
            ("iteration_lateness_worst_seconds", self._driver.lateness.worst_ns / NS_PER_S, "Worst wake-up after a planned end"),
        ):
            yield GaugeMetricFamily(PREFIX + name, meaning, value=value)

    def _iterations(self) -> Metric:
        kept = self._driver.iterations
        bounds = [*map(float, BOUNDS), "+Inf"]
        buckets = [(str(bound), count) for bound, count in zip(bounds, accumulate(kept.counts), strict=True)]
        return HistogramMetricFamily(PREFIX + "iteration_tokens", "Prompt rows computed and tokens made", buckets, kept.tokens)

    def _accounts(self) -> Iterator[Metric]:
        """What the owner of the cache counted. Without one, only what that says of itself: absent is not 0."""
        engine = self._driver.engine
        names, counted = PLAIN, plain_values(engine.preemptions)
        if engine.owner is not None:
            names, counted = NAMES, account_values(engine.state, engine.owner)
        values = dict(zip(names, counted, strict=True))
        for family, listed in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, meaning in listed:
                if name in values:
                    yield family(PREFIX + name.removesuffix("_total"), meaning, value=values[name])

    def _counters(self) -> Iterator[Metric]:
        counts, engine, late = self._driver.counters, self._driver.engine, self._driver.lateness
        finished = CounterMetricFamily(PREFIX + "requests_finished", "Requests served to their end", labels=["reason"])
        finished.add_metric(["stop"], counts.stopped)
        finished.add_metric(["length"], counts.at_length)
        yield finished
        for name, value, meaning in (
            ("requests_aborted", counts.aborted, "Requests whose client left"),
            ("requests_declined", counts.declined, "Requests that the scheduler declined"),
            ("prompt_tokens", counts.prompt_tokens, "Prompt tokens of requests that reached their first token"),
            ("generation_tokens", counts.generation_tokens, "Tokens generated"),
            ("cached_tokens", counts.cached_tokens, "Prompt tokens taken from the prefix store, of those requests"),
            ("preemptions", engine.preemptions, "Requests that lost their KV while running"),
            ("recomputed_tokens", engine.state.recomputed_rows, "Rows computed again after a preemption"),
            ("iterations", late.iterations, "Iterations completed"),
            ("iteration_lateness_seconds", late.total_ns / NS_PER_S, "Sum of wake-ups after planned ends"),
            ("schedule_restarts", late.restarts, "Times the declared timeline was given up"),
        ):
            yield CounterMetricFamily(PREFIX + name, meaning, value=value)
