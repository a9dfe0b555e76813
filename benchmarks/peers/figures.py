"""The figures of one client in one run, by one rule for all of them.

Errors are differences per request: the client's stamp of the first token minus the instant before the server wrote it; the time to the
first token that the client reports minus the one that the server logged (receipt to write); the client's gap between two tokens minus the
server's (absolute). Percentiles are nearest ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.peers.load import Load
from benchmarks.peers.seen import Int64, Seen, Written, pair
from benchmarks.peers.usage import Usage
from harness.calibrate.measure import nearest_rank
from harness.clock import NS_PER_S


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the table; times in ns, None where it cannot be known. ``late_*``: of the truth server itself, in this run.
    ``wall_drift_ns``: how far the wall clock moved against CLOCK_MONOTONIC meanwhile.
    """

    offered: int
    received: int
    delivered: int
    sent_per_s: float | None
    slip_p50_ns: int | None
    slip_p99_ns: int | None
    own_slip_p99_ns: int | None
    stamp_error_p50_ns: int | None
    stamp_error_p99_ns: int | None
    ttft_error_p50_ns: int | None
    ttft_error_p99_ns: int | None
    tbt_error_p50_ns: int | None
    tbt_error_p99_ns: int | None
    cpu_us_per_event: float | None
    load_s: float | None
    total_cpu_s: float
    peak_rss_bytes: int | None
    peak_processes: int | None
    wall_s: float
    late_p99_ns: int | None
    late_max_ns: int | None
    wall_drift_ns: int = 0

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def figures(
    load: Load, seen: Sequence[Seen], rows: Sequence[Written], usage: Usage, wall_s: float, *, constant: bool, decoded_ns: int | None = None
) -> Figures:
    """Work out one line. ``rows``: of the load alone. ``constant``: the client was asked for constant intervals, so slip is defined.

    ``decoded_ns``: CPU is counted until then and not only until the last write, for a client that decodes behind the load.
    """
    pairs = [(said, row) for said, row in pair(seen, rows) if row is not None]
    whole = [(said, row) for said, row in pairs if _delivered(said, row, load)]
    slip = receipt_slip(rows, load.rate) if constant else np.zeros(0, dtype=np.int64)
    own = _array([said.slip_ns for said, _ in pairs if said.slip_ns is not None])
    stamp = _array([said.first_ns - int(row.actual_ns[0]) for said, row in whole if said.first_ns is not None])
    ttft = _array([said.ttft_ns - int(row.actual_ns[0] - row.received_ns) for said, row in whole if said.ttft_ns is not None])
    tbt = gap_errors(whole)
    late = np.concatenate([row.actual_ns - row.scheduled_ns for row in rows]) if rows else np.zeros(0, dtype=np.int64)
    cpu, load_s = _cpu(rows, usage, decoded_ns)
    return Figures(
        offered=load.requests,
        received=len(rows),
        delivered=len(whole),
        sent_per_s=sent_rate(rows),
        slip_p50_ns=nearest_rank(slip, 0.5),
        slip_p99_ns=nearest_rank(slip, 0.99),
        own_slip_p99_ns=nearest_rank(own, 0.99),
        stamp_error_p50_ns=nearest_rank(stamp, 0.5),
        stamp_error_p99_ns=nearest_rank(stamp, 0.99),
        ttft_error_p50_ns=nearest_rank(ttft, 0.5),
        ttft_error_p99_ns=nearest_rank(ttft, 0.99),
        tbt_error_p50_ns=nearest_rank(tbt, 0.5),
        tbt_error_p99_ns=nearest_rank(tbt, 0.99),
        cpu_us_per_event=cpu,
        load_s=load_s,
        total_cpu_s=usage.total_cpu_s,
        peak_rss_bytes=max(usage.rss, default=None),
        peak_processes=max(usage.processes, default=None),
        wall_s=wall_s,
        late_p99_ns=nearest_rank(late, 0.99),
        late_max_ns=int(late.max()) if len(late) else None,
    )


def receipt_slip(rows: Sequence[Written], rate: float) -> Int64:
    """How late each request reached the server, against the constant schedule of ``rate`` that fits best: the latest one that no request
    came before. No client tells its schedule in a way the server can check, so the least late request is taken to be on time; that is a
    lower bound for every client alike.
    """
    if not rows:
        return np.zeros(0, dtype=np.int64)
    received = np.sort(_array([row.received_ns for row in rows]))
    lag = received - (np.arange(len(received)) * (NS_PER_S / rate)).astype(np.int64)
    return _array(lag - lag.min())


def sent_rate(rows: Sequence[Written]) -> float | None:
    """Requests a second as the server received them, first to last: a client that falls behind its rate has given itself a lighter load."""
    received = [row.received_ns for row in rows]
    span_ns = max(received) - min(received) if received else 0
    return (len(received) - 1) * NS_PER_S / span_ns if span_ns else None


def gap_errors(whole: Sequence[tuple[Seen, Written]]) -> Int64:
    """Absolute differences of all gaps that a client wrote down one by one; empty when it writes none."""
    parts = [
        np.abs(said.gaps_ns - np.diff(row.actual_ns))
        for said, row in whole
        if said.gaps_ns is not None and len(said.gaps_ns) == len(row.actual_ns) - 1
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _delivered(said: Seen, row: Written, load: Load) -> bool:
    return said.done and said.tokens == load.tokens == len(row.actual_ns)


def _cpu(rows: Sequence[Written], usage: Usage, decoded_ns: int | None) -> tuple[float | None, float | None]:
    """CPU microseconds per token written, over the load phase; and how long that was, s."""
    written = [row for row in rows if len(row.actual_ns)]
    if not written or not usage.at_ns:
        return None, None
    start, last = min(row.received_ns for row in written), max(int(row.actual_ns[-1]) for row in written)
    spent = usage.cpu_between(start, max(last, decoded_ns or 0))
    events = sum(len(row.actual_ns) for row in written)
    return None if spent is None else spent * 1e6 / events, (last - start) / NS_PER_S


def _array(values: Sequence[int] | Int64) -> Int64:
    return np.asarray(values, dtype=np.int64)
