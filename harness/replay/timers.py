"""Absolute deadlines on CLOCK_MONOTONIC inside an event loop, without the loop's own timers.

libuv and selectors round to whole milliseconds, which alone would break the slip gate. A timerfd is a descriptor like any other: the
kernel's high-resolution timer makes it readable at the deadline, and the loop wakes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from harness.alarm import Alarm
from harness.clock import NS_PER_S
from harness.errors import HostError

SPIN_NS = 3_000_000
"""Fallback only: loop timers may be a millisecond early and two late, so the last 3 ms before a deadline are polled."""


class Timer(Protocol):
    """Calls back once at each armed deadline; arming again replaces the deadline."""

    def arm(self, deadline_ns: int) -> None:
        """Fire at ``deadline_ns`` on CLOCK_MONOTONIC; at once when it has passed."""
        ...

    def close(self) -> None:
        """Disarm and free; callable twice."""
        ...


def make_timer(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> Timer:
    """Return a timerfd timer, or the sleep-then-spin one where the kernel has none."""
    try:
        return TimerFd(loop, callback)
    except HostError:
        return SpinTimer(loop, callback)


class TimerFd:
    """One-shot absolute timer on an ``Alarm``. Raises HostError when the platform has none."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._alarm = Alarm()
        self._loop, self._callback = loop, callback
        loop.add_reader(self._alarm.fd, self._fired)

    def arm(self, deadline_ns: int) -> None:
        """Fire at ``deadline_ns``; a deadline in the past fires at the next loop pass."""
        self._alarm.arm(deadline_ns)

    def close(self) -> None:
        """Remove the descriptor from the loop and close it."""
        if self._alarm.fd >= 0:
            self._loop.remove_reader(self._alarm.fd)
            self._alarm.close()

    def _fired(self) -> None:
        if self._alarm.clear():  # False: armed again between the wake-up and this call
            self._callback()


class SpinTimer:
    """Sleep on the loop until shortly before the deadline, then poll the clock once a loop pass, so that streams are still read."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None], now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._loop, self._callback, self._now_ns = loop, callback, now_ns
        self._deadline_ns = 0
        self._handle: asyncio.Handle | None = None

    def arm(self, deadline_ns: int) -> None:
        """Fire at ``deadline_ns``."""
        self.close()
        self._deadline_ns = deadline_ns
        sleep_s = (deadline_ns - self._now_ns() - SPIN_NS) / NS_PER_S
        self._handle = self._loop.call_later(max(0.0, sleep_s), self._spin)

    def close(self) -> None:
        """Disarm."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _spin(self) -> None:
        if self._now_ns() >= self._deadline_ns:
            self._handle = None
            self._callback()
        else:
            self._handle = self._loop.call_soon(self._spin)
