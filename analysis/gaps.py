"""Gaps between tokens: of one request in ascending order, and pooled over many, without sorting what is only asked for a few ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from analysis.planned import Bools, Int64
from analysis.stamps import ramp
from analysis.tails import LEVELS, Floats, linear_ranks, usual_ranks
from harness.clock import NS_PER_S

Parts = tuple[npt.NDArray[Any], ...]
"""Gaps in ns, int32 where they fit: half the memory of 200 million of them."""

AT_ONCE = 1 << 18
"""Gaps looked at together, so that what is derived from them stays in a processor's cache."""

DROPPED_BITS = 9
"""Low bits of a 32-bit float left out of a bin's name: 14 bits of mantissa remain, bins of 1 us at 20 ms over any range of gaps."""


class Ranked(NamedTuple):
    """Requests with about as many gaps: ``rows`` (q,) of a piece, their ``counts`` (q,), their gaps in ascending rows, right-aligned."""

    rows: Int64
    counts: Int64
    gaps: npt.NDArray[Any]

    def from_top(self, k: Int64) -> Int64:
        """The k-th longest gap of each request (q,), k from 1; 0 beyond its gaps: what is shorter lies inside events and is 0."""
        width = self.gaps.shape[1]
        at = self.gaps[np.arange(len(k)), np.maximum(width - k, 0)]
        return np.where(k <= self.counts, at, 0).astype(np.int64)

    def sum_of_longest(self, k: Int64) -> Int64:
        """Sum of the k longest gaps of each request (q,), ns."""
        most = np.minimum(k, self.counts)
        sums = np.cumsum(self.gaps[:, ::-1][:, : int(most.max())], axis=1, dtype=np.int64)
        return np.asarray(sums[np.arange(len(k)), most - 1], dtype=np.int64)


def narrow(gap_ns: Int64) -> npt.NDArray[Any]:
    """The same gaps (m,) as int32 where the longest allows it (2.1 s), else as they are."""
    return gap_ns.astype(np.int32) if gap_ns.max(initial=0) < 2**31 else gap_ns


def ranked(gaps: npt.NDArray[Any], counts: Int64) -> Iterator[Ranked]:
    """Sort the gaps of every request that has some: ``gaps`` (m,) in row order, ``counts`` (r,).

    Requests of like length are laid out as the rows of a matrix, since sorting rows of a matrix is an order of magnitude faster than
    sorting by (row, gap). Rows are padded to a power of two.
    """
    some = np.flatnonzero(counts > 0)
    size = counts[some]
    if len(some) and size.min() == size.max():
        yield Ranked(some, size, np.sort(gaps.reshape(len(some), -1), axis=1))
        return
    width = _width(size)
    order = np.argsort(width, kind="stable")
    some, size, width = some[order], size[order], width[order]
    stop = np.cumsum(counts)[some]
    widest = int(width[-1]) if len(width) else 0
    led = np.concatenate((np.empty(widest, dtype=gaps.dtype), gaps))  # a window that ends at the first request's last gap has room
    for first, last in _runs(width):
        w, own = int(width[first]), size[first:last]
        table = sliding_window_view(led, w)[stop[first:last] + (widest - w)]
        spare = w - int(own.min())
        table[:, :spare][ramp(spare) < (w - own)[:, None]] = -1
        table.sort(axis=1)
        yield Ranked(some[first:last], own, table)


def _width(size: Int64) -> Int64:
    """Round up to a power of two (n,): with a width for every length there would be as many matrices as rows."""
    return np.left_shift(1, np.ceil(np.log2(size)).astype(np.int64))


def _runs(ascending: Int64) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(ascending, prepend=-1, append=-1))
    yield from zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)


@dataclass(frozen=True, eq=False)
class Gaps:
    """All gaps between token-carrying events of a run, in row order, cut at rows ``edges`` (p+1,) into ``parts``.

    ``counts`` (n,): gaps of each row; ``zeros`` (n,): gaps of 0 between tokens of one event, which per-token gaps have beside them.
    """

    parts: Parts
    edges: Int64
    counts: Int64
    zeros: Int64

    def pooled(self, mask: Bools, population: str, *, tokens: bool) -> Pool:
        """Pool the gaps of the requests of ``mask`` (n,): between their tokens, or (``tokens`` False) between their events."""
        chosen = tuple(part if mask[a:b].all() else part[np.repeat(mask[a:b], self.counts[a:b])] for part, a, b in self._each())
        each = self.counts + self.zeros if tokens else self.counts
        zeros = int(self.zeros[mask].sum()) if tokens else 0
        return Pool(Union(tuple(p for p in chosen if len(p))), zeros, int(np.count_nonzero(each[mask])), population)

    def _each(self) -> Iterator[tuple[npt.NDArray[Any], int, int]]:
        return zip(self.parts, self.edges[:-1].tolist(), self.edges[1:].tolist(), strict=True)


@dataclass(frozen=True, eq=False)
class Union:
    """Arrays of values, none negative, as one ascending sample whose values are found by position, without sorting all of it.

    Counting by bins that keep the order finds the few bins that hold a position; only their values are sorted.
    """

    parts: Parts
    _known: dict[int, int] = field(default_factory=dict, repr=False)

    @cached_property
    def size(self) -> int:
        """How many values."""
        return sum(len(p) for p in self.parts)

    @cached_property
    def total(self) -> int:
        """Their sum, in whole numbers, so that no order of adding can show."""
        return sum(int(part.sum(dtype=np.int64)) for part in self.parts)

    @cached_property
    def _bins(self) -> tuple[Int64, int]:
        """How many values lie in each bin, and the first bin's name."""
        low, high = min(p.min() for p in self.parts), max(p.max() for p in self.parts)
        least, most = (int(_bins(np.array([v]), 0)[0]) for v in (low, high))
        counts = np.zeros(most - least + 1, dtype=np.int64)
        for batch in _batches(self.parts, max(AT_ONCE, 2 * len(counts))):
            counts += np.bincount(_bins(batch, least), minlength=len(counts))
        return counts, least

    def at(self, positions: Int64, usual: Int64) -> Int64:
        """Values at 0-based positions (k,). ``usual`` ones are found along with the first that are asked for, and kept."""
        missing = [p for p in positions.tolist() if p not in self._known]
        if missing:
            wanted = np.unique(np.concatenate((missing, usual if not self._known else []))).astype(np.int64)
            self._known.update(zip(wanted.tolist(), self._pick(wanted).tolist(), strict=True))
        return np.array([self._known[p] for p in positions.tolist()], dtype=np.int64)

    def _pick(self, positions: Int64) -> Int64:
        counts, least = self._bins
        stop = np.cumsum(counts)
        bins = np.searchsorted(stop, positions, side="right")
        wanted = np.zeros(len(counts), dtype=bool)
        wanted[bins] = True
        held = np.concatenate([batch[wanted.take(_bins(batch, least), mode="clip")] for batch in _batches(self.parts, AT_ONCE)])
        held.sort()
        before = np.cumsum(np.where(wanted, counts, 0))  # of values held, up to and with each bin
        return np.asarray(held[before[bins] - (stop[bins] - positions)], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Pool:
    """Gaps pooled over requests, as a sample of which ranks can be asked: ``values``, ns, and ``zeros`` more gaps of 0.

    ``requests``: how many requests they came from. Gaps of one request move together, so ``independent`` is False.
    """

    values: Union
    zeros: int
    requests: int
    population: str
    independent: bool = False

    @property
    def size(self) -> int:
        """How many gaps."""
        return self.zeros + self.values.size

    def at(self, ranks: Int64) -> Floats:
        """Values at 1-based ranks of the ascending sample, s (k,)."""
        found = np.zeros(len(ranks), dtype=np.int64)
        above = ranks > self.zeros
        if above.any():
            found[above] = self.values.at(ranks[above] - self.zeros - 1, self._usual())
        return np.asarray(found / NS_PER_S, dtype=np.float64)

    def _usual(self) -> Int64:
        """Positions among ``values`` that a report asks for: of this pool, and of it with a gap of 0 for every request (a dialect)."""
        own = usual_ranks(self.size, self.requests) - self.zeros
        other = linear_ranks(self.size + self.requests, LEVELS["p99"]) - self.zeros - self.requests
        positions = np.concatenate((own, other)) - 1
        return positions[(positions >= 0) & (positions < self.values.size)]

    @property
    def mean(self) -> float:
        """Mean gap, s; NaN of none."""
        return self.values.total / self.size / NS_PER_S if self.size else float("nan")

    def called(self, population: str) -> Pool:
        """The same gaps under another name; what is found of one is known of both."""
        return replace(self, population=population)

    def with_zeros(self, more: int, requests: int) -> Pool:
        """These gaps and ``more`` of 0, from so many requests."""
        return replace(self, zeros=self.zeros + more, requests=requests)

    def joined(self, others: Sequence[Pool]) -> Pool:
        """This pool and others as one."""
        whole = (self, *others)
        if not others:
            return self
        values = Union(tuple(p for one in whole for p in one.values.parts))
        return Pool(values, sum(one.zeros for one in whole), sum(one.requests for one in whole), self.population)


def _bins(gaps: npt.NDArray[Any], least: int) -> npt.NDArray[np.int32]:
    """Bins of some gaps (m,), counted from bin ``least``."""
    # The bits of a positive float ascend with its value, so cutting the low ones makes bins of constant relative width.
    found = gaps.astype(np.float32).view(np.int32)
    found >>= DROPPED_BITS
    found -= least
    return found


def _batches(parts: Parts, least: int) -> Iterator[npt.NDArray[Any]]:
    """The same values in arrays of at least about ``least``, but for the last: parts are joined, and never cut."""
    batch: list[npt.NDArray[Any]] = []
    held = 0
    for part in parts:
        batch.append(part)
        held += len(part)
        if held >= 3 * least // 4:  # a piece of the stamps has somewhat fewer gaps than events
            yield part if len(batch) == 1 else np.concatenate(batch)
            batch, held = [], 0
    if batch:
        yield np.concatenate(batch)
