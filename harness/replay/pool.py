"""Idle connections, opened before they are needed. Decides who is taken, retired and how many to open; opens and closes nothing."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from harness.clock import NS_PER_S

USED_IDLE_NS = 3 * NS_PER_S
"""The server's HTTP layer under vLLM and SGLang closes a connection 5 s after its last response. A request sent into that close is reset
through nobody's fault, so a connection that has served is not reused after 3 s: 2 s of margin for a stalled host."""

FRESH_IDLE_NS = 30 * NS_PER_S
"""A connection that never served has no such timer there; proxies drop silent ones after 60 s by default, and half of that is safe."""

MAX_AIM = 1024
"""Growth stops here: the default soft limit of open files on many servers."""

C = TypeVar("C", bound=Hashable)


class Pool(Generic[C]):
    """Idle connections with the time since when they lie idle.

    The most recently used one is taken first: its congestion window is warm, and the others age out together. ``aim`` is how many idle
    ones to keep; it grows by half whenever a request found none.
    """

    def __init__(self, aim: int) -> None:
        self.aim = max(1, min(aim, MAX_AIM))
        self._used: dict[C, int] = {}
        self._fresh: dict[C, int] = {}

    def __len__(self) -> int:
        return len(self._used) + len(self._fresh)

    def put(self, connection: C, now_ns: int, *, used: bool) -> None:
        """Lay an idle connection in."""
        (self._used if used else self._fresh)[connection] = now_ns

    def take(self, now_ns: int) -> C | None:
        """Take a connection that is safe to use; None when there is none (and remember that one was missed)."""
        if self._used:
            connection, since = self._used.popitem()
            if now_ns - since < USED_IDLE_NS:
                return connection
            self._used[connection] = since  # the newest is too old, so all are; ``retire`` will get them
        if self._fresh:
            return self._fresh.popitem()[0]
        self.aim = min(MAX_AIM, self.aim + (self.aim + 1) // 2)
        return None

    def drop(self, connection: C) -> None:
        """Forget a connection that closed; unknown ones are ignored."""
        self._used.pop(connection, None)
        self._fresh.pop(connection, None)

    def retire(self, now_ns: int) -> list[C]:
        """Take out every connection that has idled too long to be trusted; the caller closes them."""
        old = [*_older(self._used, now_ns - USED_IDLE_NS), *_older(self._fresh, now_ns - FRESH_IDLE_NS)]
        for connection in old:
            self.drop(connection)
        return old

    def drain(self) -> list[C]:
        """Take out everything."""
        rest = [*self._used, *self._fresh]
        self._used.clear()
        self._fresh.clear()
        return rest

    def to_open(self, *, waiting: int, opening: int, at_once: int, room: int | None) -> int:
        """How many connections to start opening now.

        Every waiting request gets one at once; beyond that the store is filled to ``aim``, at most ``at_once`` in parallel, because each
        open costs the loop time that running streams need. ``room``: how many more connections the concurrency cap can ever use.
        """
        demanded = max(0, waiting - opening)
        ahead = max(0, min(self.aim - len(self) - max(0, opening - waiting), at_once - opening - demanded))
        if room is not None:
            ahead = min(ahead, max(0, room - demanded))
        return demanded + ahead


def _older(idle: dict[C, int], limit_ns: int) -> Iterator[C]:
    """Those idle since ``limit_ns`` or before. They lie in the order in which they came, so that one look at the oldest is the rule: this
    is asked a hundred times a second, and there may be a thousand of them."""
    for connection, since in idle.items():
        if since > limit_ns:
            return
        yield connection
