"""The truth server's log: grouped by request, exact to the nanosecond, and honest about its own lateness."""

from __future__ import annotations

from pathlib import Path

from harness.runtimes.truth import TruthRuntime
from harness.runtimes.truth_log import lateness_of, read_log, save_log
from harness.runtimes.truth_server import Log
from harness.system import Arm, ModelPin, Pins

PINS = Pins(model=ModelPin(id="truth", dtype="none"))


def test_interleaved_writes_are_grouped_in_order(tmp_path: Path) -> None:
    log = Log()
    first, second = log.open("c0", 100), log.open("c1", 105)
    for ordinal, scheduled, actual in ((first, 200, 201), (second, 205, 209), (first, 210, 210), (second, 215, 216)):
        log.wrote(ordinal, scheduled, actual)
    said = save_log(log, tmp_path / "t.arrow")
    table = read_log(tmp_path / "t.arrow")
    assert table.to_pylist() == [
        {"request": "c0", "received_ns": 100, "scheduled_ns": [200, 210], "actual_ns": [201, 210]},
        {"request": "c1", "received_ns": 105, "scheduled_ns": [205, 215], "actual_ns": [209, 216]},
    ]
    assert said == lateness_of(table) == {"tokens": 4, "p50_ns": 1, "p99_ns": 4, "max_ns": 4}


def test_requests_without_tokens_and_an_empty_log_are_kept(tmp_path: Path) -> None:
    log = Log()
    log.open("cut", 7)
    save_log(log, tmp_path / "cut.arrow")
    assert read_log(tmp_path / "cut.arrow").to_pylist() == [{"request": "cut", "received_ns": 7, "scheduled_ns": [], "actual_ns": []}]
    assert save_log(Log(), tmp_path / "none.arrow") == {"tokens": 0, "p50_ns": None, "p99_ns": None, "max_ns": None}
    assert read_log(tmp_path / "none.arrow").num_rows == 0


def test_the_adapter_collects_every_problem() -> None:
    arm = Arm(name="t", runtime="truth", args={"gp": 1, "ttft": float("nan"), "gap": "10", "log": "x"}, env={"X": "1"})
    problems = TruthRuntime().check(arm, Pins(model=ModelPin(id="other", dtype="none")))
    wrong = ["env_not_allowed", "flag_reserved", "flag_unknown", "flag_value", "flag_value", "model_missing"]
    assert sorted(p.code for p in problems) == wrong
    assert TruthRuntime().check(Arm(name="t", runtime="truth", args={"ttft": 5, "gap": 0.5}), PINS) == []
