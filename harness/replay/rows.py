"""From an undecoded exchange to a row of ``requests.parquet``; and rows for requests that the engine lost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from harness.record.schema import REQUESTS, EndKind, EventKind
from harness.replay.contract import ReplayPlan
from harness.replay.frames import RawExchange
from harness.replay.verdict import verdict
from harness.wire.contract import Decoded, Protocol_

_EVENT_COLUMNS = ("event_ns", "event_tokens", "event_bytes", "event_kind")


def exchange_row(raw: RawExchange, protocol: Protocol_) -> dict[str, Any]:
    """Decode one exchange. The worker knows how the transport ended; here the body decides whether a complete response was a good one."""
    decoded = _decode(raw, protocol)
    kind, error = verdict(raw.kind, raw.status, raw.error, decoded)
    columns: Sequence[list[int]] = (decoded.ns, decoded.tokens, decoded.sizes, decoded.kinds)
    if raw.kind is EndKind.HTTP_ERROR:
        # An error page is no stream: of its events only a well-formed error object means anything.
        columns = _only(EventKind.ERROR, *columns)
    return {
        "request_id": raw.request_id,
        "arrival_ns": raw.arrival_ns,
        "send_ns": raw.send_ns,
        "headers_ns": raw.headers_ns,
        "end_ns": raw.end_ns,
        "end_kind": kind.value,
        "http_status": raw.status,
        "error_status": decoded.error_status,
        "error": error or None,
        "finish_reason": decoded.finish_reason,
        "usage_prompt_tokens": decoded.usage_prompt_tokens,
        "usage_completion_tokens": decoded.usage_completion_tokens,
        "usage_cached_tokens": decoded.usage_cached_tokens,
        "client_tokens": decoded.client_tokens,
        "reused_connection": raw.reused,
        **dict(zip(_EVENT_COLUMNS, columns, strict=True)),
    }


def _only(kind: EventKind, *columns: list[int]) -> list[list[int]]:
    """Event columns, kinds last, with the events of one kind."""
    kept = [i for i, found in enumerate(columns[-1]) if found == kind]
    return [[column[i] for i in kept] for column in columns]


def _decode(raw: RawExchange, protocol: Protocol_) -> Decoded:
    if not raw.body:
        return Decoded()
    decoder = protocol.decoder(stream=raw.stream)
    decoded = decoder.whole(raw.stamps, raw.sizes, raw.body)
    if decoded is not None:
        return decoded
    for stamp, data in raw.pieces():
        decoder.feed(stamp, data)
    return decoder.finish()


def missing_rows(plan: ReplayPlan, recorded: Collection[int], kind: EndKind) -> list[dict[str, Any]]:
    """Rows for every offered request that has none, so that the partition closes: ``kind`` and the arrival, all else null.

    A request that waits for others has no arrival but the one that was lost: null, not the planned one.
    """
    known = set(recorded)
    error = "no row: the load engine stopped before it recorded this request"
    empty: dict[str, Any] = dict.fromkeys(REQUESTS.names) | {name: [] for name in _EVENT_COLUMNS}
    waits = [False] * len(plan.arrival_ns) if plan.after is None else (np.diff(plan.after.offsets) > 0).tolist()
    return [
        empty | {"request_id": i, "arrival_ns": None if waits[i] else arrival, "end_kind": kind.value, "error": error}
        for i, arrival in enumerate(plan.arrival_ns.tolist())
        if i not in known
    ]
