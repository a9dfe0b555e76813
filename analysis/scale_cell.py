"""How tight an SLO each cell would hold: the curve of each run on a common grid of scales, and the tightest scale that still passes."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.capacity_scale import scale_curve, scale_figure
from analysis.model import Figure
from analysis.run import RunMeasures
from analysis.series import Series
from harness.record.reader import RunRecord
from harness.record.spec import RunSpec

SCALES = tuple(2 ** (k / 12) for k in range(-24, 25))
"""A quarter to four times the declared limits, in steps of a semitone: closer than a plot can show."""

DEFAULT_TARGET = 0.9
"""The share DistServe draws its SLO scales at (section 6), where a manifest declares none."""


def slo_scales(measured: Sequence[tuple[RunRecord, RunMeasures]]) -> tuple[dict[str, Figure], tuple[dict[str, Series], ...]]:
    """Return the cell's figure ``slo_scale`` and each run's series of that name (scale, share valid); nothing without an SLO.

    All limits are multiplied by one scale, as DistServe draws it. Points that the record cannot know are left out.
    """
    spec = measured[0][0].spec
    slos = (spec.slo, *spec.slo_classes.values())
    if all(slo.ttft_ns is None and slo.tbt_ns is None and slo.e2e_ns is None for slo in slos):
        return {}, tuple({} for _ in measured)
    curves = [scale_curve(record, m.clocks, m.outcome) for record, m in measured]
    points = [[(scale, share) for scale, share in curve.points(SCALES) if share is not None] for curve in curves]
    series = tuple({"slo_scale": (tuple(x for x, _ in p), tuple(y for _, y in p))} if p else {} for p in points)
    starts, level = [record.spec.server_start for record, _ in measured], spec.rank.confidence if spec.rank else 0.95
    return {"slo_scale": scale_figure(curves, target_of(spec), starts, level)}, series


def target_of(spec: RunSpec) -> float:
    """The share of valid requests that was declared to be enough."""
    if spec.probe is not None:
        return spec.probe.search.attainment
    return spec.rank.attainment if spec.rank is not None else DEFAULT_TARGET
