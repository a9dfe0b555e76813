"""Arrival processes over a horizon. Absolute int64 ns; a draw is never rescaled to hit a count or a length.

Rescaling would turn a renewal process into a bridge: the count would stop varying, and with it the load that the server must absorb.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harness.errors import Problem, UsageError
from workloads import seeds
from workloads.plan import ConstantArrivals, GammaArrivals, PoissonArrivals, WeibullArrivals
from workloads.schedule import Int64

NS_PER_S = 1_000_000_000
MAX_REQUESTS = 5_000_000
"""Most requests of one schedule. Each costs a body and an event list in memory; beyond this a plan is a typing error in a rate."""

CV_RANGE = (1e-3, 100.0)
"""Below, gaps are constant for any purpose (say so); above, gamma gaps underflow to 0 and one gap swallows the horizon."""

Synthetic = ConstantArrivals | PoissonArrivals | GammaArrivals | WeibullArrivals


def draw(process: Synthetic, horizon_ns: int, seed: int) -> Int64:
    """Return arrivals in [0, horizon_ns), ascending, from the seed's dimension ``arrivals``.

    A longer horizon extends the same arrivals. Poisson and gamma start with a whole gap at 0 (an ordinary renewal process: for CV > 1
    the first moments are busier than the mean, which the warm-up absorbs). Raises UsageError on rates and CVs that cannot be meant.
    """
    _check(process, horizon_ns)
    if isinstance(process, ConstantArrivals):
        return _constant(process.rate, horizon_ns)
    rng = seeds.generator(seed, "arrivals")
    chunks: list[Int64] = [np.empty(0, np.int64)]
    now, count = 0, 0
    while now < horizon_ns:
        gaps = np.minimum(_gaps(process, rng), horizon_ns)  # a gap may be too long for int64; the horizon ends it anyway
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


def _gaps(process: PoissonArrivals | GammaArrivals | WeibullArrivals, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    mean = NS_PER_S / process.rate
    if isinstance(process, PoissonArrivals):
        return rng.standard_exponential(_CHUNK) * mean
    if isinstance(process, WeibullArrivals):
        raise UsageError.single("workload.not_yet", "arrivals.process=weibull: has no engine yet", "use gamma")
    shape = process.cv**-2  # a gamma gap with shape k has CV 1/sqrt(k)
    return rng.standard_gamma(shape, _CHUNK) * (mean / shape)


def _check(process: Synthetic, horizon_ns: int) -> None:
    expected = process.rate * horizon_ns / NS_PER_S
    if not expected <= MAX_REQUESTS:  # written so that NaN and infinity are refused too
        raise _too_many(f"rate={process.rate} req/s over {horizon_ns / NS_PER_S:.9g} s", expected)
    if isinstance(process, GammaArrivals) and not CV_RANGE[0] <= process.cv <= CV_RANGE[1]:
        what = f"cv={process.cv}: outside [{CV_RANGE[0]:g}, {CV_RANGE[1]:g}], where gamma gaps mean something"
        raise UsageError.single("workload.cv", what, "use constant arrivals for cv near 0, poisson for cv = 1")


def _too_many(source: str, count: float) -> UsageError:
    what = f"requests={count:.3g}: {source} gives more than {MAX_REQUESTS} requests"
    return UsageError(Problem("workload.too_many_requests", what, "lower the rate or shorten the window"))
