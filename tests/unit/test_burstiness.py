"""Arrivals in numbers: the published facts of real traces, brute force on small ones, and None where nothing is defined."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.burstiness import (
    MAX_BINS,
    NS_PER_S,
    arrival_facts,
    counts_per_bin,
    dispersion,
    gap_cv,
    in_order,
    is_ascending,
    mean_rate_rps,
    nearest_rank,
)

TRACES = Path(__file__).parents[3] / "shared" / "traces"
ARRIVALS = st.lists(st.integers(0, 10**12), min_size=0, max_size=60).map(lambda values: np.array(values, dtype=np.int64))


def naive_dispersion(times: Any, width_s: int) -> float | None:
    """The definition itself: population variance over mean of counts in every bin."""
    counts = np.bincount((np.sort(times) - times.min()) // (width_s * NS_PER_S))
    return float(counts.var() / counts.mean()) if len(counts) > 1 else None


@given(ARRIVALS)
def test_dispersion_is_variance_over_mean_of_counts(times: Any) -> None:
    found = dispersion(in_order(times))
    if not len(times):
        assert found == {1: None, 10: None, 60: None}
        return
    for width, value in found.items():
        want = naive_dispersion(times, width)
        assert (value is None) == (want is None)
        assert value is None or value == pytest.approx(want, rel=1e-9, abs=1e-9)


@given(ARRIVALS)
def test_cv_and_rate_are_those_of_the_sorted_gaps(times: Any) -> None:
    ascending = in_order(times)
    gaps = np.diff(np.sort(times)).astype(np.float64)
    cv, rate = gap_cv(ascending), mean_rate_rps(ascending)
    if len(gaps) < 2 or not gaps.any():
        assert cv is None
    else:
        assert cv == pytest.approx(gaps.std() / gaps.mean(), rel=1e-9)
    assert (rate is None) == (len(times) == 0 or times.max() == times.min())
    assert rate is None or rate == pytest.approx((len(times) - 1) / (gaps.sum() / 1e9))


@given(ARRIVALS, st.integers(1, 10**11))
def test_counts_per_bin_lose_no_arrival(times: Any, width: int) -> None:
    if len(times):
        width = max(width, int(times.max() - times.min()) // 10**5)  # a table of a hundred thousand bins is enough to lose one in
    counts = counts_per_bin(times, width)
    assert counts.sum() == len(times)
    assert len(counts) == (0 if not len(times) else (times.max() - times.min()) // width + 1)


def test_bins_are_bounded_but_dispersion_needs_no_table() -> None:
    times = np.array([0, MAX_BINS * NS_PER_S], dtype=np.int64)
    with pytest.raises(ValueError, match="more than 10000000"):
        counts_per_bin(times, NS_PER_S)
    # Two counts of 1 in B bins: variance / mean = 1 - 2/B.
    assert dispersion(times)[1] == pytest.approx(1 - 2 / (MAX_BINS + 1))


def test_widths_that_do_not_nest_are_refused() -> None:
    with pytest.raises(ValueError, match="no multiple"):
        dispersion(np.array([0, 5 * NS_PER_S], dtype=np.int64), (2, 3))


def test_what_is_undefined_is_none_and_equal_gaps_are_zero() -> None:
    nothing, one, together = (np.array(v, dtype=np.int64) for v in ([], [5], [3, 3, 3]))
    for times in (nothing, one, together):
        assert gap_cv(times) is None
        assert mean_rate_rps(times) is None
        assert set(dispersion(times).values()) == {None}
    assert gap_cv(np.array([0, 5], dtype=np.int64)) is None
    assert gap_cv(np.arange(5) * NS_PER_S) == 0.0
    assert arrival_facts(nothing)["max_gap_s"] is None
    assert arrival_facts(one)["share_zero_gaps"] is None


def test_facts_of_a_file_out_of_order() -> None:
    facts = arrival_facts(np.array([2, 0, 1, 1], dtype=np.int64) * NS_PER_S)
    assert (facts["file_order_inversions"], facts["distinct_timestamps"], facts["max_requests_at_one_timestamp"]) == (1, 3, 2)
    assert (facts["span_s"], facts["max_gap_s"], facts["share_zero_gaps"]) == (2.0, 1.0, pytest.approx(1 / 3))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200), st.sampled_from([0.01, 0.07, 0.5, 0.9, 0.99, 1.0]))
def test_nearest_rank_is_the_least_value_that_covers_the_share(values: list[int], share: float) -> None:
    got = nearest_rank(np.array(values, dtype=np.int64), share)
    assert got is not None
    assert got in values
    covered = sum(v <= got for v in values)
    assert covered >= share * len(values) - 1e-6
    assert sum(v < got for v in values) < max(1e-6, share * len(values))


def test_nearest_rank_of_nothing_and_sorted_check() -> None:
    assert nearest_rank(np.empty(0, np.int64), 0.5) is None
    assert is_ascending(np.array([1, 1, 2]))
    assert not is_ascending(np.array([1, 0]))


def arrivals_of(name: str) -> Any:
    """Stamps of a published file, ns, read without any of our readers."""
    path = TRACES / name
    if name.endswith(".jsonl.gz"):
        with gzip.open(path, "rt") as lines:
            rows = [json.loads(line) for line in lines if line.strip()]
        unit = 10**6 if "mooncake" in name else 10**9
        return np.array([int(float(row["timestamp"]) * unit) for row in rows], dtype=np.int64)
    column = "req_time_s" if "vtc" in name else "arrived_at"
    with path.open() as lines:
        return np.array([round(float(row[column]) * 1e9) for row in csv.DictReader(lines)], dtype=np.int64)


@pytest.mark.traces
@pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not here")
@pytest.mark.parametrize(
    ("fact", "name"),
    [
        ("vidur_splitwise_code", "azure-llm-2023/vidur_splitwise_code.csv"),
        ("vidur_splitwise_conv", "azure-llm-2023/vidur_splitwise_conv.csv"),
        ("mooncake_conversation", "mooncake/conversation_trace.jsonl.gz"),
        ("mooncake_synthetic", "mooncake/synthetic_trace.jsonl.gz"),
        ("ragpulse", "ragpulse/0_trace.jsonl.gz"),
        ("vtc_arena", "vtc-arena/vtc_real_trace.csv"),
    ],
)
def test_published_facts_are_reproduced(fact: str, name: str) -> None:
    want = json.loads((TRACES / "facts.json").read_text())["facts"][fact]["arrivals"]
    got = arrival_facts(arrivals_of(name))
    shared = set(want) & set(got)
    assert len(shared) == len(got) - 1  # all but the 60 s index, which the facts do not hold
    assert {key: got[key] for key in shared} == pytest.approx({key: want[key] for key in shared}, rel=1e-4, abs=6e-5)
