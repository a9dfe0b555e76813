"""Arrival processes over a horizon. Absolute int64 ns; a draw is never rescaled to hit a count or a length.

Rescaling would turn a renewal process into a bridge: the count would stop varying, and with it the load that the server must absorb.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from harness.burstiness import NS_PER_S
from harness.errors import Problem, UsageError
from workloads import seeds
from workloads.plan import ConstantArrivals, GammaArrivals, PoissonArrivals, WeibullArrivals
from workloads.schedule import Int64

MAX_REQUESTS = 5_000_000
"""Most requests of one schedule. Each costs a body and an event list in memory; beyond this a plan is a typing error in a rate."""

CV_RANGE = (1e-3, 100.0)
"""Below, gaps are constant for any purpose (say so); above, gamma gaps underflow to 0 and one gap swallows the horizon."""

Synthetic = ConstantArrivals | PoissonArrivals | GammaArrivals | WeibullArrivals


def draw(process: Synthetic, horizon_ns: int, seed: int) -> Int64:
    """Return arrivals in [0, horizon_ns), ascending, from the seed's dimension ``arrivals``.

    A longer horizon extends the same arrivals. Drawn processes start with a whole gap at 0 (an ordinary renewal process: for CV > 1
    the first moments are busier than the mean, which the warm-up absorbs). Raises UsageError on rates and CVs that cannot be meant.
    """
    _check(process, horizon_ns)
    if isinstance(process, ConstantArrivals):
        return _constant(process.rate, horizon_ns)
    rng = seeds.generator(seed, "arrivals")
    chunks: list[Int64] = [np.empty(0, np.int64)]
    now, count = 0, 0
    while now < horizon_ns:
        drawn = renewal_gaps(process.process, getattr(process, "cv", 1.0), NS_PER_S / process.rate, _CHUNK, rng)
        gaps = np.minimum(drawn, horizon_ns)  # a gap may be too long for int64; the horizon ends it anyway
        # Whole nanoseconds are added up as integers, so arrivals do not depend on how the draw was cut into chunks.
        times = now + np.cumsum(np.rint(gaps).astype(np.int64))
        now, count = int(times[-1]), count + len(times)
        chunks.append(times)
        if count > 2 * MAX_REQUESTS:  # the mean was checked; only extreme clustering gets here
            raise _too_many(f"{process.process} arrivals", count)
    everything = np.concatenate(chunks)
    within: Int64 = everything[everything < horizon_ns]
    return within


def _constant(rate: float, horizon_ns: int) -> Int64:
    count = math.ceil(horizon_ns * rate / NS_PER_S) + 1  # one spare, cut below, so that no rounding loses the last one
    times = np.rint((np.arange(count) + 0.5) * (NS_PER_S / rate)).astype(np.int64)
    within: Int64 = times[times < horizon_ns]
    return within


_CHUNK = 4096
"""Gaps drawn at a time. Draws are sequential in the stream, so the number changes speed only."""


def renewal_gaps(process: str, cv: float, mean_ns: float, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return ``count`` independent gaps, ns: ``process`` poisson (cv is 1 whatever is said), gamma or weibull.

    Raises UsageError ``workload.cv`` outside ``CV_RANGE``.
    """
    if process == "poisson":
        return rng.standard_exponential(count) * mean_ns
    _check_cv(process, cv)
    if process == "weibull":
        shape = weibull_shape(cv)
        # An exponential to the power 1/k is a Weibull gap of shape k and scale 1, whose mean is gamma(1 + 1/k).
        return rng.standard_exponential(count) ** (1 / shape) * (mean_ns / math.gamma(1 + 1 / shape))
    shape = cv**-2  # a gamma gap with shape k has CV 1/sqrt(k)
    return rng.standard_gamma(shape, count) * (mean_ns / shape)


@lru_cache(maxsize=64)
def weibull_shape(cv: float) -> float:
    """Shape k of the Weibull distribution with this CV: cv^2 + 1 = gamma(1 + 2/k) / gamma(1 + 1/k)^2, which falls in k."""

    def _excess(log_k: float) -> float:
        inverse = math.exp(-log_k)
        return math.lgamma(1 + 2 * inverse) - 2 * math.lgamma(1 + inverse) - math.log1p(cv * cv)

    low, high = math.log(0.05), math.log(1e4)  # CVs of 3e5 and 1e-4: wider than CV_RANGE
    for _ in range(80):  # halves an interval of 12 down to the last bit
        middle = (low + high) / 2
        low, high = (middle, high) if _excess(middle) > 0 else (low, middle)
    return math.exp((low + high) / 2)


def _check(process: Synthetic, horizon_ns: int) -> None:
    expected = process.rate * horizon_ns / NS_PER_S
    if not expected <= MAX_REQUESTS:  # written so that NaN and infinity are refused too
        raise _too_many(f"rate={process.rate} req/s over {horizon_ns / NS_PER_S:.9g} s", expected)
    if isinstance(process, GammaArrivals | WeibullArrivals):
        _check_cv(process.process, process.cv)


def _check_cv(process: str, cv: float) -> None:
    if not CV_RANGE[0] <= cv <= CV_RANGE[1]:
        what = f"cv={cv}: outside [{CV_RANGE[0]:g}, {CV_RANGE[1]:g}], where {process} gaps mean something"
        raise UsageError.single("workload.cv", what, "use constant arrivals for cv near 0, poisson for cv = 1")


def _too_many(source: str, count: float) -> UsageError:
    what = f"requests={count:.3g}: {source} gives more than {MAX_REQUESTS} requests"
    return UsageError(Problem("workload.too_many_requests", what, "lower the rate or shorten the window"))
