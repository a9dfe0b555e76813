"""Merging the coordinates of replicates into those of a cell, and adding the coordinates of a result (F66, DESIGN 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.fairness_model import FAIRNESS_METRICS
from analysis.fairness_words import frame
from analysis.slos import describe_slo
from harness.record.canonical import canonical_json
from harness.record.coordinates import CONSEQUENCES, RUN_COORDINATES, Coordinate, Known, NotApplicable, RunCoordinates, Unknown
from harness.record.spec import Fairness, LoadPoint, Rank, Slo

BY_REPLICATE = frozenset({"workload.digests", "workload.window"})
"""Coordinates that are planned to differ between replicates; a cell's value maps replicate index to value."""

RESULT_COORDINATES: dict[str, str] = {
    "result.metric": "what is compared",
    "result.unit": "its unit",
    "result.denominator": "what it is divided by",
    "result.percentile_rule": "how a percentile is read off a sample",
    "result.slo": "the predicate a valid request meets",
    "result.load": "where on the load axis, or the search procedure",
    "result.baseline": "what a relative value is relative to",
    "result.fairness": "whose service, while eligible in which sense, at what cost, published when",
    "result.declaration": "declared before the run, or post_hoc",
}

UNITS: dict[str, tuple[str, str]] = {
    "goodput": ("req/s", "measured window, s"),
    "attainment": ("ratio", "offered requests of the cohort"),
    "capacity": ("req/s", "offered requests of the cohort"),
    "request_throughput": ("req/s", "measured window, s"),
    "token_throughput": ("tok/s", "measured window, s"),
    "jain_service": ("ratio", "every identity with work in the measured window"),
    "jain_attainment": ("ratio", "every identity with requests in the cohort"),
    "attainment_least": ("ratio", "offered requests of the cohort, by identity"),
    "service_gap": ("weighted tokens", "pairs while both are eligible"),
    "windowed_gap_mean": ("weighted tokens/s", "windows of the measured window"),
    "windowed_gap_max": ("weighted tokens/s", "windows of the measured window"),
}
"""Unit and denominator by metric; every other metric is a latency in seconds without a denominator."""

ALL_COORDINATES: dict[str, str] = RUN_COORDINATES | RESULT_COORDINATES


VARYING = CONSEQUENCES - {"runtime.packages"}
"""Consequences that an engine settles anew at each start. Not its packages: a set that changed between replicates is two systems."""


def _key(value: Any) -> bytes:
    return canonical_json(value)


def merge_runs(runs: Sequence[tuple[int, RunCoordinates]]) -> dict[str, Coordinate]:
    """Merge run coordinates of one cell; ``runs`` pairs a replicate index with its sealed coordinates.

    A coordinate that is unknown in any replicate is unknown, and one that somebody had to vouch for in any is attested. One whose value
    changes between replicates is unknown too, with both values in the reason, unless it is planned to change (collected by replicate) or is
    settled at each start (``VARYING``: the list of distinct values).
    """
    return {name: _merge_one(name, [(i, c.coordinates[name]) for i, c in runs]) for name in RUN_COORDINATES}


def _merge_one(name: str, items: Sequence[tuple[int, Coordinate]]) -> Coordinate:
    unknown = next((c for _, c in items if isinstance(c, Unknown)), None)
    if unknown is not None:
        return unknown
    if not items:
        return Unknown(reason="no run")
    if name in BY_REPLICATE and all(isinstance(c, Known) for _, c in items):
        return Known(value={str(i): _value(c) for i, c in sorted(items, key=lambda p: p[0])}, source="declared")
    first = items[0][1]
    distinct = {_key(c.model_dump(exclude={"source", "reason"})): c for _, c in items}
    if len(distinct) == 1:
        return next((c for _, c in items if isinstance(c, Known) and c.source == "attested"), first)
    values = [_value(c) for c in distinct.values()]
    if name in VARYING:
        return Known(value=sorted(values, key=_key), source="observed")
    return Unknown(reason=f"changes between replicates: {values}")


def _value(coordinate: Coordinate) -> Any:
    return coordinate.value if isinstance(coordinate, Known) else None


def result_coordinates(
    rank: Rank | None,
    metric: str,
    slo: Slo,
    load: LoadPoint,
    classes: Mapping[str, Slo] | None = None,
    fairness: Fairness | None = None,
) -> dict[str, Coordinate]:
    """Coordinates that analysis adds to a result of one cell; ``classes``: SLOs of request classes with one of their own; ``fairness``: how
    it is measured, for metrics of fairness.
    """
    unit, denominator = UNITS.get(metric, ("s", ""))
    percentile = metric not in UNITS
    declared = rank is not None and rank.metric == metric
    rule = rank.percentile_rule if rank else "nearest_rank"
    return {
        "result.metric": Known(value=metric, source="derived"),
        "result.unit": Known(value=unit, source="derived"),
        "result.denominator": Known(value=denominator, source="derived")
        if denominator
        else NotApplicable(reason="a latency has no denominator"),
        # The rule is sealed in the spec and also decides the reported tails, so it is a coordinate of every result.
        "result.percentile_rule": Known(value=rule, source="declared" if percentile else "derived"),
        "result.slo": Known(value=describe_slo(slo, classes), source="declared"),
        "result.load": Known(value=f"{load.kind}={load.value:g}", source="declared"),
        "result.baseline": Known(value="absolute", source="derived"),
        "result.fairness": _fairness(metric, fairness),
        "result.declaration": Known(value="declared" if declared else "post_hoc", source="derived"),
    }


def _fairness(metric: str, fairness: Fairness | None) -> Coordinate:
    if metric not in FAIRNESS_METRICS:
        return NotApplicable(reason="not a figure of fairness")
    return Known(value=frame(fairness), source="declared") if fairness else Unknown(reason="nobody says how fairness is measured")
