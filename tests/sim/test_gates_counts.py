"""Error rates of the in-flight area of ``counts_agree`` against a server whose gauges are stale and sampled at jittered times (seeded)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from analysis.gates import GATES
from analysis.gates.counters import area_error
from analysis.gates.tables import in_flight
from tests.gates.queue_model import Floats, Served, bursty, lengths, serve

STALE_S = 0.05
"""A gauge is written once an iteration and a page takes a while to make: its value is up to this old."""

OVERHEAD_S = 0.01
"""Time on the way to the scheduler, when the client counts a request and the server does not yet."""


def served(runs: int, n: int, rate: float, seed: int) -> Served:
    rng = np.random.default_rng(seed)
    arrival = bursty(runs, n, rate, rng)
    return serve(arrival, lengths(runs, n, 400, rng), lengths(runs, n, 60, rng), rng)


def nanos(seconds: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.rint(seconds * 1e9).astype(np.int64)


def differences(run: Served, period: float, rng: np.random.Generator) -> Iterator[tuple[Floats, Floats]]:
    """Sampled server - client in-flight, and the client's own level, for each run."""
    for a, last in zip(run.arrival, run.last, strict=True):
        at = np.arange(0.15 * a[-1], a[-1], period)
        at = at + rng.uniform(0, period / 2, len(at))
        seen = at - rng.uniform(0, STALE_S, len(at))
        client = in_flight(nanos(a), nanos(last), nanos(at))
        yield in_flight(nanos(a + OVERHEAD_S), nanos(last), nanos(seen)) - client, client


def alarm(difference: Floats, period: float, churn: float) -> bool:
    found = area_error(difference, period, churn)
    return abs(found.difference) > found.sampling + found.bias


@pytest.mark.parametrize(("n", "period"), [(150, 0.2), (600, 0.5), (600, 1.0)])
def test_honest_bookkeeping_raises_no_alarm(n: int, period: float) -> None:
    rates = GATES["counts_agree"].rates
    assert rates is not None
    rng = np.random.default_rng(5)
    hits = [alarm(d, period, 10.0) for d, _ in differences(served(600, n, 10.0, 20261130), period, rng)]
    assert np.mean(hits) <= rates.false_alarm


@pytest.mark.parametrize(("n", "period"), [(150, 0.2), (600, 0.5), (600, 1.0)])
def test_foreign_load_is_found(n: int, period: float) -> None:
    rates = GATES["counts_agree"].rates
    assert rates is not None
    rng = np.random.default_rng(6)
    hits = []
    for d, client in differences(served(200, n, 10.0, 1), period, rng):
        foreign = rng.poisson(client.mean() + 10.0 * period / 2, len(d))
        hits.append(alarm(d + foreign, period, 10.0))
    assert np.mean(hits) >= rates.detection
