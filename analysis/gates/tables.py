"""Reading columns and samples of a record for gates. Absence is raised as ``AbsentError``, never filled in."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis.clocks import MISSING, Int64, Strings
from analysis.gates.registry import AbsentError
from harness.record.reader import RunRecord
from harness.record.schema import EndKind

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SECOND = 1_000_000_000

SERVED = (str(EndKind.COMPLETE), str(EndKind.CLIENT_STOP))
"""Ends that mean the request got everything it was planned to get."""


def in_order(record: RunRecord) -> pa.Table:
    """Requests without their event lists, in ascending (arrival_ns, request_id) order: row i is row i of ``Clocks``."""
    flat = record.requests.select([f.name for f in record.requests.schema if not pa.types.is_list(f.type)])
    return flat.sort_by([("arrival_ns", "ascending"), ("request_id", "ascending")])


def integers(table: pa.Table, name: str) -> Int64:
    """Column as int64 (n,), null as MISSING."""
    return np.asarray(table[name].cast(pa.int64()).fill_null(MISSING).to_numpy(), dtype=np.int64)


def texts(table: pa.Table, name: str) -> Strings:
    """Column as object array (n,) of str or None."""
    return np.array([*table[name].to_pylist(), None], dtype=object)[:-1]


def planned(table: pa.Table, name: str, request_id: Int64) -> Int64:
    """Values of a schedule or truth column for ``request_id`` (n,), MISSING for ids the table does not hold."""
    values = dict(zip(table["request_id"].to_pylist(), integers(table, name).tolist(), strict=True))
    return np.array([values.get(i, MISSING) for i in request_id.tolist()], dtype=np.int64)


def is_any(values: Strings, *wanted: str) -> Bools:
    """Mask (n,) of values that equal one of ``wanted``."""
    return np.array([v in wanted for v in values], dtype=bool)


def need(condition: bool, reason: str) -> None:
    """Raise ``AbsentError(reason)`` unless ``condition`` holds."""
    if not condition:
        raise AbsentError(reason)


def series(table: pa.Table, source: str, metric: str) -> dict[str, tuple[Int64, Floats]]:
    """Samples of one metric by label set: label -> (t_ns, value), in time order; empty when there are none."""
    wanted = table.filter(pc.and_(pc.equal(table["source"], source), pc.equal(table["metric"], metric)))
    found: dict[str, list[tuple[int, float]]] = {}
    for t, labels, value in zip(*(wanted[c].to_pylist() for c in ("t_ns", "labels", "value")), strict=True):
        found.setdefault(labels or "", []).append((t, value))
    return {label: _columns(sorted(points)) for label, points in found.items()}


def _columns(points: list[tuple[int, float]]) -> tuple[Int64, Floats]:
    return np.array([t for t, _ in points], dtype=np.int64), np.array([v for _, v in points], dtype=np.float64)


def summed(table: pa.Table, source: str, metric: str) -> tuple[Int64, Floats]:
    """One series with label sets added up at equal stamps. Raises AbsentError when the metric was never sampled."""
    found = series(table, source, metric)
    need(bool(found), f"{source}.{metric} was never sampled")
    t = np.concatenate([p[0] for p in found.values()])
    v = np.concatenate([p[1] for p in found.values()])
    stamps, where = np.unique(t, return_inverse=True)
    return stamps, np.bincount(where, weights=v, minlength=len(stamps)).astype(np.float64)


def inside(record: RunRecord, t: Int64) -> Bools:
    """Mask of stamps in the measured window."""
    window = record.spec.window
    return np.asarray((t >= window.start_ns) & (t < window.stop_ns), dtype=bool)


def windowed(record: RunRecord, source: str, metric: str) -> Floats:
    """All host samples of a metric inside the measured window, labels pooled. Raises AbsentError when there is none."""
    found = series(record.host, source, metric)
    values = [v[inside(record, t)] for t, v in found.values()]
    pooled = np.concatenate(values) if values else np.empty(0)
    need(len(pooled) > 0, f"{source}.{metric} has no sample in the measured window")
    return np.asarray(pooled, dtype=np.float64)


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
    span = int(t[-1] - t[0]) if len(t) > 1 else 0
    need(2 * span >= record.spec.window.measured_ns, f"{name} samples span {span / SECOND:.3g} s, less than half of the measured window")
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
