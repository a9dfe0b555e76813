"""Prompts of megabytes to a server that reads them slowly, among requests of a few hundred bytes.

Nothing is timed here: the server writes down in which order it got the requests whole, and the engine in which order they left and ended.
What a large body costs the loop in time is a row of the benchmarks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.engine_here import Left, drive
from tests.e2e.replaying import hostile, plan

pytestmark = pytest.mark.e2e

LARGE = "good " + "x" * 8_000_000
"""Read in 125 pieces with a pause behind each: 0.6 s at least, of which no socket buffer takes more than a few megabytes."""

SMALL = 30


def test_small_requests_leave_and_end_while_large_ones_are_still_being_written(tmp_path: Path) -> None:
    events = tmp_path / "events"
    prompts = [LARGE.replace("good", "until_eof")] * 2 + ["good"] * SMALL
    with hostile("--events", str(events)) as port:
        got, left = drive(plan(tmp_path, port, prompts, every_ms=5, end_ms=60_000))
    asked = [line for line in events.read_text().splitlines() if line.startswith("asked")]
    assert (asked.count("asked good"), asked.count("asked until_eof")) == (SMALL, 2)
    # The small ones overtake: all were read, answered and over before the first large one had come whole.
    assert asked[:SMALL] == ["asked good"] * SMALL
    assert {row["request_id"] for row in got[:SMALL]} == set(range(2, SMALL + 2))
    assert {row["end_kind"] for row in got} == {"complete"}
    assert left == Left(descriptors=0, tasks=0, connections=0, requests=0)


def test_a_large_body_leaves_at_its_instant_and_costs_no_other_its_own(tmp_path: Path) -> None:
    prompts = ["good", LARGE, "good", LARGE, "good"]
    with hostile() as port:
        got, _ = drive(plan(tmp_path, port, prompts, every_ms=20, end_ms=60_000))
    rows = sorted(got, key=lambda row: int(row["request_id"]))
    sends = [row["send_ns"] for row in rows]
    assert sends == sorted(sends)  # in the order of their arrivals, none held behind a body
    assert all(a >= row["arrival_ns"] for a, row in zip(sends, rows, strict=True))
    assert sends[4] < min(rows[1]["headers_ns"], rows[3]["headers_ns"])


def test_a_refusal_before_the_body_was_read_ends_the_request_and_its_connection(tmp_path: Path) -> None:
    """A server may answer 429 to the head alone: the rest of the body is dropped, and the connection is nobody else's."""
    with hostile() as port:
        got, left = drive(plan(tmp_path, port, [LARGE.replace("good", "refuse_unread"), "good"], every_ms=5, end_ms=60_000))
    kinds = {row["request_id"]: row["end_kind"] for row in got}
    assert kinds == {0: "http_error", 1: "complete"}
    assert not any(row["reused_connection"] for row in got)
    assert left == Left(descriptors=0, tasks=0, connections=0, requests=0)
