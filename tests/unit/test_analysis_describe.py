"""What a trace's columns say, under the conventions that published tables have."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.describe import clients, describe, leading_hits, numbers, prefix

S = 10**9


@dataclass(frozen=True)
class Columns:
    """Rows of a trace as analysis reads them."""

    arrival_ns: Any
    input_tokens: Any
    output_tokens: Any
    clock: str = "relative"
    client: Any = None
    blocks: Any = None
    turns: Any = None
    failed: Any = None


@dataclass(frozen=True)
class Names:
    names: tuple[str, ...]
    codes: Any


@dataclass(frozen=True)
class Lists:
    offsets: Any
    values: Any


@dataclass(frozen=True)
class Ids:
    ids: Lists
    size: int = 4
    rounding: str = "ceil"


@dataclass(frozen=True)
class Sessions:
    session: Any
    think_ns: Any = field(default_factory=lambda: np.array([], dtype=np.int64))


def columns(n: int, **changes: Any) -> Columns:
    given_ = {"arrival_ns": np.arange(n) * S, "input_tokens": np.full(n, 7), "output_tokens": np.arange(n)}
    return Columns(**(given_ | changes))


def lists(rows: list[list[int]]) -> Lists:
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    return Lists(offsets, np.array([i for row in rows for i in row], dtype=np.uint64))


def test_a_regular_trace() -> None:
    found = describe(columns(121))
    arrivals = found["arrivals"]
    assert (found["rows"], arrivals["span_s"], arrivals["mean_rate_rps"], arrivals["cv_interarrival"]) == (121, 120.0, 1.0, 0.0)
    assert (found["input_tokens"]["min"], found["input_tokens"]["max"], found["input_tokens"]["sum"]) == (7, 7, 847)
    assert found["output_tokens"]["nearest_rank"] == {"p50": 60.0, "p90": 108.0, "p99": 119.0}
    assert (found["zero_output_rows"], found["rows_total_over_4096"]) == (1, 0)


def test_a_trace_without_times_says_so_instead_of_a_rate() -> None:
    for clock in ("none", "session"):
        found = describe(columns(3, clock=clock))
        assert found["no_arrivals"] is True
        assert "arrivals" not in found


def test_parts_that_a_format_does_not_have_are_left_out() -> None:
    assert not {"clients", "sessions", "prefix", "failed_rows"} & describe(columns(3)).keys()


def test_linear_and_nearest_rank_stand_side_by_side() -> None:
    found = numbers(np.arange(1, 11))
    assert (found.p50, found.nearest_rank["p50"]) == (5.5, 5.0)
    assert (found.p90, found.nearest_rank["p90"]) == (pytest.approx(9.1), 9.0)


def test_clients_are_counted_by_what_they_sent() -> None:
    found = clients(Names(("a", "b", "never"), np.array([0, 0, 0, 1, -1], dtype=np.int32)))
    assert found == {"clients": 2, "top_client_share": [0.75, 0.25], "min_client_requests": 1}


def test_sessions_count_their_turns_and_known_pauses() -> None:
    found = describe(columns(4, turns=Sessions(np.array([5, 5, 9, 5]), np.array([-1, 2 * S, -1, 4 * S]))))
    assert (found["sessions"], found["max_turns_in_session"], found["sessions_with_2plus"]) == (2, 3, 1)
    assert found["think_s"]["mean"] == 3.0


def test_only_the_unbroken_beginning_of_a_prompt_can_be_reused() -> None:
    # The third row knows block 1 and block 3, but block 9 between them is new: only the first counts.
    found = prefix(Ids(lists([[1, 2, 3], [1, 2, 4], [1, 9, 3]])), np.array([12, 11, 12]))
    assert leading_hits(*_parts([[1, 2, 3], [1, 2, 4], [1, 9, 3]])).tolist() == [0, 2, 1]
    assert found.ideal_prefix_hit_blocks == pytest.approx(3 / 9)
    assert found.ideal_prefix_hit_tokens == pytest.approx((8 + 4) / 35)
    assert (found.rows_with_partial_last_block, found.unique_blocks, found.max_blocks_in_row) == (1, 5, 3)


def test_a_partial_last_block_that_is_known_brings_only_the_tokens_that_are_there() -> None:
    found = prefix(Ids(lists([[1, 2], [1, 2]])), np.array([8, 6]))
    assert found.ideal_prefix_hit_tokens == pytest.approx(6 / 14)


def _parts(rows: list[list[int]]) -> tuple[Any, Any]:
    found = lists(rows)
    return found.offsets, found.values


@given(st.lists(st.lists(st.integers(0, 6), max_size=6), max_size=12))
def test_leading_hits_agree_with_counting_by_hand(rows: list[list[int]]) -> None:
    seen: set[int] = set()
    expected = []
    for row in rows:
        hits = 0
        while hits < len(row) and row[hits] in seen:
            hits += 1
        expected.append(hits)
        seen.update(row)
    assert leading_hits(*_parts(rows)).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**5), st.integers(0, 10**5)), max_size=40))
def test_a_description_is_plain_json(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    found = describe(Columns(table[:, 0], table[:, 1], table[:, 2]))
    assert json.loads(json.dumps(found, allow_nan=False))["rows"] == len(rows)
