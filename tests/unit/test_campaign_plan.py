"""From any schedule to what the load engine is given and what the record keeps: rooms that never met agree on who waits for whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.campaign.layout import lay_out
from harness.campaign.plan import replay_plan, schedule_table, truth_table
from harness.campaign.replicate import _all_facts
from harness.replay.agenda import Agenda
from harness.replay.check import check_plan
from harness.replay.contract import ReplayPlan
from harness.replay.reader import stamped_by
from harness.replay.shares import share_out
from tests.unit.test_campaign_bodies import TARGET, planned
from tests.unit.test_workloads_digest import schedule
from tests.unit.test_workloads_sessions import make_plan
from tests.unit.test_workloads_transforms import attempt, rich_traces
from workloads import Schedule
from workloads.assemble import assemble
from workloads.plan import WorkloadPlan
from workloads.schedule import Trace, frozen
from workloads.sessions import FAILED_PAUSE_NS
from workloads.tenants import assign

S = 10**9


def made_of(plan: WorkloadPlan, trace: Trace) -> Schedule:
    """A schedule of a plan's rows; prompts and reuse are not looked at here."""
    rows = assemble(plan, trace).trace
    senders = assign(plan, rows)
    none = frozen(np.full(len(rows), -1, np.int64))
    return replace(
        schedule(), arrival_ns=rows.arrival_ns, input_tokens=rows.input_tokens, output_tokens=rows.output_tokens, max_tokens=none,
        stop_after=none, source_row=rows.source_row, client=senders.client, request_class=senders.request_class, turns=rows.turns,
        priority=senders.priority, cancel_after_ns=None,
    )  # fmt: skip


@pytest.mark.parametrize(("size", "limit"), [(300, 300), (0, None)])
def test_a_vocabulary_that_is_not_told_limits_nothing(monkeypatch: pytest.MonkeyPatch, size: int, limit: int | None) -> None:
    """As a limit, nought would leave no id to send."""
    asked: list[int | None] = []

    def load(_name: str, *, vocab_limit: int | None) -> None:
        asked.append(vocab_limit)
        raise InterruptedError

    monkeypatch.setattr("harness.campaign.layout.load_tokenizer", load)
    with pytest.raises(InterruptedError):
        lay_out(planned(), replace(TARGET, vocab_size=size), [])
    assert asked == [limit]


def engine_plan(made: Schedule, workload: WorkloadPlan, workers: int = 1) -> ReplayPlan:
    run = replace(planned(), workload=workload, workers=workers)
    return replay_plan(made, [b"{}"] * len(made), run, TARGET, Path("segments"), {})


def arrivals_of(plan: ReplayPlan) -> list[int]:
    """When each request comes due if every answer takes no time; fails when one never does."""
    think = [] if plan.think_ns is None else plan.think_ns.tolist()
    agenda = Agenda(plan.arrival_ns.tolist(), plan.end_ns, plan.after, think)
    came: dict[int, int] = {}
    while (now := agenda.next_ns()) < plan.end_ns:
        for arrival, request in agenda.due(now):
            came[request] = arrival
            agenda.ended(request, arrival)
    assert agenda.rest() == []
    return [came[request] for request in range(len(plan.bodies))]


plans = st.builds(
    dict,
    loop=st.sampled_from(["partly_open", "open", "partly_open", "closed"]),
    horizon_s=st.sampled_from([1, 5, 30]),
    history=st.sampled_from(["carry", "none"]),
    users=st.integers(1, 3),
    think_s=st.sampled_from([None, 0, 0.4]),
)


@settings(deadline=None, max_examples=80)
@given(rich_traces(), plans, st.integers(1, 5))
def test_the_engine_plays_what_was_planned_whoever_shares_it(trace: Trace, asked: dict[str, Any], workers: int) -> None:
    think = {} if asked["loop"] == "open" else {"think_s": asked["think_s"]}
    workload = make_plan(
        loop=asked["loop"], users=asked["users"] if asked["loop"] == "closed" else None, horizon_s=asked["horizon_s"],
        sessions={"history": asked["history"]} | think,
    )  # fmt: skip
    made, refused = attempt(lambda: made_of(workload, trace))
    assert refused <= {"workload.horizon_not_covered", "workload.users"}
    if made is None or not len(made):
        return
    plan = replace(engine_plan(made, workload, workers), end_ns=10**6 * S)
    check_plan(plan)
    assert plan.failed_pause_ns == (FAILED_PAUSE_NS if asked["loop"] == "closed" else None)
    assert arrivals_of(plan) == made.arrival_ns.tolist()
    shares = share_out(plan)
    assert sorted(i for share in shares for i in share.ids.tolist()) == list(range(len(made)))
    for share in shares:
        check_plan(share.plan)
        assert arrivals_of(share.plan) == made.arrival_ns[share.ids].tolist()
        assert share.plan.failed_pause_ns == plan.failed_pause_ns


@settings(deadline=None, max_examples=40)
@given(rich_traces(), plans)
def test_the_record_keeps_who_waits_and_nothing_where_nobody_does(trace: Trace, asked: dict[str, Any]) -> None:
    loop = asked["loop"]
    workload = make_plan(loop=loop, users=1 if loop == "closed" else None, horizon_s=asked["horizon_s"])
    made, _ = attempt(lambda: made_of(workload, trace))
    if made is None or made.turns is None:
        return
    rows = schedule_table(made, frozen(np.zeros(len(made), np.int64))).to_pylist()
    for i, row in enumerate(rows):
        before = made.turns.after.row(i).tolist()
        assert row["after"] == (before or None)
        assert row["think_ns"] == (made.turns.think_ns[i] if before else None)
        assert (row["session"], row["turn"]) == (made.turns.session[i], made.turns.turn[i])
        assert row["client"] == (None if made.client is None else made.client.at(i))
        assert row["priority"] is None
    assert truth_table(made)["output_tokens"].to_pylist() == made.output_tokens.tolist()


@pytest.mark.parametrize(("loop", "pause"), [("open", None), ("partly_open", None), ("closed", FAILED_PAUSE_NS)])
def test_only_users_of_a_closed_loop_go_on_after_a_failure(loop: str, pause: int | None) -> None:
    workload = planned().workload.model_copy(update={"loop": loop, "users": 1 if loop == "closed" else None})
    assert engine_plan(schedule(), workload).failed_pause_ns == pause


@pytest.mark.parametrize(("url", "tls"), [("http://h:1", False), ("https://h:1/v", True), ("HTTPS://h:1", True)])
def test_who_stamps_is_said_of_the_connections_that_are_made(url: str, *, tls: bool) -> None:
    target = replace(TARGET, base_url=url)
    runtime = SimpleNamespace(managed=False, facts=lambda *_: {})
    server: Any = SimpleNamespace(pid=None, target=target, runtime=runtime, log=None, launch=None)
    run: Any = SimpleNamespace(arm=None, pins=None)
    assert replay_plan(schedule(), [b"{}"], planned(), target, Path("segments"), {}).tls is tls
    assert _all_facts(run, server)["client.stamps"].value == stamped_by(tls=tls)
