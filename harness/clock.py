"""Time as an argument. Floor 0.

A run has one epoch: an instant of CLOCK_MONOTONIC in nanoseconds. Every stamp in a record is an int64 count of nanoseconds since that
epoch, so stamps of two runs cannot be mixed by accident without the epochs being named.
"""

from __future__ import annotations

import time
from typing import Protocol

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


class Clock(Protocol):
    """A monotonic clock in nanoseconds."""

    def now_ns(self) -> int:
        """Nanoseconds on a monotonic scale with an arbitrary zero."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC: one scale for all processes of a host, never stepped by NTP."""

    __slots__ = ()

    def now_ns(self) -> int:
        """Read CLOCK_MONOTONIC."""
        return time.monotonic_ns()


class VirtualClock:
    """A clock that moves only when told to; unit tests and the simulator use it."""

    __slots__ = ("_now",)

    def __init__(self, start_ns: int = 7_000_000_000_000) -> None:
        # A start far from zero makes code that confuses absolute and relative stamps fail visibly.
        self._now = start_ns

    def now_ns(self) -> int:
        """Return the current virtual instant."""
        return self._now

    def advance(self, delta_ns: int) -> None:
        """Move forward by ``delta_ns`` >= 0."""
        if delta_ns < 0:
            raise ValueError(f"delta_ns={delta_ns}: a monotonic clock never goes back")
        self._now += delta_ns
