"""Who sends what: a trace's clients, drawn tenants, their classes and priorities, and requests that are given up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.errors import UsageError
from tests.unit.test_workloads_build import build, make_plan, problems
from tests.unit.test_workloads_transforms import make_trace, with_turns
from workloads.schedule import Labels
from workloads.tenants import assign

SHARED = [{"name": "big", "share": 0.75, "priority": -1, "request_class": "fast"}, {"name": "small", "share": 0.25}]
CLIENTS = make_trace(range(6), client=("a", "b", "a", "c", "b", "a"))


def found(trace: Any, tenants: list[dict[str, Any]]) -> dict[str, str]:
    with pytest.raises(UsageError) as caught:
        assign(make_plan(tenants=tenants), trace)
    return {problem.code: f"{problem.what} -> {problem.remedy}" for problem in caught.value.problems}


def test_a_traces_clients_and_kinds_stand_where_no_tenant_is_named() -> None:
    trace = replace(CLIENTS, kind=Labels.of(["text", None, "image", "text", "text", "text"]))
    senders = assign(make_plan(), trace)
    assert senders.client is trace.client
    assert senders.request_class is trace.kind
    assert senders.priority is None


def test_tenants_of_a_traces_names_give_class_and_priority() -> None:
    senders = assign(
        make_plan(tenants=[{"name": "b", "priority": 3, "request_class": "slow"}, {"name": "a", "request_class": "fast"}]), CLIENTS
    )
    assert senders.client is CLIENTS.client
    assert senders.request_class is not None
    assert senders.request_class.values() == ["fast", "slow", "fast", None, "slow", "fast"]
    assert senders.priority is not None
    assert senders.priority.tolist() == [0, 3, 0, 0, 3, 0]
    only = assign(make_plan(tenants=[{"name": "c"}]), CLIENTS)
    assert (only.request_class, only.priority) == (None, None)


def test_unknown_names_and_needless_shares_are_refused_together() -> None:
    text = found(CLIENTS, [{"name": "z", "share": 1.0}])
    assert "z not among the 3 clients" in text["workload.tenant_unknown"]
    assert "a, b, c" in text["workload.tenant_unknown"]
    assert "shares of their own" in text["workload.tenant_shares"]


def test_tenants_without_shares_need_clients() -> None:
    assert "big, small without a share" in found(make_trace([0]), [{"name": "big"}, {"name": "small"}])["workload.tenant_shares"]


@pytest.mark.parametrize(
    ("tenants", "code"),
    [
        ([{"name": "a", "share": 0.5}, {"name": "b", "share": 0.4}], "workload.tenant_shares"),
        ([{"name": "a", "share": 0.5}, {"name": "b"}], "workload.tenant_shares"),
        ([{"name": "a", "share": 0.5}, {"name": "a", "share": 0.5}], "workload.tenant_twice"),
    ],
)
def test_tenants_that_contradict_themselves_are_refused(tenants: list[dict[str, Any]], code: str) -> None:
    assert code in problems(make_plan(tenants=tenants))


def test_drawn_tenants_follow_their_shares_in_any_order_of_writing() -> None:
    trace = make_trace(np.arange(10_000))
    one, two = (assign(make_plan(tenants=tenants), trace) for tenants in (SHARED, SHARED[::-1]))
    assert one.client is not None
    assert two.client is not None
    assert one.client.values() == two.client.values()
    big = one.client.codes == one.client.names.index("big")
    assert abs(int(big.sum()) - 7_500) < 5 * np.sqrt(10_000 * 0.75 * 0.25)
    assert one.priority is not None
    assert (one.priority == np.where(big, -1, 0)).all()
    other = assign(make_plan(tenants=SHARED, seed=6), trace).client
    assert other is not None
    assert other.values() != one.client.values()


def test_a_session_has_one_drawn_tenant() -> None:
    trace = with_turns(make_trace(range(300)), [k // 3 for k in range(300)], [[k - 1] if k % 3 else [] for k in range(300)])
    client = assign(make_plan(tenants=SHARED), trace).client
    assert client is not None
    assert (client.codes[0::3] == client.codes[1::3]).all()
    assert (client.codes[0::3] == client.codes[2::3]).all()
    assert set(client.codes.tolist()) == {0, 1}


def test_a_schedule_carries_senders_and_cancellations() -> None:
    schedule = build(make_plan(tenants=SHARED, cancellations={"share": 0.4, "after_s": 1.5}))
    assert schedule.client is not None
    assert set(schedule.client.values()) == {"big", "small"}
    assert schedule.request_class is not None
    assert {(c, r) for c, r in zip(schedule.client.values(), schedule.request_class.values(), strict=True)} == {
        ("big", "fast"),
        ("small", None),
    }
    assert schedule.cancel_after_ns is not None
    given_up = schedule.cancel_after_ns >= 0
    assert set(schedule.cancel_after_ns[given_up].tolist()) == {1_500_000_000}
    assert abs(int(given_up.sum()) - 0.4 * len(schedule)) < 5 * np.sqrt(0.24 * len(schedule))
    assert build(make_plan()).cancel_after_ns is None


def test_one_dimension_varies_alone() -> None:
    plain, more = build(make_plan(tenants=SHARED)), build(make_plan(tenants=SHARED, cancellations={"share": 0.5, "after_s": 1}))
    assert plain.client is not None
    assert more.client is not None
    assert plain.client.values() == more.client.values()
    assert plain.arrival_ns.tolist() == more.arrival_ns.tolist()
