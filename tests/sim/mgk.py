"""A queue with known truth for studies of two arms: M/G/k, first come first served, many runs at once (seeded).

Arms share gaps and work of a trace; each run has a server start of its own whose speed differs a little, and each request a little noise.
It is a model with the properties that matter here (a shared queue, pairing by trace, luck of a start), never a source of figures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SERVERS, LOAD = 8, 0.7
WARM, COUNTED = 150, 600
"""Requests a run: before the window, and in it. About 107 mean services long."""

START_SPREAD, REQUEST_SPREAD, WORK_SPREAD = 0.01, 0.05, 0.8
"""Sd of the logs of a start's speed, of a request's own time, and of the work in the trace."""


@dataclass(frozen=True)
class Traces:
    """Gaps and work of ``runs`` traces (requests, runs); mean work 1, so that a rate of LOAD x SERVERS is the load."""

    gaps: Floats
    work: Floats

    @staticmethod
    def draw(rng: np.random.Generator, runs: int, requests: int = WARM + COUNTED) -> Traces:
        gaps = rng.exponential(1 / (LOAD * SERVERS), (requests, runs))
        work = rng.lognormal(-(WORK_SPREAD**2) / 2, WORK_SPREAD, (requests, runs))
        return Traces(gaps, work)


def sojourns(traces: Traces, rng: np.random.Generator, slowdown: float = 1.0) -> Floats:
    """Serve every trace on a start of its own; E2E of the counted requests (COUNTED, runs), in mean services."""
    requests, runs = traces.gaps.shape
    speed = np.exp(START_SPREAD * rng.standard_normal(runs)) * slowdown
    service = traces.work * speed * np.exp(REQUEST_SPREAD * rng.standard_normal((requests, runs)))
    left = np.zeros((SERVERS, runs))  # work left on each server, least first, as the next request finds it
    out = np.empty((requests, runs))
    for i in range(requests):
        out[i] = left[0] + service[i]
        left[0] = out[i]
        left.sort(axis=0)
        left = np.maximum(left - traces.gaps[i], 0.0)
    return out[WARM:]
