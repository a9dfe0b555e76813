"""What a calibration offers: stages one after another in one replay, each pressing one thing while the others stay low. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.calibrate.certificate import Axis
from harness.calibrate.rig import GAP_MS, TTFT_MS, Load, request_body
from harness.calibrate.watch import Numbers
from harness.clock import NS_PER_MS, NS_PER_S
from workloads.seeds import generator

TOKENS = 40
"""Answers short enough to settle within half a second between stages."""

SETTLE_NS = 300 * NS_PER_MS
"""Between stages, behind the longest answer of the one before: each starts with nothing in flight and its rows decoded."""

_SEED = 20261130
"""Fixed: two calibrations differ by the host's state only."""


@dataclass(frozen=True, slots=True)
class Stage:
    """``rate`` requests a second for ``seconds``, each answered with ``tokens`` tokens, ``gap_ms`` apart.

    Streams open at once are rate x life, events a second are rate x tokens: long gaps give many streams at few events.
    """

    axis: Axis
    rate: float
    seconds: float
    tokens: int = TOKENS
    gap_ms: int = GAP_MS

    @property
    def life_ns(self) -> int:
        """From a request to its last token."""
        return (TTFT_MS + (self.tokens - 1) * self.gap_ms) * NS_PER_MS

    @property
    def length_ns(self) -> int:
        """From the first arrival to the next stage's."""
        return round(self.seconds * NS_PER_S) + self.life_ns + SETTLE_NS

    @property
    def count(self) -> int:
        """Requests offered."""
        return round(self.rate * self.seconds)

    def words(self) -> str:
        """What is offered, for a progress line."""
        streams = self.rate * min(self.life_ns / NS_PER_S, self.seconds)
        return f"{self.axis}: rate {self.rate:g} req/s, {self.rate * self.tokens:g} events/s, about {streams:.0f} streams open"


Ladder = tuple[Stage, ...]


def of_rates(rates: Sequence[float], seconds: float) -> Ladder:
    """A ladder of rates alone."""
    return tuple(Stage("rate", rate, seconds) for rate in rates)


QUICK: Ladder = (
    Stage("rate", 50, 2), Stage("rate", 100, 2), Stage("rate", 200, 2), Stage("live", 100, 2),
    Stage("streams", 150, 4, tokens=20, gap_ms=100),
)  # fmt: skip
"""100 requests in each, which a p99 needs, within 17 s: with its start and a repetition, as far as time allows, under 40 s. Arrivals of the
streams go on for twice a stream's life, so that half of them meet as many as there will be."""

QUICK_NS = 30 * NS_PER_S
"""Ten seconds less than promised: this program's own start is not in them, and on a host that is so busy that stages fail a second start
was seen to take ten seconds, twice as long as the first. On a quiet one there is time for two stages once more."""

FULL: Ladder = (
    *(Stage("rate", rate, 10, tokens=8) for rate in (25, 50, 100, 200, 300, 400, 600, 800)),
    *(Stage("events", rate, 10, tokens=100) for rate in (50, 100, 200, 300, 400, 500)),
    *(Stage("live", rate, 10, tokens=100) for rate in (25, 50, 100, 200)),
    *(Stage("streams", rate, 40, tokens=21, gap_ms=1000) for rate in (25, 100, 250)),
)
"""Six minutes, and what did not hold once more. Streams: 40 s of arrivals, each open for 20 s: 500, 2,000 and 5,000 at once for 20 s."""


def load_of(ladder: Ladder, workers: int = 1) -> tuple[Load, Numbers]:
    """The whole replay, and the index of each request's stage (n,).

    A fixed count of uniform instants in each stage, which is a Poisson process given its count: the engine meets bursts.
    """
    arrivals, stages, at_ns = [], [], 0
    for index, stage in enumerate(ladder):
        offsets = np.sort(generator(_SEED, "calibrate", index).integers(0, round(stage.seconds * NS_PER_S), stage.count))
        arrivals.append(offsets + at_ns)
        stages.append(np.full(stage.count, index, dtype=np.int64))
        at_ns += stage.length_ns
    of = np.concatenate(stages)
    tokens = np.array([stage.tokens for stage in ladder], dtype=np.int64)[of]
    stop_after = np.where(np.array([stage.axis == "live" for stage in ladder])[of], tokens, -1)
    bodies = [request_body(i, ladder[s].tokens, gap_ms=ladder[s].gap_ms) for i, s in enumerate(of.tolist())]
    load = Load(np.concatenate(arrivals).astype(np.int64), bodies, tokens, at_ns + NS_PER_S, workers=workers, stop_after=stop_after)
    return load, of


def fitting(ladder: Ladder, budget_ns: float) -> Ladder:
    """The first stages that fit into a time, in their order: an axis is worth what holds from its lowest stage on."""
    ends = np.cumsum([stage.length_ns for stage in ladder])
    return ladder[: int((ends <= budget_ns).sum())]


def spans(ladder: Ladder) -> list[tuple[int, int]]:
    """Begin and end of each stage on the epoch, ns: from its first arrival to the end of its settling."""
    ends = np.cumsum([stage.length_ns for stage in ladder]).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))
