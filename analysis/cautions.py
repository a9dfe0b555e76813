"""What to know of a trace before it is replayed: things that are true of the file and would mislead whoever does not know them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.describe import TraceColumns
from harness import burstiness
from harness.clock import NS_PER_S

HEAD_BINS = 20
"""Parts that a trace's span is cut into to look at its head: a twentieth of an hour is three minutes, longer than a burst, shorter than a
service's ramp-up."""

HEAD_SHARE = 0.5
"""A head part with less than half the median part's requests is a ramp: window 0 would measure an idle system."""

ZERO_GAPS = 0.05
"""Share of zero gaps from which stamps are taken to lie on a grid. Coincidences on a real clock of microseconds are far rarer."""

LONG_PAUSE_S = 600.0
"""A pause of ten minutes inside a session: nobody's benchmark means to wait for it."""

IDLE_RPS = 0.05
"""Fewer than three requests a minute load no server."""


@dataclass(frozen=True, slots=True)
class Caution:
    """One thing to know: ``code`` for programs, ``text`` with the numbers, ``remedy`` in the words of a manifest."""

    code: str
    text: str
    remedy: str


def cautions(trace: TraceColumns, found: Mapping[str, Any], *, context: int | None = None) -> list[Caution]:
    """Return everything noteworthy; ``found`` is the trace's description together with its raw profile, ``context`` a model's length."""
    checks = (_order(found), _times(trace, found), _lengths(trace, found, context), _sharing(trace), _sessions(found))
    return [caution for check in checks for caution in check]


def _order(found: Mapping[str, Any]) -> Iterator[Caution]:
    back = found.get("arrivals", {}).get("file_order_inversions", 0)
    if back:
        text = f"file_order_inversions={back}: rows are not in order of time; clamping negative gaps would stretch the trace"
        yield Caution("not_in_order", text, "begin the transforms with {transform: sort}")
    again = found.get("exact_duplicate_rows", 0)
    if again:
        text = f"exact_duplicate_rows={again}: rows equal to an earlier one in every column"
        yield Caution("duplicates", text, "keep them if two users may ask the same; else add {transform: dedupe}")


def _times(trace: TraceColumns, found: Mapping[str, Any]) -> Iterator[Caution]:
    arrivals = found.get("arrivals")
    if arrivals is None:
        yield Caution(
            "no_arrivals",
            f"clock={trace.clock}: rows have no arrival times of their own",
            "draw them, e.g. arrivals: {process: poisson} with load: {rate: [5/s]}",
        )
        return
    yield from _ramp(trace)
    yield from _grid(arrivals)
    rate = arrivals["mean_rate_rps"]
    if rate is not None and rate < IDLE_RPS:
        text = f"mean_rate_rps={rate:.4g}: too few requests to load anything at the trace's own pace"
        yield Caution("idle", text, f"compress time; x{max(2, round(1 / rate))} gives about one request a second")


def _ramp(trace: TraceColumns) -> Iterator[Caution]:
    arrival = burstiness.in_order(trace.arrival_ns)
    span = int(arrival[-1] - arrival[0])
    if span < HEAD_BINS or len(arrival) < 10 * HEAD_BINS:  # fewer than ten a part: its count says nothing of a rate
        return
    width = span // HEAD_BINS + 1  # so that the last arrival lies in the last part and not alone in one more
    counts = burstiness.counts_per_bin(arrival, width)
    usual = float(np.median(counts))
    runs = _runs_of(counts < HEAD_SHARE * usual)
    head = runs[0]
    if head > max(runs[1:], default=0):  # a trace that falls as silent later is bursty, and its start is no special part
        start = head * width / NS_PER_S
        text = (
            f"head: the first {start:.6g} s hold {int(counts[:head].sum())} requests, later parts of that length "
            f"{usual * head:.6g}: a slice from the start measures an idle system"
        )
        yield Caution("head_is_a_ramp", text, f"start the window at {start:.6g} s or later")


def _runs_of(low: npt.NDArray[np.bool_]) -> list[int]:
    """Lengths of the runs of true values; the first is the one at the start, 0 when there is none."""
    ends = np.flatnonzero(np.append(~low, True))
    return [int(length) for length in np.diff(np.append(-1, ends)) - 1]


def _grid(arrivals: Mapping[str, Any]) -> Iterator[Caution]:
    zero = arrivals["share_zero_gaps"]
    if zero is not None and zero >= ZERO_GAPS:
        most = arrivals["max_requests_at_one_timestamp"]
        text = (
            f"share_zero_gaps={zero:.3g}: stamps lie on a grid (up to {most} requests share one), so bursts at that scale are the "
            "recorder's and not the users'"
        )
        yield Caution("on_a_grid", text, "spread them with {transform: jitter, grid: G}, G being the grid, or say that you replay the grid")


def _lengths(trace: TraceColumns, found: Mapping[str, Any], context: int | None) -> Iterator[Caution]:
    rows = found["rows"]
    if context is not None:
        over = int((trace.input_tokens + trace.output_tokens > context).sum())
        if over:
            text = f"rows_total_over_{context}={over} of {rows}: longer than the model's context"
            yield Caution("beyond_context", text, "clip or drop them on purpose: {transform: clip-lengths, on-excess: drop, ...}")
    empty = found["zero_output_rows"]
    if empty:
        text = f"zero_output_rows={empty} of {rows}: no output was recorded (a failure of the traced service, or nothing to say)"
        yield Caution("no_output", text, "leave them out with {transform: drop-failed}, or use output-length: capped")
    if found.get("failed_rows"):
        text = f"failed_rows={found['failed_rows']} of {rows}: the traced service did not answer them"
        yield Caution("failures", text, "replay them as load, or leave them out with {transform: drop-failed}")


def _sharing(trace: TraceColumns) -> Iterator[Caution]:
    if trace.blocks is None and trace.turns is None:
        text = "prefix: the format has neither prefix ids nor sessions, so a replay shows none of the cache hits that the service had"
        yield Caution("no_sharing", text, "read capacity with prefix caching as a lower bound")


def _sessions(found: Mapping[str, Any]) -> Iterator[Caution]:
    think = found.get("think_s")
    if think is not None and think["max"] > LONG_PAUSE_S:
        text = f"think_s.max={think['max']:.6g}: pauses inside sessions last up to that long (p99 {think['nearest_rank']['p99']:.6g} s)"
        yield Caution("long_pauses", text, "cap them: sessions: {think-limit: 60s}")
