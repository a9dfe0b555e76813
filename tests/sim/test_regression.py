"""Error rates of the regression gate on a queue with known truth (seeded). What `analysis.regression.RATES` publishes is held here."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from analysis.effects import paired_effect
from analysis.regression import RATES, Decision, decide
from tests.sim.mgk import Floats, Traces, sojourns

STUDIES, MARGIN = 400, 0.05
MOST = max(RATES)
METRIC = "e2e_mean"
ONE_SIDED = 0.025
"""Half of what a 95% interval leaves out; over 400 studies its Monte Carlo error is 0.8 points."""


TWICE, ONCE = 1.0565, 1.0290
"""Slowdowns of every request's work that raise mean E2E at this load by twice the margin, and by the margin."""


@pytest.fixture(scope="module")
def means() -> dict[float, Floats]:
    """Mean E2E (STUDIES, MOST) by slowdown; 0 stands for the baseline, 1 for the same arm once more."""
    rng = np.random.default_rng(20261130)
    traces = Traces.draw(rng, STUDIES * MOST)
    found = {slowdown: sojourns(traces, rng, slowdown or 1.0).mean(axis=0) for slowdown in (0.0, 1.0, ONCE, TWICE)}
    return {slowdown: x.reshape(STUDIES, MOST) for slowdown, x in found.items()}


def truth(means: dict[float, Floats], slowdown: float) -> float:
    """The true ratio of a pair: its geometric mean over all pairs, known to 0.05%."""
    return float(np.exp(np.log(means[slowdown] / means[0.0]).mean()))


def decisions(means: dict[float, Floats], slowdown: float, replicates: int, margin: float = MARGIN) -> Counter[Decision]:
    found: Counter[Decision] = Counter()
    for a, b in zip(means[0.0][:, :replicates], means[slowdown][:, :replicates], strict=True):
        values = (dict(enumerate(a.tolist())), dict(enumerate(b.tolist())))
        effect = paired_effect(METRIC, ("baseline", "candidate"), values, margin=margin, confidence=0.95, family=1)
        assert effect is not None
        found[decide(effect, METRIC).decision] += 1
    return found


@pytest.mark.parametrize("replicates", sorted(RATES))
def test_the_published_rates_hold(means: dict[float, Floats], replicates: int) -> None:
    rates = RATES[replicates]
    same, slow = (decisions(means, slowdown, replicates) for slowdown in (1.0, TWICE))
    print(replicates, truth(means, TWICE), dict(same), dict(slow))
    assert truth(means, TWICE) == pytest.approx((1 + MARGIN) ** 2, abs=0.004)
    assert same[Decision.FAIL] <= rates.false_alarm * STUDIES
    assert slow[Decision.FAIL] >= rates.detection * STUDIES


@pytest.mark.parametrize("replicates", sorted(RATES))
def test_at_the_margin_itself_neither_answer_is_given_more_often_than_the_level_allows(means: dict[float, Floats], replicates: int) -> None:
    """A candidate that is worse by exactly the margin is the hardest truth: PASS and FAIL are both errors there, 2.5% each."""
    found = decisions(means, ONCE, replicates, truth(means, ONCE) - 1)
    print(replicates, dict(found))
    allowed = (ONE_SIDED + 3 * np.sqrt(ONE_SIDED * (1 - ONE_SIDED) / STUDIES)) * STUDIES
    assert found[Decision.FAIL] <= allowed
    assert found[Decision.PASS] <= allowed


def test_an_unchanged_candidate_passes_given_enough_replicates(means: dict[float, Floats]) -> None:
    found = decisions(means, 1.0, MOST)
    assert found[Decision.PASS] >= 0.9 * STUDIES
