"""A second tier for K/V rows, simulated: exact copies of what a preempted request held, with declared cost and capacity.

One link in each direction: transfers of a direction follow one another and run beside the iterations. What is asked of the tier is no
fact until the receipt says so.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.reference.resume import OWNERS, Binding, Receipt, Status

WRITE, READ = "preservation", "promotion"


class Transfer(NamedTuple):
    """A copy under way: when it is done, its place among those asked for, kind, suspension, rows."""

    done_ns: int
    place: int
    kind: str
    binding: Binding
    rows: int


@dataclass(slots=True)
class Tier:
    """At most ``capacity`` rows; a row costs ``write_ns`` to preserve and ``read_ns`` to promote."""

    capacity: int
    write_ns: int
    read_ns: int
    held: dict[int, int] = field(default_factory=dict)
    _busy_ns: dict[str, int] = field(default_factory=dict)
    _under_way: list[Transfer] = field(default_factory=list)
    _place: int = 0

    @property
    def rows(self) -> int:
        """Rows taken up, copies under way included."""
        return sum(self.held.values())

    @property
    def next_ns(self) -> int | None:
        """When the next transfer is done; None when none is under way."""
        return self._under_way[0].done_ns if self._under_way else None

    def preserve(self, binding: Binding, rows: int, now_ns: int) -> Receipt:
        """Begin to copy ``rows`` rows out: INFLIGHT, or FAILED when there is no room for them."""
        if self.rows + rows > self.capacity:
            return Receipt(OWNERS[WRITE], WRITE, binding, Status.FAILED)
        self.held[binding.request] = rows
        return self._begin(WRITE, binding, rows, rows * self.write_ns, now_ns)

    def promote(self, binding: Binding, now_ns: int) -> Receipt:
        """Begin to copy what is held for a request back: INFLIGHT, or FAILED when nothing is held for it."""
        rows = self.held.get(binding.request)
        if rows is None:
            return Receipt(OWNERS[READ], READ, binding, Status.FAILED)
        return self._begin(READ, binding, rows, rows * self.read_ns, now_ns)

    def drop(self, number: int) -> int:
        """Give up the copy of a request and say how many rows that was; 0 the second time. A transfer under way still reports."""
        return self.held.pop(number, 0)

    def arrived(self, now_ns: int) -> list[Receipt]:
        """Receipts of all transfers done by ``now_ns``, in the order in which they were done."""
        out = []
        while self._under_way and self._under_way[0].done_ns <= now_ns:
            done = heapq.heappop(self._under_way)
            out.append(Receipt(OWNERS[done.kind], done.kind, done.binding, Status.READY, ready_rows=done.rows))
        return out

    def _begin(self, kind: str, binding: Binding, rows: int, cost_ns: int, now_ns: int) -> Receipt:
        done = max(now_ns, self._busy_ns.get(kind, 0)) + cost_ns
        self._busy_ns[kind] = done
        heapq.heappush(self._under_way, Transfer(done, self._place, kind, binding, rows))
        self._place += 1
        return Receipt(OWNERS[kind], kind, binding, Status.INFLIGHT)
