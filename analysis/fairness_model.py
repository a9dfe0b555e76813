"""The words of fairness: what one cell says of who got how much. Data only; ``analysis.model`` holds the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from analysis.model import Figure, Outcomes, Verdict

FAIRNESS_METRICS = ("jain_service", "jain_attainment", "attainment_least", "service_gap", "windowed_gap_mean", "windowed_gap_max")
"""What may be ranked; beside them ``windowed_gap_variance`` and ``service_spread``, which describe."""

ATTAINED = frozenset({"jain_attainment", "attainment_least"})
"""Those of them that count valid requests, so that what protects goodput protects them too."""


@dataclass(frozen=True, slots=True)
class Share:
    """One identity over the replicates of a cell; ``members`` above 1: the smallest ones of a long list together.

    ``service``, ``requested``: weighted tokens a replicate in the measured window, mean; ``share`` of all service. ``eligible_s``: time
    eligible in it, mean, None for several together; ``drought_s``: longest of that without any service, over the replicates; ``starved``:
    replicates in which it was. None: not known (a note of the cell says why) or, for ``attainment``, nothing offered.
    """

    name: str
    members: int
    weight: float
    service: float | None
    share: float | None
    requested: float | None
    outcomes: Outcomes
    attainment: float | None
    eligible_s: float | None
    drought_s: float | None
    starved: int | None


@dataclass(frozen=True, slots=True)
class Inversions:
    """First tokens of the measured window, and how many came while a better priority waited; ``aged``: under the declared aging.

    ``reason`` says why there is no number, or why none with aging.
    """

    first_tokens: int
    static: int | None
    aged: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BoundCheck:
    """The guarantee held against the log. UNKNOWN with the reason where none is claimed, or a premise is not known to hold.

    ``charge`` U and ``value`` 2U, and the ``gap`` that was held against it, in weighted tokens.
    """

    verdict: Verdict
    reason: str
    charge: float | None = None
    value: float | None = None
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class CellFairness:
    """Fairness of one cell. Its scalar numbers are figures of the cell; here are the declarations and who got what.

    ``declarations``: pairs (what, how), all five of them first. ``by_default``: the manifest declared nothing. ``gap``: where the widest
    gap arose, in words. ``curves``: identity -> (s into the measured window, weighted tokens so far) of one replicate. ``notes``: what a
    reader must know of these numbers.
    """

    identity: str
    declarations: tuple[tuple[str, str], ...]
    by_default: bool
    shares: tuple[Share, ...]
    gap: str
    inversions: Inversions
    bound: BoundCheck
    curves: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One client's figures in a cell beside those in the same cell without another client: a diagnostic, never ranked.

    Pairs are (with, without). ``without``: who is left out of ``alone``. ``difference``: mean attainment alone minus with, over replicates
    paired by index, and its interval ``low`` to ``high``; None with ``reason``.
    """

    client: str
    crowded: str
    alone: str
    without: tuple[str, ...]
    offered: tuple[int, int]
    attainment: tuple[Figure, Figure]
    ttft_p50: tuple[Figure, Figure]
    ttft_p99: tuple[Figure, Figure]
    difference: float | None
    low: float | None
    high: float | None
    level: float
    pairs: int
    reason: str = ""
