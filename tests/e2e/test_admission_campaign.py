"""What the teaching manifest on admission teaches: four rules pay in four ways for the same unknown lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.memory import MemoryUse
from analysis.model import CellAnalysis
from tests.e2e.test_virtual_campaigns import figure, lesson

pytestmark = pytest.mark.e2e


def use(cell: CellAnalysis) -> MemoryUse:
    found = cell.runs[0].memory
    assert found is not None
    assert found.closes
    return found


def test_admission(tmp_path: Path) -> None:
    cells = lesson("admission", tmp_path)
    most, point, p90, held_back = (use(cells[f"{arm}@rate-5"]).counts for arm in ("maximum", "point", "p90", "watermark"))
    per_request = [n["unused_rows_total"] / n["reservations_total"] for n in (most, p90, point)]
    assert per_request == sorted(per_request, reverse=True)
    assert most["under_rows_total"] == most["extensions_total"] == most["preemptions_total"] == most["breach_rows_total"] == 0
    assert point["under_rows_total"] / point["reservations_total"] > 5 * p90["under_rows_total"] / p90["reservations_total"] > 0
    assert point["breach_rows_total"] > p90["breach_rows_total"]
    assert point["preemptions_total"] > p90["preemptions_total"] >= held_back["preemptions_total"] == held_back["breach_rows_total"] == 0
    assert point["preemptions_recompute_total"] == point["preemptions_total"]
    assert point["recomputed_rows_total"] > 0
    # What is set aside and not used stands between requests and their first token.
    rates = [figure(cells[f"{arm}@rate-5"], "token_throughput") for arm in ("maximum", "watermark", "p90", "point")]
    assert rates == sorted(rates)
    idle = use(cells["point@rate-5"]).idle_rows
    assert idle is not None
    assert 0 < idle < 2048
