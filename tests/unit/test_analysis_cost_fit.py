"""A cost model fitted to records: what was declared comes back, its error is that on unseen replicates, what cannot be told is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.cost_fit import PARAMETERS, Iterations, _least_squares, _Slate, fit_costs, iterations_of, to_dict
from harness.errors import UsageError
from harness.record.attempt import Attempt
from harness.record.reader import RunRecord, read_run
from harness.reference.arguments import make_parser
from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.simulate import EngineSetup, simulate_run
from tests.unit import test_simulate_attempt as small

MS = 1_000_000
DECLARED = (5 * MS, 11_000, 130_000, 70)
SETUP = EngineSetup("vllm-shaped-fcfs", Budgets(64, 8, 4096), CostModel(*DECLARED), 1024)


def record(folder: Path, replicate: int, monkeypatch: pytest.MonkeyPatch, gap_ms: int = 60, setup: EngineSetup = SETUP) -> RunRecord:
    """One sealed replicate in virtual time: 40 requests of 1 to 100 prompt rows, every 60 ms, whose prompts need up to two iterations."""
    monkeypatch.setattr(small, "SETUP", setup)
    run = small.simulated(replicate=replicate)
    lengths = np.random.default_rng(replicate)
    prompts, outputs = lengths.integers(1, 100, small.COUNT), lengths.integers(1, 30, small.COUNT)
    arrivals = np.arange(small.COUNT) * gap_ms * MS + 50 * MS
    schedule = small.make_schedule(arrival_ns=arrivals, input_tokens=prompts, output_tokens=outputs, max_tokens=outputs)
    planned, truth = small.tables(schedule)
    changed = type(run)(run.manifest_text, run.spec, schedule, planned, truth, setup, run.facts, run.coordinates)
    attempt = Attempt.create(folder, "demo", "a@x1", replicate)
    simulate_run(attempt, changed)
    return read_run(attempt.path)


def test_declared_costs_come_back_from_what_a_client_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fit,), _ = fit_costs([record(tmp_path, replicate, monkeypatch) for replicate in range(3)])
    found = [fit.estimates[name].value for name in PARAMETERS]
    assert found == pytest.approx(DECLARED, rel=1e-6)
    assert fit.median_error < 1e-6
    assert fit.p90_error < 1e-6
    assert (fit.replicates, fit.source, fit.dropped) == (3, "c" * 64, ())
    assert fit.left_out < fit.iterations / 10
    assert fit.arguments()["cost-source"] == "fitted:cccccccccccccccc:0.000"
    assert to_dict(fit)["evidence_class"] == "synthetic"


def test_the_arguments_are_ones_the_engine_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fit,), _ = fit_costs([record(tmp_path, replicate, monkeypatch) for replicate in range(2)])
    argv = [word for name, value in fit.arguments().items() for word in (f"--{name}", value)]
    setup = EngineSetup.from_arguments(argv)
    costs = setup.costs
    assert (costs.base_ns, costs.prefill_token_ns, costs.decode_row_ns, costs.context_token_ns) == DECLARED
    assert setup.effective()["cost_source"] == costs.source == fit.arguments()["cost-source"]


def test_costs_are_declared_unless_said_otherwise_and_a_source_is_no_free_text() -> None:
    assert EngineSetup.from_arguments([]).effective()["cost_source"] == "declared"
    for wrong in ("measured", "fitted:xyz:0.1", "fitted:cccccccccccccccc", "fitted:cccccccccccccccc:1e9"):
        with pytest.raises(SystemExit):
            make_parser().parse_args(["--cost-source", wrong])


def test_the_error_is_that_on_a_replicate_that_was_not_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slower = EngineSetup(SETUP.policy, SETUP.budgets, CostModel(6 * MS, 11_000, 130_000, 70), 1024)
    records = [record(tmp_path, 0, monkeypatch), record(tmp_path, 1, monkeypatch), record(tmp_path, 2, monkeypatch, setup=slower)]
    (fit,), _ = fit_costs(records)
    assert 0.08 < fit.time_error < 0.2, "the slower replicate is predicted from the faster ones: a sixth of its base is missing"
    assert fit.estimates["base_ns"].error > 0.1 * MS


def test_what_cannot_be_told_is_refused_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [record(tmp_path, replicate, monkeypatch) for replicate in range(2)]
    with pytest.raises(UsageError, match="fit_replicates"):
        fit_costs(whole[:1])
    alone = [record(tmp_path / "alone", replicate, monkeypatch, gap_ms=300) for replicate in range(2)]
    with pytest.raises(UsageError, match=r"fit_unidentified.*decode_row_ns|decode_row_ns.*"):
        fit_costs(alone)
    other = alone[0].spec.model_copy(update={"arm": alone[0].spec.arm.model_copy(update={"name": "b"})})
    fits, problems = fit_costs([*whole, *(dataclasses.replace(run, spec=other) for run in alone)])
    assert [fit.arm for fit in fits] == ["a"]
    assert [problem.code for problem in problems] == ["fit_unidentified"]
    monkeypatch.setattr("analysis.cost_fit.LEAST_ITERATIONS", 10_000)
    with pytest.raises(UsageError, match="fit_iterations"):
        fit_costs(whole)


def test_every_iteration_told_is_one_the_engine_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iterations_of(record(tmp_path, 0, monkeypatch))
    assert (seen.rows @ np.array(DECLARED) == seen.duration_ns).all()
    assert int(seen.rows[:, 1].max()) > 30, "prompts ran beside decodes"


def test_a_parameter_below_nothing_is_left_out_and_said_so() -> None:
    rows = np.array([[1, a, b, c] for a in range(4) for b in range(1, 4) for c in (5, 9, 20)])
    durations = (rows @ np.array([100, 7, 3, -2])).astype(np.int64)
    parameters, dropped = _least_squares([Iterations(durations, rows, 0)])
    assert dropped == [3]
    assert parameters[3] == 0
    assert (parameters >= 0).all()


@given(st.integers(1, 300), st.integers(0, 50), st.lists(st.integers(0, 40), max_size=12), st.integers(0, 12))
def test_a_prompt_takes_all_the_room_there_is_and_ends_where_its_first_token_is(
    prompt: int, cached: int, room: list[int], start: int
) -> None:
    cached, before = min(cached, prompt - 1), np.array(room, np.int64)
    slate = _Slate(before.copy(), np.zeros(len(room), np.int64), np.zeros(len(room), np.int64), *np.ones((2, len(room)), bool))
    used, left = slate.prefill, slate.room
    if not slate.place(start, len(room) - 1, prompt, cached):
        assert not used.any()
        assert (left == before).all()
        assert not sum(room[start:-1]) < prompt - cached <= sum(room[start:])
        return
    assert used.sum() == prompt - cached
    assert (used + left == before).all()
    assert used[-1] > 0
    assert not left[start:-1].any(), "no iteration but the last is left with room"
    assert not used[:start].any()
    assert slate.context[-1] == prompt
