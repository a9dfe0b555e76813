"""Absolute instants at which requests are given up, should they still live then."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from harness.replay.exchange import Exchange


class Limits:
    """Exchanges by the CLOCK_MONOTONIC instant (ns) that ends them; those that ended before are dropped."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Exchange]] = []  # the id keeps equal instants apart

    def put(self, at_ns: int, exchange: Exchange) -> None:
        """Give ``exchange`` a limit."""
        heapq.heappush(self._heap, (at_ns, exchange.request_id, exchange))

    def due(self, now_ns: int) -> Iterator[Exchange]:
        """Take the exchanges whose limit has come by ``now_ns``, earliest first; each lives when it is given out."""
        while self._heap and self._heap[0][0] <= now_ns:
            exchange = heapq.heappop(self._heap)[2]
            if exchange.kind is None:  # looked at only now: giving up the one before may have ended this one
                yield exchange

    def next_ns(self) -> int | None:
        """The earliest limit of a living exchange; None when there is none."""
        while self._heap and self._heap[0][2].kind is not None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
