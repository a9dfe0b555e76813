"""Downsampled arrays for plots: deterministic, at most 400 points each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from analysis.backlog import departures, unfinished
from analysis.clocks import Clocks
from analysis.planned import MISSING, Int64
from analysis.tails import POINTS, Floats, Ordered, plotted_ranks
from harness.clock import NS_PER_S
from harness.record.reader import RunRecord

Series = tuple[tuple[float, ...], tuple[float, ...]]


def plot_series(record: RunRecord, clocks: Clocks, taken: Mapping[str, Ordered]) -> dict[str, Series]:
    """Return ``ttft_cdf``, ``tbt_cdf``, ``slip_cdf``: (value s, share of values at or below), and ``in_flight``: (s since the epoch, sent
    and not ended).
    """
    cdfs = {f"{name}_cdf": cdf(taken[name]) for name in ("ttft", "tbt", "slip")}
    return cdfs | {"in_flight": in_flight(record, clocks)}


def cdf(sample: Ordered) -> Series:
    """Empirical distribution at evenly spaced ranks, first and last value included; every point is a true point of the step function."""
    if sample.size == 0:
        return (), ()
    ranks = plotted_ranks(sample.size)
    return _floats(sample.at(ranks)), _floats(ranks / sample.size)


def in_flight(record: RunRecord, clocks: Clocks) -> Series:
    """Requests sent and not yet ended, at evenly spaced instants from the epoch to the drain's end."""
    sent = clocks.send_ns != MISSING
    at = np.linspace(0, record.spec.window.end_ns, POINTS).astype(np.int64)
    stop = np.maximum(departures(record, clocks)[sent], clocks.send_ns[sent])
    return _floats(at / NS_PER_S), _floats(unfinished(clocks.send_ns[sent], stop, at))


def _floats(values: Floats | Int64) -> tuple[float, ...]:
    return tuple(float(v) for v in values)
