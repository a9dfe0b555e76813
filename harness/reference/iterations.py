"""How much each iteration worked on: prompt rows computed and tokens made, in a histogram."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import numpy as np

from harness.reference.contract import COMPUTED_AFTER, COMPUTED_BEFORE, EMITTED_AFTER, EMITTED_BEFORE
from harness.reference.table import Int64

BOUNDS: Final = (1, *(1 << i for i in range(3, 15)))
"""Upper bounds of the buckets, inclusive; whatever is above falls into one more. Powers of two up to the largest usual token budget."""


def tokens_of(rows: Int64) -> int:
    """Tokens of one iteration from the rows of its result (15, n): prompt rows computed, repeated ones too, and tokens emitted.

    A decode step computes the row of the token before and emits the next: one token, not two.
    """
    computed = rows[COMPUTED_AFTER] - rows[COMPUTED_BEFORE]
    steps = (computed == 1) & (rows[EMITTED_BEFORE] > 0)
    emitted = rows[EMITTED_AFTER] - rows[EMITTED_BEFORE]
    return int(computed.sum()) - int(np.count_nonzero(steps)) + int(emitted.sum())


class Iterations:
    """Counts by bucket (not cumulated) and the sum of tokens."""

    __slots__ = ("counts", "tokens")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.tokens = 0

    def add(self, rows: Int64) -> None:
        """Count one iteration by the rows of its result."""
        tokens = tokens_of(rows)
        self.counts[bisect_left(BOUNDS, tokens)] += 1
        self.tokens += tokens
