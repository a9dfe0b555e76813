"""Priorities that tenants send are read by an engine that says so, in one direction, or refused as load that is not what it looks like."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.manifest.priority_rules import check_priorities
from harness.manifest.schema import Arm
from harness.manifest.workload import Workload

LENGTHS = {"input": {"kind": "constant", "value": 8}, "output": {"kind": "constant", "value": 8}}


def workload(*priorities: int | None) -> Workload:
    tenants = {f"t{i}": {"priority": p} for i, p in enumerate(priorities)}
    return Workload.model_validate({"lengths": LENGTHS, "output-length": {"control": "forced"}, "tenants": tenants})


def arm(runtime: str = "vllm", **args: Any) -> Arm:
    return Arm.model_validate({"runtime": runtime, "args": {k.replace("_", "-"): v for k, v in args.items()}})


def codes(load: Workload, **arms: Arm) -> list[tuple[str, tuple[str | int, ...]]]:
    return [(found.code, found.path) for found in check_priorities(arms, load)]


READS = arm(scheduling_policy="priority")
IGNORES = arm(scheduling_policy="fcfs")
SILENT = arm()
SGLANG = arm("sglang", enable_priority_scheduling=True, schedule_low_priority_values_first=True)


@pytest.mark.parametrize(
    ("arms", "expected"),
    [
        ({"a": READS}, []),
        ({"a": READS, "b": IGNORES}, []),
        ({"a": SGLANG, "b": READS}, []),
        ({"a": arm("reference")}, []),
        ({"a": READS, "b": SILENT}, [("priority_unread", ("arms", "b", "args"))]),
        ({"a": arm("sglang"), "b": READS}, [("priority_unread", ("arms", "a", "args"))]),
        ({"a": IGNORES}, [("priority_unread", ("workload",))]),
        ({"a": arm("sglang", enable_priority_scheduling=False)}, [("priority_unread", ("workload",))]),
        ({"a": arm("sglang", enable_priority_scheduling=True)}, [("priority_direction", ("arms", "a", "args"))]),
    ],
)
def test_an_arm_says_whether_it_reads_priorities(arms: dict[str, Arm], expected: list[tuple[str, tuple[str, ...]]]) -> None:
    assert codes(workload(0, 10), **arms) == expected


@given(st.lists(st.none() | st.just(0) | st.just(7), max_size=4), st.sampled_from([READS, IGNORES, SILENT]))
def test_one_level_of_priority_orders_nothing_and_asks_for_nothing(priorities: list[int | None], one: Arm) -> None:
    found = codes(workload(*priorities), a=one)
    levels = {p or 0 for p in priorities}
    assert (found == []) is (len(levels) < 2 or one is READS)
