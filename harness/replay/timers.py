"""Absolute deadlines on CLOCK_MONOTONIC inside an event loop, without the loop's own timers.

libuv and selectors round to whole milliseconds, which alone would break the slip gate. A timerfd is a descriptor like any other: the
kernel's high-resolution timer makes it readable at the deadline, and the loop wakes.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Protocol

from harness.clock import NS_PER_S

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # the kernel defines TFD_NONBLOCK and TFD_CLOEXEC as these

SPIN_NS = 3_000_000
"""Fallback only: loop timers may be a millisecond early and two late, so the last 3 ms before a deadline are polled."""


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


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
    except OSError:
        return SpinTimer(loop, callback)


class TimerFd:
    """One-shot absolute timer on a timerfd. OSError when the platform has none (Python has os.timerfd_* only from 3.13)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "timerfd_create"):
            raise OSError("timerfd_create is missing")
        fd = int(libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS))
        if fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._settime = libc.timerfd_settime
        self._fd, self._loop, self._callback = fd, loop, callback
        self._spec = _Itimerspec()
        self._ref = ctypes.byref(self._spec)
        loop.add_reader(fd, self._fired)

    def arm(self, deadline_ns: int) -> None:
        """Fire at ``deadline_ns``; a deadline in the past fires at the next loop pass."""
        # A value of zero would disarm instead of firing.
        value = self._spec.it_value
        value.tv_sec, value.tv_nsec = divmod(max(1, deadline_ns), NS_PER_S)
        if self._settime(self._fd, _TFD_TIMER_ABSTIME, self._ref, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        """Remove the descriptor from the loop and close it."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # armed again between the wake-up and this call
            return
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
