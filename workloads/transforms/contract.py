"""What every transform is given and gives back, and the few things several of them need."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from harness.burstiness import NS_PER_S, is_ascending
from harness.errors import UsageError
from workloads.schedule import Blocks, Bools, Int64, Labels, Ragged, Trace, frozen

LATEST_NS = 1 << 60
"""No instant of a plan lies beyond this (36 years): float64 products stay far from the end of int64."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Rows between two steps. ``extent_ns``: how much time they cover, silence included; ``said``: what the last step has to say of
    itself, for its entry in the log."""

    trace: Trace
    extent_ns: int
    said: dict[str, object] = field(default_factory=dict)


def extent(trace: Trace) -> int:
    """Time a raw trace covers, ns: its last arrival rounded up to a whole second, because windows are written in seconds."""
    return -(-(int(trace.arrival_ns.max()) + 1) // NS_PER_S) * NS_PER_S if len(trace) else 0


def to_ns(seconds: float) -> int:
    """Nearest nanosecond. Raises UsageError beyond ``LATEST_NS`` and for what is not a number."""
    if not abs(seconds) <= LATEST_NS / NS_PER_S:  # written so that NaN is refused too
        raise UsageError.single("workload.time", f"seconds={seconds}: not a time within {LATEST_NS / NS_PER_S:.0f} s", "give a finite time")
    return round(seconds * NS_PER_S)


def select(trace: Trace, keep: Bools) -> Trace:
    """Rows of ``trace`` under a mask, all columns alike, read-only; the same object when every row stays."""
    return trace if keep.all() else trace.take(np.flatnonzero(keep))


def cut(trace: Trace, start: int, stop: int) -> Trace:
    """Rows start..stop-1. Plain columns are not copied unless the cut is less than half of them, which would keep the rest in memory."""
    if (start, stop) == (0, len(trace)):
        return trace
    if trace.turns is not None or 2 * (stop - start) < len(trace):
        return trace.take(np.arange(start, stop))
    part = slice(start, stop)
    return replace(
        trace,
        arrival_ns=frozen(trace.arrival_ns[part]),
        input_tokens=frozen(trace.input_tokens[part]),
        output_tokens=frozen(trace.output_tokens[part]),
        source_row=frozen(trace.source_row[part]),
        client=_cut_labels(trace.client, part),
        kind=_cut_labels(trace.kind, part),
        failed=None if trace.failed is None else frozen(trace.failed[part]),
        blocks=trace.blocks and _cut_blocks(trace.blocks, start, stop),
    )


def _cut_labels(labels: Labels | None, part: slice) -> Labels | None:
    return labels and Labels(labels.names, frozen(labels.codes[part]))


def _cut_blocks(blocks: Blocks, start: int, stop: int) -> Blocks:
    offsets = blocks.ids.offsets[start : stop + 1]
    values = blocks.ids.values[int(offsets[0]) : int(offsets[-1])]
    return Blocks(Ragged(frozen(offsets - offsets[0]), frozen(values)), blocks.size, blocks.rounding)


def cut_references(before: Trace, rows: Bools | slice, after: Trace) -> dict[str, object]:
    """How many of the kept ``rows`` lost every turn that they waited for, by a step that took it out: they arrive by the clock now."""
    if before.turns is None or after.turns is None or len(before) == len(after):
        return {}
    waited = int((np.diff(before.turns.after.offsets)[rows] > 0).sum())
    return {"turns_without_predecessor": waited - int((np.diff(after.turns.after.offsets) > 0).sum())}


def in_order(trace: Trace) -> Trace:
    """Rows by arrival; rows of one instant keep their order."""
    if is_ascending(trace.arrival_ns):
        return trace
    return trace.take(np.argsort(trace.arrival_ns, kind="stable"))


def need_time(trace: Trace, step: str) -> None:
    """Raise unless rows have times of their own, in order: what is about time means nothing otherwise."""
    need_clock(trace, step)
    need_order(trace, f"transform={step}")


def need_clock(trace: Trace, step: str) -> None:
    """Raise for a trace without arrivals."""
    if has_arrivals(trace):
        return
    meaning = "every session starts at 0" if trace.clock == "session" else "its rows carry no time"
    what = f"transform={step}: format {trace.format} has clock={trace.clock}, {meaning}, so there is nothing to change in time"
    raise UsageError.single("workload.no_clock", what, "leave the step out and set the load by the rate of an arrival process")


def has_arrivals(trace: Trace) -> bool:
    """Whether the trace's clock says when each request or session came."""
    return trace.clock in {"absolute", "relative"}


def need_order(trace: Trace, who: str) -> None:
    """Raise unless arrivals ascend."""
    if not is_ascending(trace.arrival_ns):
        back = int((trace.arrival_ns[1:] < trace.arrival_ns[:-1]).sum())
        what = f"{who}: arrivals of {trace.name} go back {back} time(s), so its rows are not in order of time"
        raise UsageError.single("workload.unsorted", what, "put the transform sort first; it orders rows by arrival, stably")


def sessions_of(trace: Trace) -> Int64:
    """Number of each row's session (n,), 0.. by first row; every row its own when the trace has none."""
    if trace.turns is None:
        return np.arange(len(trace), dtype=np.int64)
    return numbered(trace.turns.session)


def numbered(keys: npt.NDArray[np.int64]) -> Int64:
    """Number equal keys alike, 0.. in order of their first row."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def starts_of(arrival_ns: Int64, session: Int64) -> Int64:
    """First arrival of each session, by its number (as ``sessions_of`` gives it)."""
    starts = np.full(int(session.max()) + 1 if len(session) else 0, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(starts, session, arrival_ns)
    return starts
