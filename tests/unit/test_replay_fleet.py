"""A fleet's clocks, pieces of segments, and what is refused before anything is sent; no cluster is needed for any of it."""

from __future__ import annotations

import importlib
import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.clock import VirtualClock
from harness.errors import HostError, UsageError
from harness.record.schema import SAMPLES
from harness.record.segments import SegmentWriter, read_segments
from harness.replay.contract import ReplayPlan
from harness.replay.fleet.clocks import Offset, Round, measure, offset_of
from harness.replay.fleet.cluster import Cluster, Seat, _environment
from harness.replay.fleet.contract import Hello, Look, Piece
from harness.replay.fleet.host import NOTHING, FleetHost, pid_namespace
from harness.replay.fleet.pieces import Landing, read_pieces
from harness.replay.fleet.post import Post
from harness.replay.fleet.session import RaySession, parts
from harness.replay.shares import share_out

MS = 10**6


class Ours:
    """Goes beside nothing; says of every host what it is told to."""

    def identity(self) -> str | None:
        return "m:b"

    def source(self) -> str:
        return "a" * 64

    def begin(self, roles: Mapping[str, int], epoch_ns: int, folder: Path) -> Callable[[], None]:
        raise AssertionError("nothing runs")


def plan(folder: Path, count: int = 6, **changes: Any) -> ReplayPlan:
    base: dict[str, Any] = {
        "host": "127.0.0.1", "port": 1, "path": "/v1/completions", "protocol": "completions",
        "arrival_ns": np.arange(count, dtype=np.int64) * MS, "bodies": [b"{}"] * count,
        "stop_after": np.full(count, -1, dtype=np.int64), "end_ns": 10**9, "segments": folder, "workers": 2,
    }  # fmt: skip
    return ReplayPlan(**(base | changes))


def session(made: ReplayPlan, *hosts: str | None, source: str = "a" * 64) -> RaySession:
    """A session whose workers have said where they sit; nothing was asked of any cluster."""
    one = RaySession(made, VirtualClock(), Cluster(), Ours())
    for share, host in zip(share_out(made), hosts, strict=True):
        hello = Hello(host, pid_namespace(), source, 0)
        one._posts.append(Post(share, Seat(None, f"node of {share.label}"), Landing(made.segments), hello))
    return one


# -- clocks


@given(
    st.integers(-(10**15), 10**15),
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**12)), min_size=1, max_size=20),
)
def test_the_truth_lies_within_the_uncertainty_however_the_ways_share_the_delay(true_ns: int, ways: list[tuple[int, int, int]]) -> None:
    found = offset_of([Round(at, at + there + true_ns, at + there + back) for there, back, at in ways])
    assert abs(found.offset_ns - true_ns) <= found.uncertainty_ns
    assert found.uncertainty_ns <= min(there + back for there, back, _ in ways) // 2 + 1


def test_the_quickest_of_many_rounds_is_taken() -> None:
    clock = VirtualClock()
    delays = iter([9 * MS, 1 * MS, 5 * MS])

    def read() -> int:
        delay = next(delays)
        clock.advance(delay)
        there = clock.now_ns() + 77 * MS
        clock.advance(delay // 2)
        return there

    found = measure(read, clock, rounds=3)
    assert found.uncertainty_ns == 1 * MS * 3 // 4 + 1
    assert abs(found.offset_ns - 77 * MS) <= found.uncertainty_ns


def test_no_round_tells_nothing() -> None:
    with pytest.raises(ValueError, match="empty"):
        offset_of([])


@pytest.mark.parametrize(
    ("offset_ns", "here", "clock", "shift_ns"),
    [(300, True, "shared", 0), (300, False, "own", 300), (5000, True, "own", 5000)],
    ids=["this host", "another host", "this host with another clock, as in a time namespace"],
)
def test_one_host_has_one_clock_unless_what_was_measured_says_otherwise(
    tmp_path: Path, offset_ns: int, here: bool, clock: str, shift_ns: int
) -> None:
    post = session(plan(tmp_path), "m:b", "m:b")._posts[1]
    post.compared(Offset(offset_ns, 1000), here=here)
    facts = dict(post.facts_before())
    assert (facts["fleet.w1.clock"].value, facts["fleet.w1.shift_ns"].value, post.shift_ns) == (clock, shift_ns, shift_ns)
    post.after = Offset(offset_ns + 250, 2000)
    assert {name: fact.value for name, fact in post.facts_after()} == {
        "fleet.w1.offset_ns": offset_ns + 250, "fleet.w1.uncertainty_ns": 2000, "fleet.w1.drift_ns": 250,
    }  # fmt: skip


def test_what_a_lost_worker_did_not_say_is_null_with_the_reason(tmp_path: Path) -> None:
    one = session(plan(tmp_path), "m:b", None)
    lost, silent = one._posts
    lost.fault, silent.hello = "its node is gone", None
    facts = one.facts()
    assert all(fact.value is not None or fact.reason for fact in (*facts.before.values(), *facts.after.values()))
    assert facts.before["fleet.w1.host"].value is None
    assert "its node is gone" in str(facts.after["fleet.w0.drift_ns"].reason)


# -- segments


@given(st.data())
def test_pieces_of_any_size_make_the_same_files_while_they_are_written(data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, 64))
    steps = data.draw(st.lists(st.tuples(st.sampled_from(["a.arrows", "b.arrows"]), st.binary(min_size=1, max_size=100)), max_size=12))
    with Folders() as (there, here), Landing(here) as landing:
        for name, written in steps:
            with (there / name).open("ab") as file:
                file.write(written)
            pieces, _ = read_pieces(there, landing.have, limit)
            assert sum(len(piece.data) for piece in pieces) <= limit
            for piece in pieces:
                landing.put(piece)
        more = True
        while more:
            pieces, more = read_pieces(there, landing.have, limit)
            for piece in pieces:
                landing.put(piece)
        assert {p.name: p.read_bytes() for p in here.iterdir()} == {p.name: p.read_bytes() for p in there.iterdir()}


class Folders:
    """Two folders for one example of a property, which a fixture would share between examples."""

    def __enter__(self) -> tuple[Path, Path]:
        self._made = tempfile.TemporaryDirectory()
        made = tuple(Path(self._made.name) / name for name in ("there", "here"))
        for folder in made:
            folder.mkdir()
        return made[0], made[1]

    def __exit__(self, *_error: object) -> None:
        self._made.cleanup()


def test_what_came_before_a_loss_reads_as_whole_batches(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    row = {"t_ns": 1, "source": "client", "metric": "in_flight", "labels": "w1", "value": 2.0}
    with SegmentWriter(there, "client-w1", SAMPLES, clock=VirtualClock()) as writer:
        writer.append([row])
        writer.flush()
        whole = writer.path.stat().st_size
        writer.append([row])
    with Landing(here) as landing:
        for piece in read_pieces(there, {}, whole + 10)[0]:
            landing.put(piece)
    table, torn = read_segments(here, "client-w1", SAMPLES)
    assert (table.to_pylist(), torn) == ([row], True)


@pytest.mark.parametrize("name", ["../requests-w0.arrows", "/elsewhere/requests-w0.arrows", "seal"])
def test_a_piece_lands_under_a_name_of_ours_only(tmp_path: Path, name: str) -> None:
    with Landing(tmp_path / "segments") as landing, pytest.raises(ValueError, match="name of a segment"):
        landing.put(Piece(name, 0, b"x"))
    assert not list(tmp_path.rglob("*.arrows"))


def test_a_piece_that_does_not_follow_is_no_piece(tmp_path: Path) -> None:
    with Landing(tmp_path) as landing:
        landing.put(Piece("a.arrows", 0, b"xy"))
        with pytest.raises(ValueError, match="does not follow"):
            landing.put(Piece("a.arrows", 3, b"z"))


def test_a_disk_that_refuses_is_an_instruction(tmp_path: Path) -> None:
    (tmp_path / "a.arrows").write_bytes(b"there already")
    with Landing(tmp_path) as landing, pytest.raises(HostError, match="could not be written"):
        landing.put(Piece("a.arrows", 0, b"x"))


@given(st.lists(st.binary(max_size=30), max_size=30), st.integers(1, 40))
def test_bodies_travel_whole_in_order_and_in_bounded_parts(bodies: list[bytes], limit: int) -> None:
    made = list(parts(bodies, limit))
    assert [body for part in made for body in part] == bodies
    assert all(len(part) == 1 or sum(map(len, part)) <= limit for part in made)


# -- refusals


def test_another_source_and_a_name_that_only_this_host_knows_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(HostError) as refused:
        session(plan(tmp_path), "m:b", "n:b", source="b" * 64)._refuse_strangers()
    assert [(p.code, p.what[:3]) for p in refused.value.problems] == [
        ("fleet_version", "w0:"), ("fleet_version", "w1:"), ("fleet_loopback", "hos"),
    ]  # fmt: skip
    session(plan(tmp_path, host="gateway.example"), "m:b", "n:b")._refuse_strangers()
    session(plan(tmp_path), "m:b", "m:b")._refuse_strangers()


def test_a_host_that_cannot_be_told_is_not_taken_for_this_one(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="another host"):
        session(plan(tmp_path), "m:b", None)._refuse_strangers()


def test_reserved_cores_are_those_of_each_host(tmp_path: Path) -> None:
    one = session(plan(tmp_path, workers=3, cpus=(4, 5), spool_cpus=(6,)), "m:b", "n:b", "m:b")
    one._pin()
    assert [(p.share.plan.cpus, p.share.plan.spool_cpus) for p in one._posts] == [((4,), (6,)), ((4, 5), (6,)), ((5,), (6,))]


def test_an_address_of_a_proxy_is_refused() -> None:
    with pytest.raises(UsageError, match="proxy") as refused:
        Cluster("ray://127.0.0.1:10001")
    assert refused.value.exit_code == 2


def test_what_is_set_for_a_cluster_is_as_it_was_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/mine")
    monkeypatch.delenv("RAY_NEW", raising=False)
    with _environment(TMPDIR="/its", RAY_NEW="t"):
        assert (os.environ["TMPDIR"], os.environ["RAY_NEW"]) == ("/its", "t")
    assert (os.environ["TMPDIR"], os.environ.get("RAY_NEW")) == ("/mine", None)


def test_ray_s_own_word_for_no_address_is_none() -> None:
    assert (Cluster("local")._address, Cluster("auto")._address) == (None, "auto")


def test_a_cluster_where_nobody_listens_is_refused_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(HostError) as refused, Cluster(f"127.0.0.1:{taken.getsockname()[1]}"):
            raise AssertionError("connected to nobody")
    assert refused.value.problems[0].code == "ray_unreachable"


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.import_module

    def _without_ray(name: str, package: str | None = None) -> Any:
        if name == "ray":
            raise ModuleNotFoundError("No module named 'ray'", name="ray")
        return found(name, package)

    monkeypatch.setattr(importlib, "import_module", _without_ray)
    with pytest.raises(HostError) as refused, Cluster():
        raise AssertionError("opened without the package")
    assert refused.value.problems[0].code == "ray_missing"
    assert "trigpoint[ray]" in refused.value.problems[0].remedy


# -- the life of a session and of a host


def test_before_the_start_there_is_nothing_to_tell(tmp_path: Path) -> None:
    one = RaySession(plan(tmp_path), VirtualClock(), Cluster(), Ours())
    for ask in (one.progress, one.summary, one.facts, one.roles, lambda: one.finished(0)):
        with pytest.raises(ValueError, match="not been started"):
            ask()
    one.abort()


def test_a_host_that_was_never_started_is_over_and_holds_nothing() -> None:
    host = FleetHost(Ours())
    host.abort("nothing runs")
    assert host.look({}).over
    assert (host.close(), host.roles()) == (None, {})
    assert host.hello().nice == os.getpriority(os.PRIO_PROCESS, 0)
    with pytest.raises(ValueError, match="started first"):
        host.go(1, True)


class Told(Cluster):
    """Keeps what actors are told, and has them agree to it."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[Any, ...]] = []

    def ask(self, actor: Any, method: str, *arguments: Any) -> Any:
        self.told.append((method, *arguments))

    def answer(self, ref: Any, timeout_s: float) -> Any:
        return ()


def test_each_worker_is_told_the_epoch_on_its_own_clock(tmp_path: Path) -> None:
    """A clock that is ahead of ours shows more at the same instant."""
    one = session(plan(tmp_path, workers=3), "m:b", "n:b", "o:b")
    one._cluster = told = Told()
    for post, offset, here in zip(one._posts, (300, 5 * MS, -7 * MS), (True, False, False), strict=True):
        post.compared(Offset(offset, 1000), here=here)
    one.go(10**9)
    assert told.told == [("go", 10**9, False), ("go", 10**9 + 5 * MS, False), ("go", 10**9 - 7 * MS, False)]


class Deaf(Cluster):
    """A cluster that has the answers of ``ready`` and no others."""

    def __init__(self, *ready: str) -> None:
        super().__init__()
        self.ready = ready

    def wait(self, refs: Sequence[Any], timeout_s: float) -> list[Any]:
        return [ref for ref in refs if ref in self.ready][:1]

    def answer(self, ref: Any, timeout_s: float) -> Any:
        return Look(False, NOTHING, (), False)

    def fire(self, actor: Any) -> None:
        return


def test_who_answered_while_we_were_away_is_not_lost_and_who_did_not_is(tmp_path: Path) -> None:
    one = session(plan(tmp_path, workers=3), "m:b", "m:b", "m:b")
    one._cluster = Deaf("w0", "w1")
    for post in one._posts:
        post.ref, post.asked_s = post.name, -1e9
    one._listen(0.0)
    assert [(post.over, post.fault) for post in one._posts] == [(False, None), (False, None), (True, "no answer for 15 s")]
