"""Sampled series of a record and the growth of its counters. What is absent is raised as ``AbsentError``, never filled in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.record.reader import RunRecord
from harness.record.spec import Window

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


HOLE = 4.0
"""A gap is a hole beyond four times the median one: sampling instants are spread over half to one and a half of their period."""


class AbsentError(Exception):
    """The record lacks what is asked of it; the text is the reason of an UNKNOWN."""


class RestartedError(AbsentError):
    """A counter fell, so the server restarted and the counter's growth is not known."""


def need(condition: bool, reason: str) -> None:
    """Raise ``AbsentError(reason)`` unless ``condition`` holds."""
    if not condition:
        raise AbsentError(reason)


def need_half(t: Int64, window: Window, whose: str) -> None:
    """Raise AbsentError unless ascending samples at t (m,) ns span at least half of the window: less would let half a run go unseen."""
    span = int(t[-1] - t[0]) if len(t) > 1 else 0
    need(2 * span >= window.measured_ns, f"{whose} span {span / 1e9:.3g} s, less than half of the measured window")


def need_seen(t: Int64, window: Window, whose: str) -> None:
    """As ``need_half``, and the holes between the samples leave less than half of the window unseen. A counter's growth needs none of that;
    a level does: a busy server may not answer just while there would be most to see.
    """
    need_half(t, window, whose)
    gaps = np.diff(np.concatenate(([window.start_ns], t, [window.stop_ns])))
    holes = int(gaps[gaps > HOLE * np.median(np.diff(t))].sum())
    need(2 * holes <= window.measured_ns, f"{whose} leave {holes / 1e9:.3g} s of the measured window unseen, more than half")


def series(table: pa.Table, source: str, metric: str) -> dict[str, tuple[Int64, Floats]]:
    """Samples of one metric by label set: label -> (t_ns, value), (m,) each in time order; empty when there are none."""
    wanted = table.filter(pc.and_(pc.equal(table["source"], source), pc.equal(table["metric"], metric)))
    found: dict[str, list[tuple[int, float]]] = {}
    for t, labels, value in zip(*(wanted[c].to_pylist() for c in ("t_ns", "labels", "value")), strict=True):
        found.setdefault(labels or "", []).append((t, value))
    return {label: _columns(sorted(points)) for label, points in found.items()}


def _columns(points: list[tuple[int, float]]) -> tuple[Int64, Floats]:
    return np.array([t for t, _ in points], dtype=np.int64), np.array([v for _, v in points], dtype=np.float64)


def summed(table: pa.Table, source: str, metric: str) -> tuple[Int64, Floats]:
    """One series (t_ns, value), (m,) each; label sets added up at equal stamps. Raises AbsentError where the metric was never sampled."""
    found = series(table, source, metric)
    need(bool(found), f"{source}.{metric} was never sampled")
    t = np.concatenate([p[0] for p in found.values()])
    v = np.concatenate([p[1] for p in found.values()])
    stamps, where = np.unique(t, return_inverse=True)
    return stamps, np.bincount(where, weights=v, minlength=len(stamps)).astype(np.float64)


def counter_delta(record: RunRecord, metric: str, last_end_ns: int) -> float:
    """Growth of a server counter from the last sample at t <= 0 to the last sample at or after ``last_end_ns``.

    Engines show some counters only from their first event on. Where the page was read at t <= 0 and the counter was not on it, it was made
    later, and a counter begins at 0: its growth is its value. One that no page ever showed stays unknown.

    Raises AbsentError when one of the two snapshots is missing: without both, other load or lost load cannot be told from ours.
    RestartedError when the counter fell between them: that is no growth, and no less than 0 either.
    """
    t, v = summed(record.server_metrics, "server", metric)
    before = t <= 0
    made_later = not before.any() and bool((record.server_metrics["t_ns"].to_numpy() <= 0).any())
    need(bool(before.any()) or made_later, f"no snapshot of {metric} from before the first arrival (t <= 0)")
    need(bool(t[-1] >= last_end_ns), f"no snapshot of {metric} from after the last request ended")
    return growth(metric, np.append(0.0, v) if made_later else v[int(before.sum()) - 1 :])


def growth(metric: str, values: Floats) -> float:
    """Growth of a counter over its samples (m,) in time order, m >= 1. RestartedError when it fell anywhere between them."""
    fall = float(np.diff(values).min(initial=0.0))
    if fall < 0:
        raise RestartedError(f"{metric} fell by {-fall:g}: the server restarted")
    return float(values[-1] - values[0])
