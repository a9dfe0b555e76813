"""How tight the SLO may be at one load: all limits multiplied by one scale, as DistServe draws it (section 6, "SLO Scale").

Each request has a least scale at which it is valid, so the share of requests within any scale, and the tightest scale that still passes,
can be read off exactly, with no search and no re-run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.clocks import Clocks
from analysis.intervals import replicate_interval
from analysis.margins import UNJUDGED, needed_scale, needed_tbt, over
from analysis.model import Figure, Outcome
from analysis.outcomes import OutcomeArray, unjudged
from analysis.planned import MISSING, Bools
from analysis.rates import completed
from analysis.slos import judged_by
from analysis.tails import rank_of
from harness.record.reader import RunRecord

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ScaleCurve:
    """Least scales of the offered cohort in ascending order (n,); +inf for a request that is valid at no scale.

    ``known_to``: from this scale on the curve is a lower bound only, since a request still open when the drain ended might have met it.
    ``reason``: why nothing is known, empty when something is.
    """

    needed: Floats
    known_to: float
    reason: str = ""

    def attainment(self, scale: float) -> float | None:
        """Share of the offered cohort valid with all limits times ``scale``; None where it is not known or nothing was offered."""
        if self.reason or not len(self.needed) or scale >= self.known_to:
            return None
        return float(np.searchsorted(self.needed, scale, side="right")) / len(self.needed)

    def tightest(self, alpha: float) -> float | None:
        """Smallest scale with a share of at least ``alpha``; +inf when none is enough, None where it is not known.

        It is the nearest rank x_(ceil(alpha n)) of the least scales (F39): any smaller one leaves too few requests valid.
        """
        if self.reason or not len(self.needed):
            return None
        scale = float(self.needed[rank_of(alpha, len(self.needed)) - 1])
        return scale if scale < self.known_to or self.known_to == np.inf else None

    def points(self, scales: Sequence[float]) -> tuple[tuple[float, float | None], ...]:
        """Points of the curve for a plot."""
        return tuple((scale, self.attainment(scale)) for scale in scales)


def scale_figure(curves: Sequence[ScaleCurve], alpha: float, server_starts: Sequence[int], level: float = 0.95) -> Figure:
    """Tightest scale that passes at one load, over the replicates of a cell: geometric mean and interval by replicate; lower is better.

    Unknown when some replicate's is not known, or is infinite because too few of its requests completed at all.
    """
    found = [curve.tightest(alpha) for curve in curves]
    values = [scale for scale in found if scale is not None and 0 < scale < np.inf]
    whole = bool(found) and len(values) == len(found)
    return Figure(
        metric="slo_scale",
        unit="ratio",
        value=float(np.exp(np.mean(np.log(values)))) if whole else None,
        status="ok" if whole else "unknown",
        n=sum(len(curve.needed) for curve in curves),
        population=f"offered cohort, mean over {len(found)} replicates",
        denominator=f"limits of the declared SLO, share of valid requests at least {alpha:g}",
        reason="" if whole else "; ".join(dict.fromkeys(_why_not(c, s) for c, s in zip(curves, found, strict=True))) or "no replicate",
        interval=replicate_interval(values, server_starts, level, log=True) if whole else None,
    )


def _why_not(curve: ScaleCurve, scale: float | None) -> str:
    if scale == np.inf:
        return "too few requests completed for any scale to pass"
    if scale == 0:
        return "the SLO limits nothing"
    undecided = "requests still open when the drain ended could have met it: lengthen window.drain"
    return (curve.reason or (undecided if len(curve.needed) else "nothing was offered")) if scale is None else "known in this replicate"


def scale_curve(record: RunRecord, clocks: Clocks, outcome: OutcomeArray) -> ScaleCurve:
    """Build the curve of one run. At scale 1 its share is the run's attainment.

    A request that did not complete as planned is valid at no scale and stays in the denominator. With SLOs by class each request is held to
    its own limits, all multiplied alike; E2E limits are scaled too, where there are any.
    """
    needed = np.full(len(clocks), np.inf)
    lacking = False
    for slo, mask in judged_by(record, clocks.request_id):
        needed[mask] = needed_scale(slo, clocks)[mask]
        lacking |= bool((mask & unjudged(slo, clocks)).any())
    open_ = clocks.in_cohort & (outcome == Outcome.OPEN)
    known_to = float(_open_from(record, clocks, open_).min(initial=np.inf))
    needed[~completed(outcome)] = np.inf
    reason = UNJUDGED if lacking else ""
    return ScaleCurve(np.sort(needed[clocks.in_cohort]), known_to, reason)


def _open_from(record: RunRecord, clocks: Clocks, open_: Bools) -> Floats:
    """Scale below which each request that was still open had already broken a limit, as far as TTFT and E2E can tell (m,)."""
    closed = np.where(clocks.end_ns == MISSING, record.spec.window.end_ns, clocks.end_ns)
    age = closed - clocks.arrival_ns
    first = np.where(clocks.first_ns == MISSING, closed, clocks.first_ns) - clocks.arrival_ns
    broken = np.zeros(len(clocks))
    for slo, mask in judged_by(record, clocks.request_id):
        for clock, limit in ((first, slo.ttft_ns), (age, slo.e2e_ns)):
            if limit is not None:
                broken[mask] = np.maximum(broken, over(clock, limit))[mask]
        if slo.tbt_ns is not None and slo.tbt_rule == "every":
            broken[mask] = np.maximum(broken, needed_tbt(slo.tbt_ns, "every", clocks))[mask]
    return broken[open_]
