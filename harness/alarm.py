"""One absolute alarm on CLOCK_MONOTONIC that an event loop can wait for. Floor 0.

Event-loop timers round to whole milliseconds (epoll's timeout is an integer of them); a timerfd fires within the kernel's timer
resolution and costs no spinning. Python 3.11 has no binding for it, so libc is called directly. Linux only.
"""

from __future__ import annotations

import ctypes
import os

from harness.clock import NS_PER_S
from harness.errors import HostError

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class Alarm:
    """A timerfd armed at absolute instants; readable once the instant has passed, until ``clear``.

    Raises HostError when the kernel has no timerfd (not Linux).
    """

    __slots__ = ("_libc", "_spec", "fd")

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._spec = _Itimerspec()
        try:
            self.fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        except AttributeError:
            self.fd = -1
        if self.fd < 0:
            raise HostError.single(
                "timerfd_missing",
                "timerfd_create is not available: deadlines could only be kept to whole milliseconds",
                "run on Linux, where timers of the kernel can be waited for",
            )

    def arm(self, at_ns: int, every_ns: int = 0) -> None:
        """Fire at ``at_ns`` (CLOCK_MONOTONIC, ns), at once where that is past, and every ``every_ns`` from then on (0: once). Replaces an
        earlier setting."""
        # A value of zero would disarm the timer instead of firing it.
        self._set(max(at_ns, 1), every_ns)

    def disarm(self) -> None:
        """Fire no more."""
        self._set(0, 0)

    def _set(self, at_ns: int, every_ns: int) -> None:
        self._spec.it_value.tv_sec, self._spec.it_value.tv_nsec = divmod(at_ns, NS_PER_S)
        self._spec.it_interval.tv_sec, self._spec.it_interval.tv_nsec = divmod(every_ns, NS_PER_S)
        if self._libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def clear(self) -> bool:
        """Consume a firing, so that the descriptor is no longer readable; False when there was none."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Release the descriptor; callable twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
