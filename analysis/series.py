"""Downsampled arrays for plots: deterministic, at most 400 points each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from analysis.backlog import Overload, departures, unfinished
from analysis.clocks import Clocks
from analysis.distributions import ecdf, histogram
from analysis.planned import MISSING, Int64
from analysis.tails import POINTS, Floats, Ordered, Sample
from harness.clock import NS_PER_S
from harness.record.reader import RunRecord

Series = tuple[tuple[float, ...], tuple[float, ...]]


def plot_series(record: RunRecord, clocks: Clocks, taken: Mapping[str, Ordered], load: Overload) -> dict[str, Series]:
    """Return the parts of distributions that may be shown, and ``in_flight``: (s since the epoch, requests sent and not ended).

    ``ttft_cdf``, ``tbt_cdf``, ``e2e_cdf``, ``slip_cdf`` over completions, ``ttft_offered_cdf`` over the offered cohort: (value s, share at
    or below). ``ttft_histogram``: (lower end of a column s, requests in it). While the backlog grows those of latencies are empty.
    """
    shown = {f"{name.replace('@', '_')}_cdf": _cdf(taken[name], withheld=load.flag) for name in ("ttft", "ttft@offered", "tbt", "e2e")}
    shown |= {"ttft_histogram": _columns(taken["ttft"], withheld=load.flag), "slip_cdf": _cdf(taken["slip"], withheld=False)}
    return shown | {"in_flight": in_flight(record, clocks)}


def _cdf(sample: Ordered, *, withheld: bool) -> Series:
    found = ecdf(sample)
    return ((), ()) if withheld else (_floats(found.values), _floats(found.shares))


def _columns(sample: Ordered, *, withheld: bool) -> Series:
    if withheld or not isinstance(sample, Sample):
        return (), ()
    found = histogram(sample)
    return _floats(found.edges), _floats(found.counts)


def in_flight(record: RunRecord, clocks: Clocks) -> Series:
    """Requests sent and not yet ended, at evenly spaced instants from the epoch to the drain's end."""
    sent = clocks.send_ns != MISSING
    at = np.linspace(0, record.spec.window.end_ns, POINTS).astype(np.int64)
    stop = np.maximum(departures(record, clocks)[sent], clocks.send_ns[sent])
    return _floats(at / NS_PER_S), _floats(unfinished(clocks.send_ns[sent], stop, at))


def _floats(values: Floats | Int64) -> tuple[float, ...]:
    return tuple(float(v) for v in values)
