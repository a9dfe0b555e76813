"""What the servers of a cell did, over its replicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from analysis.intervals import replicate_interval
from analysis.model import Figure
from analysis.server_side import ServerSide

HIGHEST = "_max"
"""End of the names of figures of which a cell keeps the highest and not the mean."""


def server_of_cell(sides: Sequence[ServerSide], starts: Sequence[int], level: float) -> ServerSide:
    """Means over the replicates (R >= 1) with intervals over server starts, the highest of highest samples, iterations added up.

    A figure that one replicate lacks is lacking in the cell: leaving that replicate out would choose the data.
    """
    names = dict.fromkeys(name for side in sides for name in side.figures)
    found = {
        name: _merged([side.figures[name] for side in sides], starts, level) for name in names if all(name in s.figures for s in sides)
    }
    bounds = list(sides[0].iterations) if all(side.iterations.keys() == sides[0].iterations.keys() for side in sides) else []
    return ServerSide(found, {bound: sum(side.iterations[bound] for side in sides) for bound in bounds})


def _merged(parts: Sequence[Figure], starts: Sequence[int], level: float) -> Figure:
    n = sum(part.n for part in parts)
    values = [part.value for part in parts if part.status == "ok" and part.value is not None]
    if len(values) < len(parts):
        return _lacking(parts, n)
    if parts[0].metric.endswith(HIGHEST):
        return replace(parts[0], value=max(values), n=n)
    interval = replicate_interval(values, starts, level)
    if interval is not None and min(values) >= 0:  # a level, a count and a time are not below 0; a difference may be
        interval = replace(
            interval, low=max(0.0, interval.low), high=min(1.0, interval.high) if parts[0].unit == "ratio" else interval.high
        )
    return replace(parts[0], value=sum(values) / len(values), n=n, interval=interval)


def _lacking(parts: Sequence[Figure], n: int) -> Figure:
    missing = [part for part in parts if part.status != "ok"]
    reasons = list(dict.fromkeys(part.reason for part in missing))
    some = f"{len(missing)} of {len(parts)} replicates: " if len(missing) < len(parts) else ""
    status = next((part.status for part in missing if part.status == "unknown"), missing[0].status)
    return replace(missing[0], value=None, status=status, n=n, reason=some + "; ".join(reasons), interval=None)
