"""How long a reader may leave what comes unread: a quarter of the gaps between the pieces that a connection brings.

Each look wakes a core, which alone costs several reads, so fewer looks are cheaper. But pieces of one answer that are read together share a
stamp, so the rest has to be shorter than the gaps. They are not known before, differ between servers by a factor of a hundred, and
change with the load; so the rest follows them, by halving and by doubling.
"""

from __future__ import annotations

from harness.clock import NS_PER_MS

FIRST_NS = NS_PER_MS
"""Before a gap is known: engines of today take two milliseconds and more for a token."""

LEAST_NS = NS_PER_MS // 2
"""A look costs about 0.1 ms: twice as many would leave a core little time to read. What comes closer together than this shares a
stamp."""

MOST_NS = 4 * NS_PER_MS
"""A look is a fortieth of its rest by then; and so long may a connection lie unread that could carry the next request."""

SHARE = 4
"""Of a gap. Pieces that come less than a rest apart are read together, and the last ones of two looks in a row are then less than two rests
apart: whatever was missed shows as a gap that is too short for the rest."""

ENOUGH = 256
"""Gaps before the rest may grow: a fortieth of a second at 10,000 tokens a second."""

FEW = ENOUGH // 32
"""Of them that may be too short. A server that was held up writes its next tokens on time, so single short gaps are everywhere: 1 in 200
where each token was due 10 ms after the last."""

MANY = 16
"""Reads of a look, on average, that cost as much as the look itself: resting longer would save little, and would let the loop's next
callback wait for twice as many reads. Four times as many hold it up for a millisecond."""


class Rest:
    """``ns``: how long to leave what comes unread."""

    __slots__ = ("_least_ns", "_looks", "_most_ns", "_near", "_seen", "_short", "_short_ns", "ns")

    def __init__(self, least_ns: int = LEAST_NS, most_ns: int = MOST_NS) -> None:
        self._least_ns, self._most_ns = least_ns, most_ns
        self._begin(FIRST_NS)

    def _begin(self, ns: int) -> None:
        self.ns = min(max(ns, self._least_ns), self._most_ns)
        self._short_ns = SHARE * self.ns
        self._looks = self._seen = self._near = self._short = 0

    def saw(self, gap_ns: int) -> None:
        """A connection brought two pieces ``gap_ns`` apart."""
        if gap_ns < self._least_ns:
            return
        self._seen += 1
        if gap_ns < 2 * self._short_ns:
            self._near += 1
            self._short += gap_ns < self._short_ns

    def settle(self) -> bool:
        """After a look: follow what was seen. True when ``ns`` is another."""
        before_ns = self.ns
        self._looks += 1
        if self._short > FEW:
            self._begin(before_ns // 2)
        elif self._seen >= ENOUGH:
            self._begin(self._fitting())
        return self.ns != before_ns

    def _fitting(self) -> int:
        if self._seen > 4 * MANY * self._looks:
            return self.ns // 2
        return 2 * self.ns if self._near <= FEW and self._seen <= MANY * self._looks else self.ns
