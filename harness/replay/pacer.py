"""Which requests are due: pure arithmetic over the send plan, told the time."""

from __future__ import annotations

from collections.abc import Sequence


class Pacer:
    """Walks the arrivals in order. Times are ns on the run's epoch; arrivals at or behind ``end_ns`` never happen.

    A late wake-up gets everything that came due meanwhile: nothing is skipped and no later arrival is moved.
    """

    __slots__ = ("_arrivals", "_end_ns", "_next")

    def __init__(self, arrivals: Sequence[int], end_ns: int) -> None:
        self._arrivals = [int(a) for a in arrivals]
        if any(b < a for a, b in zip(self._arrivals, self._arrivals[1:], strict=False)):
            raise ValueError("arrivals must ascend: a deadline behind its predecessor would be sent late without anyone noticing")
        self._end_ns = end_ns
        self._next = 0

    def due(self, now_ns: int) -> range:
        """Take the ids of all requests whose arrival has come by ``now_ns``, in order, once each."""
        first = last = self._next
        limit = min(now_ns, self._end_ns - 1)
        while last < len(self._arrivals) and self._arrivals[last] <= limit:
            last += 1
        self._next = last
        return range(first, last)

    def next_ns(self) -> int:
        """Next instant at which something must happen: an arrival, else the drain's end."""
        if self._next < len(self._arrivals):
            return min(self._arrivals[self._next], self._end_ns)
        return self._end_ns

    def rest(self) -> range:
        """Take the ids of every arrival that has not happened."""
        rest = range(self._next, len(self._arrivals))
        self._next = len(self._arrivals)
        return rest


def burst(arrivals: Sequence[int], within_ns: int) -> int:
    """Most arrivals in any window of ``within_ns``: how many connections must lie ready at once. ``arrivals`` ascending."""
    most = first = 0
    for last, arrival in enumerate(arrivals):
        while arrival - arrivals[first] > within_ns:
            first += 1
        most = max(most, last - first + 1)
    return most
