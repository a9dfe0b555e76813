"""Public traces through chain and loop: what users stumbled over elsewhere does not happen here. Skipped where the traces are absent."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import UsageError
from workloads import Trace, WorkloadPlan, check_rows, read_trace
from workloads.assemble import Rows, assemble
from workloads.plan import Jitter, Loop, ScaleLengths, Sort
from workloads.transforms import apply

TRACES = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = [pytest.mark.traces, pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not here")]
FILES = {
    "mooncake": "mooncake/conversation_trace.jsonl.gz",
    "ragpulse": "ragpulse/0_trace.jsonl.gz",
    "weka-agentic": "weka-agentic/weka_traces_15.tar.gz",
}


@cache
def trace_of(fmt: str) -> Trace:
    return read_trace(fmt, TRACES / FILES[fmt])


def play(fmt: str, **changes: Any) -> Rows:
    base: dict[str, Any] = {"arrivals": {"process": "trace"}, "output": {"control": "natural"}, "horizon_s": 600, "seed": 3}
    trace = trace_of(fmt)
    plan = WorkloadPlan.model_validate(base | {"trace": {"format": fmt, "name": "t", "sha256": trace.sha256}} | changes)
    check_rows(plan, trace)
    return assemble(plan, trace)


def effect(rows: Rows, name: str) -> Any:
    return next(entry["effect"] for entry in rows.log() if entry["name"] == name)


def leading_ids(trace: Trace) -> list[int]:
    assert trace.blocks is not None
    return [int(trace.blocks.ids.row(k)[0]) for k in range(len(trace))]


def test_mooncakes_three_second_grid_is_undone_and_said() -> None:
    (entry,) = apply([Jitter(grid_s=3)], trace_of("mooncake"), 1).log
    told: Any = entry["effect"]
    assert told["before"]["cv_interarrival"] == pytest.approx(3.0337, abs=1e-4)
    assert told["before"]["index_of_dispersion_1s"] == pytest.approx(7.8941, abs=1e-4)
    # A Poisson process has 1; what is left above it is the load's own change over the hour.
    assert 0.95 < told["after"]["index_of_dispersion_1s"] < 1.25
    assert 0.95 < told["after"]["cv_interarrival"] < 1.1


def test_a_scaled_slice_of_mooncake_shares_what_the_trace_shares() -> None:
    trace = trace_of("mooncake")
    assert trace.blocks is not None
    done = apply([ScaleLengths(input_factor=1 / 8)], trace, 1).trace
    assert done.blocks is not None
    assert done.blocks.size == 64
    assert leading_ids(done) == leading_ids(trace)
    # Rounding a prompt down may take the few tokens of its last block away, never more.
    lost = np.diff(trace.blocks.ids.offsets) - np.diff(done.blocks.ids.offsets)
    assert set(lost.tolist()) == {0, 1}
    assert lost.mean() < 0.01
    assert (np.diff(done.blocks.ids.offsets) == -(-done.input_tokens // 64)).all()


def test_a_second_pass_over_mooncake_finds_nothing_of_the_first() -> None:
    done = apply([Loop(times=2)], trace_of("mooncake"), 1).trace
    assert done.blocks is not None
    half = len(done.blocks.ids.values) // 2
    one, two = set(done.blocks.ids.values[:half].tolist()), set(done.blocks.ids.values[half:].tolist())
    assert len(one) == len(two)
    assert not one & two


def test_ragpulse_is_two_passes_over_one_week() -> None:
    with pytest.raises(UsageError, match="put the transform sort first"):
        play("ragpulse", horizon_s=3600)
    done = apply([Sort()], trace_of("ragpulse"), 1)
    assert done.log[0]["effect"]["inversions"] == 1  # type: ignore[index]
    assert len(done.trace) == 7106
    assert int(done.trace.arrival_ns[-1]) == 604_603 * 10**9  # one week, not two
    assert done.trace.turns is not None
    owner = np.repeat(np.arange(7106), np.diff(done.trace.turns.after.offsets))
    assert (done.trace.turns.after.values.astype(np.int64) < owner).all()


def test_sessions_of_agents_start_by_a_process_and_wait_for_their_answers() -> None:
    starts = {"process": "poisson", "rate": 0.02}
    with pytest.raises(UsageError, match=r"workload\.no_clock"):
        play("weka-agentic", loop="partly_open")
    rows = play("weka-agentic", loop="partly_open", arrivals=starts, sessions={"think_s": 2})
    by_clock = np.diff(rows.trace.turns.after.offsets) == 0  # type: ignore[union-attr]
    assert effect(rows, "trace_to_sent")["after"]["arrivals"] == int(by_clock.sum())
    # A turn waits for an answer and pauses; its service time is not in its pause a second time.
    assert set(rows.trace.turns.think_ns[~by_clock].tolist()) == {2 * 10**9}  # type: ignore[union-attr]
    assert (rows.trace.input_tokens == trace_of("weka-agentic").input_tokens[rows.trace.source_row]).all()


def test_recorded_pauses_of_hours_can_be_capped() -> None:
    trace = trace_of("weka-agentic")
    assert trace.turns is not None
    known = np.diff(trace.turns.after.offsets) > 0
    assert trace.turns.think_ns[known].max() > 600 * 10**9
    rows = play("weka-agentic", loop="partly_open", arrivals={"process": "constant", "rate": 0.002}, sessions={"think_limit_s": 5})
    assert effect(rows, "think")["pauses_capped"] > 0
    assert rows.trace.turns is not None
    assert rows.trace.turns.think_ns.max() <= 5 * 10**9
