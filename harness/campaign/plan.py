"""From one planned run and a served model to everything the load engine needs. Pure but for reading the trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa

from harness.errors import UsageError
from harness.manifest import PlannedRun
from harness.record.schema import SCHEDULE, TRUTH
from harness.replay.contract import ReplayPlan
from harness.runtimes.contract import Target
from harness.wire import PROTOCOLS
from harness.wire.contract import Ask
from workloads.schedule import Int64, Labels, Schedule
from workloads.seeds import derive


def schedule_table(schedule: Schedule) -> pa.Table:
    """schedule.parquet: what was planned, without anything hidden from the server."""
    columns = {
        "request_id": pa.array(range(len(schedule)), pa.int64()),
        "arrival_ns": pa.array(schedule.arrival_ns),
        "input_tokens": pa.array(schedule.input_tokens),
        "max_tokens": _nullable(schedule.max_tokens),
        "client": _names(schedule.client, len(schedule)),
        "request_class": _names(schedule.request_class, len(schedule)),
        "source_row": _nullable(schedule.source_row),
        "priority": _nullable_or_none(schedule.priority, len(schedule)),
        "cancel_after_ns": _nullable_or_none(schedule.cancel_after_ns, len(schedule)),
    }
    rest = {name: pa.nulls(len(schedule), SCHEDULE.field(name).type) for name in SCHEDULE.names if name not in columns}
    return pa.table(columns | rest, schema=SCHEDULE)


def _names(labels: Labels | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if labels is None else pa.array(labels.values(), pa.string())


def _nullable_or_none(values: Int64 | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.int64()) if values is None else _nullable(values)


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


def encode_bodies(schedule: Schedule, run: PlannedRun, target: Target) -> list[bytes]:
    """Encode every request before the run, so that nothing is encoded while it is measured."""
    protocol = PROTOCOLS[run.workload.api]
    return [protocol.encode(_ask(schedule, i, run, target)) for i in range(len(schedule))]


def _ask(schedule: Schedule, i: int, run: PlannedRun, target: Target) -> Ask:
    told = int(schedule.max_tokens[i])
    as_text = run.workload.api == "chat" or run.workload.prompts.source == "text" or not target.token_ids
    return Ask(
        model=target.model,
        prompt=_text(schedule, i) if as_text else schedule.prompts.ids(i).tolist(),
        max_tokens=told if told >= 0 else None,
        ignore_eos=schedule.ignore_eos,
        # 31 bits: engines take the seed as a signed 32- or 64-bit number.
        seed=derive(run.workload.seed, "sampling", i) >> 32,
    )


def _text(schedule: Schedule, i: int) -> str:
    text = schedule.prompts.text(i)
    if text is None:
        raise UsageError.single(
            "prompts_need_text",
            "prompts.source=random-ids with an interface that takes text only: random ids have no text that encodes back to them",
            "set prompts.source to text",
        )
    return text


def replay_plan(
    schedule: Schedule, bodies: list[bytes], run: PlannedRun, target: Target, segments: Path, headers: Mapping[str, str]
) -> ReplayPlan:
    """Assemble the engine's plan for one attempt against ``target``."""
    url = urlsplit(target.base_url)
    tls = url.scheme == "https"
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
    )
