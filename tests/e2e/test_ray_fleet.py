"""Real actors on a Ray cluster of two nodes: the same load from hosts of a cluster, its clocks, and the loss of a part of it.

Where this machine lets us, the second node lives in namespaces of its own, its clock an hour ahead and its process ids its own, so that it
is as foreign as a second machine would be, and its offset is known.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
import ray
from ray.cluster_utils import Cluster as Nodes

from harness.campaign.fleet import RaySessions, Watch
from harness.campaign.replicate import Settings
from harness.campaign.runner import run_campaign
from harness.clock import MonotonicClock
from harness.errors import HostError
from harness.manifest import PlannedRun, expand, load_manifest
from harness.observe import host_facts
from harness.record.coordinates import Known
from harness.record.reader import latest_sealed, read_run
from harness.record.schema import EndKind
from harness.record.segments import segment_names
from harness.replay.contract import Progress, ReplayPlan
from harness.replay.fleet import cluster as speaking
from harness.replay.fleet.cluster import Cluster
from harness.replay.fleet.session import RaySession
from harness.replay.session import missing_rows
from harness.replay.shares import share_out
from tests.e2e.replaying import CLOCK, MS, hostile, plan, replay, rows, samples, waiting
from tests.e2e.test_campaign import command
from tests.e2e.test_workload_campaigns import OWN, QUICKSTART, TRACES, ask, assert_sound, checks, manifest, the_record, written

pytestmark = pytest.mark.e2e

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": speaking.OBJECT_STORE}
AFTER: list[list[int]] = [[] for _ in range(20)] + [[i] for i in range(20)] + [[20 + i] for i in range(10)]
PROMPTS = [*["good"] * 38, "status_429", *["good"] * 11]  # 38 is a second turn, without a third
CLIENT = "{fleet: {mode: ray, workers: 2, memory: 64MiB}}"


AHEAD_S = 3600
APART = ["--time", "--monotonic", str(AHEAD_S), "--pid", "--fork", "--mount-proc", "--kill-child"]


@dataclass
class Two:
    """A cluster of two nodes with a core each, and our connection to it. ``ahead_ns``: the clock of the second against ours, 0 for ours."""

    nodes: Nodes
    cluster: Cluster
    ahead_ns: int


def apart() -> list[str] | None:
    """Words that start a program with a clock and process ids of its own; None where we may not."""
    for rights in ([], ["--user", "--map-root-user"]):
        words = ["unshare", *rights, *APART]
        with contextlib.suppress(OSError):
            if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
                return words
    return None


@contextlib.contextmanager
def second_node(nodes: Nodes) -> Iterator[int]:
    """Add a node to ``nodes``; gives how far its clock is ahead."""
    words = apart()
    if words is None:
        nodes.add_node(**NODE)
        yield 0
        return
    options = ["--address", nodes.address, "--num-cpus", "1", "--object-store-memory", str(speaking.OBJECT_STORE), "--block"]
    command = [*words, sys.executable, "-m", "ray.scripts.scripts", "start", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as node:
        try:
            yield AHEAD_S * 10**9
        finally:
            node.kill()


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    folder = tempfile.mkdtemp(prefix="ray-")  # pytest's own is too deep for the sockets below it
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("TMPDIR", folder)  # where actors that are killed leave their files, and Ray its address
        (Path(folder) / "ray").mkdir()
        nodes = Nodes(initialize_head=True, head_node_args=NODE | {"include_dashboard": False, "temp_dir": folder})
        try:
            with second_node(nodes) as ahead_ns, Cluster(nodes.address) as cluster:
                assert soon(nothing_left, 60)
                yield Two(nodes, cluster, ahead_ns)
        finally:
            nodes.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with hostile() as port:
        yield port


def start(made: ReplayPlan, two: Two) -> RaySession:
    session = RaySession(made, CLOCK, two.cluster, Watch())
    session.start()
    session.go(CLOCK.now_ns() + 600 * MS)
    return session


def settings(two: Two, folder: Path, on_progress: Callable[[PlannedRun, Progress, float], None] = lambda *_: None) -> Settings:
    sessions = RaySessions(two.cluster)
    return Settings(folder / "results", (TRACES, OWN), None, MonotonicClock(), on_progress, lambda _: None, sessions=sessions)


def away() -> list[psutil.Process]:
    """Processes of actors and what is below them."""
    actors = [p for p in psutil.process_iter(["cmdline"]) if "FleetHost" in " ".join(p.info["cmdline"] or [])]
    return [each for actor in actors for each in (actor, *actor.children(recursive=True))]


def soon(holds: Callable[[], bool], within_s: float = 20) -> bool:
    deadline = time.monotonic() + within_s
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held


def nothing_left() -> bool:
    """No process is, and all room is free again."""
    return ray.available_resources().get("CPU") == 2.0 and not away()


def test_a_fleet_sends_and_records_what_processes_of_one_host_do(two: Two, tmp_path: Path) -> None:
    log, other = tmp_path / "bodies", tmp_path / "other"
    with hostile("--bodies", str(log)) as port:
        made = plan(tmp_path / "fleet", port, PROMPTS, every_ms=20, workers=2, **waiting(AFTER, think_ms=3))
        session = start(made, two)
        summary, got = session.wait(30), rows(made)
    with hostile("--bodies", str(other)) as port:
        same = plan(tmp_path / "processes", port, PROMPTS, every_ms=20, workers=2, **waiting(AFTER, think_ms=3))
        beside, _ = replay(same)
    assert (summary.fault, summary.offered, summary.recorded) == (None, 50, 50)
    assert summary.worker_cpu_s > 0
    assert Counter(log.read_text().split()) == Counter(hashlib.sha256(body).hexdigest() for body in made.bodies)
    assert Counter(log.read_text().split()) == Counter(other.read_text().split())
    assert [r["request_id"] for r in got] == list(range(50))
    fields = ("request_id", "end_kind", "http_status", "client_tokens", "event_tokens")
    assert [[r[f] for f in fields] for r in got] == [[r[f] for f in fields] for r in beside]
    # A row that never came due has no send. The others were sent at the instant they were due, whichever clock says so.
    slips = {
        name: sorted((r["send_ns"] - r["arrival_ns"]) / MS for r in found if r["send_ns"] is not None and r["send_ns"] >= 0)
        for name, found in (("fleet", got), ("processes", beside))
    }
    assert min(slips["fleet"]) >= 0
    print(f"second largest slip of 50: {slips['fleet'][-2]:.3f} ms from actors, {slips['processes'][-2]:.3f} ms from processes")
    assert len(samples(made, "loop_lag_s", "w1")) > 10
    the_hosts_are_told_apart(session, made, two)
    assert soon(nothing_left)


def the_hosts_are_told_apart(session: RaySession, made: ReplayPlan, two: Two) -> None:
    """Who shares our clock was told the epoch as it is, and who does not on its own; who has process ids of its own samples them itself."""
    facts = session.facts()
    assert len({facts.before[f"fleet.{worker}.node"].value for worker in ("w0", "w1")}) == 2
    away = [w for w in ("w0", "w1") if facts.before[f"fleet.{w}.clock"].value == "own"]
    assert len(away) == (1 if two.ahead_ns else 0)
    here = {"w0", "w1"} - set(away)
    assert set(session.roles()) == {f"{role}/{worker}" for role in ("client", "spooler") for worker in here}
    segments = [*(f"{kind}-{w}" for kind in ("client", "requests") for w in ("w0", "w1")), *(f"fleet-{w}" for w in away)]
    assert segment_names(made.segments) == sorted(segments)
    for worker in ("w0", "w1"):
        ahead_ns = two.ahead_ns if worker in away else 0
        assert facts.before[f"fleet.{worker}.nice"].value is not None
        for when in (facts.before, facts.after):
            offset, uncertainty = (when[f"fleet.{worker}.{name}"].value for name in ("offset_ns", "uncertainty_ns"))
            assert abs(offset - ahead_ns) <= uncertainty
            print(f"{worker}: clock measured {(offset - ahead_ns) / 1e3:.0f} us off the truth, within {uncertainty / 1e3:.0f} us")
        shift, before, after = (facts.before[f"fleet.{worker}.shift_ns"], facts.before[f"fleet.{worker}.offset_ns"], facts.after)
        assert shift.value == (before.value if worker in away else 0)
        assert after[f"fleet.{worker}.drift_ns"].value == after[f"fleet.{worker}.offset_ns"].value - before.value


def test_a_node_that_leaves_costs_its_worker_only_and_nothing_waits_for_it(two: Two, port: int, tmp_path: Path) -> None:
    node = two.nodes.add_node(**NODE)
    count = 360
    made = plan(tmp_path, port, ["good"] * count, every_ms=15, end_ms=20_000, workers=3)
    session = start(made, two)
    on = {session.facts().before[f"fleet.w{k}.node"].value: f"w{k}" for k in range(3)}
    victim = on[node.node_id]
    (hit,) = (share for share in share_out(made) if share.label == victim)
    while len({r["request_id"] for r in rows(made)} & set(hit.ids.tolist())) < 20:
        assert not session.finished(0.05)
    two.nodes.remove_node(node)
    began = time.monotonic()
    summary = session.wait(40)
    print(f"over {time.monotonic() - began:.1f} s after the node left: {summary.fault}")
    assert summary.fault is not None
    assert summary.fault.startswith(f"{victim}: its process or its node is gone")
    assert ";" not in summary.fault
    got = {r["request_id"]: r["end_kind"] for r in rows(made)}
    lost = {r["request_id"] for r in missing_rows(made, got, EndKind.CLIENT_FAULT)}
    assert 0 < len(lost) <= len(hit.ids) - 20, "what was fetched before the loss is kept"
    assert lost <= set(hit.ids.tolist())
    assert set(got.values()) == {"complete"}
    assert set(got) | lost == set(range(count))
    after = session.facts().after[f"fleet.{victim}.offset_ns"]
    assert after.value is None
    assert "gone" in str(after.reason)
    assert soon(nothing_left), "the orphans saw their pipes close"


def test_a_server_that_is_not_there_ends_it_before_the_run_and_leaves_nothing(two: Two, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        session = RaySession(plan(tmp_path, taken.getsockname()[1], ["good"] * 4, workers=2), CLOCK, two.cluster, Watch())
        with pytest.raises(HostError, match="refused"):
            session.start()
    assert session.finished(0)
    assert soon(nothing_left)


def test_a_disk_that_refuses_ends_the_run_in_words_and_leaves_nothing(two: Two, port: int, tmp_path: Path) -> None:
    (tmp_path / "client-w1.arrows").write_bytes(b"in the way")
    session = start(plan(tmp_path, port, ["good"] * 100, workers=2), two)
    with pytest.raises(HostError, match="could not be written"):
        session.wait(30)
    session.abort()
    assert session.summary().fault is not None
    assert soon(nothing_left)


def test_a_cluster_without_room_says_so_within_a_deadline(two: Two, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "RESERVE_S", 0.5)
    for workers, memory, words in [(3, None, "1 core for each"), (2, 2**50, "1.05e\\+06 GiB for each")]:
        session = RaySession(plan(tmp_path, port, ["good"] * 4, workers=workers), CLOCK, two.cluster, Watch(), memory)
        with pytest.raises(HostError, match=words) as refused:
            session.start()
        assert refused.value.problems[0].code == "fleet_resources"
    assert soon(nothing_left)


def test_a_campaign_from_a_fleet_is_sealed_says_so_and_stands_the_gates(two: Two, tmp_path: Path) -> None:
    path = manifest(tmp_path, "fleet", QUICKSTART, "output-length: forced", client=CLIENT, load="{time-compression: [2.5]}")
    run_campaign(expand(load_manifest(path)), settings(two, tmp_path))
    record = the_record(tmp_path / "results" / "fleet")
    assert (record.spec.fleet, record.spec.workers) == ("ray", 2)
    coordinates = record.coordinates.coordinates
    assert coordinates["client.concurrency"] == Known(value="unlimited, 2 workers on a Ray cluster", source="declared")
    assert coordinates["client.host"] == Known(value=host_facts()["host.identity"].value, source="observed")
    campaign = tmp_path / "results" / "fleet"
    assert_sound(campaign, but=["counts_agree"])  # so short a run may have too few gauges
    answers = checks(campaign)
    assert answers["clock_sync"].verdict == "PASS", answers["clock_sync"].reason
    for code in ("client_slip", "receive_lag"):
        print(f"{code}: {answers[code].reason}")
        assert answers[code].verdict in ("PASS", "FAIL")  # a busy host may be late; what must not happen is that nobody knows
    assert "the worst of 2 workers" in answers["receive_lag"].reason
    assert answers["client_headroom"].verdict != "PASS"
    written(campaign)
    assert soon(nothing_left)


def test_a_lost_actor_is_the_clients_fault_and_spoils_the_replicate(two: Two, tmp_path: Path) -> None:
    path = manifest(tmp_path, "lost", QUICKSTART, "output-length: forced", client=CLIENT)
    victims = []

    def strike(_run: PlannedRun, _live: Progress, elapsed_s: float) -> None:
        if elapsed_s >= 1.5 and not victims:
            victims.append(next(process for process in away() if "FleetHost" in " ".join(process.cmdline())))
            victims[0].kill()

    run_campaign(expand(load_manifest(path)), settings(two, tmp_path, strike))
    (attempt,) = latest_sealed(tmp_path / "results" / "lost").values()
    ends = Counter(read_run(attempt).requests["end_kind"].to_pylist())
    assert set(ends) == {"complete", "client_fault"}
    told = [orjson.loads(line) for line in (attempt / "observations.jsonl").read_bytes().splitlines()]
    (replayed,) = (line for line in told if line["kind"] == "replay")
    assert "its process or its node is gone" in replayed["fault"]
    answers = checks(tmp_path / "results" / "lost")
    assert {code: answers[code].verdict for code in ("requests_wellformed", "partition_closes", "seal_intact", "clock_sync")} == {
        "requests_wellformed": "FAIL", "partition_closes": "PASS", "seal_intact": "PASS", "clock_sync": "UNKNOWN",
    }  # fmt: skip
    assert "client faults" in answers["requests_wellformed"].reason
    assert soon(nothing_left)


def struck(folder: Path, blow: signal.Signals, *options: str, **environment: str) -> tuple[int, str]:
    """Run a campaign by the command until both workers have recorded something, and strike; gives exit code and what was printed."""
    path = manifest(folder, "gone", QUICKSTART, "output-length: forced", client="{fleet: {workers: 2}}")
    args = command("run", path, "--results", folder / "results", "--traces", TRACES, "--fleet", "ray", *options)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | environment
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ) as driver:
        try:
            segments = folder / "results" / "gone" / "one@x1" / "0" / "1" / "segments"
            assert soon(lambda: {"requests-w0", "requests-w1"} <= set(segment_names(segments)), 60)
            driver.send_signal(blow)
            told, _ = driver.communicate(timeout=60)
        finally:
            driver.kill()
    return driver.returncode, told


def test_a_driver_that_is_killed_leaves_no_actor(two: Two, tmp_path: Path) -> None:
    code, told = struck(tmp_path, signal.SIGKILL, "--ray-address", two.nodes.address)
    assert code == -signal.SIGKILL, told
    assert soon(nothing_left), [p.cmdline() for p in away()]


def test_an_interrupted_driver_with_a_cluster_of_its_own_leaves_a_cut_attempt_and_nothing_else(tmp_path: Path) -> None:
    folder = tempfile.mkdtemp(prefix="t-")
    try:
        code, told = struck(tmp_path, signal.SIGINT, TMPDIR=folder)
        assert code == 130, told
        assert not list(Path(folder).glob("trigpoint-*"))
        assert not [p for p in psutil.process_iter(["cmdline"]) if folder in " ".join(p.info["cmdline"] or [])]
    finally:
        shutil.rmtree(folder)
    (row,) = ask("status", tmp_path / "results" / "gone")["runs"]
    assert row["state"] == "cut"
