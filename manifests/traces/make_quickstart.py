"""Write quickstart.csv: a small synthetic trace in the azure-2023 format, so that the quickstart needs no download.

    python manifests/traces/make_quickstart.py [PATH]

120 s at about 12.5 requests a second: five windows of 24 s. The gaps mix two exponentials (coefficient of variation 1.2: burstier than
Poisson, as public conversation traces are, yet without a trend, so that every window offers about the same load). Lengths are lognormal,
clipped to what a small server answers within a second. The same bytes come out every time; a test compares them with the committed file.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from statistics import NormalDist

SEED = 20261130
SPAN_S = 120.0
RATE = 12.5
SHORT_SHARE = 0.75  # share of gaps drawn from the short exponential
SHORT_MEAN = 0.73  # its mean, in units of the mean gap; the long mean follows so that the whole has mean 1 and CV 1.2
INPUT = (math.log(64), 0.7, 16, 256)  # log of median, sigma, least, most tokens
OUTPUT = (math.log(12), 0.5, 4, 32)
TICKS = 1000  # time grid: 1 ms, so that last-digit differences of a platform's log() cannot show


def arrivals(rng: random.Random) -> list[int]:
    """Arrival times in ms, from 0 to below SPAN_S."""
    long_mean = (1 - SHORT_SHARE * SHORT_MEAN) / (1 - SHORT_SHARE)
    times, now = [0], 0.0
    while True:
        mean = SHORT_MEAN if rng.random() < SHORT_SHARE else long_mean
        now += -math.log(1 - rng.random()) * mean / RATE
        if now >= SPAN_S:
            return times
        times.append(int(now * TICKS))


def length(rng: random.Random, shape: tuple[float, float, int, int]) -> int:
    """One lognormal token count, rounded and clipped."""
    mu, sigma, least, most = shape
    # inv_cdf is undefined at 0, which random() can return.
    drawn = math.exp(mu + sigma * NormalDist().inv_cdf(max(rng.random(), 1e-12)))
    return min(most, max(least, round(drawn)))


def render() -> bytes:
    """Return the whole file."""
    rng = random.Random(SEED)  # noqa: S311 - a reproducible workload, not a secret
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for ms in arrivals(rng):
        minute, rest = divmod(ms, 60_000)
        rows.append(f"2026-01-01 00:{minute:02d}:{rest // 1000:02d}.{rest % 1000:03d}0000,{length(rng, INPUT)},{length(rng, OUTPUT)}")
    return ("\n".join(rows) + "\n").encode()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("quickstart.csv")
    target.write_bytes(render())
