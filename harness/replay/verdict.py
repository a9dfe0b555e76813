"""How an exchange ended, from the transport's end and the decoded body: one rule for the record and for sessions that decode live."""

from __future__ import annotations

from harness.record.schema import EndKind
from harness.wire.contract import Decoded

COMPLETED = frozenset({EndKind.COMPLETE, EndKind.CLIENT_STOP})
"""Ends after which a following turn comes due: the request got everything it was planned to get."""

_ERROR_WINS = frozenset({EndKind.COMPLETE, EndKind.RESET, EndKind.TIMEOUT, EndKind.DRAIN_END, EndKind.CANCELLED})
"""An error object had come before the exchange ended in one of these: the server had answered, and that is how the request ended."""


def verdict(kind: EndKind, status: int | None, error: str, decoded: Decoded) -> tuple[EndKind, str]:
    """Final kind and its short text: every exchange gets exactly one. ``kind`` and ``error`` are the transport's."""
    if decoded.error is not None and kind in _ERROR_WINS:
        return EndKind.ERROR_EVENT, decoded.error
    if kind is EndKind.HTTP_ERROR:
        return kind, decoded.error or error or f"HTTP {status}"
    if kind is not EndKind.COMPLETE:
        return kind, error
    if decoded.malformed is not None:
        return EndKind.MALFORMED, decoded.malformed
    if not decoded.complete:
        return EndKind.MALFORMED, "the response ended without the protocol's end mark"
    return EndKind.COMPLETE, ""
