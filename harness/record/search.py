"""A search for capacity as declared before the run: the procedure that two results must share to compare (F38, rigor 13, DESIGN 7)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from harness.errors import Problem, UsageError

Method = Literal["isotonic", "logit"]


@dataclass(frozen=True, slots=True)
class Stages:
    """A sequential plan, declared before the run: Stein's two stages. Peeking at an interval of fixed n is not offered.

    After the first ``Search.replicates`` the spread s decides the total, (t s / ln(1 + half_width))^2, at most ``most``; the interval keeps
    that s and its degrees of freedom, which keeps its coverage whatever total was chosen, because a mean does not depend on the spread.
    """

    half_width: float
    most: int


@dataclass(frozen=True, slots=True)
class Search:
    """The procedure, declared before the run. All of it but ``order_seed`` is the load coordinate of its result.

    ``start``, ``limit``: where doubling starts and the largest load ever asked for, in req/s or as compression (``unit``). ``attainment``:
    the target alpha. ``resolution``: relative width of the bracket at which locating stops. ``grid``: rates measured afresh around it,
    ``step`` apart (5% at most near the crossing, rigor 13.2). ``widen``: rates that may be added where a replicate does not cross yet.
    ``halvings``: how often the start may be halved when it fails already. ``spare``: locating runs that may be lost to a failed gate.
    ``servers``: a server start for every ``run``, or one for all that an arm runs of a ``replicate`` (and one for its locating runs).
    Raises UsageError with every problem at once.
    """

    unit: Literal["rate", "time_compression"]
    start: float
    limit: float
    attainment: float
    resolution: float = 0.05
    grid: int = 5
    step: float = 0.05
    replicates: int = 5
    widen: int = 6
    halvings: int = 6
    spare: int = 2
    method: Method = "isotonic"
    confidence: float = 0.95
    order_seed: int = 0
    stages: Stages | None = None
    servers: Literal["run", "replicate"] = "run"

    def __post_init__(self) -> None:
        problems = [Problem("bad_search", what, remedy, f"load.capacity.{name}") for wrong, name, what, remedy in _rules(self) if wrong]
        if problems:
            raise UsageError(*problems)

    @property
    def most_replicates(self) -> int:
        """Replicates a rate can come to have. Draws below this number are the grid's, those from it on are for locating."""
        return max(self.replicates, self.stages.most) if self.stages else self.replicates

    @property
    def most_locating(self) -> int:
        """The most locating probes any history can lead to."""
        doublings = math.ceil(math.log2(max(self.limit / self.start, 1.0))) + 1  # and one for rounding
        bisections = math.ceil(math.log2(math.log(2) / math.log1p(self.resolution))) + 1
        return 1 + max(doublings, self.halvings) + max(bisections, 0) + self.spare

    @property
    def most_probes(self) -> int:
        """The most probes any history can lead to: the search always ends within them."""
        return self.most_locating + (self.grid + self.widen) * self.most_replicates

    @property
    def most_starts(self) -> int:
        """The most server starts: a rate that is added later meets every replicate on a start of its own."""
        return self.most_probes if self.servers == "run" else 1 + (1 + self.widen) * self.most_replicates


def _rules(s: Search) -> Iterator[tuple[bool, str, str, str]]:
    """Yield what may be wrong with a declaration: (is it, field, what, remedy); written so that NaN is wrong too."""
    finite = "give finite loads with 0 < start <= limit"
    yield not 0 < s.start <= s.limit < math.inf, "limit", f"start={s.start}, limit={s.limit}: there is no range to search", finite
    share = f"attainment={s.attainment}: a share strictly between 0 and 1 is needed"
    yield not 0 < s.attainment < 1, "attainment", share, "give for example 0.9"
    whole = "bisection by single runs resolves no finer than 0.1%, and one octave is already bracketed by doubling"
    yield not 0.001 <= s.resolution <= 1, "resolution", f"resolution={s.resolution}: {whole}", "give 0.001 <= resolution <= 1"
    yield not 0.001 <= s.step <= 0.5, "step", f"step={s.step}: relative distance of grid rates", "give 0.001 <= step <= 0.5"
    span = f"grid={s.grid}, step={s.step}: the grid must span the bracket that locating leaves"
    more = "give more grid rates, a larger step or a finer resolution"
    yield s.grid < 3 or not (1 + s.step) ** (s.grid - 1) >= 1 + s.resolution, "grid", span, more
    few = f"replicates={s.replicates}: one replicate has no known spread"
    yield s.replicates < 2, "replicates", few, "give at least 2; 5 for a claim"
    for name in ("widen", "halvings", "spare"):
        yield getattr(s, name) < 0, name, f"{name}={getattr(s, name)}: a count is needed", f"give {name} >= 0"
    level = f"confidence={s.confidence}: a level above one half is needed"
    yield not 0.5 < s.confidence < 1, "confidence", level, "give for example 0.95"
    if s.stages:
        width, most = s.stages.half_width, s.stages.most
        yield not 0 < width < 1, "stages", f"stages.half_width={width}: relative", "give for example 0.03"
        yield most <= s.replicates, "stages", f"stages.most={most}: no more than the first stage", "give more than replicates"
