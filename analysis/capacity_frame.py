"""The frame of a capacity: what runs at many loads share, and the search that stands in for their loads (F66, DESIGN 7 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.capacity_declared import coordinate
from analysis.coordinates import BY_REPLICATE, merge_runs, result_coordinates
from harness.record.canonical import canonical_json
from harness.record.coordinates import Coordinate, Known, RunCoordinates, Unknown
from harness.record.reader import RunRecord
from harness.record.search import Search

UNITS = {"rate": "req/s", "time_compression": "x"}


def search_words(search: Search) -> str:
    """Name the search in a line for titles; the whole of it is the load coordinate."""
    unit = " req/s" if search.unit == "rate" else "x"
    return f"{100 * search.attainment:g}% of requests, searched from {search.start:g} to {search.limit:g}{unit}"


def search_coordinates(grid: Sequence[RunRecord], search: Search, shared: frozenset[int]) -> dict[str, Coordinate]:
    """Merge the coordinates of an arm's grid runs without the load of each, and add those of the result: its load is the search.

    Schedules of one draw at other loads are other bytes, so a replicate is known by its draw: the root seed of its random numbers, and
    where its part of the trace begins. ``shared``: replicates that every arm has; what is planned to differ between replicates is compared
    over those, since a second stage may give arms more of them, and a search that is cut fewer.
    """
    frames = [(record.spec.replicate, _without_load(record)) for record in grid]
    paired = [(replicate, frame) for replicate, frame in frames if replicate in shared] or frames
    found = merge_runs(frames) | {name: value for name, value in merge_runs(paired).items() if name in BY_REPLICATE}
    for name in sorted(BY_REPLICATE):
        split = _split(name, frames)
        if split is not None:
            found[name] = Unknown(reason=f"replicate {split} has more than one {name} over its load points")
    spec = grid[0].spec
    own = result_coordinates(spec.rank, "capacity", spec.slo, spec.load, spec.slo_classes)
    return {
        **found,
        **own,
        "result.unit": Known(value=UNITS[search.unit], source="derived"),
        "result.load": Known(value=coordinate(search), source="declared"),
    }


def _without_load(record: RunRecord) -> RunCoordinates:
    spec, frame = record.spec, dict(record.coordinates.coordinates)
    frame["workload.digests"] = Known(value={"draw_seed": spec.workload.seed}, source="declared")
    for name, strip in (("workload.arrivals", _no_rate), ("workload.transforms", _no_compression), ("workload.window", _start_only)):
        stated = frame[name]
        if isinstance(stated, Known):
            frame[name] = Known(value=strip(stated.value, spec.load.value, spec.load.kind), source=stated.source)
    return RunCoordinates(coordinates=frame)


def _no_rate(arrivals: Any, _value: float, kind: str) -> Any:
    return {k: v for k, v in arrivals.items() if k != "rate"} if kind == "rate" and isinstance(arrivals, dict) else arrivals


def _no_compression(steps: Any, value: float, kind: str) -> Any:
    """Drop the last compression of the chain, which is the load's."""
    if kind != "time_compression" or not isinstance(steps, list):
        return steps
    at = [i for i, step in enumerate(steps) if isinstance(step, dict) and step.get("factor") == value]
    return [*steps[: at[-1]], *steps[at[-1] + 1 :]] if at else steps


def _start_only(window: Any, _value: float, kind: str) -> Any:
    """A part of a trace that is compressed ends the later the more it is; where it begins is the draw's."""
    return {"start_s": window[0]} if kind == "time_compression" and isinstance(window, list) and window else window


def _split(name: str, frames: Sequence[tuple[int, RunCoordinates]]) -> int | None:
    """The first replicate whose load points do not agree on ``name``."""
    seen: dict[int, bytes] = {}
    for replicate, frame in frames:
        said = canonical_json(frame.coordinates[name].model_dump())
        if seen.setdefault(replicate, said) != said:
            return replicate
    return None
