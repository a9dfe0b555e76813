"""Records of any size for ``benchmarks.analysis``: sealed like any other, written in pieces, the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """How many requests and token stamps; ``rate`` in requests a second, so that any size has the same life.

    Lengths differ (gamma of shape 4, at least one token), since equal ones would be easier than any real run.
    """

    requests: int
    tokens: int
    rate: float = 1000.0
    seed: int = 20261130

    def arrivals(self) -> Int64:
        """Poisson arrivals from the first instant, ns (n,)."""
        gaps = np.random.default_rng(self.seed).exponential(S / self.rate, self.requests)
        return np.cumsum(gaps).astype(np.int64)

    def lengths(self) -> Int64:
        """Output tokens of each request (n,); they add up to ``tokens``."""
        upto = np.cumsum(np.random.default_rng((self.seed, 1)).gamma(4.0, size=self.requests))
        return 1 + np.diff(np.rint(upto / upto[-1] * (self.tokens - self.requests)).astype(np.int64), prepend=0)

    def stamps(self, first: int, lengths: Int64) -> Int64:
        """Token stamps of the requests from row ``first`` on, ns after their arrival (m,): gamma gaps around 20 ms."""
        rng = np.random.default_rng((self.seed, 2, first))
        gaps = rng.gamma(16.0, 20 * MS / 16, int(lengths.sum())).astype(np.int64)
        start = np.cumsum(lengths) - lengths
        gaps[start] = rng.gamma(4.0, 50 * MS, len(lengths)).astype(np.int64)
        stamps = np.cumsum(gaps)
        return np.asarray(stamps - np.repeat(stamps[start] - gaps[start], lengths), dtype=np.int64)


def write_record(path: Path, shape: Shape) -> Path:
    """Write one healthy attempt under ``path`` and seal it: every request complete, one token an event, then usage and DONE."""
    path.mkdir(parents=True)
    arrivals, lengths = shape.arrivals(), shape.lengths()
    durable.write_json(path / "spec.json", _spec(int(arrivals[-1])))
    coordinates: dict[str, Coordinate] = {name: Known(value=f"value of {name}") for name in RUN_COORDINATES}
    durable.write_json(path / "coordinates.json", RunCoordinates(coordinates=coordinates))
    pin = PinResult(pin="model.dtype", expected="float32", observed="float32", result="matched")
    ended = ServerExit(survived=True, pid=1)
    durable.write_json(
        path / "facts.json", Facts(pins=(pin,), flags_checked=True, argv=("server",), server_exit=ended, epoch_monotonic_ns=1)
    )
    ids = np.arange(shape.requests)
    plan = {"request_id": ids, "arrival_ns": arrivals, "input_tokens": np.full(len(ids), 16), "max_tokens": lengths}
    durable.write_table(path / "schedule.parquet", _table(plan, SCHEDULE))
    durable.write_table(path / "truth.parquet", _table({"request_id": ids, "output_tokens": lengths}, TRUTH))
    durable.write_batches(path / "requests.parquet", REQUESTS, _requests(shape, arrivals, lengths))
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
        slo=Slo(ttft_ns=500 * MS, tbt_ns=40 * MS, tbt_rule="every"),
        window=Window(warm_up_ns=0, measured_ns=last_ns + 1, drain_ns=60 * S),
        replication=Replication(count=1, server_starts=1, vary="none"),
        rank=Rank(metric="goodput", margin=0.02),
        source_digest="d" * 64,
        version="0.1.0",
    )


def _requests(shape: Shape, arrivals: Int64, lengths: Int64) -> Iterator[pa.Table]:
    for first in range(0, shape.requests, durable.GROUP_ROWS):
        rows = slice(first, first + durable.GROUP_ROWS)
        yield _piece(first, arrivals[rows], lengths[rows], shape.stamps(first, lengths[rows]))


def _piece(first: int, arrival: Int64, lengths: Int64, after: Int64) -> pa.Table:
    n = len(arrival)
    stamps = np.repeat(arrival, lengths) + after
    last = stamps[np.cumsum(lengths) - 1]
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths + 2))).astype(np.int32))
    end = np.repeat(np.cumsum(lengths), 2)  # usage and DONE after the tokens of each request

    def lists(tokens: npt.NDArray[Any], rest: npt.NDArray[Any], kind: pa.DataType) -> pa.ListArray:
        return pa.ListArray.from_arrays(offsets, pa.array(np.insert(tokens, end, rest), kind))

    def alike(token: int, usage: int, done: int, kind: pa.DataType) -> pa.ListArray:
        return lists(np.full(len(stamps), token), np.tile([usage, done], n), kind)

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
        "usage_completion_tokens": lengths,
        "usage_cached_tokens": np.zeros(n, np.int64),
        "client_tokens": lengths,
        "reused_connection": pa.array(np.ones(n, bool)),
        "event_ns": lists(stamps, np.repeat(last, 2), pa.int64()),
        "event_tokens": alike(1, 0, 0, pa.int32()),
        "event_bytes": alike(200, 150, 12, pa.int32()),
        "event_kind": alike(int(EventKind.TOKEN), int(EventKind.USAGE), int(EventKind.DONE), pa.int8()),
    }
    return _table(columns, REQUESTS)


def _table(columns: dict[str, object], schema: pa.Schema) -> pa.Table:
    n = len(columns["request_id"])  # type: ignore[arg-type]
    whole = {f.name: columns[f.name] if f.name in columns else pa.nulls(n, f.type) for f in schema}
    return pa.table(whole, schema=schema)
