"""Known truth for statistical gates: a continuous-batching server in virtual time, many runs at once (axis 0).

One iteration serves every running request one token and admits waiting ones first come first served, so TTFT carries the queue and TBT
carries the batch. It is a model for the error rates of tests, never a source of figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Server:
    """Iteration time = base + per_row x running + per_token x admitted input tokens + per_prefill where any is admitted, all times
    lognormal noise.
    """

    slots: int = 32
    base_s: float = 0.008
    per_row_s: float = 0.0006
    per_token_s: float = 0.00004
    per_prefill_s: float = 0.0
    noise: float = 0.15


@dataclass(frozen=True)
class Served:
    """Stamps of shape (runs, n), seconds."""

    arrival: Floats
    first: Floats
    last: Floats
    input: Floats
    tokens: Floats


def serve(
    arrival: Floats,
    inputs: Floats,
    tokens: Floats,
    rng: np.random.Generator,
    server: Server = Server(),
    slowdown: Callable[[Floats], Floats] = np.ones_like,
) -> Served:
    """Serve (runs, n) requests; ``slowdown(clock)`` multiplies the iteration time: the injected fault."""
    runs, n = arrival.shape
    row = np.arange(runs)
    clock, head = arrival[:, 0].copy(), np.zeros(runs, dtype=int)
    left, who = np.zeros((runs, server.slots)), np.zeros((runs, server.slots), dtype=int)
    first, last = np.full((runs, n), np.nan), np.full((runs, n), np.nan)
    padded = np.concatenate([arrival, np.full((runs, 1), np.inf)], axis=1)
    while True:
        idle = ~(left > 0).any(axis=1)
        if (idle & (head >= n)).all():
            return Served(arrival, first, last, inputs, tokens)
        due = padded[row, np.minimum(head, n)]
        clock = np.where(idle & (head < n), np.maximum(clock, due), clock)
        fresh = np.zeros((runs, server.slots), dtype=bool)
        prefill = np.zeros(runs)
        for _ in range(3):  # at most three admissions an iteration: a token budget in effect
            free = (left <= 0) & ~fresh
            take = free.any(axis=1) & (padded[row, np.minimum(head, n)] <= clock) & (prefill < 2048)
            r = row[take]
            if not len(r):
                break
            s = free[r].argmax(axis=1)
            left[r, s], who[r, s], fresh[r, s] = tokens[r, head[r]], head[r], True
            prefill[r] += inputs[r, head[r]]
            head[r] += 1
        busy = left > 0
        step = server.base_s + server.per_row_s * busy.sum(axis=1) + server.per_token_s * prefill
        step += server.per_prefill_s * fresh.any(axis=1)
        step = step * slowdown(clock) * np.exp(server.noise * rng.standard_normal(runs))
        clock = np.where(busy.any(axis=1), clock + step, clock)
        r, s = np.nonzero(fresh)
        first[r, who[r, s]] = clock[r]
        left = np.where(busy, left - 1, 0)
        r, s = np.nonzero(busy & (left <= 0))
        last[r, who[r, s]] = clock[r]


def bursty(runs: int, n: int, rate: float, rng: np.random.Generator, *, cv: float = 2.0, swing: float = 0.5) -> Floats:
    """Arrivals (runs, n) that are not stationary: gamma gaps (CV ``cv``) under a rate that swings by +-``swing`` with random phase."""
    shape = 1 / cv**2
    operational = np.cumsum(rng.gamma(shape, 1 / (shape * rate), (runs, n)), axis=1)
    length, phase = n / rate, rng.uniform(0, 2 * np.pi, (runs, 1))
    grid = np.linspace(0, 3 * length, 4000)
    period = length * rng.uniform(0.7, 2.0, (runs, 1))
    mass = grid + swing * period / (2 * np.pi) * (np.cos(phase) - np.cos(2 * np.pi * grid / period + phase))
    return np.stack([np.interp(o, m, grid) for o, m in zip(operational, mass, strict=True)])


def lengths(runs: int, n: int, mean: float, rng: np.random.Generator, *, sigma: float = 0.8, least: int = 1, most: int = 4000) -> Floats:
    """Lognormal lengths (runs, n), whole tokens."""
    drawn = rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, (runs, n))
    return np.clip(np.rint(drawn), least, most)
