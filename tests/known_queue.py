"""A queue whose capacity a formula knows: M/D/1, which is what the reference engine is with one slot, constant lengths and forced outputs.

It serves each request in a constant time D, one after the other in order of arrival; arrivals are Poisson. A request's first token comes
one prefill iteration after its service begins, so it meets a TTFT limit exactly when it waits no longer than the limit less that iteration.
Crommelin (1932) gives the distribution of that wait:

    P(W <= t) = (1 - r) * sum over k = 0..floor(t / D) of (l (k D - t))^k / k! * exp(-l (k D - t)),   r = l D

and the capacity is the rate l at which it is 0.9.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize

Floats = npt.NDArray[np.float64]

PREFILL_TOKEN_S, DECODE_ROW_S = 20e-6, 100e-6
"""The reference server's own defaults."""


@dataclass(frozen=True)
class KnownQueue:
    """The engine with ``base_s`` an iteration, on prompts of ``input`` and answers of ``output`` tokens, under a TTFT limit."""

    base_s: float
    input: int = 32
    output: int = 4
    limit_s: float = 0.25
    alpha: float = 0.9

    @property
    def service_s(self) -> float:
        """D: one prefill iteration, then one decode iteration for each further token."""
        return self.first_s + (self.output - 1) * (self.base_s + DECODE_ROW_S)

    @property
    def first_s(self) -> float:
        """From the beginning of service to the first token."""
        return self.base_s + self.input * PREFILL_TOKEN_S

    @property
    def patience_s(self) -> float:
        """The longest wait that still meets the limit."""
        return self.limit_s - self.first_s

    def attainment(self, rate: float) -> float:
        """P(W <= patience) at ``rate``."""
        d, t = self.service_s, self.patience_s
        terms = [(rate * (k * d - t)) ** k / math.factorial(k) * math.exp(-rate * (k * d - t)) for k in range(int(t / d) + 1)]
        return (1 - rate * d) * sum(terms)

    @property
    def capacity(self) -> float:
        """The true capacity, req/s."""
        return float(optimize.brentq(lambda rate: self.attainment(rate) - self.alpha, 0.1, 1 / self.service_s - 1e-9))

    def waits(self, arrivals_s: Floats) -> Floats:
        """Lindley's recursion: the wait of each arrival (n,) is the walk of service less gap above its least value so far."""
        walk = np.concatenate([[0.0], np.cumsum(self.service_s - np.diff(arrivals_s))])
        return np.asarray(walk - np.minimum.accumulate(walk), dtype=np.float64)
