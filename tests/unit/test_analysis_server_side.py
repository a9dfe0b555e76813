"""What the server did: levels by time, growth that is never negative, times beside the client's, and nothing where nothing was said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.campaign import analyze
from analysis.model import Figure
from analysis.report import render_html, render_markdown, to_json
from analysis.run import measure_run
from analysis.server_cell import server_of_cell
from analysis.server_side import ServerSide, server_side
from analysis.server_window import Pages, level
from harness.observe.gpu_watch import GpuWatch
from harness.record.facts import Fact
from harness.record.metric_names import GPU, SERVER
from harness.record.reader import RunRecord
from tests.builders import S, make_facts, make_host_samples, make_sample, make_spec
from tests.gates.cases import healthy
from tests.nvml import replay

Samples = list[dict[str, Any]]


def counted(metric: str, values: Mapping[int, float], label: str | None = None) -> Samples:
    """A metric on the server's page at some seconds; the measured window is [2, 12) s."""
    return [make_sample(t * S, "server", metric, v, label) for t, v in values.items()]


def every_second(metric: str, growth: float, start: float = 0.0, label: str | None = None) -> Samples:
    return counted(metric, {t: start + growth * (t + 1) for t in range(-1, 15)}, label)


def side(samples: Samples, **changes: Any) -> ServerSide:
    record: RunRecord = healthy(server_metrics=samples, **changes)
    measures = measure_run(record)
    return server_side(record, measures.clocks, measures.figures)


def of(samples: Samples, name: str, **changes: Any) -> Figure:
    return side(samples, **changes).figures[name]


def test_a_level_is_a_mean_by_time_and_its_highest_sample() -> None:
    found = side(counted("requests_running", {0: 9.0, 2: 1.0, 4: 3.0, 10: 5.0, 13: 9.0})).figures
    # the samples in the window stand for [2, 3), [3, 7) and [7, 12) s
    assert found["running"].value == pytest.approx((1 * 1 + 4 * 3 + 5 * 5) / 10)
    assert (found["running_max"].value, found["running_max"].n) == (5.0, 3)


@given(st.lists(st.tuples(st.integers(0, 999), st.floats(0, 1e6)), min_size=1, max_size=30, unique_by=lambda p: p[0]))
def test_a_mean_by_time_lies_between_the_samples(points: list[tuple[int, float]]) -> None:
    points.sort()
    t, v = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    found = level(t, v, 0, 1000)
    assert v.min() - 1e-6 <= found.mean <= v.max() * (1 + 1e-12) + 1e-6
    assert found.highest == v.max()


@given(st.floats(0, 1e6), st.lists(st.integers(0, 999), min_size=1, max_size=30, unique=True))
def test_a_constant_level_is_itself_however_it_is_sampled(value: float, at: list[int]) -> None:
    t = np.sort(np.array(at))
    assert level(t, np.full(len(t), value), 0, 1000).mean == pytest.approx(value)


def test_counts_and_rates_are_growth_within_the_window() -> None:
    samples = every_second("prompt_tokens_total", 100.0, 5000.0) + every_second("preemptions_total", 2.0)
    found = side(samples).figures
    assert found["prompt_rate"].value == 100.0
    assert found["preemptions"].value == 18.0  # pages at 2 .. 11 s


def test_a_restart_is_unknown_and_no_negative_rate() -> None:
    figure = of(counted("prompt_tokens_total", {2: 900.0, 5: 1000.0, 6: 10.0, 9: 2000.0, 11: 2100.0}), "prompt_rate")
    assert (figure.value, figure.status) == (None, "unknown")
    assert "restarted" in figure.reason


def test_a_counter_that_appears_in_the_window_began_at_nothing() -> None:
    samples = every_second("requests_running", 0.0, 1.0) + counted("preemptions_total", {8: 1.0, 11: 3.0})
    assert of(samples, "preemptions").value == 3.0


def test_a_counter_that_appears_after_the_window_says_nothing_of_it() -> None:
    samples = every_second("requests_running", 0.0, 1.0) + counted("preemptions_total", {14: 3.0})
    assert of(samples, "preemptions").value is None


def test_a_server_that_counts_nothing_has_no_numbers_and_a_reason_for_each() -> None:
    for samples in ([], every_second("requests_running", 0.0)):
        for figure in side(samples).figures.values():
            assert figure.status == "ok" or (figure.value is None and figure.reason), figure.metric


def test_pages_that_miss_half_of_the_window_are_not_enough() -> None:
    figure = of(counted("prompt_tokens_total", {2: 0.0, 6: 100.0}), "prompt_rate")
    assert "less than half of the measured window" in figure.reason
    others = every_second("prompt_tokens_total", 1.0)
    figure = of([*others, *counted("requests_running", {2: 1.0, 6: 1.0})], "running")
    assert figure.reason == "samples of requests_running span 4 s, less than half of the measured window"


def test_a_level_with_a_hole_is_unknown_and_a_count_over_it_is_not() -> None:
    seen = (2, 3, 4, 10, 11)
    found = side(counted("requests_running", dict.fromkeys(seen, 1.0)) + counted("preemptions_total", {t: float(t) for t in seen})).figures
    assert found["running"].reason == "samples of requests_running leave 6 s of the measured window unseen, more than half"
    assert found["running_max"].status == "unknown"
    assert found["preemptions"].value == 9.0


def test_samples_of_the_host_that_miss_half_of_the_window_give_no_figure() -> None:
    host = [s for s in [*make_host_samples(), *device("0")] if s["t_ns"] <= 6 * S]
    host += [make_sample(t * S, "server", "rss_bytes", 1.0) for t in range(7)]
    for name, figure in side([], host=host, facts=H200).figures.items():
        assert figure.value is None or name in ("client_ttft", "unread_pages", "gpu_unread"), name


def test_shares_of_the_prefix_cache() -> None:
    samples = every_second("cached_tokens_total", 25.0) + every_second("prefix_queries_total", 100.0)
    assert of(samples, "prefix_hit_share").value == 0.25
    off = make_facts(before={"host.boot": Fact(value="b"), "server.prefix_caching": Fact(value=False)})
    figure = of(samples, "prefix_hit_share", facts=off)
    assert (figure.value, figure.status) == (None, "undefined")
    idle = every_second("cached_tokens_total", 0.0) + every_second("prefix_queries_total", 0.0)
    assert of(idle, "prefix_hit_share").status == "unknown"


def test_times_are_sums_over_counts_within_the_window() -> None:
    samples = every_second("queue_time_s_sum", 0.5, 40.0) + every_second("queue_time_s_count", 10.0, 7.0)
    figure = of(samples, "queue_time")
    assert figure.value == pytest.approx(0.05)
    assert figure.n == 90


def test_a_mean_of_none_says_that_none_was_counted() -> None:
    samples = every_second("queue_time_s_sum", 0.0, 4.0) + every_second("queue_time_s_count", 0.0, 7.0)
    assert "counted none" in of(samples, "queue_time").reason


def test_what_only_one_engine_tells_is_no_gap_of_another() -> None:
    assert "retracted_input" not in side(every_second("preemptions_total", 1.0)).figures
    assert of(every_second("retracted_input_tokens_total", 3.0), "retracted_input").value == 27.0


def ttft(per_second: float, mean: float) -> Samples:
    return every_second("server_ttft_s_sum", per_second * mean) + every_second("server_ttft_s_count", per_second)


def test_the_client_s_first_token_is_held_against_the_server_s() -> None:
    found = side(ttft(10.0, 0.02)).figures
    client, server, outside = (found[name].value or math.nan for name in ("client_ttft", "server_ttft", "outside_ttft"))
    assert server == pytest.approx(0.02)
    assert outside == pytest.approx(client - server)
    assert found["client_ttft"].n == 90


def test_means_of_other_requests_are_not_subtracted() -> None:
    figure = of(ttft(20.0, 0.02), "outside_ttft")
    assert figure.value is None
    assert "not of the same requests" in figure.reason


def test_iterations_by_their_tokens() -> None:
    cumulative = {"8.0": 1.0, "64.0": 4.0, "+Inf": 5.0}
    samples = [s for bound, growth in cumulative.items() for s in every_second("iteration_tokens_bucket", growth, 3.0, bound)]
    samples += every_second("iteration_tokens_sum", 200.0) + every_second("iteration_tokens_count", 5.0)
    found = side(samples)
    assert found.iterations == {"8.0": 9.0, "64.0": 27.0, "+Inf": 9.0}
    assert found.figures["iteration_tokens"].value == 40.0
    assert found.figures["iteration_rate"].value == 5.0


def test_bounds_that_are_no_numbers_give_no_distribution() -> None:
    assert side(every_second("iteration_tokens_bucket", 1.0, label="many")).iterations == {}


H200 = make_facts(before={"host.boot": Fact(value="b"), "host.gpu": Fact(value="NVIDIA H200")})


def device(label: str, server: float = 1.0, energy: float | None = 500.0, power: float = 400.0) -> Samples:
    levels = {
        "gpu_utilisation_ratio": 0.9, "gpu_sm_clock_mhz": 1980.0, "gpu_temperature_c": 60.0, "gpu_memory_used_bytes": 2.0**30,
        "gpu_power_watts": power, "gpu_processes_server": server,
    }  # fmt: skip
    rows = [make_sample(t * S, "gpu", metric, v, label) for metric, v in levels.items() for t in range(15)]
    return rows + [make_sample(t * S, "gpu", "gpu_energy_j_total", 1e6 + energy * t, label) for t in range(15) if energy is not None]


def test_power_is_that_of_the_serving_devices_by_their_energy_counters() -> None:
    found = side([], host=[*make_host_samples(), *device("0"), *device("1"), *device("2", server=0.0)], facts=H200).figures
    assert found["gpu_power"].value == pytest.approx(1000.0)
    assert "energy counters" in found["gpu_power"].population
    assert "2 devices the server computes on" in found["gpu_power"].population
    assert found["gpu_memory_max"].value == 2 * 2.0**30
    tokens = measure_run(healthy()).figures["token_throughput"].value or math.nan
    assert found["gpu_energy_per_token"].value == pytest.approx(1000.0 / tokens)


def test_without_the_counter_of_one_device_the_power_is_integrated() -> None:
    found = side([], host=[*make_host_samples(), *device("0"), *device("1", energy=None)], facts=H200).figures
    assert found["gpu_power"].value == pytest.approx(800.0)
    assert "integrated" in found["gpu_power"].population


def test_a_device_without_samples_is_unknown_and_a_host_without_devices_has_no_rows() -> None:
    assert of([], "gpu_power", facts=H200).status == "unknown"
    none = make_facts(before={"host.boot": Fact(value="b"), "host.gpu": Fact(value="none")})
    assert not any(name.startswith("gpu") for name in side([], facts=none).figures)


def test_what_the_sampler_reads_is_what_analysis_reads() -> None:
    """Samples of the recorded library, as they come, over a run of 15 s: one device serves, another is somebody else's."""
    watch = GpuWatch(lambda: [1000], lambda reason: pytest.fail(reason), replay())
    samples = [row | {"t_ns": t * S} for t in range(15) for row in watch.rows()]
    found = side([], host=[*make_host_samples(), *samples], facts=H200).figures
    energy = [r["value"] for r in samples if r["metric"] == "gpu_energy_j_total" and r["labels"] == "0" and 2 * S <= r["t_ns"] < 12 * S]
    assert found["gpu_power"].value == pytest.approx((energy[-1] - energy[0]) / 9)
    assert "1 device the server computes on" in found["gpu_power"].population
    assert all(f.status == "ok" for name, f in found.items() if name.startswith("gpu"))


def test_cores_and_memory_of_each_role() -> None:
    found = side(
        [], host=[*make_host_samples(cpu_s_total=0.3), *(make_sample(t * S, "client", "rss_bytes", 100.0 + t) for t in range(15))]
    ).figures
    assert found["client_cpu"].value == pytest.approx(0.3)
    assert found["client_memory_max"].value == 111.0
    assert found["server_cpu"].status == "unknown"


def figure(value: float | None, metric: str = "running") -> Figure:
    status: Any = "unknown" if value is None else "ok"
    return Figure(metric, "requests", value, status, 1, "p", reason="" if value is not None else "why not")


def test_a_cell_is_a_mean_with_an_interval_or_lacks_what_one_replicate_lacks() -> None:
    sides = [ServerSide({"running": figure(v), "running_max": figure(v, "running_max")}, {"8.0": v}) for v in (1.0, 3.0)]
    found = server_of_cell(sides, [0, 1], 0.95)
    assert (found.figures["running"].value, found.figures["running_max"].value) == (2.0, 3.0)
    interval = found.figures["running"].interval
    assert interval is not None
    assert interval.low == 0.0  # a level is not below 0
    assert found.iterations == {"8.0": 4.0}
    lacking = server_of_cell([*sides, ServerSide({"running": figure(None)})], [0, 1, 2], 0.95)
    assert lacking.figures["running"].reason == "1 of 3 replicates: why not"
    assert "running_max" not in lacking.figures
    assert lacking.iterations == {}


def test_the_report_shows_it_with_reasons_for_what_is_unknown() -> None:
    samples = every_second("requests_running", 0.0, 2.0) + ttft(10.0, 0.02) + every_second("queue_time_s_sum", 0.5)
    samples += every_second("iteration_tokens_bucket", 3.0, label="16.0") + every_second("iteration_tokens_bucket", 4.0, label="+Inf")
    found = analyze([healthy(server_metrics=samples, spec=make_spec(replicate=i, server_start=i)) for i in range(2)], incomplete=())
    page, html = render_markdown(found), render_html(found)
    assert "## What the server did" in page
    assert "| Running, mean | requests | 2.000 \\[2.000, 2.000\\] |" in page
    assert "Outside the server" in page
    assert "Unknown: " in page
    assert "nothing of it ever happened" in page
    assert "Tokens of an iteration" in html
    assert '<h2 id="server">What the server did</h2>' in html
    (cell,) = to_json(found)["cells"]
    assert cell["server"]["figures"]["running"]["value"] == 2.0
    assert cell["runs"][0]["server"]["iterations"] == {"16.0": 27.0, "+Inf": 9.0}


def test_every_name_that_is_read_is_a_canonical_one() -> None:
    asked: set[str] = set()

    class Spy(Pages):
        def _shown(self, metric: str) -> Any:
            asked.add(metric)
            return super()._shown(metric)

    record: RunRecord = healthy(server_metrics=[s for name in SERVER for s in every_second(name, 1.0)])
    measures = measure_run(record)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analysis.server_side.Pages", Spy)
        server_side(record, measures.clocks, measures.figures)
    assert {"requests_running", "server_ttft_s_count", "iteration_tokens_bucket"} <= asked <= set(SERVER)
    assert {s["metric"] for s in device("0")} <= set(GPU)


def test_what_could_not_be_read_is_counted_beside_what_was() -> None:
    lost = [
        {"kind": "scrape_failed", "reason": why, "count": n, "first_ns": 0, "last_ns": 0} for why, n in (("no answer", 2), ("HTTP 500", 1))
    ]
    pages = every_second("requests_running", 0.0, 1.0)
    found = of(pages, "unread_pages", observations=lost)
    assert (found.value, found.n) == (3.0, 16 + 3)
    assert of(pages, "unread_pages").value == 0.0
    assert of([], "unread_pages", observations=lost).value == 3.0
    assert of([], "unread_pages").status == "unknown"
    gone = [{"kind": "gpu_sample_failed", "reason": "lost", "count": 4, "first_ns": 0, "last_ns": 0}]
    assert of([], "gpu_unread", facts=H200, observations=gone).value == 4.0
