"""From a simulation to the record's tables: the same columns as a measured run; what virtual time does not have is null."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from harness.record.schema import REQUESTS, SAMPLES, EndKind, EventKind
from harness.reference.table import FINISH_REASONS, Int64
from harness.simulate.offered import Offered
from harness.simulate.virtual import CLIENT_STOP, COMPLETE, DECLINED, NEVER_DUE, NEVER_SENT, Simulated


def request_table(offered: Offered, run: Simulated) -> pa.Table:
    """requests.parquet (columns REQUESTS), by (arrival, request). Send and head coincide with the arrival: no client can be late. The
    head of a declined one is its answer; one that is ended in the middle of its stream gets an error event.

    Usage is the engine's count as of the last token that was read, which a server with continuous usage would have sent beside it.
    """
    count = len(offered)
    came = (run.kind != NEVER_SENT) & (run.kind != NEVER_DUE)
    served, complete = (run.kind == COMPLETE) | (run.kind == CLIENT_STOP), run.kind == COMPLETE
    order = run.token_request.argsort(kind="stable")
    tokens = np.bincount(run.token_request, minlength=count)
    offsets = pa.array(np.concatenate(([0], tokens.cumsum())), pa.int32())
    cut = (run.kind == DECLINED) & (tokens > 0)
    declined = (run.kind == DECLINED) & ~cut
    ends = [EndKind.ERROR_EVENT.value if broken else kind for kind, broken in zip(run.kinds(), cut.tolist(), strict=True)]
    status = np.where(declined, run.door.status, 200)
    finish = [FINISH_REASONS.get(code) if done else None for code, done in zip(run.terminal.tolist(), complete.tolist(), strict=True)]
    columns = {
        "request_id": pa.array(np.arange(count)),
        "arrival_ns": _nullable(run.arrival_ns, run.arrival_ns >= 0),
        "send_ns": _nullable(run.arrival_ns, came),
        "headers_ns": _nullable(np.where(declined, run.end_ns, run.arrival_ns), came),
        "end_ns": _nullable(run.end_ns, came),
        "end_kind": pa.array(ends, pa.string()),
        "http_status": _nullable(status, came).cast(pa.int16()),
        "error_status": _nullable(np.full(count, run.door.status), cut).cast(pa.int16()),
        "finish_reason": pa.array(finish, pa.string()),
        "usage_prompt_tokens": _nullable(offered.prompt, served),
        "usage_completion_tokens": _nullable(tokens, served),
        "usage_cached_tokens": _nullable(np.zeros(count, np.int64), served),
        "client_tokens": _nullable(tokens, served | (tokens > 0)),
        "event_ns": pa.ListArray.from_arrays(offsets, pa.array(run.token_ns.take(order))),
        "event_tokens": _repeated(offsets, 1, pa.int32(), len(order)),
        "event_bytes": pa.ListArray.from_arrays(offsets, pa.nulls(len(order), pa.int32())),
        "event_kind": _repeated(offsets, int(EventKind.TOKEN), pa.int8(), len(order)),
    }
    rest = {name: pa.nulls(count, REQUESTS.field(name).type) for name in REQUESTS.names if name not in columns}
    table = pa.table({name: (columns | rest)[name] for name in REQUESTS.names}, schema=REQUESTS)
    return table.sort_by([("arrival_ns", "ascending"), ("request_id", "ascending")])


def sample_table(run: Simulated) -> pa.Table:
    """server_metrics.parquet (columns SAMPLES): gauges and counters four times a virtual second."""
    names = (*run.sampled, "cached_tokens_total")
    values = np.array(run.samples, np.float64).reshape(len(run.samples), -1)
    filled = np.concatenate((values[:, 1:], np.zeros((len(values), 1))), axis=1)  # there is no prefix cache: none is cached
    stamps = np.array([sample[0] for sample in run.samples], np.int64)
    columns = {
        "t_ns": pa.array(np.repeat(stamps, len(names))),
        "source": pa.array(["server"] * filled.size, pa.string()),
        "metric": pa.array(list(names) * len(run.samples), pa.string()),
        "labels": pa.nulls(filled.size, pa.string()),
        "value": pa.array(filled.ravel()),
    }
    return pa.table(columns, schema=SAMPLES).sort_by([(name, "ascending") for name in ("t_ns", "source", "metric", "labels", "value")])


def _nullable(values: Int64, known: np.typing.NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, pa.int64(), mask=~known)


def _repeated(offsets: pa.Array, value: int, kind: pa.DataType, count: int) -> pa.ListArray:
    return pa.ListArray.from_arrays(offsets, pa.array(np.full(count, value), kind))
