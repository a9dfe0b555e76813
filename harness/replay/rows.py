"""From an undecoded exchange to a row of ``requests.parquet``; and rows for requests that the engine lost."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from harness.record.schema import REQUESTS, EndKind, EventKind
from harness.replay.contract import ReplayPlan
from harness.replay.frames import RawExchange
from harness.wire.contract import Decoded, Protocol_

_ERROR_WINS = frozenset({EndKind.COMPLETE, EndKind.RESET, EndKind.TIMEOUT, EndKind.DRAIN_END})
"""An error object had come before the exchange ended in one of these: the server had answered, and that is how the request ended."""


def exchange_row(raw: RawExchange, protocol: Protocol_) -> dict[str, Any]:
    """Decode one exchange. The worker knows how the transport ended; here the body decides whether a complete response was a good one."""
    decoded = _decode(raw, protocol)
    kind, error = _verdict(raw, decoded)
    events = decoded.events
    if raw.kind is EndKind.HTTP_ERROR:
        # An error page is no stream: of its events only a well-formed error object means anything.
        events = [e for e in events if e.kind is EventKind.ERROR]
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
        "event_ns": [e.ns for e in events],
        "event_tokens": [e.tokens for e in events],
        "event_bytes": [e.size for e in events],
        "event_kind": [int(e.kind) for e in events],
    }


def _decode(raw: RawExchange, protocol: Protocol_) -> Decoded:
    if not raw.body:
        return Decoded()
    decoder = protocol.decoder(stream=raw.stream)
    for stamp, data in raw.pieces():
        decoder.feed(stamp, data)
    return decoder.finish()


def _verdict(raw: RawExchange, decoded: Decoded) -> tuple[EndKind, str]:
    """Final kind and its short text: every exchange gets exactly one."""
    if decoded.error is not None and raw.kind in _ERROR_WINS:
        return EndKind.ERROR_EVENT, decoded.error
    if raw.kind is EndKind.HTTP_ERROR:
        return raw.kind, decoded.error or raw.error or f"HTTP {raw.status}"
    if raw.kind is not EndKind.COMPLETE:
        return raw.kind, raw.error
    if decoded.malformed is not None:
        return EndKind.MALFORMED, decoded.malformed
    if not decoded.complete:
        return EndKind.MALFORMED, "the response ended without the protocol's end mark"
    return EndKind.COMPLETE, ""


def missing_rows(plan: ReplayPlan, recorded: Collection[int], kind: EndKind) -> list[dict[str, Any]]:
    """Rows for every offered request that has none, so that the partition closes: ``kind`` and the arrival, all else null."""
    known = set(recorded)
    error = "no row: the load engine stopped before it recorded this request"
    empty: dict[str, Any] = dict.fromkeys(REQUESTS.names) | {name: [] for name in ("event_ns", "event_tokens", "event_bytes", "event_kind")}
    return [
        empty | {"request_id": i, "arrival_ns": arrival, "end_kind": kind.value, "error": error}
        for i, arrival in enumerate(plan.arrival_ns.tolist())
        if i not in known
    ]
