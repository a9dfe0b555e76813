"""The truth server's log on disk: one row a request, instants in ns of CLOCK_MONOTONIC."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from harness.runtimes.truth_server import Log

TRUTH_LOG = pa.schema(
    [
        pa.field("request", pa.string(), nullable=False),  # the id the client put into the body
        pa.field("received_ns", pa.int64(), nullable=False),
        pa.field("scheduled_ns", pa.list_(pa.int64()), nullable=False),
        pa.field("actual_ns", pa.list_(pa.int64()), nullable=False),  # read right before the send call
    ]
)


def save_log(log: Log, path: Path) -> dict[str, Any]:
    """Write the log and return the server's own lateness (actual - scheduled over all tokens), which is also kept in the file."""
    ordinal, scheduled, actual = (np.frombuffer(column, dtype=np.int64) for column in (log.ordinal, log.scheduled, log.actual))
    order = np.argsort(ordinal, kind="stable")
    offsets = np.searchsorted(ordinal[order], np.arange(len(log.names) + 1)).astype(np.int32)
    lists = [pa.ListArray.from_arrays(pa.array(offsets), pa.array(column[order])) for column in (scheduled, actual)]
    lateness = _lateness(actual - scheduled)
    schema = TRUTH_LOG.with_metadata({"lateness": json.dumps(lateness)})
    received = pa.array(np.frombuffer(log.received, dtype=np.int64))
    table = pa.Table.from_arrays([pa.array(log.names, pa.string()), received, *lists], schema=schema)
    part = path.with_suffix(".part")
    with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table)
    part.replace(path)
    return lateness


def read_log(path: Path) -> pa.Table:
    """Read a saved log; ``lateness_of`` reads what it says about itself."""
    with pa.OSFile(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def lateness_of(table: pa.Table) -> dict[str, Any]:
    """The server's own lateness as saved: tokens, p50_ns, p99_ns, max_ns (null without tokens)."""
    said: dict[str, Any] = json.loads(table.schema.metadata[b"lateness"])
    return said


def _lateness(late: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
    if not len(late):
        return {"tokens": 0, "p50_ns": None, "p99_ns": None, "max_ns": None}
    ordered = np.sort(late)
    # Nearest rank (F39).
    p50, p99 = (int(ordered[-(-len(ordered) * p // 100) - 1]) for p in (50, 99))
    return {"tokens": len(ordered), "p50_ns": p50, "p99_ns": p99, "max_ns": int(ordered[-1])}
