"""Ledgers of a prompt prefilled in chunks (F42-F51): what each call attends to, and what it must make available again.

Counts of logical rows and pairs, exact, and no times: that two partitions of a prompt have equal pairs says nothing about their speed, and
history rows are a measure of exposure, not of bytes read from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

import numpy as np
import numpy.typing as npt

from analysis.arguments import at_least, at_most, need
from harness.errors import Problem, UsageError

Int64 = npt.NDArray[np.int64]

MOST_ROWS = (isqrt(4 * (2**63 - 1) + 1) - 1) // 2
"""Longest prompt, rows: the largest S whose S (S + 1) still fits 64 bits; pairs and exposed rows are at most half of it."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkLedger:
    """One partition of a prompt and what it costs logically. Arrays have one entry a chunk, shape (M,).

    ``starts``, ``sizes``: rows (F42); ``pairs``: query-key pairs (F44); ``history_rows`` sums the rows exposed again by later chunks (F47),
    ``history_bytes`` the same times bytes a row (F49). ``extra_calls``: calls of the model beyond the one of an unchunked prefill.
    """

    prompt_rows: int
    starts: Int64
    sizes: Int64
    pairs: Int64
    history_rows: int
    history_bytes: int

    @property
    def total_pairs(self) -> int:
        """Pairs of all chunks, S (S + 1) / 2 for every partition (F46)."""
        return int(self.pairs.sum())

    @property
    def extra_calls(self) -> int:
        """M - 1: boundaries between calls, which are not kernel launches."""
        return len(self.sizes) - 1


def ledger(bounds: Int64, row_bytes: int) -> ChunkLedger:
    """Return the whole ledger of ``bounds`` (M+1,), rows, at ``row_bytes`` logical bytes a row of all layers."""
    check_bounds(bounds)
    rows = history_rows(bounds)
    return ChunkLedger(int(bounds[-1]), bounds[:-1], chunk_sizes(bounds), causal_pairs(bounds), rows, history_bytes(rows, row_bytes))


def chunk_count(prompt_rows: int, chunk_rows: int) -> int:
    """M = ceil(S / C), in integers (F68). Raises UsageError unless both are at least 1."""
    need(at_least(1, prompt_rows=prompt_rows, chunk_rows=chunk_rows))
    return -(-prompt_rows // chunk_rows)


def equal_bounds(prompt_rows: int, chunk_rows: int) -> Int64:
    """Cut S rows into chunks of C, the last one shorter where C does not divide S: bounds s_0 .. s_M, shape (M+1,) (F42)."""
    count = chunk_count(prompt_rows, chunk_rows)
    need(_not_too_long(prompt_rows))
    return np.append(np.arange(count, dtype=np.int64) * chunk_rows, np.int64(prompt_rows))


def bounds_of(sizes: Sequence[int]) -> Int64:
    """Bounds (M+1,) of chunks of the given ``sizes`` (M,), rows (F42). UsageError when one is not positive or the sum is too long."""
    need(at_least(1, **{f"sizes[{i}]": size for i, size in enumerate(sizes)}) + at_least(1, chunks=len(sizes)))
    need(_not_too_long(sum(sizes)))
    return np.concatenate(([0], np.cumsum(np.asarray(sizes, dtype=np.int64))))


def check_bounds(bounds: Int64) -> None:
    """Raise UsageError with every reason why ``bounds`` cut no prompt: 0 = s_0 < s_1 < ... < s_M = S (F42)."""
    need(at_least(2, bounds=len(bounds)))
    found = _not_too_long(int(bounds[-1]))
    if bounds[0] != 0:
        found.append(Problem("chunks_start_late", f"bounds[0]={bounds[0]}: rows before it are never prefilled", "start the bounds at 0"))
    found += [
        Problem(
            "chunk_is_empty",
            f"bounds[{m}]={bounds[m]}, bounds[{m + 1}]={bounds[m + 1]}: a chunk holds at least one row, and none twice",
            "make the bounds rise at every step",
        )
        for m in np.flatnonzero(np.diff(bounds) <= 0).tolist()
    ]
    need(found)


def chunk_sizes(bounds: Int64) -> Int64:
    """c_m = s_(m+1) - s_m, shape (M,), rows (F42)."""
    return np.diff(bounds)


def visible_keys(bounds: Int64, position: int) -> tuple[range, range]:
    """Rows a query at global ``position`` attends to: those committed by earlier chunks, and those of its own chunk up to itself (F43).

    Together they are 0 .. position, whatever the bounds. UsageError when the position lies in no chunk.
    """
    if not 0 <= position < bounds[-1]:
        what = f"position={position}: outside the prompt of {bounds[-1]} rows, so no chunk has it as a query"
        raise UsageError.single("position_outside_prompt", what, f"give a position from 0 to {bounds[-1] - 1}")
    start = int(bounds[np.searchsorted(bounds, position, side="right") - 1])
    return range(start), range(start, position + 1)


def causal_pairs(bounds: Int64) -> Int64:
    """P_m = c_m s_m + c_m (c_m + 1) / 2: pairs with history and pairs inside the chunk, shape (M,) (F44)."""
    sizes = chunk_sizes(bounds)
    return sizes * bounds[:-1] + sizes * (sizes + 1) // 2


def causal_pairs_by_triangles(bounds: Int64) -> Int64:
    """P_m as the difference of two triangular numbers, shape (M,); its sum telescopes (F45)."""
    return np.diff(bounds * (bounds + 1) // 2)


def total_causal_pairs(prompt_rows: int) -> int:
    """S (S + 1) / 2 pairs, the same for every partition of the prompt (F46)."""
    return prompt_rows * (prompt_rows + 1) // 2


def history_rows(bounds: Int64) -> int:
    """R_hist = sum of s_m, rows: each row once for every later call that needs it, its first use not counted (F47)."""
    return int(bounds[:-1].sum())


def equal_history_rows(chunk_rows: int, chunks: int) -> int:
    """R_hist = C M (M - 1) / 2, rows, of M chunks of C rows each (F48); also when the last is shorter: no later chunk sees it."""
    return chunk_rows * chunks * (chunks - 1) // 2


def history_bytes(rows: int, row_bytes: int) -> int:
    """R_hist b_KV, logical bytes of all layers (F49). A proxy: not traffic to memory. UsageError when ``row_bytes`` is not positive."""
    need(at_least(1, row_bytes=row_bytes))
    return rows * row_bytes


def resident_batch(memory_bytes: int, model_bytes: int, longest_rows: int, row_bytes: int) -> int:
    """B = floor((M_G - M_S) / (L_max m_KV)), requests (F50): SARATHI's approximation, each request as long as the longest.

    UsageError when the model does not fit the memory, or a divisor is not positive.
    """
    found = at_least(1, longest_rows=longest_rows, row_bytes=row_bytes) + at_least(0, model_bytes=model_bytes)
    if memory_bytes < model_bytes:
        what = f"memory_bytes={memory_bytes}: less than model_bytes={model_bytes}, so nothing is left for any request's rows"
        found.append(Problem("model_exceeds_memory", what, "give the memory of all devices that share the model, or a smaller model"))
    need(found)
    return (memory_bytes - model_bytes) // (longest_rows * row_bytes)


def prefill_decode_ratio(chunk_rows: int, resident: int) -> Fraction:
    """P:D = C / (B - 1): prefill rows for each decode row of a batch of one chunk and B - 1 decodes (F51). UsageError when B < 2."""
    need(at_least(1, chunk_rows=chunk_rows) + at_least(2, resident=resident))
    return Fraction(chunk_rows, resident - 1)


def imbalance_area(times: Sequence[int]) -> int:
    """I = n max t - sum t of microbatch service times, in their unit: how uneven they are (section 0x09).

    It is no bubble of a pipeline and predicts no speedup. UsageError when there are none.
    """
    need(at_least(1, microbatches=len(times)))
    return max(times) * len(times) - sum(times)


def _not_too_long(prompt_rows: int) -> list[Problem]:
    return at_most(MOST_ROWS, "where the pairs of a prompt overflow 64 bits and would count wrongly", prompt_rows=prompt_rows)
