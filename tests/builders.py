"""Records built in memory for tests: a healthy run by default, one field changed at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness.record.coordinates import RUN_COORDINATES, Coordinate, Known, RunCoordinates
from harness.record.facts import Fact, Facts, PinResult, ServerExit
from harness.record.reader import RunRecord, SealState
from harness.record.schema import MEASUREMENT_PROTOCOL, REQUESTS, SAMPLES, SCHEDULE, TRUTH, EventKind
from harness.record.spec import (
    Arm,
    CertificateRef,
    LoadPoint,
    ModelPin,
    Pins,
    Rank,
    Replication,
    RunSpec,
    Slo,
    Window,
    WorkloadSpec,
)

MS = 1_000_000
S = 1_000_000_000


def make_spec(**changes: Any) -> RunSpec:
    """Return a healthy synthetic spec: 2 s warm-up, 10 s measured, 2 s drain, TTFT 500 ms and TBT 100 ms (every)."""
    base: dict[str, Any] = {
        "campaign": "demo",
        "campaign_digest": "c" * 64,
        "question": "Does it?",
        "cell": "a@x1",
        "arm": Arm(name="a", runtime="reference", version="1", args={"max-num-seqs": 8}, declared=("runtime.args",)),
        "load": LoadPoint(kind="time_compression", value=1.0),
        "replicate": 0,
        "server_start": 0,
        "attempt": 1,
        "estimand": "E2",
        "evidence_class": "synthetic",
        "pins": Pins(model=ModelPin(id="tiny", dtype="float32")),
        "workload": make_workload(),
        "slo": Slo(ttft_ns=500 * MS, tbt_ns=100 * MS, tbt_rule="every"),
        "window": Window(warm_up_ns=2 * S, measured_ns=10 * S, drain_ns=2 * S),
        "replication": Replication(count=5, server_starts=5),
        "rank": Rank(metric="goodput", margin=0.02),
        "certificate": make_certificate(),
        "source_digest": "d" * 64,
        "version": "0.1.0",
    }
    return RunSpec(**(base | changes))


def make_certificate(**changes: Any) -> CertificateRef:
    """Return a certificate of the host that made_coordinates names, made the day before the run of make_facts."""
    base: dict[str, Any] = {
        "id": "f" * 64,
        "protocol": MEASUREMENT_PROTOCOL,
        "host": "m:b",
        "created": "2026-01-01T00:00:00Z",
        "rate_ceiling": 200.0,
        "event_ceiling": 20000.0,
        "slip_p99_ns": 300_000,
        "ttft_error_p99_ns": 1 * MS,
        "tbt_error_p99_ns": 1 * MS,
        "stream_ceiling": 1000,
        "live_event_ceiling": 10_000.0,
    }
    return CertificateRef(**(base | changes))


def make_workload(**changes: Any) -> WorkloadSpec:
    """Return the workload of a healthy spec."""
    base: dict[str, Any] = {
        "trace": None,
        "arrivals": {"process": "constant", "rate": 10.0},
        "prompts": {"source": "random-ids"},
        "output_length": "forced",
        "digest": "e" * 64,
        "tokenizer_digest": "b" * 64,
        "seed": 1,
    }
    return WorkloadSpec(**(base | changes))


def make_request(
    request_id: int, arrival_ns: int, *, tokens: int = 5, ttft_ns: int = 50 * MS, gap_ns: int = 20 * MS, **changes: Any
) -> dict[str, Any]:
    """Return one row of requests.parquet: completed, one token an event, then usage and DONE in the last read."""
    first = arrival_ns + ttft_ns
    stamps = [first + k * gap_ns for k in range(tokens)]
    last = stamps[-1] if stamps else first
    row: dict[str, Any] = {
        "request_id": request_id,
        "arrival_ns": arrival_ns,
        "send_ns": arrival_ns + 100_000,
        "headers_ns": arrival_ns + 5 * MS,
        "end_ns": last + 1000,
        "end_kind": "complete",
        "http_status": 200,
        "error_status": None,
        "error": None,
        "finish_reason": "length",
        "usage_prompt_tokens": 16,
        "usage_completion_tokens": tokens,
        "usage_cached_tokens": 0,
        "client_tokens": tokens,
        "reused_connection": True,
        "event_ns": [*stamps, last, last],
        "event_tokens": [1] * tokens + [0, 0],
        "event_bytes": [200] * tokens + [150, 12],
        "event_kind": [int(EventKind.TOKEN)] * tokens + [int(EventKind.USAGE), int(EventKind.DONE)],
    }
    return row | changes


def make_record(
    requests: Sequence[dict[str, Any]] | None = None,
    *,
    spec: RunSpec | None = None,
    facts: Facts | None = None,
    coordinates: dict[str, Coordinate] | None = None,
    server_metrics: Sequence[dict[str, Any]] | None = None,
    host: Sequence[dict[str, Any]] | None = None,
    seal: SealState | None = None,
    plan: Mapping[int, Mapping[str, Any]] | None = None,
    **tables: Any,
) -> RunRecord:
    """Return a healthy record: 140 constant arrivals, 10 a second, all valid; every argument replaces one part.

    ``plan``: columns of the schedule by request id, beside what the rows imply (``arrival_ns`` of a turn that never came due, ``after``).
    """
    spec = spec or make_spec()
    rows = list(requests) if requests is not None else [make_request(i, i * 100 * MS) for i in range(140)]
    schedule = [_planned(r) | dict((plan or {}).get(r["request_id"], {})) for r in rows]
    truth = [{"request_id": r["request_id"], "output_tokens": 5, "stop_after": None} for r in rows]
    return RunRecord(
        path=Path("results/demo/a@x1/0/1"),
        spec=spec,
        coordinates=RunCoordinates(coordinates=coordinates or make_coordinates()),
        facts=facts or make_facts(),
        schedule=tables.get("schedule") or pa.Table.from_pylist(schedule, SCHEDULE),
        truth=tables.get("truth") or pa.Table.from_pylist(truth, TRUTH),
        requests=pa.Table.from_pylist(rows, REQUESTS),
        server_metrics=pa.Table.from_pylist(list(server_metrics or []), SAMPLES),
        host=pa.Table.from_pylist(list(host or []), SAMPLES),
        observations=tuple(tables.get("observations", ())),
        seal=seal or SealState(intact=True, root="9" * 64),
    )


def _planned(row: Mapping[str, Any]) -> dict[str, Any]:
    """The schedule's row for a request; 0 stands for the planned arrival of one that never came due."""
    ident, arrival = row["request_id"], row["arrival_ns"]
    return {"request_id": ident, "arrival_ns": 0 if arrival is None else arrival, "input_tokens": 16, "max_tokens": 5, "source_row": ident}


def make_never_due(request_id: int, end_kind: str = "never_due") -> dict[str, Any]:
    """Return the row of a turn that never arrived."""
    nothing = dict.fromkeys(("arrival_ns", "send_ns", "headers_ns", "end_ns", "http_status", "finish_reason", "client_tokens"))
    usage = dict.fromkeys(("usage_prompt_tokens", "usage_completion_tokens", "usage_cached_tokens", "reused_connection"))
    events: dict[str, Any] = {"event_ns": [], "event_tokens": [], "event_bytes": [], "event_kind": []}
    return make_request(request_id, 0) | nothing | usage | events | {"end_kind": end_kind}


def make_coordinates(**changes: Coordinate) -> dict[str, Coordinate]:
    """Return every registered coordinate with a known value; ``changes`` use underscores for dots (model_dtype)."""
    named: dict[str, Coordinate] = {name: Known(value=f"value of {name}") for name in RUN_COORDINATES}
    by_underscore = {name.replace(".", "_"): name for name in named}
    for key, value in changes.items():
        named[by_underscore[key]] = value
    return named


def make_facts(**changes: Any) -> Facts:
    """Return facts of a healthy run: pins matched, flags checked, server survived."""
    base: dict[str, Any] = {
        "before": {"host.boot": Fact(value="b", source="test"), "host.gpu": Fact(value="none", source="test")},
        "after": {"host.boot": Fact(value="b", source="test")},
        "pins": (PinResult(pin="model.dtype", expected="float32", observed="float32", result="matched"),),
        "flags_checked": True,
        "argv": ("server", "--port", "1"),
        "server_exit": ServerExit(survived=True, pid=1),
        "epoch_monotonic_ns": 12345,
        "epoch_wall": "2026-01-02T00:00:00+00:00",
    }
    return Facts(**(base | changes))


def make_sample(t_ns: int, source: str, metric: str, value: float, labels: str | None = None) -> dict[str, Any]:
    """Return one row of server_metrics.parquet or host.parquet."""
    return {"t_ns": t_ns, "source": source, "metric": metric, "labels": labels, "value": float(value)}


def make_host_samples(**changes: float) -> list[dict[str, Any]]:
    """Return host.parquet of a calm host over 0..14 s: one sample a second, ten loop probes a second.

    ``changes`` name a metric: a ratio or a lag becomes the value everywhere, a counter or gauge (name ends in _total or _bytes) grows by it
    a second. The kernel stamped every one of 100 reads a second.
    """
    level = {"cpu_busy_ratio": 0.3, "cpu_steal_ratio": 0.0, "foreign_cpu_ratio": 0.02} | changes
    growth = {"throttled_s_total": 0.0, "swap_used_bytes": 0.0} | changes
    own = {"cpu_s_total": 0.1, "run_delay_s_total": 0.001, "reads_total": 100.0, "unstamped_reads_total": 0.0} | changes
    rows = []
    for t in range(15):
        rows += [make_sample(t * S, "host", m, level[m]) for m in ("cpu_busy_ratio", "cpu_steal_ratio", "foreign_cpu_ratio")]
        rows += [make_sample(t * S, "host", m, growth[m] * t) for m in ("throttled_s_total", "swap_used_bytes")]
        rows += [
            make_sample(t * S, "client", m, own[m] * t)
            for m in ("cpu_s_total", "run_delay_s_total", "reads_total", "unstamped_reads_total")
        ]
    return rows + [make_sample(k * 100 * MS, "client", "loop_lag_s", changes.get("loop_lag_s", 0.0002)) for k in range(141)]


def make_server_samples(rows: Sequence[dict[str, Any]], **extra: float) -> list[dict[str, Any]]:
    """Return server_metrics.parquet that tells the story of ``rows``: counters before and after, gauges at jittered instants.

    ``extra`` adds to the last value of a counter, or to every sample of a gauge.
    """
    done = [r for r in rows if r["end_kind"] == "complete"]
    totals = {
        "prompt_tokens_total": 16 * len(done),
        "generation_tokens_total": sum(r["client_tokens"] for r in done),
        "requests_finished_total": len(done),
        "cached_tokens_total": 0,
    }
    after = max((r["end_ns"] or 0 for r in rows), default=0) + S
    samples = [make_sample(-10 * MS, "server", m, 0) for m in totals]
    samples += [make_sample(after, "server", m, v + extra.get(m, 0)) for m, v in totals.items()]
    for k in range(70):
        t = k * 200 * MS + (37 * k * k) % 101 * MS
        inside = sum(1 for r in rows if r["send_ns"] is not None and r["send_ns"] <= t < (r["end_ns"] or t))
        samples.append(make_sample(t, "server", "requests_running", inside + extra.get("requests_running", 0)))
        samples.append(make_sample(t, "server", "requests_waiting", extra.get("requests_waiting", 0)))
    return samples
