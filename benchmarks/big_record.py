"""Records of any size for ``benchmarks.analysis``: sealed like any other, written in pieces, the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.clock import NS_PER_S as S
from harness.record import durable
from harness.record.coordinates import RUN_COORDINATES, Coordinate, Known, RunCoordinates
from harness.record.facts import Facts, PinResult, ServerExit
from harness.record.schema import REQUESTS, SAMPLES, SCHEDULE, TRUTH, EventKind
from harness.record.seal import seal
from harness.record.spec import Arm, LoadPoint, ModelPin, Pins, Rank, Replication, RunSpec, Slo, Window, WorkloadSpec

Int64 = npt.NDArray[np.int64]
MS = 1_000_000


@dataclass(frozen=True)
class Shape:
    """How many requests of how many tokens; ``rate`` in requests a second, so that any size has the same life."""

    requests: int
    tokens: int
    rate: float = 1000.0
    seed: int = 20261130

    def arrivals(self) -> Int64:
        """Poisson arrivals from the first instant, ns (n,)."""
        gaps = np.random.default_rng(self.seed).exponential(S / self.rate, self.requests)
        return np.cumsum(gaps).astype(np.int64)

    def stamps(self, first: int, count: int) -> Int64:
        """Token stamps of ``count`` requests from row ``first`` on, ns after their arrival (count, tokens): gamma gaps around 20 ms."""
        rng = np.random.default_rng((self.seed, first))
        gaps = rng.gamma(16.0, 20 * MS / 16, (count, self.tokens)).astype(np.int64)
        gaps[:, 0] = rng.gamma(4.0, 50 * MS, count).astype(np.int64)
        return np.cumsum(gaps, axis=1)


def write_record(path: Path, shape: Shape) -> Path:
    """Write one healthy attempt under ``path`` and seal it: every request complete, one token an event, then usage and DONE."""
    path.mkdir(parents=True)
    arrivals = shape.arrivals()
    durable.write_json(path / "spec.json", _spec(int(arrivals[-1])))
    coordinates: dict[str, Coordinate] = {name: Known(value=f"value of {name}") for name in RUN_COORDINATES}
    durable.write_json(path / "coordinates.json", RunCoordinates(coordinates=coordinates))
    pin = PinResult(pin="model.dtype", expected="float32", observed="float32", result="matched")
    ended = ServerExit(survived=True, pid=1)
    durable.write_json(
        path / "facts.json", Facts(pins=(pin,), flags_checked=True, argv=("server",), server_exit=ended, epoch_monotonic_ns=1)
    )
    ids = np.arange(shape.requests)
    plan = {"request_id": ids, "arrival_ns": arrivals, "input_tokens": np.full(len(ids), 16), "max_tokens": np.full(len(ids), shape.tokens)}
    durable.write_table(path / "schedule.parquet", _table(plan, SCHEDULE))
    durable.write_table(path / "truth.parquet", _table({"request_id": ids, "output_tokens": plan["max_tokens"]}, TRUTH))
    durable.write_batches(path / "requests.parquet", REQUESTS, _requests(shape, arrivals))
    for name in ("server_metrics", "host"):
        durable.write_table(path / f"{name}.parquet", SAMPLES.empty_table())
    (path / "manifest.yaml").write_text("trigpoint: 1\n")
    (path / "observations.jsonl").touch()
    seal(path)
    return path


def _spec(last_ns: int) -> RunSpec:
    return RunSpec(
        campaign="bench",
        campaign_digest="c" * 64,
        question="How long does it take?",
        cell="a@x1",
        arm=Arm(name="a", runtime="reference", version="1", args={}, declared=()),
        load=LoadPoint(kind="time_compression", value=1.0),
        replicate=0,
        server_start=0,
        attempt=1,
        estimand="E1",
        evidence_class="synthetic",
        pins=Pins(model=ModelPin(id="tiny", dtype="float32")),
        workload=WorkloadSpec(
            trace=None,
            arrivals={"process": "poisson"},
            prompts={"source": "random-ids"},
            output_length="forced",
            digest="e" * 64,
            tokenizer_digest="b" * 64,
            seed=1,
        ),
        slo=Slo(ttft_ns=500 * MS, tbt_ns=45 * MS, tbt_rule="every"),
        window=Window(warm_up_ns=0, measured_ns=last_ns + 1, drain_ns=60 * S),
        replication=Replication(count=1, server_starts=1, vary="none"),
        rank=Rank(metric="goodput", margin=0.02),
        source_digest="d" * 64,
        version="0.1.0",
    )


def _requests(shape: Shape, arrivals: Int64) -> Iterator[pa.Table]:
    for first in range(0, shape.requests, durable.GROUP_ROWS):
        yield _piece(shape, first, arrivals[first : first + durable.GROUP_ROWS])


def _piece(shape: Shape, first: int, arrival: Int64) -> pa.Table:
    n, events = len(arrival), shape.tokens + 2
    stamps = arrival[:, None] + shape.stamps(first, n)
    last = stamps[:, -1]
    offsets = pa.array(np.arange(n + 1, dtype=np.int32) * events)

    def lists(tokens: object, rest: tuple[int, int], kind: pa.DataType) -> pa.ListArray:
        values = np.empty((n, events), dtype=kind.to_pandas_dtype())
        values[:, :-2], values[:, -2:] = tokens, rest
        return pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1), kind))

    event_ns = np.concatenate((stamps, last[:, None], last[:, None]), axis=1)
    columns = {
        "request_id": first + np.arange(n),
        "arrival_ns": arrival,
        "send_ns": arrival + 100_000,
        "headers_ns": arrival + 5 * MS,
        "end_ns": last + 1000,
        "end_kind": pa.array(["complete"] * n),
        "http_status": pa.array(np.full(n, 200), pa.int16()),
        "finish_reason": pa.array(["length"] * n),
        "usage_prompt_tokens": np.full(n, 16),
        "usage_completion_tokens": np.full(n, shape.tokens),
        "usage_cached_tokens": np.zeros(n, np.int64),
        "client_tokens": np.full(n, shape.tokens),
        "reused_connection": pa.array(np.ones(n, bool)),
        "event_ns": pa.ListArray.from_arrays(offsets, pa.array(event_ns.reshape(-1))),
        "event_tokens": lists(1, (0, 0), pa.int32()),
        "event_bytes": lists(200, (150, 12), pa.int32()),
        "event_kind": lists(int(EventKind.TOKEN), (int(EventKind.USAGE), int(EventKind.DONE)), pa.int8()),
    }
    return _table(columns, REQUESTS)


def _table(columns: dict[str, object], schema: pa.Schema) -> pa.Table:
    n = len(columns["request_id"])  # type: ignore[arg-type]
    whole = {f.name: columns[f.name] if f.name in columns else pa.nulls(n, f.type) for f in schema}
    return pa.table(whole, schema=schema)
