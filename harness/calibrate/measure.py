"""Holding what the client recorded against what the truth server logged: error is client stamp minus logged write (DESIGN 10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.calibrate.certificate import RateRow, Thresholds
from harness.calibrate.joined import ENDED_WELL, Exchange
from harness.calibrate.watch import Numbers as Stamps
from harness.clock import NS_PER_S
from harness.vocabulary import EventKind

__all__ = ["Exchange", "exchange", "nearest_rank", "open_at_sends", "rate_row"]

_P99_MINIMUM = 100
"""ceil(1 / (1 - 0.99)): below it a nearest-rank p99 is only the maximum (DESIGN 7), so a rate with fewer requests certifies nothing."""


def exchange(row: Mapping[str, Any], written_ns: Stamps, tokens: int) -> Exchange:
    """Join one row of REQUESTS with the logged writes (on the row's epoch). ``tokens``: how many were asked for."""
    stamps = [
        ns
        for ns, count, kind in zip(row["event_ns"], row["event_tokens"], row["event_kind"], strict=True)
        if kind == EventKind.TOKEN
        for _ in range(max(count, 0))
    ]
    send = row["send_ns"]
    return Exchange(
        slip_ns=None if send is None else send - row["arrival_ns"],
        client=np.asarray(stamps, dtype=np.int64),
        truth=written_ns,
        whole=row["end_kind"] in ENDED_WELL and len(written_ns) == tokens,
    )


def nearest_rank(values: Stamps, p: float) -> int | None:
    """x_(ceil(pn)) of the values (F39); None without values."""
    if not len(values):
        return None
    # The tolerance keeps p * n that is whole but for rounding (0.99 * 100) at its own rank.
    return int(np.sort(values)[max(1, int(np.ceil(p * len(values) - 1e-9))) - 1])


def rate_row(rate: float, offered: int, exchanges: list[Exchange], cpu_s: float | None, limits: Thresholds, attempt: int = 1) -> RateRow:
    """Summarise one rate. TBT error is the absolute difference of gaps; an undelivered request adds no error, it fails the rate."""
    whole = [item for item in exchanges if item.delivered]
    slip = np.asarray([item.slip_ns for item in exchanges if item.slip_ns is not None], dtype=np.int64)
    ttft = np.asarray([item.client[0] - item.truth[0] for item in whole], dtype=np.int64)
    gaps = [np.abs(np.diff(item.client) - np.diff(item.truth)) for item in whole]
    tbt = np.concatenate(gaps) if gaps else np.zeros(0, dtype=np.int64)
    events = sum(len(item.client) for item in exchanges)
    row = RateRow(
        rate=rate,
        attempt=attempt,
        offered=offered,
        delivered=len(whole),
        events=events,
        events_per_s=_event_rate(exchanges),
        slip_p50_ns=nearest_rank(slip, 0.5),
        slip_p99_ns=nearest_rank(slip, 0.99),
        slip_max_ns=int(slip.max()) if len(slip) else None,
        ttft_error_p50_ns=nearest_rank(ttft, 0.5),
        ttft_error_p99_ns=nearest_rank(ttft, 0.99),
        tbt_error_p50_ns=nearest_rank(tbt, 0.5),
        tbt_error_p99_ns=nearest_rank(tbt, 0.99),
        client_cpu_us_per_event=cpu_s * 1e6 / events if cpu_s is not None and events else None,
        reasons=(),
    )
    return row.model_copy(update={"reasons": reasons(row, limits)})


def reasons(row: RateRow, limits: Thresholds) -> tuple[str, ...]:
    """Why a rate is not certified, each with value and limit; empty when it is."""
    found = []
    if row.offered < _P99_MINIMUM:
        found.append(f"offered={row.offered}: a p99 needs {_P99_MINIMUM}")
    if row.delivered < row.offered:
        found.append(f"delivered={row.delivered} of {row.offered}: some requests were not served and stamped whole")
    if row.slip_p99_ns is None or row.slip_p99_ns > limits.slip_p99_ns:
        found.append(f"slip_p99_ns={row.slip_p99_ns}: the limit is {limits.slip_p99_ns}")
    return tuple(found)


def open_at_sends(exchanges: list[Exchange]) -> Stamps:
    """How many streams (n,) were open at each send, its own included; each from its send to its last token."""
    sent = [item for item in exchanges if item.slip_ns is not None and len(item.client)]
    opened = np.sort(np.asarray([item.arrival_ns + (item.slip_ns or 0) for item in sent], dtype=np.int64))
    closed = np.sort(np.asarray([item.client[-1] for item in sent], dtype=np.int64))
    # At each opening: those begun by then, itself included, less those that had ended.
    return np.arange(1, len(opened) + 1) - np.searchsorted(closed, opened, side="right")


def _event_rate(exchanges: list[Exchange]) -> float:
    """Events per second between the first and the last stamp of the rate."""
    stamped = [item.client for item in exchanges if len(item.client)]
    if not stamped:
        return 0.0
    span = max(int(stamps[-1]) for stamps in stamped) - min(int(stamps[0]) for stamps in stamped)
    return sum(map(len, stamped)) * NS_PER_S / span if span > 0 else 0.0
