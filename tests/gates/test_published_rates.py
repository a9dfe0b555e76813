"""Error rates that are published are recomputed: the simulation a gate names exists and holds the gate to its own numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.gates import GATES

ROOT = Path(__file__).parents[2]
STATISTICAL = [code for code, one in GATES.items() if one.rates is not None]


def test_the_gates_that_test_a_hypothesis_publish_rates() -> None:
    assert {"steady_state", "backlog", "counts_agree"} <= set(STATISTICAL)


@pytest.mark.parametrize("code", STATISTICAL)
def test_the_named_simulation_recomputes_both_rates(code: str) -> None:
    rates = GATES[code].rates
    assert rates is not None
    assert rates.false_alarm <= 0.01
    assert rates.detection >= 0.90
    text = (ROOT / rates.simulation).read_text(encoding="utf-8")
    for needed in (f'GATES["{code}"].rates', "<= rates.false_alarm", ">= rates.detection"):
        assert needed in text, f"{rates.simulation} does not hold {code} to its published rates"
