from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.chunking import (
    MOST_ROWS,
    bounds_of,
    causal_pairs,
    causal_pairs_by_triangles,
    check_bounds,
    chunk_count,
    chunk_sizes,
    equal_bounds,
    equal_history_rows,
    history_bytes,
    history_rows,
    imbalance_area,
    ledger,
    prefill_decode_ratio,
    resident_batch,
    total_causal_pairs,
    visible_keys,
)
from harness.errors import UsageError

ROW_BYTES = 131_072
"""The seed's logical bytes a row of all layers, GQA at 16 bits."""

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def brute_pairs(sizes: list[int]) -> list[int]:
    """Count pairs one query at a time, the definition itself."""
    pairs, start = [], 0
    for size in sizes:
        pairs.append(sum(1 for i in range(start, start + size) for _ in range(i + 1)))
        start += size
    return pairs


# The seed's worked numbers (section 0x09)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 6, 12])
def test_every_partition_of_twelve_rows_has_78_pairs(chunk: int) -> None:
    assert ledger(equal_bounds(12, chunk), ROW_BYTES).total_pairs == total_causal_pairs(12) == 78


def test_twelve_rows_in_three_chunks_of_four() -> None:
    cut = equal_bounds(12, 4)
    assert cut.tolist() == [0, 4, 8, 12]
    assert causal_pairs(cut).tolist() == causal_pairs_by_triangles(cut).tolist() == [10, 26, 42]
    assert history_rows(cut) == equal_history_rows(4, 3) == 12
    assert [list(part) for part in visible_keys(cut, 5)] == [[0, 1, 2, 3], [4, 5]]
    queries, keys = chunk_sizes(cut)[1], len(visible_keys(cut, 7)[0]) + len(visible_keys(cut, 7)[1])
    assert (queries, keys) == (4, 8)  # the score of one head in the second chunk


@pytest.mark.parametrize(
    ("chunk", "chunks", "rows"),
    [(1, 16, 120), (2, 8, 56), (3, 6, 45), (4, 4, 24), (5, 4, 30), (6, 3, 18), (8, 2, 8), (16, 1, 0)],
)
def test_the_sweep_of_sixteen_rows(chunk: int, chunks: int, rows: int) -> None:
    """The seed's table of this sweep is lost: the chunk sizes are reconstructed, the rows follow from F47. It notes that a size that is no
    power of two matters: 5 cuts as many chunks as 4, and exposes more."""
    found = ledger(equal_bounds(16, chunk), ROW_BYTES)
    assert (len(found.sizes), found.history_rows, found.total_pairs) == (chunks, rows, 136)
    assert found.history_bytes == rows * ROW_BYTES
    assert found.extra_calls == chunks - 1


def test_the_base_of_the_sensitivity_fixture() -> None:
    found = ledger(equal_bounds(16, 4), ROW_BYTES)
    assert (found.history_rows, found.history_bytes) == (24, 3 * 2**20)


def test_ten_rows_in_chunks_of_four_four_and_two() -> None:
    found = ledger(bounds_of([4, 4, 2]), ROW_BYTES)
    assert found.pairs.tolist() == [10, 26, 19]
    assert (found.total_pairs, found.history_rows) == (55, 12)


@pytest.mark.parametrize(("times_ms", "area_ms"), [([18, 4, 4], 28), ([8, 8, 6], 2)])
def test_imbalance_of_the_worked_cadence(times_ms: list[int], area_ms: int) -> None:
    assert imbalance_area(times_ms) == area_ms


def test_the_batch_and_ratio_of_sarathi() -> None:
    """The seed gives F50 and F51 without numbers; these inputs are made up so that the floor matters."""
    assert resident_batch(1000, 100, 20, 4) == 11  # 900 / 80 = 11.25
    assert prefill_decode_ratio(256, 11) == Fraction(256, 10)


# What holds for every partition


@given(SIZES)
def test_pairs_are_those_of_the_definition(sizes: list[int]) -> None:
    cut = bounds_of(sizes)
    assert causal_pairs(cut).tolist() == causal_pairs_by_triangles(cut).tolist() == brute_pairs(sizes)
    assert causal_pairs(cut).sum() == total_causal_pairs(sum(sizes))
    assert chunk_sizes(cut).tolist() == sizes


@given(SIZES, st.data())
def test_a_query_sees_all_before_it_and_nothing_after(sizes: list[int], data: st.DataObject) -> None:
    position = data.draw(st.integers(0, sum(sizes) - 1))
    committed, own = visible_keys(bounds_of(sizes), position)
    assert [*committed, *own] == list(range(position + 1))
    assert committed.stop in np.concatenate(([0], np.cumsum(sizes)))


@given(st.integers(1, 500), st.integers(1, 60))
def test_equal_chunks_agree_with_the_closed_form(prompt: int, chunk: int) -> None:
    cut = equal_bounds(prompt, chunk)
    assert len(cut) - 1 == chunk_count(prompt, chunk)
    assert set(chunk_sizes(cut)[:-1].tolist()) <= {chunk}
    assert history_rows(cut) == equal_history_rows(chunk, chunk_count(prompt, chunk))


@given(SIZES, st.data())
def test_a_finer_partition_never_exposes_fewer_rows(sizes: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(sizes) - 1))
    split = data.draw(st.integers(1, sizes[at]))
    finer = [*sizes[:at], *(part for part in (split, sizes[at] - split) if part), *sizes[at + 1 :]]
    assert history_rows(bounds_of(finer)) >= history_rows(bounds_of(sizes))


@given(SIZES, st.data())
def test_the_order_of_chunks_changes_no_total(sizes: list[int], data: st.DataObject) -> None:
    other = data.draw(st.permutations(sizes))
    assert causal_pairs(bounds_of(other)).sum() == causal_pairs(bounds_of(sizes)).sum()


def test_the_longest_prompt_is_counted_exactly() -> None:
    found = ledger(equal_bounds(MOST_ROWS, MOST_ROWS // 3), ROW_BYTES)
    assert found.total_pairs == MOST_ROWS * (MOST_ROWS + 1) // 2
    assert found.history_bytes == sum(found.starts.tolist()) * ROW_BYTES
    with pytest.raises(UsageError, match="value_too_large"):
        equal_bounds(MOST_ROWS + 1, MOST_ROWS)


# What is refused


def test_bad_bounds_name_every_reason() -> None:
    with pytest.raises(UsageError) as caught:
        check_bounds(np.array([1, 4, 4, 3]))
    assert [p.code for p in caught.value.problems] == ["chunks_start_late", "chunk_is_empty", "chunk_is_empty"]


@pytest.mark.parametrize("sizes", [[], [4, 0, 4], [-1]])
def test_empty_chunks_are_refused(sizes: list[int]) -> None:
    with pytest.raises(UsageError, match="value_too_small"):
        bounds_of(sizes)


@pytest.mark.parametrize("position", [-1, 12])
def test_a_position_outside_the_prompt_is_refused(position: int) -> None:
    with pytest.raises(UsageError, match="position_outside_prompt"):
        visible_keys(equal_bounds(12, 4), position)


def test_what_cannot_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="model_exceeds_memory"):
        resident_batch(10, 11, 1, 1)
    for call in (
        lambda: chunk_count(0, 4),
        lambda: history_bytes(1, 0),
        lambda: prefill_decode_ratio(4, 1),
        lambda: imbalance_area([]),
        lambda: check_bounds(np.array([0])),
    ):
        with pytest.raises(UsageError, match="value_too_small"):
            call()
