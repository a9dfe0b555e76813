"""The words of differences: an effect with what qualifies it, and the plane of two figures. Data only; `analysis.model` offers them too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the words these are made of, which offer these in turn
    from analysis.model import Figure, Reason


@dataclass(frozen=True, slots=True)
class ExactTest:
    """Exact test of no difference by re-randomisation of what was paired or pooled; it stands beside an interval, never for it.

    ``least``: the smallest p that so few units can give at all. ``speaks``: whether that reaches ``alpha``; where not, no outcome could
    have been significant, and a large p says nothing (rigor 12).
    """

    name: Literal["sign flip", "permutation"]
    p: float
    least: float
    alpha: float
    speaks: bool


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """What two identical arms differed by (A/A). ``source``: which arms of which campaign."""

    source: str
    effect: Effect


EffectVerdict = Literal["better", "worse", "equivalent", "unresolved", "unclaimed"]
"""Of arm b against arm a. ``unclaimed``: shown, and nothing is claimed of it."""


Declaration = Literal["declared", "post_hoc", "by_caller"]
"""Since when metric and margin stand: before the runs in both manifests; chosen afterwards; or fixed by what calls a gate."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Arm b against arm a. ``low``/``high``: simultaneous interval of ratio (log scale) or difference; ``margin`` on that scale, infinite
    where nobody named one.

    ``pairs``: pairs of replicates on one trace, 0 when unpaired. ``units``: how many independent values the interval rests on (fewer than
    replicates where server starts were shared). ``spread``: standard deviation of one unit's difference (of its logarithm for a ratio).
    ``p``: two-sided, of no difference, by the t test that belongs to the interval; ``p_holm``: adjusted over the family of claims.
    ``reason``: why nothing is claimed, or why pairs could not be made.
    """

    a: str
    b: str
    scale: Literal["ratio", "difference"]
    estimate: float
    low: float
    high: float
    level: float
    margin: float
    verdict: EffectVerdict
    pairs: int
    method: str = "t over pairs"
    units: int = 0
    spread: float | None = None
    p: float | None = None
    p_holm: float | None = None
    exact: ExactTest | None = None
    declaration: Declaration = "declared"
    reason: str = ""
    noise: NoiseFloor | None = None
    noise_reason: str = "no A/A run given"
    """why there is no noise floor"""


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A cell in the plane of two figures. ``front``: no other is resolved to dominate it; ``shown``: the plane is post_hoc."""

    cell: str
    arm: str
    load: str
    x: Figure | None
    y: Figure | None
    standing: Literal["front", "dominated", "shown", "excluded"]
    dominated_by: tuple[str, ...]
    reasons: tuple[Reason, ...]
    """why it is excluded"""


@dataclass(frozen=True, slots=True)
class Front:
    """Cells against two figures; ``level``: of each interval, so that all pairs and both figures hold together."""

    x: str
    y: str
    declaration: Declaration
    level: float
    margin: float
    points: tuple[FrontPoint, ...]
