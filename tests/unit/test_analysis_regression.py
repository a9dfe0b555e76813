"""The gate's decision from an interval: three answers, mirrored where more is better, and never two at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.effect_model import NoiseFloor
from analysis.model import Effect
from analysis.regression import RATES, Decision, decide, rates_at

Scale = Literal["ratio", "difference"]


def effect(low: float, high: float, margin: float = 0.05, scale: Scale = "ratio", pairs: int = 5) -> Effect:
    return Effect("base", "new", scale, (low + high) / 2, low, high, 0.95, margin, "unresolved", pairs, units=pairs, spread=0.02)


@pytest.mark.parametrize(
    ("low", "high", "decision"),
    [
        (1.06, 1.20, Decision.FAIL),
        (1.05, 1.20, Decision.INCONCLUSIVE),  # touching the margin shows nothing
        (0.99, 1.049, Decision.PASS),
        (0.99, 1.05, Decision.INCONCLUSIVE),
        (0.50, 0.60, Decision.PASS),
        (0.90, 1.20, Decision.INCONCLUSIVE),
        (1.01, 1.04, Decision.PASS),  # worse, and by less than the margin
    ],
)
def test_a_latency_is_worse_when_it_grows(low: float, high: float, decision: Decision) -> None:
    assert decide(effect(low, high), "ttft_p95").decision is decision
    assert decide(effect(1 / high, 1 / low), "token_throughput").decision is decision


@pytest.mark.parametrize(
    ("low", "high", "decision"),
    [
        (-0.4, -0.2, Decision.FAIL),
        (-0.4, -0.05, Decision.INCONCLUSIVE),
        (-0.05, 0.2, Decision.PASS),
        (-0.4, 0.4, Decision.INCONCLUSIVE),
        (0.2, 0.4, Decision.PASS),
    ],
)
def test_a_goodput_is_worse_when_it_falls(low: float, high: float, decision: Decision) -> None:
    assert decide(effect(low, high, 0.1, "difference"), "goodput").decision is decision
    assert decide(effect(-high, -low, 0.1, "difference"), "service_gap").decision is decision


@given(st.floats(0.2, 5), st.floats(0.2, 5), st.floats(0.001, 0.9))
def test_a_pass_excludes_the_regression_and_a_fail_shows_it(x: float, y: float, margin: float) -> None:
    low, high = min(x, y), max(x, y)
    found = decide(effect(low, high, margin), "e2e_p50").decision
    assert (found is Decision.PASS) == (high < 1 + margin)
    assert (found is Decision.FAIL) == (low > 1 + margin)


@given(st.floats(1.0, 2.0), st.floats(0.5, 1.0), st.floats(0.01, 0.5))
def test_a_larger_margin_never_turns_a_pass_into_anything_else(high: float, low: float, margin: float) -> None:
    if decide(effect(low, high, margin), "e2e_p50").decision is Decision.PASS:
        assert decide(effect(low, high, margin + 0.1), "e2e_p50").decision is Decision.PASS


def test_where_identical_arms_differ_the_gate_cannot_tell() -> None:
    apart = Effect("one", "two", "ratio", 1.3, 1.2, 1.4, 0.95, 0.05, "worse", 5)
    noisy = Effect("base", "new", "ratio", 1.3, 1.2, 1.4, 0.95, 0.05, "worse", 5, noise=NoiseFloor("A/A", apart))
    assert decide(noisy, "e2e_p50").decision is Decision.INCONCLUSIVE


@pytest.mark.parametrize(("pairs", "rates"), [(0, None), (4, None), (5, 5), (9, 5), (10, 10), (50, 10)])
def test_rates_are_those_of_as_many_pairs_or_the_next_fewer(pairs: int, rates: int | None) -> None:
    assert rates_at(effect(1, 2, pairs=pairs)) == (RATES[rates] if rates else None)
    assert rates_at(None) is None


@pytest.mark.parametrize(
    ("spread", "margin", "known"), [(0.03, 0.05, True), (0.04, 0.05, False), (0.04, 0.1, True), (math.inf, 0.5, False)]
)
def test_rates_are_told_only_of_pairs_as_quiet_as_those_simulated(spread: float, margin: float, known: bool) -> None:
    found = replace(effect(1, 2, margin), spread=spread)
    assert (rates_at(found) is not None) == known
    assert rates_at(replace(found, spread=None)) is None
    assert (rates_at(replace(found, scale="difference")) is not None) == known


def test_rates_are_told_of_independent_pairs_and_of_the_level_that_was_simulated() -> None:
    found = effect(1, 2, pairs=10)
    assert rates_at(replace(found, units=5)) == RATES[5]
    assert rates_at(replace(found, units=2)) is None  # ten pairs on two servers
    assert rates_at(replace(found, level=0.6)) is None
    assert rates_at(replace(found, level=0.999)) is None


def test_an_interval_that_reaches_every_ratio_is_no_answer() -> None:
    for metric in ("token_throughput", "e2e_p50"):
        assert decide(effect(math.exp(-700), math.exp(700)), metric).decision is Decision.INCONCLUSIVE


def test_more_pairs_find_more() -> None:
    assert [RATES[r].detection for r in sorted(RATES)] == sorted(r.detection for r in RATES.values())
    assert all(math.isfinite(r.false_alarm) and r.false_alarm <= 0.025 for r in RATES.values())
