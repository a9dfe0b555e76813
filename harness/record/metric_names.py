"""The one list of sampled metrics: what each canonical name means, whichever engine or device it was read from.

An engine's own page is turned into these names by its adapter's map (``harness.runtimes``). An engine that does not count a thing has no
sample of it: absent is unknown, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "bucket"]


class Metric(NamedTuple):
    """``gauge``: a state at the instant. ``counter``: grows from the server's start. ``bucket``: counters by upper bound, in ``labels``."""

    kind: Kind
    unit: str
    meaning: str


def _pairs(name: str, unit: str, meaning: str) -> Iterator[tuple[str, Metric]]:
    """A quantity observed once a request (or iteration): the sum of its values and how many there were."""
    yield f"{name}_sum", Metric("counter", unit, f"{meaning}; sum")
    yield f"{name}_count", Metric("counter", "observations", f"{meaning}; how many")


SERVER: Mapping[str, Metric] = {
    "requests_running": Metric("gauge", "requests", "in the running batch"),
    "requests_waiting": Metric("gauge", "requests", "received and holding no place in the running batch"),
    "requests_retracted": Metric("gauge", "requests", "put back from the running batch, as the engine shows it at the moment"),
    "kv_usage_ratio": Metric("gauge", "ratio", "share of KV cache rows in use; the mean over engines of one server"),
    "generation_rate": Metric("gauge", "tok/s", "output tokens a second by the engine's own reckoning, over its own interval"),
    "requests_finished_total": Metric("counter", "requests", "served to their end (SGLang: or to their client's)"),
    "requests_aborted_total": Metric(
        "counter", "requests", "given up before their end; only of engines that count those that clients close"
    ),
    "prompt_tokens_total": Metric("counter", "tokens", "prompt tokens of requests, cached ones included"),
    "generation_tokens_total": Metric("counter", "tokens", "output tokens made"),
    "cached_tokens_total": Metric("counter", "tokens", "prompt tokens found in the prefix cache"),
    "prefix_queries_total": Metric("counter", "tokens", "prompt tokens looked up in the prefix cache"),
    "preemptions_total": Metric("counter", "events", "requests that lost their KV rows while running (SGLang: retractions)"),
    "recomputed_rows_total": Metric("counter", "rows", "KV rows computed again after a preemption: work that is no service"),
    "retracted_input_tokens_total": Metric("counter", "tokens", "prompt tokens of requests at their retraction"),
    "retracted_output_tokens_total": Metric("counter", "tokens", "output tokens of requests at their retraction"),
    **dict(_pairs("queue_time_s", "s", "from a request's reception until it first runs")),
    **dict(_pairs("prefill_time_s", "s", "from first run to first token")),
    **dict(_pairs("decode_time_s", "s", "from first token to last")),
    **dict(_pairs("server_ttft_s", "s", "from a request's reception to its first token, by the server's clock")),
    **dict(_pairs("server_tpot_s", "s", "a request's mean time per output token after the first, by the server's clock")),
    **dict(_pairs("server_gap_s", "s", "between tokens of a request, by the server's clock")),
    **dict(_pairs("server_e2e_s", "s", "from a request's reception to its end, by the server's clock")),
    **dict(_pairs("iteration_tokens", "tokens", "tokens of one iteration: prompt tokens computed and output tokens made")),
    "iteration_tokens_bucket": Metric("bucket", "iterations", "iterations of at most as many tokens as the label says (cumulative)"),
}
"""Source ``server`` in server_metrics.parquet, of engines in general. An engine may state more (the reference server's ledger does)."""

GPU: Mapping[str, Metric] = {
    "gpu_utilisation_ratio": Metric(
        "gauge", "ratio", "share of the driver's last interval in which any kernel ran; not how full the device was"
    ),
    "gpu_memory_used_bytes": Metric("gauge", "bytes", "device memory in use, by whomever"),
    "gpu_sm_clock_mhz": Metric("gauge", "MHz", "clock of the multiprocessors"),
    "gpu_memory_clock_mhz": Metric("gauge", "MHz", "memory clock"),
    "gpu_power_watts": Metric("gauge", "W", "power of the whole board; the driver averages over up to 1 s on several generations"),
    "gpu_temperature_c": Metric("gauge", "C", "temperature of the die"),
    "gpu_energy_j_total": Metric("counter", "J", "energy of the whole board since the driver was loaded"),
    "gpu_throttle_bits": Metric("gauge", "bits", "reasons why the clock is held, as NVML's bit mask"),
    "gpu_processes_server": Metric("gauge", "processes", "processes of the server under test that compute on the device"),
    "gpu_processes_foreign": Metric("gauge", "processes", "processes of others that compute on the device"),
}
"""Source ``gpu`` in host.parquet; ``labels`` is the device's index as NVML counts. Only where the server runs on this machine."""

HOST: Mapping[str, Metric] = {
    "cpu_busy_ratio": Metric("gauge", "ratio", "share of all cores' time in use since the sample before"),
    "cpu_steal_ratio": Metric("gauge", "ratio", "share that the hypervisor gave to others"),
    "foreign_cpu_ratio": Metric("gauge", "ratio", "share used by processes that are neither server nor client"),
    "throttled_s_total": Metric(
        "counter", "s", "time the control groups of client and server, and those above them, were held back, added up"
    ),
    "swap_used_bytes": Metric("gauge", "bytes", "swap in use"),
    "memory_available_bytes": Metric("gauge", "bytes", "memory that could be given out without swapping"),
}
"""Source ``host`` in host.parquet."""

PROCESS: Mapping[str, Metric] = {
    "cpu_s_total": Metric("counter", "s", "CPU time of the role's processes, children included"),
    "rss_bytes": Metric("gauge", "bytes", "resident memory of them; shared pages count once a process"),
    "run_delay_s_total": Metric("counter", "s", "time their threads were ready and had no core"),
    "loop_lag_s": Metric("gauge", "s", "client only: how late its loop served a probe"),
    "open_connections": Metric("gauge", "connections", "client only"),
    "in_flight": Metric("gauge", "requests", "client only: sent and not ended"),
    "reads_total": Metric("counter", "reads", "client only: reads of sockets that the kernel stamps"),
    "unstamped_reads_total": Metric("counter", "reads", "client only: those of them that got the instant of the read instead"),
    "read_rest_s": Metric("gauge", "s", "client only: how long what comes is left unread; what comes closer together may share a stamp"),
    "spool_backlog_bytes": Metric("gauge", "bytes", "client only: ended requests that its spooler has not taken yet"),
}
"""Sources ``server``, ``client`` and ``spooler`` in host.parquet; ``labels`` names one of several clients."""
