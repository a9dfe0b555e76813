"""Launch prefixes with real processes: programs that exec, an engine whose servers live outside our tree, a tunnel to another host."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from harness.campaign import servers
from harness.campaign.servers import Keeper, Server
from harness.cli.app import main
from harness.clock import MonotonicClock
from harness.errors import HostError
from harness.manifest import PlannedRun, expand, load_manifest
from harness.record.coordinates import Known, Unknown
from harness.record.reader import latest_sealed, read_run
from harness.runtimes.launch import Launch
from harness.runtimes.ports import listeners
from harness.runtimes.reference import ReferenceRuntime
from tests.e2e.test_bad_input import FEW, write
from tests.e2e.test_campaign_keeper import Odd, stranger

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
AWAY = "few: {runtime: endpoint, url: 'http://127.0.0.1:9'}"
MANY = FEW.replace("few", "many").replace("seqs: 2", "seqs: 16")
CORE = str(min(os.sched_getaffinity(0)))


def launch(prefix: tuple[str, ...], **changes: object) -> Launch:
    return Launch.model_validate({"name": "test", "prefix": prefix, "where": "same-host"} | changes)


@pytest.fixture
def run(tmp_path: Path) -> PlannedRun:
    """The run of the arm ``few``."""
    runs = expand(load_manifest(write(tmp_path), known_gates=frozenset())).runs
    return next(run for run in runs if run.arm.name == "few")


@contextmanager
def keeper(folder: Path, how: Launch) -> Iterator[Keeper]:
    with Keeper(folder / ".servers", MonotonicClock(), lambda _line: None, 60.0, launches={"few": how}) as ours:
        yield ours


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Path]:
    """The socket of a running engine."""
    path = tmp_path / "box.sock"
    with subprocess.Popen([sys.executable, str(HERE / "box.py"), "daemon", str(path)], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        yield path
        left = psutil.Process(daemon.pid).children(recursive=True)
        daemon.kill()
        for process in left:
            process.kill()


def boxed(path: Path, **changes: object) -> Launch:
    command = (sys.executable, str(HERE / "box.py"))
    stop = (*command, "stop", str(path), "{name}")
    return launch((*command, "run", str(path), "{name}"), **({"env": "argv", "stop": stop} | changes))


def soon(true: Callable[[], bool]) -> bool:
    for _ in range(300):
        if true():
            return True
        time.sleep(0.1)
    return False


def serves(server: Server) -> bool:
    return server.exit_state().survived is True


@pytest.mark.parametrize("prefix", [("env",), ("nice", "-n", "1"), ("setsid", "--wait"), ("taskset", "-c", CORE)], ids=lambda p: p[0])
def test_a_program_that_starts_ours_is_in_our_tree_and_gone_afterwards(tmp_path: Path, run: PlannedRun, prefix: tuple[str, ...]) -> None:
    with keeper(tmp_path, launch(prefix)) as ours:
        server = ours.use(run)
        assert serves(server)
        assert server.argv[: len(prefix)] == prefix
        assert server.process is not None
        tree = server.process.tree_pids()
        assert server.pid in tree
        assert listeners(int(server.target.base_url.rpartition(":")[2])) <= set(tree)
    assert not any(psutil.pid_exists(pid) for pid in tree)


def test_a_boxed_server_is_ours_though_outside_our_tree_and_its_stop_ends_it(tmp_path: Path, run: PlannedRun, box: Path) -> None:
    with keeper(tmp_path, boxed(box)) as ours:
        server = ours.use(run)
        assert serves(server)
        assert server.process is not None
        assert server.pid not in server.process.tree_pids()
        assert "harness.reference.server" in " ".join(psutil.Process(server.pid).cmdline())
        inside = psutil.Process(server.pid)
    assert not inside.is_running()


def test_a_boxed_server_without_a_stop_is_no_server_of_ours(tmp_path: Path, run: PlannedRun, box: Path) -> None:
    with keeper(tmp_path, boxed(box, stop=())) as ours, pytest.raises(HostError, match="another server's") as caught:
        ours.use(run)
    assert caught.value.problems[0].code == "stale_server"


def test_a_stop_that_does_not_end_the_server_is_told(tmp_path: Path, run: PlannedRun, box: Path) -> None:
    def use_and_stop() -> None:
        with keeper(tmp_path, boxed(box, stop=("true",))) as ours:
            assert serves(ours.use(run))

    with pytest.raises(HostError, match="still answers after the server that test launched was stopped") as caught:
        use_and_stop()
    assert caught.value.problems[0].code == "server_not_stopped"


def test_a_boxed_server_that_dies_is_seen_dead(tmp_path: Path, run: PlannedRun, box: Path) -> None:
    with keeper(tmp_path, boxed(box)) as ours:
        server = ours.use(run)
        psutil.Process(server.pid).kill()
        assert soon(lambda: server.exit_state().survived is False)


def test_a_prefix_that_leaves_its_server_behind_is_a_server_that_died(tmp_path: Path, run: PlannedRun) -> None:
    with keeper(tmp_path, launch(("true",))) as ours, pytest.raises(HostError, match="exit_code=0") as caught:
        ours.use(run)
    assert caught.value.problems[0].code == "server_died"


def test_who_answered_before_the_prefix_began_is_a_stranger(tmp_path: Path, run: PlannedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is older than the prefix; that it takes the port late must not make it the server."""
    port = servers.free_port()
    monkeypatch.setattr(servers, "free_port", lambda: port)
    with stranger(port), keeper(tmp_path, launch(("env",), stop=("true",))) as ours, pytest.raises(HostError) as early:
        ours.use(run)
    assert early.value.problems[0].code == "port_in_use"

    opened = stranger(port)

    class Late(Odd):
        def ready(self, base_url: str) -> bool:
            if not self.answers:
                opened.__enter__()
                self.answers = True
            return ReferenceRuntime.ready(self, base_url)

    monkeypatch.setattr(servers, "get_runtime", lambda _name: Late())
    try:
        with keeper(tmp_path, launch(("env",), stop=("true",))) as ours, pytest.raises(HostError) as late:
            ours.use(run)
    finally:
        opened.__exit__(None, None, None)
    assert late.value.problems[0].code == "stale_server"
    assert f"pid {os.getpid()}" in late.value.problems[0].what


def test_reserved_cores_that_a_prefix_does_not_keep_are_refused(tmp_path: Path) -> None:
    other = str(max(os.sched_getaffinity(0)))
    swaps = ("rank:", f"client: {{cpus: [{CORE}], server-cpus: [{other}]}}\nrank:")
    runs = expand(load_manifest(write(tmp_path, b"never read", swaps), known_gates=frozenset())).runs
    few = next(run for run in runs if run.arm.name == "few")
    with keeper(tmp_path, launch(("taskset", "-c", other))) as ours:
        assert serves(ours.use(few))
    with keeper(tmp_path, launch(("taskset", "-c", CORE))) as ours, pytest.raises(HostError) as caught:
        ours.use(few)
    assert caught.value.problems[0].code == "placement_not_kept"


# The whole command from here on.


def configured(folder: Path, text: str) -> dict[str, str]:
    """Environment in which the user's launch.toml says ``text``."""
    path = folder / "config" / "trigpoint" / "launch.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return os.environ | {"XDG_CONFIG_HOME": str(folder / "config")}


def command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "harness.cli", "run", str(folder / "m.yaml"), "--results", str(folder / "results"), *options]


def finish(folder: Path, env: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, *options), capture_output=True, text=True, timeout=120, cwd=ROOT, env=env, check=False)


def words(*parts: str | Path) -> str:
    return json.dumps([str(part) for part in parts])


def test_a_launch_is_a_coordinate_and_another_host_leaves_its_facts_unknown(tmp_path: Path) -> None:
    write(tmp_path)
    tunnel = words(sys.executable, HERE / "tunnel.py", "{port}")
    telling = words("sh", "-c", 'echo "my key is $API_KEY"; exec "$@"', "sh")[1:-1]
    env = configured(
        tmp_path,
        f'[polite]\nprefix = ["env", "API_KEY=not-a-real-key-77", "nice", {telling}]\nwhere = "same-host"\n'
        f'[far]\nprefix = {tunnel}\nwhere = "other-host"\nshells = 0\n',
    )
    done = finish(tmp_path, env, "--launch", "polite", "--launch", "many=far")
    assert done.returncode == 0, done.stderr
    records = {cell: read_run(path) for (cell, _), path in latest_sealed(tmp_path / "results" / "m").items()}
    near, far = records["few@x1"], records["many@x1"]
    assert near.facts.argv[:3] == ("env", "API_KEY=[masked]", "nice")
    assert near.facts.before["server.launch_name"].value == "polite"
    launched = {name: record.coordinates.coordinates["runtime.launch"] for name, record in records.items()}
    assert all(isinstance(c, Known) for c in launched.values())
    assert len({str(c) for c in launched.values()}) == 2
    assert isinstance(near.coordinates.coordinates["hardware.host"], Known)
    unknown = {name for name, c in far.coordinates.coordinates.items() if isinstance(c, Unknown)}
    assert {"hardware.host", "hardware.cpu", "hardware.cores", "hardware.gpu", "runtime.packages", "model.digest"} <= unknown
    assert isinstance(far.coordinates.coordinates["client.host"], Known)
    sampled = {name: set(record.host.column("source").to_pylist()) for name, record in records.items()}
    assert ("server" in sampled["few@x1"], "server" in sampled["many@x1"]) == (True, False)
    assert "my key is [redacted]" in (near.path / "server.log").read_text(encoding="utf-8")
    files = [p for p in (tmp_path / "results").rglob("*") if p.is_file()]
    assert [p for p in files if b"not-a-real-key-77" in p.read_bytes()] == []
    # What is left of a campaign is launched as the rest of it was, or not at all.
    assert finish(tmp_path, env).returncode == 0, "nothing is left, so nothing differs"
    shutil.rmtree(tmp_path / "results" / "m" / "few@x1")
    other = finish(tmp_path, env, "--launch", "polite")
    assert other.returncode == 2, other.stderr
    assert "[launch_differs]" in other.stderr
    assert "arm many was launched by `python" in other.stderr
    assert "starting" not in other.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_campaign_stops_what_lives_outside_its_tree(tmp_path: Path, box: Path, number: signal.Signals) -> None:
    write(tmp_path)
    how = boxed(box)
    env = configured(tmp_path, f'[box]\nprefix = {words(*how.prefix)}\nstop = {words(*how.stop)}\nwhere = "same-host"\nenv = "argv"\n')
    daemon = next(p for p in psutil.Process().children() if "daemon" in p.cmdline())
    with subprocess.Popen(command(tmp_path, "--launch", "box"), cwd=ROOT, env=env, stderr=subprocess.DEVNULL) as child:
        try:
            assert soon(lambda: any((tmp_path / "results" / "m").rglob("segments/requests-*")))
            inside = daemon.children()
            assert inside
            child.send_signal(number)
            child.wait(60)
        finally:
            child.kill()
    assert psutil.wait_procs(inside, timeout=60)[1] == []


@pytest.mark.parametrize(
    ("options", "swaps", "code", "exit_code"),
    [
        (("--launch", "polit"), (), "unknown_launch", 2),
        (("--launch", "fw=polite"), (), "unknown_arm", 2),
        (("--launch", "absent"), (), "launch_missing", 3),
        (("--launch", "few=polite"), ((FEW, AWAY),), "launch_endpoint", 2),
        (("--launch", "polite"), ((FEW, AWAY), (MANY, AWAY.replace("few", "many").replace(":9", ":8"))), "launch_endpoint", 2),
        ((), ((FEW, FEW.replace("args", "launch: polite, args")),), "not_in_manifest", 2),
    ],
)
def test_only_the_user_can_choose_a_launch_and_only_one_that_is_there(
    tmp_path: Path, options: tuple[str, ...], swaps: tuple[tuple[str, str], ...], code: str, exit_code: int
) -> None:
    write(tmp_path, b"never read", *swaps)
    polite = '[polite]\nprefix = ["nice"]\nwhere = "same-host"\n'
    env = configured(tmp_path, f'{polite}[absent]\nprefix = ["no-such-program"]\nwhere = "same-host"\n')
    done = finish(tmp_path, env, *options)
    assert done.returncode == exit_code, done.stderr
    assert f"[{code}]" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


def test_a_simulated_campaign_has_nothing_to_launch(tmp_path: Path) -> None:
    folder = ("--results", str(tmp_path / "results"))
    assert CliRunner().invoke(main, ["simulate", str(write(tmp_path)), *folder]).exit_code == 0
    resumed = CliRunner().invoke(main, ["resume", str(tmp_path / "results" / "m"), "--launch", "polite"])
    assert resumed.exit_code == 2
    assert "[launch_virtual]" in resumed.stderr
