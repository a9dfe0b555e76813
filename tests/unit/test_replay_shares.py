from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.replay.contract import ReplayPlan
from harness.replay.shares import cores, deal, groups, share_out
from workloads.schedule import Ragged


def plan(count: int, after: list[list[int]] | None = None, workers: int = 1) -> ReplayPlan:
    return ReplayPlan(
        "h", 1, "/", "chat", np.arange(count), [b"%d" % i for i in range(count)], np.arange(count) + 100, 10**9, Path("x"),
        after=None if after is None else Ragged.of(after, np.int64), think_ns=None if after is None else np.arange(count) + 200,
        cancel_after_ns=np.arange(count) + 300, workers=workers, cpus=(4, 5, 6), spool_cpus=(7,), warm_connections=8,
    )  # fmt: skip


def test_one_worker_gets_the_plan_as_it_is() -> None:
    whole = plan(3)
    (share,) = share_out(whole)
    assert (share.plan, share.label, share.ids.tolist()) == (whole, None, [0, 1, 2])


def test_requests_go_round_and_sessions_stay_whole() -> None:
    after: list[list[int]] = [[], [], [0], [], [2, 1], [], []]  # 0, 1, 2 and 4 are one group
    assert groups(7, Ragged.of(after, np.int64)).tolist() == [0, 0, 0, 3, 0, 5, 6]
    assert [ids.tolist() for ids in deal(7, Ragged.of(after, np.int64), 2)] == [[0, 1, 2, 4, 5], [3, 6]]
    assert [ids.tolist() for ids in deal(5, None, 2)] == [[0, 2, 4], [1, 3]]


def test_a_share_is_a_plan_of_its_own_with_everything_renumbered() -> None:
    first, second = share_out(plan(5, [[], [], [0], [1], [3]], workers=2))
    assert (first.label, first.ids.tolist(), first.plan.bodies) == ("w0", [0, 2], [b"0", b"2"])
    assert (second.label, second.ids.tolist(), second.plan.bodies) == ("w1", [1, 3, 4], [b"1", b"3", b"4"])
    assert second.plan.after is not None
    assert [second.plan.after.row(i).tolist() for i in range(3)] == [[], [0], [1]]
    columns = (second.plan.arrival_ns, second.plan.stop_after, second.plan.think_ns, second.plan.cancel_after_ns)
    assert [c.tolist() for c in columns if c is not None] == [[1, 3, 4], [101, 103, 104], [201, 203, 204], [301, 303, 304]]
    assert (first.plan.cpus, second.plan.cpus, second.plan.spool_cpus) == ((4, 6), (5,), (7,))
    assert (second.plan.warm_connections, second.plan.workers) == (4, 1)


def test_a_worker_that_would_have_nothing_is_not_started() -> None:
    assert [s.ids.tolist() for s in share_out(plan(3, [[], [0], [1]], workers=5))] == [[0, 1, 2]]
    assert [len(s.ids) for s in share_out(plan(0, workers=3))] == [0]


def test_fewer_cores_than_workers_are_shared_and_none_is_none() -> None:
    assert [cores((1, 2), k, 3) for k in range(3)] == [(1,), (2,), (1,)]
    assert cores((), 1, 2) == ()


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    n = draw(st.integers(0, 20))
    return [draw(st.lists(st.integers(0, i - 1), max_size=2, unique=True)) if i and draw(st.booleans()) else [] for i in range(n)]


@given(graphs(), st.integers(1, 6))
def test_every_request_goes_to_one_worker_and_no_session_is_cut(after: list[list[int]], workers: int) -> None:
    shares = share_out(dataclasses.replace(plan(len(after), after), workers=workers))
    owner = {int(i): share.index for share in shares for i in share.ids}
    assert sorted(i for share in shares for i in share.ids.tolist()) == list(range(len(after)))
    assert all(owner[i] == owner[p] for i, row in enumerate(after) for p in row)
    for share in shares:
        assert share.plan.after is not None
        named = [[int(share.ids[p]) for p in share.plan.after.row(k)] for k in range(len(share.ids))]
        assert named == [after[i] for i in share.ids.tolist()]
