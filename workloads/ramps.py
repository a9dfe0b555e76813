"""A load that rises or falls in a straight line over the run: arrivals of a steady process, moved in time."""

from __future__ import annotations

import numpy as np

from workloads.plan import Ramp
from workloads.schedule import Int64


def ramped(arrival_ns: Int64, ramp: Ramp, horizon_ns: int) -> Int64:
    """Move arrivals so that the rate is ``ramp.start`` times what it was at 0 and ``ramp.stop`` times at the horizon, in a line between.

    With a + b = 2 the two multiples leave the mean, the count and the horizon as they are. Over the share y of the horizon the multiple is
    m(y) = a + (b - a) y; an arrival at the share x moves to the y at which the area under m is x: x = a y + (b - a) y^2 / 2. What was drawn
    at equal rates (constant, Poisson, renewal) keeps its order and its local shape; a Poisson process stays one, of a rate that changes.
    Arrivals at or behind the horizon stay where they are.
    """
    within = arrival_ns < horizon_ns
    x = arrival_ns[within] / horizon_ns
    a, slope = ramp.start, ramp.stop - ramp.start
    # The root with the sum below the line: the usual form would divide by the slope, which may be 0.
    below = a + np.sqrt(np.maximum(a * a + 2 * slope * x, 0.0))
    y = np.divide(2 * x, below, out=np.zeros_like(x), where=below > 0)
    moved = np.minimum(np.rint(y * horizon_ns).astype(np.int64), horizon_ns - 1)
    out = arrival_ns.copy()
    out[within] = moved
    return out
