"""From one planned run and a served model to everything the load engine needs. Pure but for reading the trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from harness.manifest import PlannedRun
from harness.record.schema import SCHEDULE, TRUTH
from harness.replay.contract import ReplayPlan
from harness.runtimes.contract import Target
from harness.wire import PROTOCOLS
from workloads import failed_pause_ns
from workloads.schedule import Int64, Labels, Schedule, Turns


def schedule_table(schedule: Schedule, reusable: Int64) -> pa.Table:
    """schedule.parquet: what was planned, without anything hidden from the server. ``reusable`` (n,): ``workloads.reusable_tokens``."""
    columns = {
        "request_id": pa.array(range(len(schedule)), pa.int64()),
        "arrival_ns": pa.array(schedule.arrival_ns),
        "input_tokens": pa.array(schedule.input_tokens),
        "max_tokens": _nullable(schedule.max_tokens),
        "client": _names(schedule.client, len(schedule)),
        "request_class": _names(schedule.request_class, len(schedule)),
        "source_row": _nullable(schedule.source_row),
        "cancel_after_ns": None if schedule.cancel_after_ns is None else _nullable(schedule.cancel_after_ns),
        "priority": None if schedule.priority is None else pa.array(schedule.priority),
        "reusable_tokens": pa.array(reusable),
    } | _waits(schedule.turns)
    absent = {name: pa.nulls(len(schedule), SCHEDULE.field(name).type) for name in SCHEDULE.names if columns.get(name) is None}
    return pa.table(columns | absent, schema=SCHEDULE)


def _waits(turns: Turns | None) -> dict[str, pa.Array]:
    """Columns of sessions; a request that waits for none has neither ``after`` nor a pause."""
    if turns is None:
        return {}
    alone = np.diff(turns.after.offsets) == 0
    after = pa.ListArray.from_arrays(
        pa.array(turns.after.offsets, pa.int32()), pa.array(turns.after.values, pa.int64()), mask=pa.array(alone)
    )
    return {
        "session": pa.array(turns.session),
        "turn": pa.array(turns.turn),
        "after": after,
        "think_ns": pa.array(turns.think_ns, mask=alone),
    }


def _names(labels: Labels | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if labels is None else pa.array(labels.values(), pa.string())


def truth_table(schedule: Schedule) -> pa.Table:
    """truth.parquet: realized lengths, which no server is told outside ``forced``."""
    columns = {
        "request_id": pa.array(range(len(schedule)), pa.int64()),
        "output_tokens": pa.array(schedule.output_tokens),
        "stop_after": _nullable(schedule.stop_after),
    }
    return pa.table(columns, schema=TRUTH)


def _nullable(values: Int64) -> pa.Array:
    return pa.array(values, mask=values < 0)


def over_tls(base_url: str) -> bool:
    """Whether what is asked there goes through TLS; a scheme may be written in capitals."""
    return urlsplit(base_url).scheme == "https"


def replay_plan(
    schedule: Schedule, bodies: list[bytes], run: PlannedRun, target: Target, segments: Path, headers: Mapping[str, str]
) -> ReplayPlan:
    """Assemble the engine's plan for one attempt against ``target``."""
    url = urlsplit(target.base_url)
    tls = over_tls(target.base_url)
    protocol = PROTOCOLS[run.workload.api]
    return ReplayPlan(
        host=url.hostname or "127.0.0.1",
        port=url.port or (443 if tls else 80),
        path=url.path.rstrip("/") + protocol.path,
        protocol=protocol.name,
        arrival_ns=schedule.arrival_ns,
        bodies=bodies,
        stop_after=schedule.stop_after,
        end_ns=run.window.end_ns,
        segments=segments,
        tls=tls,
        headers=headers,
        request_timeout_ns=run.request_timeout_ns,
        concurrency_cap=run.concurrency_cap,
        cpus=tuple(run.placement.get("client", ())),
        spool_cpus=tuple(run.placement.get("spool", ())),
        after=None if schedule.turns is None else schedule.turns.after,
        think_ns=None if schedule.turns is None else schedule.turns.think_ns,
        failed_pause_ns=failed_pause_ns(run.workload),
        cancel_after_ns=schedule.cancel_after_ns,
        workers=run.workers,
    )
