"""Errors against the logged write, the certification rule, and which certificate a run may cite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.calibrate import cited, summary, table
from harness.calibrate.certificate import (
    Axis,
    Certificate,
    RateRow,
    Thresholds,
    body_of,
    ceiling,
    ceilings,
    certificate_id,
    find_certificate,
    load,
    save,
)
from harness.calibrate.measure import Exchange, exchange, nearest_rank, rate_row
from harness.errors import HostError
from harness.record.spec import CertificateRef
from harness.vocabulary import EndKind, EventKind

US, MS = 1_000, 1_000_000
LIMITS = Thresholds()


def stamps(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(values, dtype=np.int64)


def row(**changes: Any) -> dict[str, Any]:
    kinds = [EventKind.ROLE, EventKind.TOKEN, EventKind.TOKEN, EventKind.USAGE, EventKind.DONE]
    base = {
        "arrival_ns": 1_000, "send_ns": 1_500, "end_kind": EndKind.COMPLETE,
        "event_ns": [5, 10, 25, 25, 25], "event_tokens": [0, 1, 2, 0, 0], "event_kind": [int(k) for k in kinds],
    }  # fmt: skip
    return base | changes


def made(slip: int = 100 * US, first: int = 50 * US, gap: int = 10 * US, count: int = 3) -> Exchange:
    truth = np.arange(count, dtype=np.int64) * 10 * MS
    return Exchange(slip, truth + first + np.arange(count) * gap, truth, True)


def test_tokens_that_share_an_event_share_its_stamp() -> None:
    joined = exchange(row(), stamps(9, 20, 21), 3)
    assert joined.client.tolist() == [10, 25, 25]
    assert joined.slip_ns == 500
    assert joined.delivered


@pytest.mark.parametrize(
    "joined",
    [
        exchange(row(), stamps(9, 20), 3),
        exchange(row(end_kind=EndKind.RESET), stamps(9, 20, 21), 3),
        exchange(row(event_tokens=[0, 1, 1, 0, 0]), stamps(9, 20, 21), 3),
        exchange(row(), stamps(), 0),
    ],
)
def test_anything_lost_is_not_delivered(joined: Exchange) -> None:
    assert not joined.delivered


def test_a_request_never_sent_has_no_slip() -> None:
    never = row(send_ns=None, end_kind=EndKind.NEVER_SENT, event_ns=[], event_tokens=[], event_kind=[])
    assert exchange(never, stamps(), 3).slip_ns is None


def test_errors_are_client_minus_logged_write() -> None:
    found = rate_row(25, 100, [made()] * 100, 0.006, LIMITS)
    assert (found.ttft_error_p50_ns, found.tbt_error_p99_ns) == (50 * US, 10 * US)
    assert (found.delivered, found.events, found.certified) == (100, 300, True)
    assert found.client_cpu_us_per_event == pytest.approx(20)


def test_a_rate_is_certified_at_the_limit_and_not_one_ns_beyond() -> None:
    at, beyond = ([made()] * 98 + [made(slip=slip)] * 2 for slip in (1 * MS, 1 * MS + 1))
    assert rate_row(25, 100, at, None, LIMITS).certified
    assert rate_row(25, 100, beyond, None, LIMITS).reasons == ("slip_p99_ns=1000001: the limit is 1000000",)


def test_losses_and_small_samples_are_not_certified() -> None:
    lost = rate_row(25, 101, [made()] * 100, None, LIMITS)
    assert lost.reasons[0].startswith("delivered=100 of 101")
    assert rate_row(25, 99, [made()] * 99, None, LIMITS).reasons == ("offered=99: a p99 needs 100",)
    assert len(rate_row(25, 100, [], None, LIMITS).reasons) == 2
    assert rate_row(25, 100, [], None, LIMITS).ttft_error_p99_ns is None


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=300), st.sampled_from([0.5, 0.95, 0.99]))
def test_nearest_rank_covers_its_share_and_no_smaller_value_does(values: list[int], p: float) -> None:
    found = nearest_rank(stamps(*values), p)
    assert found in values
    below = sum(v <= found for v in values)
    assert below >= p * len(values) - 1e-9
    assert sum(v < found for v in values) < p * len(values)


def rate(value: float, *, ok: bool, attempt: int = 1) -> RateRow:
    return rate_row(value, 100, [made(slip=100 * US if ok else 2 * MS)] * 100, 0.001, LIMITS, attempt)


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ((rate(25, ok=True), rate(50, ok=True)), 50),
        ((rate(25, ok=True), rate(50, ok=False)), 25),
        ((rate(25, ok=True), rate(50, ok=False), rate(100, ok=True)), 25),
        ((rate(25, ok=True), rate(50, ok=False), rate(100, ok=True), rate(50, ok=True, attempt=2)), 100),
        ((rate(25, ok=False), rate(50, ok=True)), None),
    ],
)
def test_the_ceiling_has_no_hole_below_it(rows: tuple[RateRow, ...], best: float | None) -> None:
    found = ceiling(rows)
    assert (found and found.rate) == best


def on(axis: Axis, value: float, *, ok: bool, **more: Any) -> RateRow:
    return rate(value, ok=ok).model_copy(update={"axis": axis} | more)


def test_every_axis_has_a_ceiling_of_its_own() -> None:
    rows = (
        on("rate", 25, ok=True, events_per_s=200.0, streams=20, streams_held=10),
        on("rate", 50, ok=True, events_per_s=400.0, streams=40, streams_held=30),
        on("rate", 100, ok=False, events_per_s=800.0),
        on("events", 100, ok=True, events_per_s=10_000.0, streams=100, streams_held=90),
        on("events", 200, ok=False, events_per_s=20_000.0),
        on("events", 300, ok=True, events_per_s=30_000.0),
        on("streams", 50, ok=True, events_per_s=500.0, streams=500, streams_held=400, memory_per_stream_bytes=9_000),
        on("streams", 100, ok=True, events_per_s=1000.0, streams=1000, streams_held=900, memory_per_stream_bytes=8_000),
        on("live", 100, ok=True, events_per_s=4_000.0),
    )
    found = ceilings(rows)
    assert found is not None
    assert (found.rate, found.events, found.streams, found.live_events) == (50, 10_000, 900, 4_000)
    assert (found.best.rate, found.memory_per_stream_bytes) == (50, 8_000)


def test_what_was_not_tried_or_did_not_hold_has_no_ceiling() -> None:
    assert ceilings((on("rate", 25, ok=False), on("events", 100, ok=True))) is None
    found = ceilings(
        (on("rate", 25, ok=True, events_per_s=9.0, streams=3, streams_held=2), on("live", 25, ok=False), on("streams", 9, ok=False))
    )
    assert found is not None
    assert (found.events, found.streams, found.live_events, found.memory_per_stream_bytes) == (9.0, 2, 0.0, None)
    untried = ceilings((on("rate", 25, ok=True),))
    assert untried is not None
    assert untried.live_events is None


def certificate(host: str = "m:b", protocol: int = 1, created: str = "2026-01-01T00:00:00+00:00", workers: int = 1) -> Certificate:
    best = rate(25, ok=True)
    ref = CertificateRef(
        id="", protocol=protocol, host=host, created=created, rate_ceiling=25, event_ceiling=1000,
        slip_p99_ns=1, ttft_error_p99_ns=1, tbt_error_p99_ns=1, workers=workers,
    )  # fmt: skip
    draft = Certificate(
        ref=ref, quick=True, thresholds=LIMITS, rates=(best,), truth_ttft_ns=20 * MS,
        truth_lateness_p99_ns=1, truth_lateness_max_ns=1, placement={},
    )  # fmt: skip
    return draft.model_copy(update={"ref": ref.model_copy(update={"id": certificate_id(body_of(draft))})})


def test_the_newest_certificate_of_host_boot_and_protocol_is_found(tmp_path: Path) -> None:
    assert find_certificate(tmp_path, "m:b", 1) is None
    old, new = certificate(), certificate(created="2026-01-02T00:00:00+00:00")
    for item in (new, old, certificate(host="m:other-boot"), certificate(protocol=2)):
        save(tmp_path, item)
    assert find_certificate(tmp_path, "m:b", 1) == new.ref
    assert find_certificate(tmp_path, "m:never", 1) is None


def test_a_certificate_for_as_many_workers_comes_before_a_newer_one(tmp_path: Path) -> None:
    two = certificate(workers=2)
    for item in (two, certificate(created="2026-01-02T00:00:00+00:00")):
        save(tmp_path, item)
    assert find_certificate(tmp_path, "m:b", 1, workers=2) == two.ref
    assert find_certificate(tmp_path, "m:b", 1, workers=3) == find_certificate(tmp_path, "m:b", 1)


def test_a_certificate_that_was_changed_or_renamed_is_not_cited(tmp_path: Path) -> None:
    path = save(tmp_path, certificate())
    assert load(path) == certificate()
    text = path.read_text()
    path.write_text(text.replace('"rate_ceiling": 25.0', '"rate_ceiling": 9000.0'))
    assert load(path) is None
    (path.parent / "x.json").write_text(text)
    (path.parent / "torn.json").write_text(text[:50])
    assert find_certificate(tmp_path, "m:b", 1) is None


def test_an_unwritable_cache_is_a_host_error(tmp_path: Path) -> None:
    (tmp_path / "certificates").write_text("in the way")
    with pytest.raises(HostError, match="certificate_unwritable"):
        save(tmp_path, certificate())


def test_a_table_has_a_line_for_each_stage_and_says_which_did_not_hold() -> None:
    made = certificate()
    lost = on("streams", 50, ok=False, streams=400, memory_per_stream_bytes=9_600, spooler_cpu_us_per_event=3.25)
    lines = table(made.model_copy(update={"rates": (*made.rates, lost)}))
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split()[-3:] == ["-", "-", "yes"]
    assert {"400", "9.6", "3.2"} <= set(lines[2].split())
    assert lines[2].endswith("no (1)")


def test_the_summary_says_what_was_not_measured() -> None:
    made = certificate(workers=2)
    assert "(2 workers): up to 25 req/s, 1000 events/s (not measured decoded as they come)" in summary(made)
    ref = made.ref.model_copy(update={"live_event_ceiling": 400.0, "stream_ceiling": 500, "memory_per_stream_bytes": 16_000})
    assert "(400 decoded as they come), 500 streams, 16 KB a stream" in summary(made.model_copy(update={"ref": ref}))


def test_a_reference_leads_back_to_its_certificate(tmp_path: Path) -> None:
    made = certificate()
    assert cited(tmp_path, made.ref) is None
    save(tmp_path, made)
    assert cited(tmp_path, made.ref) == made
