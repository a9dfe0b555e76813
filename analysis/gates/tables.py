"""Reading columns and samples of a record for gates. Absence is raised as ``AbsentError``, never filled in."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.planned import Bools, Int64, in_window
from analysis.samples import need, need_half, need_seen, series, summed
from analysis.stamps import arrival_order
from harness.record.reader import RunRecord

Floats = npt.NDArray[np.float64]

SECOND = 1_000_000_000


def in_order(record: RunRecord) -> pa.Table:
    """Requests that arrived, without their event lists, in ascending (arrival_ns, request_id) order: row i is row i of ``Clocks``."""
    flat = record.requests.select([f.name for f in record.requests.schema if not pa.types.is_list(f.type)])
    order = arrival_order(record.requests)
    return flat.slice(0, flat.num_rows - flat["arrival_ns"].null_count) if order is None else flat.take(pa.array(order))


def inside(record: RunRecord, t: Int64) -> Bools:
    """Mask (n,) of stamps in the measured window."""
    return in_window(t, record.spec.window)


def mean_ratio(record: RunRecord, metric: str) -> tuple[float, int]:
    """Mean by time of a ratio of the host over the measured window, and its samples there; each speaks of the time since the last.

    Raises AbsentError where they leave half of the window unseen.
    """
    t, v = summed(record.host, "host", metric)
    mask = inside(record, t)
    need_seen(t[mask], record.spec.window, f"host.{metric} samples")
    since = np.diff(t, prepend=t[0])[mask]
    return float((since * v[mask]).sum() / since.sum()), int(mask.sum())


def risen(record: RunRecord, metric: str) -> float:
    """By how much one of the host's metrics ever stood above where it had been, from the last sample before the window to the first after.

    Raises AbsentError unless its samples span half of the window.
    """
    t, v = summed(record.host, "host", metric)
    need_half(t[inside(record, t)], record.spec.window, f"host.{metric} samples")
    window = record.spec.window
    first = max(0, int(np.searchsorted(t, window.start_ns, side="right")) - 1)
    v = v[first : int(np.searchsorted(t, window.stop_ns)) + 1]
    return float((v - np.minimum.accumulate(v)).max())


def by_label(record: RunRecord, source: str, metric: str) -> dict[str, Floats]:
    """Host samples (m,) of a metric inside the measured window by label, "" for none; a label may have none there."""
    return {label: v[inside(record, t)] for label, (t, v) in series(record.host, source, metric).items()}


def shares(record: RunRecord, source: str, metric: str) -> dict[str, float]:
    """Growth of a per-process counter over the window per second of wall time, by label.

    Least squares over all samples: two observers of one process (the worker itself and the sampler beside it) differ by a constant, which
    a slope does not see and a difference of end points would.

    Raises AbsentError unless its samples span at least half of the window: less would let half a run go unseen.
    """
    found = series(record.host, source, metric)
    need(bool(found), f"{source}.{metric} was never sampled")
    return {label: _growth(record, t, v, f"{source}.{metric}") for label, (t, v) in found.items()}


def _growth(record: RunRecord, t: Int64, v: Floats, name: str) -> float:
    mask = inside(record, t)
    t, v = t[mask], v[mask]
    need_half(t, record.spec.window, f"{name} samples")
    seconds = (t - t[0]) / SECOND
    centred = seconds - seconds.mean()
    return float((centred * v).sum() / (centred**2).sum())


def nearest_rank(values: npt.NDArray[Any], p: float) -> float:
    """x_(ceil(pn)) (F39). Raises AbsentError below n = max(2, ceil(1/(1-p))) values (DESIGN 7)."""
    floor = max(2, int(np.ceil(1 / (1 - p) - 1e-9)))
    need(len(values) >= floor, f"n={len(values)} values, and a p{100 * p:g} needs n >= {floor}")
    return float(np.sort(values)[int(np.ceil(p * len(values) - 1e-9)) - 1])


def in_flight(starts: Int64, ends: Int64, at: npt.NDArray[Any]) -> Floats:
    """How many half-open intervals [start, end) cover each instant of ``at``."""
    begun = np.searchsorted(np.sort(starts), at, side="right")
    return np.asarray(begun - np.searchsorted(np.sort(ends), at, side="right"), dtype=np.float64)
