"""A key that a server says back stays out of the rows, through the spooler's own way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.clock import MonotonicClock
from harness.record.schema import REQUESTS, SAMPLES, EndKind
from harness.record.segments import SegmentWriter, read_segments
from harness.replay.contract import ReplayPlan
from harness.replay.echoes import HIDDEN, hide, keys_of
from harness.replay.frames import RawExchange
from harness.replay.shares import share_out
from harness.replay.spooler import Books

KEY = "sk-4f9a8b7c6d5e4f3a2b1c"
HEADERS = {"Authorization": f"Bearer {KEY}"}
ERRORS = {
    "page": (401, {"error": {"message": f"Incorrect API key provided: {KEY}."}}),
    "event": (200, {"error": {"message": f"nobody knows {KEY}", "code": 401}}),
    "reason": (200, {"choices": [{"text": "a", "token_ids": [1], "finish_reason": KEY}]}),
    "cut": (401, {"error": {"message": "x" * 190 + KEY}}),
}


@pytest.mark.parametrize("how", ERRORS)
def test_a_key_that_comes_back_is_not_recorded(how: str, tmp_path: Path) -> None:
    status, said = ERRORS[how]
    body = json.dumps(said).encode() if status != 200 else b"data: " + json.dumps(said).encode() + b"\n\ndata: [DONE]\n\n"
    kind = EndKind.HTTP_ERROR if status != 200 else EndKind.COMPLETE
    frame = RawExchange(0, 0, 1, 2, 3, kind, status, status == 200, False, "", (2,), (len(body),), body)
    plan = ReplayPlan("h", 1, "/", "completions", np.zeros(1, np.int64), (b"",), np.full(1, -1), 10, tmp_path, headers=HEADERS)
    clock = MonotonicClock()
    with SegmentWriter(tmp_path, "r", REQUESTS, clock=clock) as requests, SegmentWriter(tmp_path, "s", SAMPLES, clock=clock) as samples:
        Books(share_out(plan)[0], requests, samples).take(frame)
    (row,) = read_segments(tmp_path, "r", REQUESTS)[0].to_pylist()
    told = f"{row['error']} {row['finish_reason']}"
    assert HIDDEN in told
    assert KEY[:6] not in told


@given(st.text(max_size=30), st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=30), st.text(max_size=30))
def test_no_key_survives_in_a_text_that_held_it(before: str, key: str, after: str) -> None:
    keys = keys_of({"x": key})
    told = hide({"error": f"{before}{key}{after}", "finish_reason": None}, keys)
    assert not any(key in part for part in told["error"].split(HIDDEN))
    assert told["finish_reason"] is None


def test_without_keys_and_without_echo_a_row_is_what_it_was() -> None:
    row = {"error": "queue is full…", "finish_reason": "length"}
    assert keys_of({"x-tenant": "a b"}) == ()
    assert hide(row, ()) == hide(row, keys_of(HEADERS)) == row
