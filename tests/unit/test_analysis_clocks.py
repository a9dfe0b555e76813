from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.clocks import MISSING, derive_clocks
from harness.errors import UsageError
from harness.record.schema import REQUESTS, EventKind
from tests.builders import MS, S, make_record, make_request

TOKEN, ROLE, EMPTY, USAGE, ERROR = (int(k) for k in (EventKind.TOKEN, EventKind.ROLE, EventKind.EMPTY, EventKind.USAGE, EventKind.ERROR))


def row(events: list[tuple[int, int, int]], **changes: Any) -> dict[str, Any]:
    """One request at 3 s whose events are (ns, tokens, kind)."""
    lists = {
        "event_ns": [e[0] for e in events],
        "event_tokens": [e[1] for e in events],
        "event_kind": [e[2] for e in events],
        "event_bytes": [1] * len(events),
    }
    return make_request(0, 3 * S) | lists | changes


def test_the_first_token_is_the_first_event_that_carries_one() -> None:
    clocks = derive_clocks(make_record([row([(1, 0, ROLE), (2, 0, EMPTY), (3, 0, TOKEN), (7, 1, TOKEN), (9, 2, TOKEN), (11, 0, USAGE)])]))
    assert clocks.first_ns.tolist() == [7]
    assert clocks.last_ns.tolist() == [9]


def test_tokens_of_one_event_share_its_stamp_and_the_share_is_counted() -> None:
    clocks = derive_clocks(make_record([row([(10, 2, TOKEN), (30, 1, TOKEN), (35, 3, TOKEN)])]))
    assert clocks.gap_ns.tolist() == [0, 20, 5, 0, 0]
    assert clocks.event_gap_ns.tolist() == [20, 5]
    assert clocks.shared_share == 5 / 6


def test_events_of_one_read_share_a_stamp_too() -> None:
    clocks = derive_clocks(make_record([row([(10, 1, TOKEN), (10, 1, TOKEN), (30, 1, TOKEN)])]))
    assert clocks.gap_ns.tolist() == [0, 20]
    assert clocks.shared_share == 2 / 3


def test_an_equal_stamp_of_another_request_is_not_shared() -> None:
    clocks = derive_clocks(make_record([row([(10, 1, TOKEN)]), row([(10, 1, TOKEN)], request_id=1)]))
    assert clocks.shared_share == 0
    assert clocks.gap_ns.tolist() == []


def test_an_uncounted_event_is_a_token_event_and_leaves_token_gaps_undefined() -> None:
    events = [(10, -1, TOKEN), (30, 1, TOKEN)]
    clocks = derive_clocks(make_record([row(events, client_tokens=None, usage_completion_tokens=7)]))
    assert not clocks.gaps_defined
    assert clocks.gap_ns.tolist() == []
    assert clocks.event_gap_ns.tolist() == [20]
    assert math.isnan(clocks.shared_share)
    assert clocks.first_ns.tolist() == [10]
    assert clocks.tokens.tolist() == [7]


def test_server_usage_counts_only_for_a_complete_response() -> None:
    clocks = derive_clocks(make_record([row([(10, -1, TOKEN)], client_tokens=None, usage_completion_tokens=7, end_kind="reset")]))
    assert clocks.tokens.tolist() == [MISSING]


def test_a_request_never_sent_has_no_stamps() -> None:
    never = make_request(0, 3 * S, tokens=0, send_ns=None, end_ns=None, end_kind="never_sent", http_status=None, client_tokens=None,
                         usage_completion_tokens=None, event_ns=[], event_tokens=[], event_bytes=[], event_kind=[])  # fmt: skip
    clocks = derive_clocks(make_record([never]))
    absent = [clocks.send_ns, clocks.first_ns, clocks.last_ns, clocks.end_ns, clocks.tokens, clocks.http_status, clocks.error_status]
    assert [column.tolist() for column in absent] == [[MISSING]] * 7
    assert math.isnan(clocks.shared_share)


def test_the_cohort_is_the_half_open_window() -> None:
    at = [2 * S - 1, 2 * S, 12 * S - 1, 12 * S]
    clocks = derive_clocks(make_record([make_request(i, a) for i, a in enumerate(at)]))
    assert clocks.in_cohort.tolist() == [False, True, True, False]


def test_rows_come_out_by_arrival_and_id_whatever_their_order_on_disk() -> None:
    rows = [make_request(2, 5 * S, tokens=2), make_request(1, 5 * S, tokens=3), make_request(0, 9 * S, tokens=1)]
    clocks = derive_clocks(make_record(rows))
    assert clocks.request_id.tolist() == [1, 2, 0]
    assert clocks.tokens.tolist() == [3, 2, 1]
    assert clocks.gap_request.tolist() == [0, 0, 1]


def test_chunks_and_slices_of_a_table_change_nothing() -> None:
    record = make_record([make_request(i, i * 100 * MS, tokens=1 + i % 4) for i in range(40)])
    table = record.requests
    chunked = pa.concat_tables([table.slice(0, 13), table.slice(13, 1), table.slice(14)])
    whole, parts = derive_clocks(record), derive_clocks(replace(record, requests=chunked))
    assert np.array_equal(whole.gap_ns, parts.gap_ns)
    assert np.array_equal(whole.gap_request, parts.gap_request)
    assert np.array_equal(whole.first_ns, parts.first_ns)


def test_an_empty_record_has_empty_clocks() -> None:
    clocks = derive_clocks(make_record([]))
    assert len(clocks) == 0
    assert len(clocks.gap_request) == 0


def test_event_lists_that_do_not_belong_together_are_refused_all_at_once() -> None:
    torn = make_record([row([(10, 1, TOKEN)], event_tokens=[1, 1], event_kind=[])])
    with pytest.raises(UsageError) as caught:
        derive_clocks(torn)
    assert [p.what.split(":")[0] for p in caught.value.problems] == ["event_tokens", "event_kind"]


events_of_a_request = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([TOKEN, TOKEN, ROLE, EMPTY, ERROR])), max_size=8
)


@given(st.lists(events_of_a_request, max_size=6))
def test_the_columns_equal_a_plain_loop(requests: list[list[tuple[int, int, int]]]) -> None:
    rows, expected = [], {"first": [], "last": [], "gap": [], "gap_request": [], "event_gap": []}
    for i, steps in enumerate(requests):
        at, events, stamps, carried = 3 * S + i, [], [], []
        for step, tokens, kind in steps:
            at += step
            events.append((at, tokens, kind))
            if kind == TOKEN and tokens:
                stamps += [at] * tokens
                carried.append(at)
        rows.append(row(events, request_id=i, arrival_ns=3 * S + i))
        expected["first"].append(stamps[0] if stamps else MISSING)
        expected["last"].append(stamps[-1] if stamps else MISSING)
        expected["gap"] += [b - a for a, b in pairwise(stamps)]
        expected["gap_request"] += [i] * max(len(stamps) - 1, 0)
        expected["event_gap"] += [b - a for a, b in pairwise(carried)]
    clocks = derive_clocks(make_record(rows))
    assert clocks.first_ns.tolist() == expected["first"]
    assert clocks.last_ns.tolist() == expected["last"]
    assert clocks.gap_ns.tolist() == expected["gap"]
    assert clocks.gap_request.tolist() == expected["gap_request"]
    assert clocks.event_gap_ns.tolist() == expected["event_gap"]


def test_a_null_list_element_is_an_uncounted_token() -> None:
    table = pa.Table.from_pylist([row([(10, 1, TOKEN), (20, 1, TOKEN)], event_tokens=[1, None])], REQUESTS)
    clocks = derive_clocks(replace(make_record([row([(10, 1, TOKEN)])]), requests=table))
    assert clocks.token_event_count.tolist() == [1, -1]
    assert not clocks.gaps_defined
