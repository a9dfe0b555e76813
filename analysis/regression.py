"""Is the candidate worse than the baseline by more than a margin? PASS, FAIL or INCONCLUSIVE, with its own error rates.

One interval answers both questions a change poses. FAIL: it lies wholly beyond the margin on the bad side, so a regression is shown. PASS:
it lies wholly on this side of the margin, so a regression of the margin is excluded (non-inferiority). Anything else is INCONCLUSIVE: what
was measured cannot tell, and neither answer may be read into it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from analysis.effects import HIGHER_IS_BETTER
from analysis.gates.registry import ErrorRates
from analysis.model import Effect, Reason
from analysis.noise import stands_apart
from analysis.pair import Versus


class Decision(StrEnum):
    """What a gate in CI answers. REFUSED: the two cannot be held against each other, or the runs do not pass their own gates."""

    PASS = "PASS"  # noqa: S105 - a verdict
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    REFUSED = "REFUSED"


@dataclass(frozen=True, slots=True)
class Regression:
    """A decision with the reason in words, and every reason of a refusal."""

    decision: Decision
    reason: str
    reasons: tuple[Reason, ...] = ()


_FAULT = "a regression of twice the margin, where the margin is 5% of mean E2E and the logs of paired runs differ by a spread of 0.025"
_SIMULATION = "tests/sim/test_regression.py: M/G/8 at load 0.7, 600 requests a run, starts that differ by 1%, 400 studies"

RATES: dict[int, ErrorRates] = {
    5: ErrorRates(0.01, 0.60, _FAULT, _SIMULATION),  # seen: no false FAIL in 400, 64% found
    10: ErrorRates(0.01, 0.95, _FAULT, _SIMULATION),  # seen: no false FAIL in 400, 98.5% found
}
"""Error rates by number of independent pairs of replicates, at ``SIMULATED_LEVEL``. ``false_alarm``: FAIL where both arms are the same.
A candidate worse by exactly the margin gets FAIL in 1-2% and PASS in 3% of the studies (nominal: 2.5% each; ratios of a queue are skewed).
Five pairs find only large regressions: INCONCLUSIVE is the usual answer to a smaller one, never PASS.
"""


SIMULATED_LEVEL = 0.95
"""Level of the intervals that the rates were simulated with: a lower one raises more false alarms, a higher one finds less."""

NOISIEST = 0.77
"""Spread of a pair's difference in units of the margin, up to which the rates were simulated: that of the slowed pairs. Noisier pairs keep
the level of their interval (2.5% false FAIL at 95%) and find less.
"""


def rates_at(effect: Effect | None) -> ErrorRates | None:
    """Return the published rates for as many independent pairs as an effect has, or for the next fewer.

    None where none were published: too few pairs, no pairs at all, another level, or pairs noisier than those that were simulated. Pairs
    that share server starts are as many as their groups.
    """
    if effect is None or effect.spread is None or effect.spread > NOISIEST * _margin_of(effect):
        return None
    if not math.isclose(effect.level, SIMULATED_LEVEL):
        return None
    known = [r for r in sorted(RATES) if r <= min(effect.pairs, effect.units)]
    return RATES[known[-1]] if known else None


def _margin_of(effect: Effect) -> float:
    """The margin on the scale that the spread is on."""
    return math.log1p(effect.margin) if effect.scale == "ratio" else effect.margin


def decide(effect: Effect, metric: str) -> Regression:
    """Decide from the interval of candidate (b) against baseline (a); the margin is the effect's.

    Both ends are judged at the interval's two-sided level, so each one-sided error is half of what is left: 2.5% at 95%.
    """
    worst, best, limit, words = _bad_side(effect, higher_is_better=metric in HIGHER_IS_BETTER)
    if effect.noise is not None and stands_apart(effect.noise.effect):
        return Regression(Decision.INCONCLUSIVE, "identical arms came out different, so a difference says nothing of the candidate")
    if best > limit:
        return Regression(Decision.FAIL, f"{words} lies wholly beyond the margin: the candidate is worse by more than it")
    if worst < limit:
        return Regression(Decision.PASS, f"{words} excludes a regression of the margin")
    return Regression(Decision.INCONCLUSIVE, f"{words} reaches to both sides of the margin: more replicates are needed to tell")


def _bad_side(effect: Effect, *, higher_is_better: bool) -> tuple[float, float, float, str]:
    """Turn the interval so that larger is worse: its worst end, its best end, the margin, and the interval in words."""
    words = f"{effect.scale} [{effect.low:.4g}, {effect.high:.4g}]"
    if effect.scale == "difference":
        limit = effect.margin
        return (-effect.low, -effect.high, limit, words) if higher_is_better else (effect.high, effect.low, limit, words)
    limit = 1 + effect.margin
    return (1 / effect.low, 1 / effect.high, limit, words) if higher_is_better else (effect.high, effect.low, limit, words)


def gate(found: Versus) -> Regression:
    """Answer for a pair: refused with every reason when it may not be compared or a gate stands against it, else decided."""
    if found.effect is None or not found.comparison.comparable:
        return Regression(Decision.REFUSED, "no effect may be taken from this pair", found.reasons)
    standing = tuple(r for r in found.reasons if r.code != "noise_floor")
    if standing:
        return Regression(Decision.REFUSED, "gates stand against a claim from these runs", standing)
    if found.declared.post_hoc:
        why = Reason(
            "post_hoc", found.declared.post_hoc, "name metric and margin where the gate is called, before the runs: --metric, --margin"
        )
        return Regression(Decision.REFUSED, "nobody fixed metric and margin before the runs", (why,))
    return decide(found.effect, found.declared.metric)
