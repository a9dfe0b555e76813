"""A simulated attempt on disk: read back, analysed, sealed; and the refusals before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis.campaign import analyze
from harness.errors import UsageError
from harness.record.attempt import Attempt
from harness.record.coordinates import RUN_COORDINATES, Coordinate, Known, RunCoordinates
from harness.record.facts import Facts
from harness.record.reader import read_run
from harness.record.schema import SCHEDULE, TRUTH
from harness.record.spec import Window
from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.simulate import EngineSetup, SimulatedRun, offer, simulate_run, virtual_facts
from tests.builders import make_spec
from workloads import Schedule

S, MS = 1_000_000_000, 1_000_000
COUNT = 40
SETUP = EngineSetup("vllm-shaped-fcfs", Budgets(64, 8, 4096), CostModel(5 * MS, 10_000, 100_000, 0), 1024)


class NoPrompts:
    """A simulation needs lengths only."""

    def ids(self, request_id: int) -> Any:
        raise AssertionError(request_id)

    text = ids


def make_schedule(**changes: Any) -> Schedule:
    generator = np.random.default_rng(1)
    output = generator.integers(1, 20, COUNT)
    base: dict[str, Any] = {
        "arrival_ns": np.arange(COUNT) * 300 * MS + 50 * MS, "input_tokens": generator.integers(1, 100, COUNT), "output_tokens": output,
        "max_tokens": output, "stop_after": np.full(COUNT, -1), "source_row": np.full(COUNT, -1), "prompts": NoPrompts(),
        "transforms": (), "ignore_eos": True, "recipe": b"{}",
    }  # fmt: skip
    return Schedule(**(base | changes))


def tables(schedule: Schedule) -> tuple[pa.Table, pa.Table]:
    planned = {"request_id": np.arange(COUNT), "arrival_ns": schedule.arrival_ns, "input_tokens": schedule.input_tokens}
    planned |= {"max_tokens": schedule.max_tokens}
    truth = {"request_id": np.arange(COUNT), "output_tokens": schedule.output_tokens}
    return filled(planned, SCHEDULE), filled(truth, TRUTH)


def filled(have: dict[str, Any], schema: pa.Schema) -> pa.Table:
    columns = [pa.array(have[field.name]) if field.name in have else pa.nulls(COUNT, field.type) for field in schema]
    return pa.table(columns, schema=schema)


def simulated(**spec: Any) -> SimulatedRun:
    schedule = make_schedule()
    facts = Facts(before=virtual_facts(SETUP, model="tiny", dtype="float32", model_digest="a" * 64))
    known: dict[str, Coordinate] = {name: Known(value="same", source="declared") for name in RUN_COORDINATES}
    frozen = make_spec(window=Window(warm_up_ns=2 * S, measured_ns=10 * S, drain_ns=2 * S), **spec)
    return SimulatedRun("trigpoint: 1\n", frozen, schedule, *tables(schedule), SETUP, facts, RunCoordinates(coordinates=known))


def test_the_record_of_a_simulation_is_sealed_read_back_and_analysed(tmp_path: Path) -> None:
    attempt = Attempt.create(tmp_path, "demo", "a@x1", 0)
    root = simulate_run(attempt, simulated())
    record = read_run(attempt.path)
    assert len(root) == 64
    assert record.requests.num_rows == COUNT
    rows = record.whole_requests().to_pylist()
    assert [len(row["event_ns"]) for row in rows] == make_schedule().output_tokens.tolist()
    assert {row["end_kind"] for row in rows} == {"complete"}
    assert all(row["event_ns"] == sorted(row["event_ns"]) and row["event_ns"][0] > row["arrival_ns"] == row["send_ns"] for row in rows)
    run = analyze([record], incomplete=[]).cells[0]
    assert run.evidence_class == "synthetic"
    assert run.figures["goodput"].value is not None
    assert run.figures["slip_max"].value == 0


def test_two_simulations_of_one_run_are_byte_equal_but_for_their_attempt(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        attempt = Attempt.create(tmp_path / name, "demo", "a@x1", 0)
        simulate_run(attempt, simulated())
        files.append({path.name: path.read_bytes() for path in attempt.path.iterdir() if path.suffix == ".parquet"})
    assert files[0] == files[1]


def test_a_simulation_never_passes_for_a_measurement(tmp_path: Path) -> None:
    attempt = Attempt.create(tmp_path, "demo", "a@x1", 0)
    with pytest.raises(UsageError, match="evidence_class"):
        simulate_run(attempt, simulated(evidence_class="measured"))
    assert {path.name for path in attempt.path.iterdir()} == {"segments"}


def test_an_engine_that_could_never_finish_a_request_is_refused() -> None:
    with pytest.raises(UsageError, match="kv_too_small"):
        EngineSetup("vllm-shaped-fcfs", Budgets(64, 8, 100), CostModel(1, 1, 1, 1), 1024).core("w")
    with pytest.raises(UsageError, match="prompt_too_long"):
        offer(make_schedule(), max_model_len=50)


def test_the_server_s_own_command_line_describes_the_engine() -> None:
    flags = [
        "--policy",
        "aging-priority",
        "--policy-parameters",
        "aging_ns=5",
        "--max-num-seqs",
        "3",
        "--cost-base",
        "7ms",
        "--max-queue",
        "9",
    ]
    setup = EngineSetup.from_arguments(flags)
    core = setup.core("w")
    assert core.policy.parameters == {"aging_ns": 5}
    assert (core.workload.budgets.sequences, core.costs.base_ns, setup.door.waiting) == (3, 7 * MS, 9)
    assert core.workload.parameters == (("aging_ns", 5),)
    assert (setup.effective()["policy_aging_ns"], setup.effective()["max_queue"]) == (5, 9)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--prefix-cache-tokens", "64"], "simulate_prefix_cache"),
        (["--policy", "best"], "policy_unknown"),
        (["--policy-parameters", "luck=7"], "policy_parameter"),
        (["--kv-cache-tokens", "8"], "kv_too_small"),
    ],
)
def test_what_cannot_be_simulated_is_refused(flags: list[str], code: str) -> None:
    with pytest.raises(UsageError, match=code):
        EngineSetup.from_arguments(flags)


def test_lengths_end_where_the_control_says() -> None:
    forced = offer(make_schedule(), max_model_len=1024)
    assert forced.maximum.tolist() == make_schedule().output_tokens.tolist()
    capped = offer(make_schedule(ignore_eos=False, max_tokens=np.full(COUNT, 15)), max_model_len=1024)
    assert capped.natural.tolist() == make_schedule().output_tokens.tolist()
    undeclared = offer(make_schedule(ignore_eos=False, max_tokens=np.full(COUNT, -1)), max_model_len=1024)
    assert (undeclared.maximum + undeclared.prompt).tolist() == [1024] * COUNT
