"""What comes due when: arrivals by the clock merged with those that the ends of other requests bring about. Pure, told the time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from harness.replay.pacer import Pacer
from harness.replay.waits import Waits
from workloads.schedule import Ragged


class Agenda:
    """Hands out each request exactly once: due, lost or among the ``rest``. Times are ns on the run's epoch.

    ``arrivals`` (n,) ascending; those of requests with a row in ``after`` are ignored, since the run decides them. Nothing comes due at or
    behind ``end_ns``. ``by_clock``: arrivals that the plan alone decides, ascending.
    """

    __slots__ = ("_end_ns", "_ids", "_pacer", "_ready", "_waits", "by_clock")

    def __init__(self, arrivals: Sequence[int], end_ns: int, after: Ragged | None = None, think_ns: Sequence[int] = ()) -> None:
        self._end_ns = end_ns
        self._waits = Waits(after, think_ns)
        self._ids: Sequence[int] = range(len(arrivals)) if after is None else [i for i in range(len(arrivals)) if i not in self._waits]
        self.by_clock = [arrivals[i] for i in self._ids]
        self._pacer = Pacer(self.by_clock, end_ns)
        self._ready: list[tuple[int, int]] = []  # heap of waiting requests whose arrival is known by now

    def due(self, now_ns: int) -> list[tuple[int, int]]:
        """Take (arrival, id) of all requests whose arrival has come by ``now_ns``, in that order: equal arrivals leave together."""
        taken = [(self.by_clock[place], self._ids[place]) for place in self._pacer.due(now_ns)]
        if not self._ready:
            return taken
        while self._ready and self._ready[0][0] <= min(now_ns, self._end_ns - 1):
            taken.append(heapq.heappop(self._ready))
        return sorted(taken)

    def next_ns(self) -> int:
        """Next instant at which something must happen: an arrival, else the drain's end."""
        return min(self._pacer.next_ns(), self._ready[0][0]) if self._ready else self._pacer.next_ns()

    def followed(self, request: int) -> bool:
        """Whether some other request waits for the end of this one."""
        return self._waits.followed(request)

    def ended(self, request: int, end_ns: int, pause_ns: int = 0) -> None:
        """Let those that waited for this end last come due, ``pause_ns`` after it at the soonest."""
        for entry in self._waits.ended(request, end_ns, pause_ns):
            heapq.heappush(self._ready, entry)

    def lost(self, request: int) -> list[int]:
        """Take everything that can no longer come due because ``request`` did not end as planned."""
        return self._waits.lost(request)

    def rest(self) -> list[tuple[int, int | None]]:
        """Take (id, arrival) of everything that has not come due; a request that waits, or would arrive after the end, has no arrival."""
        rest: list[tuple[int, int | None]] = [(self._ids[place], self.by_clock[place]) for place in self._pacer.rest()]
        rest += [(request, None) for request in sorted([*self._waits.rest(), *(request for _, request in self._ready)])]
        self._ready.clear()
        return rest
