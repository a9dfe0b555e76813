"""Samples from pages, /proc and a real server on the loopback: what is not there makes no row, and counters never fall."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from harness.clock import Clock, VirtualClock
from harness.errors import HostError
from harness.observe.counters import Ledger, TreeReader, host_time, memory_bytes, process_stat
from harness.observe.metrics import canonical_values
from harness.observe.sampler import NICE, HostWatch, Sampler
from harness.record.schema import SAMPLES
from harness.record.segments import SegmentWriter, read_segments
from harness.runtimes.contract import MetricRule
from harness.runtimes.vllm import VllmRuntime
from tests.nvml import replay

PAGE = (Path(__file__).parent.parent / "fixtures" / "vllm" / "metrics-0.32.0-cpu.txt").read_text()
BOUNDS = ("1.0", *(f"{float(2**i)}" for i in range(3, 15)), "+Inf")
RULES = (
    MetricRule("running", "x:running"),
    MetricRule("done", "x:done_total", {"reason": "stop"}),
    MetricRule("done", "x:done_total", {"reason": "length"}),
)


def test_a_real_page_gives_every_canonical_metric() -> None:
    found = canonical_values(PAGE, VllmRuntime.metrics)
    assert set(found) == {
        "requests_running", "requests_waiting", "requests_finished_total", "prompt_tokens_total",
        "generation_tokens_total", "cached_tokens_total", "prefix_queries_total", "preemptions_total", "kv_usage_ratio",
        "iteration_tokens_sum", "iteration_tokens_count", *(f"iteration_tokens_bucket/{bound}" for bound in BOUNDS),
    }  # fmt: skip


def test_rules_of_one_name_add_up_and_labels_select() -> None:
    page = 'x:done_total{e="0",reason="stop"} 3\nx:done_total{e="1",reason="stop"} 4\nx:done_total{reason="length"} 5\n'
    assert canonical_values(page + 'x:done_total{reason="abort"} 100\n', RULES) == {"done": 12.0}


def test_absent_and_not_a_number_are_no_samples() -> None:
    assert canonical_values("", RULES) == {}
    for word in ("NaN", "+Inf", "-Inf", "1e999"):
        assert canonical_values(f"x:running {word}\n", RULES) == {}
    assert canonical_values("x:running_by_reason 3\nx:runningx 4\n", RULES) == {}


def test_a_broken_line_is_an_error_not_a_zero() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        canonical_values("x:running abc\n", RULES)


labels = st.dictionaries(st.sampled_from(["reason", "engine"]), st.sampled_from(["stop", "length", 'a"b', "c\\d", "e\nf"]), max_size=2)
names = st.sampled_from(["x:running", "x:done_total", "x:done_created", "other", "x:runningx"])


@given(st.lists(st.tuples(names, labels, st.floats(allow_nan=True, allow_infinity=False, width=32)), max_size=12))
def test_reading_only_wanted_lines_equals_reading_the_whole_page(samples: list[tuple[str, dict[str, str], float]]) -> None:
    def written(name: str, labels: dict[str, str], value: float) -> str:
        pairs = (k + '="' + v.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') + '"' for k, v in labels.items())
        return f"{name}{{{','.join(pairs)}}} {value!r}"

    lines = ["# HELP x:running x:running help", "# TYPE x:running gauge"]
    lines += [written(*sample) for sample in samples]
    page = "\n".join(lines) + "\n"
    whole: dict[str, float] = {}
    for sample in (s for f in text_string_to_metric_families(page) for s in f.samples):
        for rule in RULES:
            if sample.name == rule.name and rule.where.items() <= sample.labels.items() and not math.isnan(sample.value):
                whole[rule.canonical] = whole.get(rule.canonical, 0.0) + sample.value
    assert canonical_values(page, RULES) == pytest.approx(whole)


@given(st.lists(st.dictionaries(st.integers(0, 3), st.floats(0, 1e6)), max_size=12))
def test_a_ledger_never_falls(steps: list[dict[Any, float]]) -> None:
    ledger, last = Ledger(), 0.0
    for step in steps:
        now = ledger.update(step)
        assert now >= last - 1e-6
        last = now


def test_what_an_ended_process_used_stays_counted() -> None:
    ledger = Ledger()
    assert ledger.update({"a": 5.0, "b": 1.0}) == 6.0
    assert ledger.update({"b": 2.0}) == 7.0
    assert ledger.update({"b": 2.0, "c": 3.0}) == 10.0


def test_an_owner_that_comes_back_is_counted_once() -> None:
    ledger = Ledger()
    assert ledger.update({"a": 5.0, "b": 1.0}) == 6.0
    assert ledger.update({"b": 1.0}) == 6.0
    assert ledger.update({"a": 7.0, "b": 1.0}) == 8.0


def test_host_time_counts_waiting_as_idle_and_guests_once() -> None:
    found = host_time("cpu  100 10 40 800 50 0 0 7 30 0\ncpu0 1\n")
    assert found is not None
    assert found.busy == pytest.approx(1.5)
    assert found.steal == pytest.approx(0.07)
    assert found.total == pytest.approx(10.07)
    assert host_time("") is None


def test_memory_says_only_what_is_stated() -> None:
    found = memory_bytes("MemAvailable: 2 kB\nSwapTotal: 5 kB\nSwapFree: 4 kB\n")
    assert found == {"memory_available_bytes": 2048.0, "swap_used_bytes": 1024.0}
    assert memory_bytes("MemTotal: 1 kB\n") == {}


def test_a_process_may_be_called_anything() -> None:
    tail = " ".join(["S", "1"] + ["0"] * 9 + ["150", "50"] + ["0"] * 6 + ["777", "0", "3"] + ["0"] * 5)
    found = process_stat(f"12 (a) b ( c) {tail}")
    assert (found.started, found.cpu_s, found.rss) == (777, 200 / os.sysconf("SC_CLK_TCK"), 3 * os.sysconf("SC_PAGE_SIZE"))


def test_our_own_process_is_read_and_a_gone_one_is_not() -> None:
    found = TreeReader().read([os.getpid()])
    assert found is not None
    assert found.rss > 1 << 20
    assert found.cpu_s > 0
    assert TreeReader().read([2**22 + 1]) is None


def test_a_thread_that_ends_between_listing_and_reading_costs_no_other_thread(tmp_path: Path) -> None:
    write_process(tmp_path / "7", 5)
    for thread, waited_s in (("1", 1), ("2", 2), ("3", 4)):
        (tmp_path / "7/task" / thread).mkdir()
        (tmp_path / "7/task" / thread / "schedstat").write_text(f"0 {waited_s}000000000 1\n")
    reader = TreeReader(tmp_path)
    assert [found.run_delay_s for found in [reader.read([7])] if found] == [7.0]
    for thread in ("1", "2", "3"):  # whichever comes first in the listing
        file = tmp_path / "7/task" / thread / "schedstat"
        text = file.read_text()
        file.unlink()
        assert [found.run_delay_s for found in [reader.read([7])] if found] == [7.0]
        file.write_text(text)
        assert [found.run_delay_s for found in [reader.read([7])] if found] == [7.0]


def write_process(folder: Path, ticks: int) -> None:
    (folder / "task").mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text("1 (x) S " + " ".join(["1"] + ["0"] * 9 + [str(ticks)] + ["0"] * 7 + ["5", "0", "2"]))


def write_proc(proc: Path, busy: int, idle: int, steal: int, ours: int) -> None:
    write_process(proc / str(os.getpid()), ours)
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 {steal} 0 0\n")


def host_values(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {r["metric"]: r["value"] for r in rows if r["source"] == "host"}


def test_ratios_are_over_the_time_between_and_foreign_is_what_is_not_ours(tmp_path: Path) -> None:
    watch = HostWatch(VirtualClock(), {}, tmp_path, tmp_path / "none")
    write_proc(tmp_path, 1000, 1000, 0, 100)
    first = host_values(watch.rows(0))
    assert "cpu_busy_ratio" not in first
    assert "throttled_s_total" not in first
    write_proc(tmp_path, 1060, 1030, 10, 120)
    second = host_values(watch.rows(1))
    assert second == pytest.approx({"cpu_busy_ratio": 0.6, "cpu_steal_ratio": 0.1, "foreign_cpu_ratio": 0.4})


def test_what_a_role_used_before_it_went_is_no_foreign_load(tmp_path: Path) -> None:
    gone = 2**22 + 1
    watch = HostWatch(VirtualClock(), {"client": gone}, tmp_path, tmp_path / "none")
    write_process(tmp_path / str(gone), 6000)
    write_proc(tmp_path, 10000, 1000, 0, 100)
    watch.rows(0)
    (tmp_path / str(gone) / "stat").unlink()
    write_proc(tmp_path, 10060, 1040, 0, 120)
    assert host_values(watch.rows(1))["foreign_cpu_ratio"] == pytest.approx(0.4)


@pytest.mark.parametrize(("group", "held"), [("/srv", 0.5 + 2.0 + 0.25), ("/us/run", 2.0 + 0.25), ("/../other", None)])
def test_a_server_in_a_control_group_of_its_own_is_held_back_there_and_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, held: float | None
) -> None:
    monkeypatch.setattr("harness.observe.sampler.process_table", dict)
    monkeypatch.setattr("harness.observe.sampler.below", lambda _table, pid: [9, 10] if pid == 7 else [])  # 10 has ended
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    for name, usec in (("us/run", 0), ("us", 2_000_000), ("srv", 500_000), ("", 250_000)):
        (groups / name).mkdir(parents=True, exist_ok=True)
        (groups / name / "cpu.stat").write_text(f"throttled_usec {usec}\n")
    (groups / "cgroup.controllers").write_text("cpu\n")
    for pid, path in (("self", "/us/run"), ("7", "/us/run"), ("9", group)):
        (proc / pid).mkdir(parents=True)
        (proc / pid / "cgroup").write_text(f"0::{path}\n")
    watch = HostWatch(VirtualClock(), {"server": 7, "client": 8}, proc, groups)
    assert host_values(watch.rows(0)).get("throttled_s_total") == held


def test_a_role_that_is_gone_makes_no_rows() -> None:
    rows = HostWatch(VirtualClock(), {"server": 2**22 + 1, "client": os.getpid()}).rows(5)
    assert {r["source"] for r in rows} == {"client", "host"}
    assert all(r["t_ns"] == 5 for r in rows)


def test_several_processes_of_one_role_are_one_source_told_apart_by_label() -> None:
    rows = HostWatch(VirtualClock(), {"client/w0": os.getpid(), "client/w1": os.getppid()}).rows(5)
    found = {(r["source"], r["labels"]) for r in rows if r["metric"] == "cpu_s_total"}
    assert found == {("client", "w0"), ("client", "w1")}


class Handler(BaseHTTPRequestHandler):
    pages: list[tuple[int, bytes]] = []  # noqa: RUF012 - set per test below
    asked = threading.Event()

    def do_GET(self) -> None:
        status, body = self.pages[0] if len(self.pages) == 1 else self.pages.pop(0)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.asked.set()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's name
        return


@pytest.fixture
def page_url() -> Iterator[str]:
    Handler.pages, Handler.asked = [(200, PAGE.encode())], threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        server.shutdown()
        thread.join()


def make(folder: Path, url: str | None, clock: Clock) -> tuple[Sampler, list[SegmentWriter]]:
    writers = [SegmentWriter(folder, name, SAMPLES, clock=clock) for name in ("server-s0", "host-h0")]
    sampler = Sampler(
        writers[0], writers[1], clock=clock, epoch_ns=clock.now_ns() - 1000, period_s=3600.0, jitter_seed=1,
        roles={"client": os.getpid()}, metrics_url=url, rules=VllmRuntime.metrics,
    )  # fmt: skip
    return sampler, writers


def rows(folder: Path, writers: list[SegmentWriter]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    for writer in writers:
        writer.close()
    server, host = (read_segments(folder, name, SAMPLES)[0].to_pylist() for name in ("server-s0", "host-h0"))
    return server, host


def test_samples_are_written_with_their_instant(tmp_path: Path, page_url: str) -> None:
    sampler, writers = make(tmp_path, page_url, VirtualClock())
    assert sampler.scrape_now(-5)
    sampler.sample()
    assert sampler.failures() == []
    server, host = rows(tmp_path, writers)
    assert {r["t_ns"] for r in server} == {-5, 1000}
    assert {r["source"] for r in server} == {"server"}
    assert {"memory_available_bytes", "cpu_s_total", "rss_bytes"} <= {r["metric"] for r in host}


def test_accelerators_of_our_own_server_are_sampled_and_what_they_refuse_is_told(tmp_path: Path) -> None:
    clock = VirtualClock()
    writers = [SegmentWriter(tmp_path, name, SAMPLES, clock=clock) for name in ("server-s0", "host-h0")]
    library = replay(nvmlDeviceGetTotalEnergyConsumption=pynvml.NVML_ERROR_NOT_SUPPORTED)
    sampler = Sampler(
        writers[0], writers[1], clock=clock, epoch_ns=clock.now_ns() - 1000, period_s=3600.0, jitter_seed=1,
        roles={"server": os.getpid()}, metrics_url=None, rules=(), nvml=library,
    )  # fmt: skip
    sampler.sample()
    sampler.sample()
    sampler.stop()
    assert not library.open
    gpu = [r for r in rows(tmp_path, writers)[1] if r["source"] == "gpu"]
    assert {r["t_ns"] for r in gpu} == {1000}
    assert {r["labels"] for r in gpu} == {"0", "1"}
    assert {"gpu_power_watts", "gpu_throttle_bits"} < {r["metric"] for r in gpu}
    assert "gpu_energy_j_total" not in {r["metric"] for r in gpu}
    assert [(f["count"], f["first_ns"]) for f in sampler.gpu_failures()] == [(1, 1000), (1, 1000)]
    assert sampler.failures() == []


def test_failed_scrapes_are_counted_and_make_no_row(tmp_path: Path, page_url: str) -> None:
    Handler.pages = [(500, b""), (200, b"\xff"), (200, b"hello"), (503, b""), (500, b"")]
    sampler, writers = make(tmp_path, page_url, VirtualClock())
    assert [sampler.scrape_now(t) for t in range(5)] == [False] * 5
    assert sampler.failures() == [
        {"reason": "HTTP 500", "count": 2, "first_ns": 0, "last_ns": 4},
        {"reason": "not a metrics page", "count": 1, "first_ns": 1, "last_ns": 1},
        {"reason": "none of the expected metrics is on the page", "count": 1, "first_ns": 2, "last_ns": 2},
        {"reason": "HTTP 503", "count": 1, "first_ns": 3, "last_ns": 3},
    ]
    assert rows(tmp_path, writers)[0] == []


def test_a_server_without_a_page_is_no_failure(tmp_path: Path) -> None:
    sampler, writers = make(tmp_path, None, VirtualClock())
    sampler.sample()
    assert sampler.failures() == []
    server, host = rows(tmp_path, writers)
    assert server == []
    assert host


def test_the_thread_samples_at_once_and_stops(tmp_path: Path, page_url: str) -> None:
    sampler, writers = make(tmp_path, page_url, VirtualClock())
    sampler.start()
    assert Handler.asked.wait(10)
    sampler.stop()
    server, _host = rows(tmp_path, writers)
    assert {r["t_ns"] for r in server} == {1000}


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own here")
@pytest.mark.parametrize("inherited", [0, NICE + 5])
def test_the_thread_gives_way_to_the_load_and_nobody_else_does(tmp_path: Path, inherited: int) -> None:
    """A thread takes the priority of the one that starts it, which is one of ours here, so that the test's own stays as it is."""
    own = os.getpriority(os.PRIO_PROCESS, 0)

    def started() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(own, inherited))
        sampler.start()
        sampler.stop()

    seen: list[int] = []

    class Looking(SegmentWriter):
        def append(self, rows: Any) -> None:
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            super().append(rows)

    clock = VirtualClock()
    writers = SegmentWriter(tmp_path, "server-s0", SAMPLES, clock=clock), Looking(tmp_path, "host-h0", SAMPLES, clock=clock)
    sampler = Sampler(*writers, clock=clock, epoch_ns=0, period_s=3600.0, jitter_seed=1, roles={}, metrics_url=None, rules=())
    starter = threading.Thread(target=started)
    starter.start()
    starter.join()
    assert set(seen) == {max(own, inherited, NICE)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_a_fault_of_the_thread_comes_out_at_stop(tmp_path: Path, page_url: str) -> None:
    class Full(SegmentWriter):
        def append(self, rows: Any) -> None:
            raise HostError.single("record_disk", "disk full", "free space")

    clock = VirtualClock()
    full = Full(tmp_path, "host-h0", SAMPLES, clock=clock)
    server = SegmentWriter(tmp_path, "server-s0", SAMPLES, clock=clock)
    sampler = Sampler(
        server, full, clock=clock, epoch_ns=0, period_s=3600.0, jitter_seed=1, roles={}, metrics_url=page_url, rules=VllmRuntime.metrics
    )
    sampler.start()
    with pytest.raises(HostError, match="disk full"):
        sampler.stop()
