"""The owner of K/V blocks, simulated: who holds which, and receipts for what it did.

The scheduler counts rows in whole blocks and never sees one; ids stay in here. An allocation is a fact of this owner: it succeeds or it
fails, whatever a plan hoped for.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from harness.reference.resume import OWNERS, Binding, Receipt, Status


@dataclass(slots=True)
class BlockAllocator:
    """``capacity`` blocks of ``block`` rows. ``contiguous``: the blocks of a request must be neighbours (an outer constraint, as of an
    allocator without paging), so that free blocks may be too scattered to serve.

    Lowest free ids go first, so equal histories give equal placements. Raises ValueError for less than one block of one row.
    """

    block: int
    capacity: int
    contiguous: bool = False
    _free: list[int] = field(default_factory=list)  # given back: a heap, all below _fresh
    _fresh: int = 0  # the first that was never given: a large cache costs nothing before it is used
    _held: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.block < 1 or self.capacity < 1:
            raise ValueError(f"block={self.block}, capacity={self.capacity}: at least one block of at least one row")

    @property
    def held_rows(self) -> int:
        """Rows of all blocks that are held, idle ones in last blocks included: what the scheduler may not use."""
        return (self.capacity - self._idle) * self.block

    @property
    def _idle(self) -> int:
        return len(self._free) + self.capacity - self._fresh

    def blocks_of(self, number: int) -> tuple[int, ...]:
        """Ids that a request holds, in the order of its rows; no scheduler asks."""
        return tuple(self._held.get(number, ()))

    def holders(self) -> frozenset[int]:
        """Requests that hold anything."""
        return frozenset(self._held)

    def grow(self, number: int, rows: int) -> bool:
        """Let a request store ``rows`` rows in all; False, and nothing changes, when the blocks cannot be had."""
        mine = self._held.get(number, [])
        more = -(-rows // self.block) - len(mine)
        if more <= 0:
            return True
        found = self._find(mine, more)
        if found is None:
            return False
        self._held[number] = mine + found
        return True

    def free(self, number: int) -> int:
        """Take everything back from a request and say how many rows became free, idle ones included; 0 the second time."""
        blocks = self._held.pop(number, [])
        for one in blocks:
            heapq.heappush(self._free, one)
        return len(blocks) * self.block

    def allocate(self, binding: Binding, rows: int) -> Receipt:
        """``grow`` as a fact about one suspension."""
        done = self.grow(binding.request, rows)
        return Receipt(OWNERS["allocation"], "allocation", binding, Status.READY if done else Status.FAILED)

    def release(self, binding: Binding) -> Receipt:
        """``free`` as a fact about one suspension."""
        return Receipt(OWNERS["release"], "release", binding, Status.READY, reclaimed_rows=self.free(binding.request))

    def _find(self, mine: list[int], more: int) -> list[int] | None:
        if more > self._idle:
            return None
        if not self.contiguous:
            given = [heapq.heappop(self._free) for _ in range(min(more, len(self._free)))]
            given += range(self._fresh, self._fresh + more - len(given))
            self._fresh = max(self._fresh, given[-1] + 1)
            return given
        free = {*self._free, *range(self._fresh, self.capacity)}
        for start in [mine[-1] + 1] if mine else sorted(free):
            run = list(range(start, start + more))
            if free.issuperset(run):
                self._free, self._fresh = sorted(free.difference(run)), self.capacity
                return run
        return None
