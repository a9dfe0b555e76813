"""Waits and gaps as the server sees them, in histograms."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

MS = 1_000_000
BOUNDS_NS: Final = tuple(
    round(ms * MS) for ms in (1, 2.5, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10_000, 25_000, 50_000, 100_000)
)
"""Upper bounds of the buckets, inclusive; whatever is above falls into one more."""


class Histogram:
    """Counts by bucket (not cumulated) and the sum, ns."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.total_ns = 0

    def add(self, ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_NS, ns)] += 1
        self.total_ns += ns


class Latencies:
    """Durations from the instant a request was read to the instants its tokens were handed to the socket."""

    def __init__(self) -> None:
        self.first, self.gaps, self.whole = Histogram(), Histogram(), Histogram()
        self._live: dict[str, tuple[int, int]] = {}  # arrival, last token (-1: none yet)

    def arrived(self, request_id: str, now_ns: int) -> None:
        """Note a request that was read."""
        self._live[request_id] = (now_ns, -1)

    def token(self, request_id: str, now_ns: int, *, last: bool) -> None:
        """Note one token; after the ``last`` the request is forgotten."""
        arrived, before = self._live[request_id]
        if before < 0:
            self.first.add(now_ns - arrived)
        else:
            self.gaps.add(now_ns - before)
        if last:
            self.whole.add(now_ns - arrived)
            del self._live[request_id]
        else:
            self._live[request_id] = (arrived, now_ns)

    def forget(self, request_id: str) -> None:
        """Drop a request that ends otherwise: its client left, or it was declined."""
        self._live.pop(request_id, None)
