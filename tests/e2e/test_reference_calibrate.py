"""The whole instrument on one short ladder: load engine against truth server, joined row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.calibrate import calibrate, find_certificate
from harness.calibrate.ladder import TOKENS, Stage, of_rates
from harness.clock import MonotonicClock
from harness.errors import InconclusiveError
from harness.record.schema import MEASUREMENT_PROTOCOL

pytestmark = pytest.mark.e2e


def test_a_short_calibration_certifies_or_says_what_did_not_hold(tmp_path: Path) -> None:
    said: list[str] = []
    ladder = (*of_rates((100.0,), 1.0), Stage("streams", 250, 1, tokens=8, gap_ms=200), Stage("live", 100, 1))
    made, refusal = None, ""
    try:
        made = calibrate(cache=tmp_path, host="m:b", quick=True, clock=MonotonicClock(), on_progress=said.append, ladder=ladder)
    except InconclusiveError as refused:
        refusal = str(refused)
    assert any("rate 100" in line for line in said)
    if made is None:  # a busy host: being late is allowed here, losing requests would be a defect
        assert "slip_p99_ns" in refusal
        assert "delivered" not in refusal
        return
    row, streams, live = made.rates[:3]
    assert (row.offered, row.delivered, row.events) == (100, 100, 100 * TOKENS)
    assert row.ttft_error_p50_ns is not None
    # The logged instant is read before the send: no client can stamp earlier.
    assert row.ttft_error_p50_ns > 0
    assert row.client_cpu_us_per_event is not None
    assert row.spooler_cpu_us_per_event is not None
    assert row.truth_lateness_max_ns is not None
    assert streams.delivered == 250
    assert 200 <= streams.streams <= 250  # a second of arrivals, each open for 1.42 s
    assert 100 <= streams.streams_held <= 150
    assert streams.memory_per_stream_bytes is not None
    assert (live.axis, live.delivered, live.events) == ("live", 100, 100 * TOKENS)
    assert find_certificate(tmp_path, "m:b", MEASUREMENT_PROTOCOL) == made.ref
    assert made.ref.workers == 1
