"""What a server's page showed within the measured window: growth of counters, time-weighted levels, histograms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from analysis.planned import Int64, in_window
from analysis.samples import Floats, growth, need, need_half, need_seen, series, summed
from harness.record.reader import RunRecord

NONE_COUNTED = "the server counted none in the measured window; most engines count a request when it ends, some only when it ends by itself"


class Level(NamedTuple):
    """A gauge over the window: mean by time, and the highest of ``n`` samples (between them it may have been higher)."""

    mean: float
    highest: float
    n: int


@dataclass(frozen=True, eq=False)
class Pages:
    """The pages of one run. ``stamps`` (k,): instants in the measured window at which one was read, ns, ascending.

    Everything here raises AbsentError unless they span at least half of the window: less would let half a run go unseen.
    """

    record: RunRecord

    @cached_property
    def _all(self) -> Int64:
        return np.unique(self.record.server_metrics["t_ns"].to_numpy())

    @cached_property
    def stamps(self) -> Int64:
        """See the class."""
        window = self.record.spec.window
        need(len(self._all) > 0, "the server has no page of metrics, or it was never read")
        inner = self._all[in_window(self._all, window)]
        need_half(inner, window, "its pages")
        return inner

    @property
    def read(self) -> int:
        """Pages of the whole run that were read."""
        return len(self._all)

    @property
    def span_s(self) -> float:
        """Seconds between the first and the last page of the window, over which growth is counted."""
        return float(self.stamps[-1] - self.stamps[0]) / 1e9

    def grown(self, metric: str) -> float:
        """Growth of a counter from the window's first page to its last.

        A counter that the first page did not show, nor any before, was made later and began at 0 (``samples.counter_delta``). Raises
        AbsentError for one that no page showed, RestartedError when it fell: a rate is never negative.
        """
        return self._grown(metric, *self._shown(metric))

    def _shown(self, metric: str) -> tuple[Int64, Floats]:
        found = series(self.record.server_metrics, "server", metric)
        need(bool(found), f"no page of {self.record.spec.arm.runtime} showed it: not counted there, or nothing of it ever happened")
        return summed(self.record.server_metrics, "server", metric)

    def _grown(self, metric: str, t: Int64, v: Floats) -> float:
        first, last = int(self.stamps[0]), int(self.stamps[-1])
        upto = v[t <= last]
        need(len(upto) > 0, f"{metric} was first shown after the measured window")
        before = int((t <= first).sum())
        return growth(metric, upto[before - 1 :] if before else np.append(0.0, upto))

    def ratio(self, over: str, under: str, none: str) -> tuple[float, int]:
        """Growth of one counter per growth of another, and the latter. AbsentError with the reason ``none`` when that did not grow."""
        top, bottom = self.grown(over), self.grown(under)
        need(bottom > 0, none)
        return top / bottom, round(bottom)

    def mean_of(self, histogram: str) -> tuple[float, int]:
        """Mean of what a histogram counted within the window, and how many observations that is."""
        return self.ratio(f"{histogram}_sum", f"{histogram}_count", NONE_COUNTED)

    def shows(self, metric: str) -> bool:
        """Whether any page of the run showed the metric."""
        return bool(series(self.record.server_metrics, "server", metric))

    def level(self, metric: str) -> Level:
        """A gauge over the window: each sample stands for the time that is nearer to it than to its neighbours.

        Raises AbsentError where the samples leave half of the window unseen.
        """
        t, v = self._shown(metric)
        window = self.record.spec.window
        mask = in_window(t, window)
        need_seen(t[mask], window, f"samples of {metric}")
        return level(t[mask], v[mask], window.start_ns, window.stop_ns)

    def buckets(self, metric: str) -> Mapping[str, float]:
        """Observations within the window by upper bound (text, as the server writes it), in ascending order; not cumulated."""
        self._shown(metric)
        found = series(self.record.server_metrics, "server", metric)
        need(all(_is_bound(label) for label in found), f"{metric} has a bound that is no number")
        bounds = sorted(found, key=float)
        grown = [self._grown(metric, *found[bound]) for bound in bounds]
        return {bound: most - less for bound, most, less in zip(bounds, grown, [0.0, *grown[:-1]], strict=True)}


def level(t: Int64, v: Floats, start_ns: int, stop_ns: int) -> Level:
    """Time-weighted mean of samples (m,) over [start, stop), m >= 1: the edges between two samples lie in their middle."""
    edges = np.concatenate(([start_ns], (t[1:] + t[:-1]) / 2, [stop_ns]))
    return Level(float((np.diff(edges) * v).sum() / (stop_ns - start_ns)), float(v.max()), len(v))


def _is_bound(label: str) -> bool:
    try:
        return not np.isnan(float(label))
    except ValueError:
        return False
