"""What the grid of a capacity search shows rate by rate: certified pass or fail, the bracket between, and whether more load did better."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from analysis.capacity_curve import smoothed
from analysis.capacity_runs import Key, ProbeRun
from analysis.capacity_search import mostly_overloaded
from analysis.intervals import share_interval
from analysis.model import Interval, Reason

FALSE_ALARM = 0.005
"""Nominal, of all steps of the grid together. Half of the 1% that a statistical gate may cost (DESIGN 8), because a logit of few misses has
a skewed error: at a nominal 1% a flat curve was called rising in up to 1.4% of simulated grids."""


@dataclass(frozen=True, slots=True)
class RateRow:
    """One rate of the grid over its replicates. ``attainment``: mean of the replicates' shares, with its interval.

    ``verdict``: ``pass`` when the whole interval is at or above the target and most runs kept up with their load, ``fail`` when all of it
    is below, else ``inconclusive``. ``overloaded``: runs whose backlog grew. ``sent_share``: least share of the due requests that was sent.
    """

    rate: float
    replicates: int
    valid: int
    offered: int
    attainment: float
    interval: Interval | None
    verdict: Literal["pass", "fail", "inconclusive"]
    overloaded: int
    sent_share: float | None


@dataclass(frozen=True, slots=True)
class Bracket:
    """``low``: largest certified pass, ``high``: smallest certified fail; None where nothing is certified on that side.

    Certificates are read inwards from both ends of the grid up to the first that is missing (a fixed sequence of tests), so that a lucky
    rate in the middle cannot set an end, and each end holds at its level without a correction for the number of rates.
    """

    low: float | None
    high: float | None


def rate_rows(rates: Sequence[float], count: int, runs: Mapping[Key, ProbeRun], alpha: float, level: float) -> tuple[RateRow, ...]:
    """Judge every rate; ``runs`` must hold all of rates x count."""
    columns = [[runs["grid", rate, r] for r in range(count)] for rate in rates]
    return tuple(_row(column, mostly_overloaded(column), alpha, level) for column in columns)


def bracket(rows: Sequence[RateRow]) -> Bracket:
    """Read the bracket off rows in ascending rate."""
    low = high = None
    for row in rows:
        if row.verdict != "pass":
            break
        low = row.rate
    for row in reversed(rows):
        if row.verdict != "fail":
            break
        high = row.rate
    return Bracket(low, high)


def rises(rates: Sequence[float], groups: Sequence[int], runs: Mapping[Key, ProbeRun]) -> Iterator[Reason]:
    """Name every step of the grid at which more load did better beyond noise: then there is no single rate at which service breaks.

    Paired by replicate, one-sided t over ``groups`` (one label a replicate; equal labels share server starts and count once), all steps
    together at ``FALSE_ALARM``. On the logit scale, where what a trace does to both rates cancels. The spread is not taken below the
    binomial one, since equal counts do not make certainty. Simulated rates: ``tests/sim/test_capacity.py``.
    """
    labels = sorted(set(groups))
    if len(labels) < 2 or len(rates) < 2:
        return
    critical = float(stats.t.ppf(1 - FALSE_ALARM / (len(rates) - 1), len(labels) - 1))
    for a, b in pairwise(rates):
        columns = [[runs["grid", rate, r] for r in range(len(groups))] for rate in (a, b)]
        gain, error = _gain(columns, np.asarray(groups), labels)
        if gain > critical * error:
            low, high = (float(np.mean([run.valid / run.offered for run in column])) for column in columns)
            text = f"attainment rises from {low:.3f} at rate {a:g} to {high:.3f} at {b:g}, by {gain / error:.1f} standard errors"
            yield Reason("non_monotone", text, "look for what changes with load (scaling, admission); state rates, not a capacity")


def _gain(columns: Sequence[Sequence[ProbeRun]], groups: npt.NDArray[np.int64], labels: Sequence[int]) -> tuple[float, float]:
    """Mean gain in logit attainment from the first column to the second, over groups of replicates, and its standard error."""
    below, above = (np.array([smoothed(run.valid, run.offered) for run in column]) for column in columns)
    trials = [np.array([run.offered for run in column]) for column in columns]
    own = 1 / (trials[0] * below * (1 - below)) + 1 / (trials[1] * above * (1 - above))
    gains = np.log(above / (1 - above)) - np.log(below / (1 - below))
    means = np.array([float(gains[groups == label].mean()) for label in labels])
    binomial = float(own.mean()) * len(labels) / len(groups)
    return float(means.mean()), math.sqrt(max(float(means.var(ddof=1)), binomial) / len(labels))


def _row(column: Sequence[ProbeRun], overloaded: bool, alpha: float, level: float) -> RateRow:
    shares = [run.valid / run.offered for run in column]
    mean, sent = float(np.mean(shares)), [run.sent_share for run in column if run.sent_share is not None]
    interval = _attainment(column, level)
    verdict: Literal["pass", "fail", "inconclusive"] = "inconclusive"
    if interval is not None and interval.high < alpha:
        verdict = "fail"
    elif interval is not None and interval.low >= alpha and not overloaded:
        verdict = "pass"
    return RateRow(
        rate=column[0].rate,
        replicates=len(column),
        valid=sum(run.valid for run in column),
        offered=sum(run.offered for run in column),
        attainment=mean,
        interval=interval,
        verdict=verdict,
        overloaded=sum(bool(run.overloaded) for run in column),
        sent_share=min(sent) if len(sent) == len(column) else None,
    )


def _attainment(column: Sequence[ProbeRun], level: float) -> Interval | None:
    starts = [run.server_start for run in column]
    return share_interval([run.valid for run in column], [run.offered for run in column], starts, level)
