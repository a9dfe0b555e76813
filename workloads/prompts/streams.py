"""Token streams by key: any part of any prompt is made alone, without a draw of another part coming first.

A stream is a key and a counter, mixed by the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
OOPSLA 2014). It is ours rather than numpy's so that no release of numpy changes what a manifest sends, it is vectorised over keys, and the
first m values do not depend on how many are drawn, which is what a block cut short needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from workloads.schedule import Int64, UInt64
from workloads.seeds import derive

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_HALF = np.uint64(32)


def _mix(values: UInt64) -> UInt64:
    """Mix all 64 bits in place; a bijection, so different values stay different."""
    values ^= values >> np.uint64(30)
    values *= _MULTIPLIERS[0]
    values ^= values >> np.uint64(27)
    values *= _MULTIPLIERS[1]
    values ^= values >> np.uint64(31)
    return values


class Keys:
    """Stream keys of one dimension (``kind``) under a root seed: one per 64-bit number, never two alike within the dimension."""

    __slots__ = ("_base",)

    def __init__(self, seed: int, kind: str) -> None:
        self._base = np.uint64(derive(seed, "prompt", kind))

    def __call__(self, numbers: UInt64) -> UInt64:
        """Return keys (m,) of ``numbers`` (m,) uint64."""
        return _mix(_mix(numbers + _STEP) ^ self._base)


def draw(keys: UInt64, counts: Int64, bound: int) -> Int64:
    """Join the first ``counts[j]`` values of each stream ``keys[j]``: (sum of counts,) int64 in [0, bound), bound <= 2**32.

    Uniform but for bound / 2**32 at most (3e-5 for the largest vocabularies), far below what any test of a prompt could see.
    """
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    place = np.arange(total, dtype=np.uint64)
    if len(keys) == 1:
        place *= _STEP
        place += keys[0]
    else:
        # key + (position within the segment) * step, with the segment's own start folded into its key.
        place *= _STEP
        place += np.repeat(keys - (ends - counts).astype(np.uint64) * _STEP, counts)
    mixed = _mix(place) >> _HALF
    mixed *= np.uint64(bound)
    mixed >>= _HALF
    return mixed.view(np.int64)


@dataclass(frozen=True, slots=True)
class Numbering:
    """The first ``width`` symbols of every prompt, unique among ``count`` prompts by construction.

    Request i becomes (factor * i + shift) modulo ``base ** width``, written with the least digit first: factor has no divisor in common
    with base, so the map is one to one, and two prompts begin with the same symbol exactly as often as chance would have it. ``width`` is
    the least that gives every request a number; 0 when there is only one symbol.
    """

    base: int
    width: int
    factor: int
    shift: int

    @classmethod
    def of(cls, count: int, base: int, seed: int) -> Numbering:
        """Number ``count`` requests with ``base`` symbols."""
        if base < 2:
            return cls(base, 0, 1, 0)
        width = 1
        while base**width < count:
            width += 1
        factor = derive(seed, "numbering", "factor") % base**width
        while math.gcd(factor, base) != 1:
            factor += 1
        return cls(base, width, factor, derive(seed, "numbering", "shift"))

    def symbols(self, request_id: int) -> list[int]:
        """Return the symbols (width,) of one request, each in [0, base)."""
        number = (self.factor * request_id + self.shift) % self.base**self.width
        found: list[int] = []
        for _ in range(self.width):
            number, digit = divmod(number, self.base)
            found.append(digit)
        return found
