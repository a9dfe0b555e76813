"""Ranks of pooled gaps without a sort of all, and gaps of one request in order: both equal the plain way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.clocks import derive_clocks
from analysis.gaps import Union, narrow, ranked
from analysis.marks import longest_tenth
from analysis.tails import interpolated, linear, nearest_rank, value_at
from harness.errors import UsageError
from tests.builders import S, make_record, make_request

gap = st.one_of(st.integers(0, 50), st.integers(0, 2**20), st.integers(2**31 - 2, 2**40))
arrays = st.lists(st.lists(gap, min_size=1, max_size=60), min_size=1, max_size=5)


@given(arrays)
def test_every_position_of_a_union_is_that_of_the_sorted_whole(parts: list[list[int]]) -> None:
    found = Union(tuple(narrow(np.array(p, dtype=np.int64)) for p in parts))
    whole = sorted(v for p in parts for v in p)
    some = np.unique([0, len(whole) // 2, len(whole) - 1])
    assert found.at(some, some[:1]).tolist() == [whole[i] for i in some]
    assert found.at(np.arange(len(whole)), some).tolist() == whole
    assert (found.size, found.total) == (len(whole), sum(whole))


@given(st.lists(st.lists(gap, max_size=30), max_size=20))
def test_gaps_of_a_request_come_in_order_whatever_the_others_hold(requests: list[list[int]]) -> None:
    counts = np.array([len(r) for r in requests], dtype=np.int64)
    flat = narrow(np.array([g for r in requests for g in r], dtype=np.int64))
    seen = {}
    for some in ranked(flat, counts):
        k = longest_tenth(some.counts)
        for row, longest, tenth, low in zip(
            some.rows.tolist(), some.from_top(np.ones_like(k)).tolist(), some.sum_of_longest(k).tolist(), some.gaps, strict=True
        ):
            seen[row] = (longest, tenth, [g for g in low.tolist() if g >= 0])
    expected = {i: (max(r), sum(sorted(r)[-math.ceil(len(r) / 10) :]), sorted(r)) for i, r in enumerate(requests) if r}
    assert seen == expected


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=80), st.integers(0, 40), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_pool_reads_percentiles_as_a_sorted_array_does(gaps: list[int], zeros: int, p: float) -> None:
    stamps = np.concatenate(([0], np.cumsum(gaps))) + 3 * S
    n = len(stamps)
    row = make_request(0, 3 * S) | {"event_ns": stamps.tolist(), "event_tokens": [1] * n, "event_bytes": [1] * n, "event_kind": [1] * n}
    row["event_tokens"][0] = 1 + zeros
    clocks = derive_clocks(make_record([row]))
    pool = clocks.token_gaps(np.array([True]), "all")
    ordered = np.sort([0] * zeros + gaps) / S
    assert (pool.size, pool.requests) == (len(ordered), 1)
    assert value_at(pool, p) == nearest_rank(ordered, p)
    assert interpolated(pool, p) == linear(ordered, p)
    assert pool.mean == pytest.approx(ordered.mean(), rel=1e-12)
    assert value_at(pool.joined([pool]), p) == nearest_rank(np.sort(np.concatenate((ordered, ordered))), p)


def test_stamps_that_run_backwards_are_refused() -> None:
    with pytest.raises(UsageError, match="run backwards"):
        derive_clocks(make_record([make_request(0, 3 * S, event_ns=[3 * S, 2 * S, 4 * S, 5 * S, 6 * S, 6 * S, 6 * S])]))


def test_pieces_of_any_size_give_the_same_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [make_request(i, 2 * S + i * 10**6, tokens=1 + i % 7, gap_ns=(1 + i % 5) * 10**7) for i in range(60)]
    whole = derive_clocks(make_record(rows))
    for events, requests in ((1, 1 << 14), (10, 1 << 14), (1 << 18, 3)):
        monkeypatch.setattr("analysis.stamps.EVENTS", events)
        monkeypatch.setattr("analysis.stamps.REQUESTS", requests)
        cut = derive_clocks(make_record(rows))
        assert all(np.array_equal(a, b) for a, b in zip(whole.marks, cut.marks, strict=True))
        assert np.array_equal(whole.tokens_before, cut.tokens_before)
        assert np.array_equal(whole.gap_ns, cut.gap_ns)
