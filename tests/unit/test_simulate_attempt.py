"""A simulated attempt on disk: read back, analysed, sealed; and the refusals before anything is written."""

from __future__ import annotations

import dataclasses
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
from harness.record.spec import Slo, Window
from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.reference.table import NO_LIMIT
from harness.simulate import EngineSetup, SimulatedRun, offer, simulate_run, virtual_facts
from harness.simulate.offered import declared_limits
from tests.builders import make_spec
from workloads import Schedule
from workloads.schedule import Labels

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
    with pytest.raises(UsageError, match="pool_too_small"):
        EngineSetup("distserve-like-split", Budgets(64, 8, 2000), CostModel(1, 1, 1, 1), 1024).core("w")
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


def test_requests_declare_the_limits_of_their_class_and_a_policy_sees_them() -> None:
    own = {"fast": Slo(ttft_ns=50 * MS, tbt_ns=9 * MS), "batch": Slo(e2e_ns=S)}
    named = Labels(("batch", "fast", "other"), np.arange(COUNT, dtype=np.int32) % 4 - 1)
    schedule = make_schedule(request_class=named)
    limits = declared_limits(schedule, Slo(ttft_ns=500 * MS), own)
    table = offer(schedule, max_model_len=1024, limits=limits).declare(np.arange(4), np.arange(4), np.zeros(4, np.int64))
    assert table.ttft_ns.tolist() == [500 * MS, NO_LIMIT, 50 * MS, 500 * MS]  # of no class, batch, fast, of a class without limits
    assert table.tbt_ns.tolist() == [NO_LIMIT, NO_LIMIT, 9 * MS, NO_LIMIT]


def test_a_policy_of_deadlines_serves_the_class_of_tight_limits_first(tmp_path: Path) -> None:
    run = simulated(slo_classes={"tight": make_spec().slo.model_copy(update={"ttft_ns": 20 * MS, "tbt_ns": 10 * MS})})
    schedule = make_schedule(arrival_ns=np.full(COUNT, MS), request_class=Labels(("tight",), np.arange(COUNT, dtype=np.int32) % 2 - 1))
    setup = dataclasses.replace(SETUP, policy="least-slack")
    found = {}
    for name, classes in (("declared", run.spec.slo_classes), ("none", {})):
        spec = run.spec.model_copy(update={"slo_classes": classes})
        attempt = Attempt.create(tmp_path / name, "demo", "a@x1", 0)
        simulate_run(attempt, dataclasses.replace(run, spec=spec, schedule=schedule, setup=setup))
        first = [events[0] for events in read_run(attempt.path).whole_requests().sort_by("request_id")["event_ns"].to_pylist()]
        found[name] = (max(first[1::2]), max(first[0::2]))
    assert found["declared"][0] < found["declared"][1], "the tight class has its first tokens before the other"
    assert found["declared"][0] < found["none"][0]
