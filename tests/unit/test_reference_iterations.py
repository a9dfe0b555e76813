"""Tokens of an iteration: what was computed and made, decode steps counted once, wherever the engine is preempted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.reference.contract import COMPUTED_AFTER, COMPUTED_BEFORE, EMITTED_AFTER, EMITTED_BEFORE, RESULT_COLUMNS
from harness.reference.iterations import BOUNDS, Iterations, tokens_of
from harness.reference.table import Int64

Chunk = tuple[int, int, int]
"""Rows computed, tokens emitted before, tokens emitted now."""


def result(chunks: list[Chunk]) -> Int64:
    rows = np.zeros((RESULT_COLUMNS, len(chunks)), dtype=np.int64)
    for i, (computed, before, emitted) in enumerate(chunks):
        rows[COMPUTED_BEFORE, i], rows[COMPUTED_AFTER, i] = 7, 7 + computed
        rows[EMITTED_BEFORE, i], rows[EMITTED_AFTER, i] = before, before + emitted
    return rows


def test_prompts_decodes_and_recomputed_rows() -> None:
    assert tokens_of(result([])) == 0
    assert tokens_of(result([(16, 0, 0)])) == 16  # a chunk of a prompt
    assert tokens_of(result([(16, 0, 1)])) == 17  # its last chunk gives the first token
    assert tokens_of(result([(1, 3, 1)])) == 1  # a decode step
    assert tokens_of(result([(19, 3, 1)])) == 20  # rows computed again after a preemption
    assert tokens_of(result([(16, 0, 1), (1, 3, 1), (1, 9, 1)])) == 19


@given(st.lists(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 9), st.integers(0, 1)), max_size=6), max_size=20))
def test_every_iteration_falls_into_one_bucket(iterations: list[list[Chunk]]) -> None:
    kept = Iterations()
    for chunks in iterations:
        kept.add(result(chunks))
    sizes = [tokens_of(result(chunks)) for chunks in iterations]
    assert sum(kept.counts) == len(iterations)
    assert kept.tokens == sum(sizes)
    for i, bound in enumerate(BOUNDS):
        assert sum(kept.counts[: i + 1]) == sum(size <= bound for size in sizes)
