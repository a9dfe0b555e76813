"""Arm against arm: effect sizes with simultaneous intervals and verdicts against a margin declared before the run (rigor 12).

Replicates that played the same schedule are paired; where that is impossible the interval is Welch's and says so. Replicates that shared a
server start share its luck, so an interval counts groups of starts, not replicates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
from scipy import stats

from analysis.effect_model import EffectVerdict
from analysis.intervals import Floats
from analysis.model import CellAnalysis, Effect, Figure
from analysis.significance import permutation, sign_flip
from harness.record.coordinates import Known
from harness.record.spec import Metric

SHARES = frozenset({"attainment", "jain_service", "jain_attainment", "attainment_least"})
"""Metrics in [0, 1], whose margin is absolute."""
GAPS = frozenset({"service_gap", "windowed_gap_mean", "windowed_gap_max"})
"""Differences of service, which are 0 where all are served alike."""
HIGHER_IS_BETTER = SHARES | {"goodput", "request_throughput", "token_throughput", "capacity"}
DIFFERENCE_METRICS = SHARES | GAPS | {"goodput"}
"""Metrics for which a ratio near a zero would explode; all others are compared as ratios on the log scale."""
DECLARABLE = frozenset(get_args(Metric))

E_MOST = 700.0
"""e^700 is the edge of a float."""


@dataclass(frozen=True, slots=True)
class Replicates:
    """One side's figure by replicate index, with the server start and the schedule's digest of each.

    Without ``starts`` every replicate is taken to have had its own; without ``digests`` pairs can be made by index alone. ``bounds``: what
    each value is known to lie between and no closer, of those that are interpolated over a gap (capacities).
    """

    name: str
    values: Mapping[int, float]
    starts: Mapping[int, int] = field(default_factory=dict)
    digests: Mapping[int, str] = field(default_factory=dict)
    bounds: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    def start(self, index: int) -> int:
        """The server start of a replicate."""
        return self.starts.get(index, index)


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which replicate of a goes with which of b; ``reason`` says why there are none."""

    pairs: tuple[tuple[int, int], ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a difference is held to. ``family``: number of pairs whose intervals hold together, each at 1 - (1 - confidence)/family.

    ``margin`` is relative, for goodput and gaps to the mean of both sides, so that their order decides nothing; for shares it is absolute.
    Without one nothing is claimed.
    """

    metric: str
    margin: float | None
    confidence: float = 0.95
    family: int = 1

    @property
    def level(self) -> float:
        """Level of one interval (Bonferroni)."""
        return 1.0 - (1.0 - self.confidence) / max(self.family, 1)

    @property
    def scale(self) -> Literal["ratio", "difference"]:
        """How two values are held against each other."""
        return "difference" if self.metric in DIFFERENCE_METRICS else "ratio"


@dataclass(frozen=True, slots=True)
class _Estimate:
    """Centre and half width on the working scale, p of a centre of 0, units and their spread."""

    centre: float
    half: float
    p: float
    units: int
    spread: float


def directed(figure: Figure) -> bool:
    """Whether it is known which way a figure is better: it may be declared, or is a time, of which less is."""
    return figure.metric in DECLARABLE or figure.unit == "s"


def digests_of(cell: CellAnalysis) -> dict[int, str]:
    """Schedule digest by replicate index, as sealed; empty when unknown."""
    known = cell.coordinates.get("workload.digests")
    if not isinstance(known, Known) or not isinstance(known.value, Mapping):
        return {}
    return {int(i): str(d) for i, d in known.value.items()}


def replicates_of(cell: CellAnalysis, metric: str, name: str) -> Replicates:
    """Return the figure of every replicate of a cell that has one, with server starts and schedule digests."""
    runs = {r.replicate: r for r in sorted(cell.runs, key=lambda r: r.replicate)}
    figures = {i: r.figures.get(metric) for i, r in runs.items()}
    values = {i: f.value for i, f in figures.items() if f is not None and f.status == "ok" and f.value is not None}
    bounds = {i: (f.interval.low, f.interval.high) for i, f in figures.items() if f is not None and f.interval and metric == "capacity"}
    return Replicates(name, values, {i: r.server_start for i, r in runs.items()}, digests_of(cell), bounds)


def pair_up(a: Replicates, b: Replicates, *, same_campaign: bool) -> Pairing:
    """Pair replicates that played the same schedule, told by its digest.

    Where every replicate of a side played one schedule (E1), the digest names no pair: within a campaign the block does (replicates of one
    index ran side by side), across campaigns nothing does. Fewer than two pairs are none, and so are pairs that would leave replicates of
    both sides out: that would choose the data.
    """
    one, two = _by_digest(a), _by_digest(b)
    if one is None or two is None:
        return Pairing((), f"the schedule of a replicate of {(a if one is None else b).name} isn't known")
    repeated = [side.name for side, known in ((a, one), (b, two)) if len(known) < len(side.values)]
    if repeated:
        same = same_campaign and all(a.digests[i] == b.digests[i] for i in a.values.keys() & b.values.keys())
        pairs = [(i, i) for i in sorted(a.values.keys() & b.values.keys())] if same else []
        reason = f"{' and '.join(repeated)} played one schedule again and again, so a schedule names no pair"
    else:
        pairs = sorted((one[digest], two[digest]) for digest in one.keys() & two.keys())
        reason = f"{len(pairs)} schedules are common to both sides, and pairs need two and all replicates of one side"
        pairs = pairs if len(pairs) == min(len(one), len(two)) else []
    return Pairing(tuple(pairs)) if len(pairs) >= 2 else Pairing((), reason)


def _by_digest(side: Replicates) -> dict[str, int] | None:
    if any(index not in side.digests for index in side.values):
        return None
    return {side.digests[index]: index for index in sorted(side.values)}


def effect_between(a: Replicates, b: Replicates, frame: Frame, *, same_campaign: bool) -> Effect | None:
    """Compare side b with side a: paired where their schedules allow, else by Welch's interval with the reason in ``Effect.reason``.

    None when fewer than two independent units a side, or a value has no logarithm or is not finite.
    """
    pairing = pair_up(a, b, same_campaign=same_campaign)
    if pairing.pairs:
        return _paired(a, b, pairing.pairs, frame)
    found = _unpaired(a, b, frame)
    return replace(found, reason=f"unpaired: {pairing.reason}") if found else None


def paired_effect(
    metric: str,
    names: tuple[str, str],
    values: tuple[Mapping[int, float], Mapping[int, float]],
    *,
    margin: float | None,
    confidence: float,
    family: int,
    starts: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {}),
    bounds: tuple[Mapping[int, tuple[float, float]], Mapping[int, tuple[float, float]]] = ({}, {}),
) -> Effect | None:
    """Compare arm b with arm a over the replicates both have; None when fewer than two pairs or a value has no logarithm.

    ``values``, ``starts`` and ``bounds`` map replicate index to the replicate's figure, its server start and what it lies between. See
    ``Frame`` for the rest.
    """
    a, b = (Replicates(n, v, s, bounds=g) for n, v, s, g in zip(names, values, starts, bounds, strict=True))
    shared = tuple((i, i) for i in sorted(values[0].keys() & values[1].keys()))
    return _paired(a, b, shared, Frame(metric, margin, confidence, family))


def _paired(a: Replicates, b: Replicates, pairs: Sequence[tuple[int, int]], frame: Frame) -> Effect | None:
    x, y = (_scaled([side.values[p[k]] for p in pairs], frame.scale) for k, side in enumerate((a, b)))
    if x is None or y is None:
        return None
    groups = _groups([(a.start(i), b.start(j)) for i, j in pairs])
    differences = np.array([float((y - x)[groups == g].mean()) for g in np.unique(groups)])
    if len(differences) < 2:
        return None
    spread = float(differences.std(ddof=1))
    found = _t(float(differences.mean()), spread / math.sqrt(len(differences)), len(differences) - 1, frame.level)
    method = f"t over {len(pairs)} pairs"
    if len(differences) < len(pairs):
        method = f"t over {len(differences)} groups of pairs that share server starts (hierarchical)"
    estimate = _Estimate(*found, len(differences), spread)
    found_effect = replace(_effect(a, b, frame, estimate, method), pairs=len(pairs), exact=sign_flip(differences, 1 - frame.level))
    return _no_narrower(found_effect, a, b, pairs, frame) if a.bounds or b.bounds else found_effect


def _no_narrower(effect: Effect, a: Replicates, b: Replicates, pairs: Sequence[tuple[int, int]], frame: Frame) -> Effect:
    """Widen the interval of a ratio to what the bounds of its values leave open, and judge it again."""
    one, two = (
        [(side.values[i], *side.bounds.get(i, (side.values[i],) * 2)) for i in which]
        for side, which in zip((a, b), zip(*pairs, strict=True), strict=True)
    )
    down = float(np.mean([math.log(v[1] / v[0]) - math.log(u[2] / u[0]) for u, v in zip(one, two, strict=True)]))
    up = float(np.mean([math.log(v[2] / v[0]) - math.log(u[1] / u[0]) for u, v in zip(one, two, strict=True)]))
    low, high = min(effect.low, effect.estimate * math.exp(down)), max(effect.high, effect.estimate * math.exp(up))
    if (low, high) == (effect.low, effect.high):
        return effect
    verdict = effect.verdict
    if verdict != "unclaimed":
        floor, ceiling = 1 / (1 + effect.margin), 1 + effect.margin
        verdict = judge(low, high, floor, ceiling, higher_is_better=frame.metric in HIGHER_IS_BETTER)
    return replace(effect, low=low, high=high, verdict=verdict, method=f"{effect.method}, no narrower than the grids resolve")


def _unpaired(a: Replicates, b: Replicates, frame: Frame) -> Effect | None:
    sides = [_scaled([side.values[i] for i in sorted(side.values)], frame.scale) for side in (a, b)]
    if any(s is None for s in sides):
        return None
    x, y = (_by_start(side, s) for side, s in zip((a, b), sides, strict=True) if s is not None)
    if min(len(x), len(y)) < 2:
        return None
    parts = [float(s.var(ddof=1)) / len(s) for s in (x, y)]
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(v**2 / (len(s) - 1) for v, s in zip(parts, (x, y), strict=True)) if error else len(x) + len(y) - 2
    found = _t(float(y.mean() - x.mean()), error, freedom, frame.level)
    shared = len(x) + len(y) < len(a.values) + len(b.values)
    method = f"Welch's t, unpaired, over {len(x)} and {len(y)} {'server starts (hierarchical)' if shared else 'replicates'}"
    spread = math.sqrt((float(x.var(ddof=1)) + float(y.var(ddof=1))) / 2)
    return replace(_effect(a, b, frame, _Estimate(*found, len(x) + len(y), spread), method), exact=permutation(x, y, 1 - frame.level))


def _scaled(values: Sequence[float], scale: str) -> Floats | None:
    """Values on the working scale; None when one is not finite there."""
    x = np.asarray(values, dtype=np.float64)
    if scale == "ratio":
        x = np.log(x, out=np.full(len(x), np.nan), where=x > 0)
    return x if len(x) and bool(np.isfinite(x).all()) else None


def _by_start(side: Replicates, values: Floats) -> Floats:
    starts = np.array([side.start(i) for i in sorted(side.values)])
    return np.array([float(values[starts == s].mean()) for s in np.unique(starts)])


def _groups(starts: Sequence[tuple[int, int]]) -> Floats:
    """Label pairs (n,) so that two that share a server on either side, directly or through others, are in one group."""
    label = list(range(len(starts)))
    for i, (one, two) in enumerate(starts):
        for j in range(i):
            if (one == starts[j][0] or two == starts[j][1]) and label[i] != label[j]:
                old, new = max(label[i], label[j]), min(label[i], label[j])
                label = [new if x == old else x for x in label]
    return np.array(label, dtype=np.float64)


def _t(centre: float, error: float, freedom: float, level: float) -> tuple[float, float, float]:
    """Centre, half width and p of a centre of 0. Without any spread the interval is a point: p is 0, or 1 at 0 itself."""
    half = float(stats.t.ppf(0.5 + level / 2, freedom)) * error
    p = float(2 * stats.t.sf(abs(centre) / error, freedom)) if error else float(centre == 0)
    return centre, half, p


def _effect(a: Replicates, b: Replicates, frame: Frame, found: _Estimate, method: str) -> Effect:
    low, estimate, high = found.centre - found.half, found.centre, found.centre + found.half
    if frame.scale == "ratio":
        low, estimate, high = (math.exp(min(max(v, -E_MOST), E_MOST)) for v in (low, estimate, high))
    bound = _bound(frame, a, b)
    verdict: EffectVerdict = "unclaimed"
    if math.isfinite(bound):
        # Floor and ceiling of a ratio mirror each other on the log scale, so that swapping the arms swaps the verdict.
        floor, ceiling = (1 / (1 + bound), 1 + bound) if frame.scale == "ratio" else (-bound, bound)
        verdict = judge(low, high, floor, ceiling, higher_is_better=frame.metric in HIGHER_IS_BETTER)
    words = (a.name, b.name, frame.scale)
    own = {"method": method, "units": found.units, "spread": found.spread, "p": found.p}
    return Effect(*words, estimate, low, high, frame.level, bound, verdict, 0, **own)  # type: ignore[arg-type]


def _bound(frame: Frame, a: Replicates, b: Replicates) -> float:
    """The margin on the effect's own scale; infinite when there is none."""
    if frame.margin is None:
        return math.inf
    absolute = frame.metric in DIFFERENCE_METRICS - SHARES
    size = [float(np.mean([abs(v) for v in side.values.values()])) for side in (a, b)]
    return frame.margin * (size[0] + size[1]) / 2 if absolute else frame.margin


def judge(low: float, high: float, floor: float, ceiling: float, *, higher_is_better: bool) -> EffectVerdict:
    """Hold an interval against the margin: better or worse wholly beyond it, equivalent wholly inside, else unresolved (DESIGN 9)."""
    if low > ceiling:
        return "better" if higher_is_better else "worse"
    if high < floor:
        return "worse" if higher_is_better else "better"
    if floor < low and high < ceiling:
        return "equivalent"
    return "unresolved"
