"""Real process trees: nothing survives a stop, a crash of the server, or a SIGKILL of the harness itself."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from harness.clock import MonotonicClock, VirtualClock
from harness.errors import HostError
from harness.runtimes.contract import Command
from harness.runtimes.ports import check_port, free_port
from harness.runtimes.process import ServerProcess

pytestmark = pytest.mark.e2e

FAMILY = """
import os, subprocess, sys, time, signal
# a child in our group, a grandchild in a session of its own that ignores SIGTERM, and an orphan whose parent has left
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('stubborn', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {stubborn!r}], start_new_session=True)"
subprocess.Popen([sys.executable, "-c", parent])
print("family", flush=True)
time.sleep(600)
"""


def python(code: str, *args: str) -> Command:
    return Command((sys.executable, "-c", textwrap.dedent(code), *args), {"PATH": os.environ["PATH"]}, Path("/"))


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    process = ServerProcess()
    yield process
    process.stop(0.0)


def log_says(process: ServerProcess, *words: str) -> Callable[[], bool]:
    return lambda: all(any(word in line for line in process.log_tail(50)) for word in words)


def gone(pids: tuple[int, ...]) -> bool:
    alive = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            alive.append(psutil.Process(pid))
    return not psutil.wait_procs(alive, timeout=10)[1]


def test_stop_ends_children_grandchildren_and_orphans(server: ServerProcess, tmp_path: Path) -> None:
    server.start(python(FAMILY), tmp_path / "log")
    server.wait_ready(log_says(server, "family", "stubborn"), 30, MonotonicClock())
    tree = server.tree_pids()
    assert len(tree) >= 3
    assert len({os.getsid(p) for p in tree}) == 2
    server.stop(0.2)
    assert gone(tree)
    assert server.exit_code() == -signal.SIGTERM
    assert not server.alive()


def test_a_server_that_ends_by_itself_takes_its_tree_along(server: ServerProcess, tmp_path: Path) -> None:
    server.start(python(FAMILY), tmp_path / "log")
    server.wait_ready(log_says(server, "family", "stubborn"), 30, MonotonicClock())
    tree = server.tree_pids()
    os.kill(server.pid, signal.SIGKILL)
    assert gone(tree)
    assert server.exit_code() == -signal.SIGKILL
    assert not server.alive()


@pytest.mark.parametrize("fork", ["", "os.fork() == 0 and (os.dup2(os.open(os.devnull, os.O_WRONLY), 1), time.sleep(20), os._exit(0))"])
def test_a_killed_harness_leaves_nothing_behind(tmp_path: Path, fork: str) -> None:
    """Not even when a child that it forked lives on with copies of its pipes."""
    harness = f"""
    import os, time
    from pathlib import Path
    from harness.clock import MonotonicClock
    from harness.runtimes.contract import Command
    from harness.runtimes.process import ServerProcess
    process = ServerProcess()
    log = Path({str(tmp_path / "log")!r})
    process.start(Command(({sys.executable!r}, "-c", {FAMILY!r}), {{"PATH": os.environ["PATH"]}}, Path("/")), log)
    process.wait_ready(lambda: "stubborn" in log.read_text() and "family" in log.read_text(), 30, MonotonicClock())
    tree = process.tree_pids()
    {fork}
    print(*tree, flush=True)
    time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(harness)], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        tree = tuple(map(int, running.stdout.readline().split()))
        running.send_signal(signal.SIGKILL)
    assert len(tree) >= 3
    assert gone(tree)


def test_stop_does_not_wait_for_a_forked_child_that_holds_the_pipe(server: ServerProcess, tmp_path: Path) -> None:
    server.start(python("import time; print('up', flush=True); time.sleep(600)"), tmp_path / "log")
    server.wait_ready(log_says(server, "up"), 30, MonotonicClock())
    held = os.fork()
    if held == 0:
        signal.pause()
        os._exit(0)
    try:
        server.stop(0.0)
        assert server.exit_code() == -signal.SIGKILL
    finally:
        os.kill(held, signal.SIGKILL)
        os.waitpid(held, 0)


def test_a_killed_keeper_is_noticed_and_stop_still_clears_the_session(server: ServerProcess, tmp_path: Path) -> None:
    server.start(python("import time; print('up', flush=True); time.sleep(600)"), tmp_path / "log")
    server.wait_ready(log_says(server, "up"), 30, MonotonicClock())
    tree = server.tree_pids()
    keeper = psutil.Process(server.pid).parent()
    assert keeper is not None
    keeper.kill()
    assert gone(tree)
    assert not server.alive()
    assert server.exit_code() is None


def test_a_dead_server_shows_its_last_words_without_escapes_or_secrets(server: ServerProcess, tmp_path: Path) -> None:
    code = "import sys; print('\\x1b[31mno such model\\x1b[0m key-123', file=sys.stderr); sys.exit(7)"
    plain = python(code)
    server.start(Command(plain.argv, plain.env, plain.cwd, redacted=("key-123",)), tmp_path / "log")
    with pytest.raises(HostError, match="no such model") as caught:
        server.wait_ready(lambda: False, 30, MonotonicClock())
    problem = caught.value.problems[0]
    assert problem.code == "server_died"
    assert "exit_code=7" in problem.what
    assert "\x1b" not in problem.what
    assert "key-123" not in problem.what


def test_no_copy_of_a_log_has_secrets_and_the_log_itself_loses_them_at_the_end(server: ServerProcess, tmp_path: Path) -> None:
    plain = python("import time; print('a key-123-more key-123 z', flush=True); time.sleep(600)")
    server.start(Command(plain.argv, plain.env, plain.cwd, redacted=("key-123", "", "key-123-more")), tmp_path / "log")
    server.wait_ready(log_says(server, "z"), 30, MonotonicClock())
    server.copy_log(tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "a [redacted] [redacted] z\n"
    assert "key-123" in (tmp_path / "log").read_text()
    server.stop()
    assert (tmp_path / "log").read_text() == "a [redacted] [redacted] z\n"
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "log"]


def test_a_server_that_never_gets_ready_shows_its_last_words(server: ServerProcess, tmp_path: Path) -> None:
    clock = VirtualClock()
    server.start(python("import time; print('loading weights', flush=True); time.sleep(600)"), tmp_path / "log")

    def probe() -> bool:
        if server.log_tail():
            clock.advance(60_000_000_000)
        return False

    with pytest.raises(HostError, match="loading weights") as caught:
        server.wait_ready(probe, 300, clock)
    assert caught.value.problems[0].code == "server_not_ready"
    assert server.alive()


def test_a_command_that_does_not_exist_says_so(server: ServerProcess, tmp_path: Path) -> None:
    server.start(Command(("/no/such/server",), {}, Path("/")), tmp_path / "log")
    with pytest.raises(HostError, match=r"cannot start /no/such/server"):
        server.wait_ready(lambda: False, 30, MonotonicClock())
    assert server.exit_code() == 127


def test_the_whole_tree_stays_on_its_cores_and_stdin_is_closed(server: ServerProcess, tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    code = """
    import os, subprocess, sys, time
    child = subprocess.run([sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"], capture_output=True, text=True)
    print(os.sched_getaffinity(0), child.stdout.strip(), repr(sys.stdin.read()), flush=True)
    time.sleep(600)
    """
    server.start(python(code), tmp_path / "log", cpus=(core,))
    server.wait_ready(log_says(server, f"{{{core}}} {{{core}}} ''"), 30, MonotonicClock())


def test_cores_of_another_machine_are_refused_before_the_start(server: ServerProcess, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="4095"):
        server.start(python("pass"), tmp_path / "log", cpus=(0, 4095))
    assert not (tmp_path / "log").exists()


def test_an_occupied_port_is_refused_naming_its_holder() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(HostError, match=rf"port={port} .*pid {os.getpid()}") as caught:
            check_port(port)
        assert caught.value.problems[0].code == "port_in_use"
    check_port(port)


def test_listens_on_tells_our_server_from_a_stranger(server: ServerProcess, tmp_path: Path) -> None:
    port = free_port()
    code = """
    import socket, sys, time
    s = socket.socket(); s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(); print("up", flush=True); time.sleep(600)
    """
    server.start(python(code, str(port)), tmp_path / "log")
    server.wait_ready(log_says(server, "up"), 30, MonotonicClock())
    assert server.listens_on(port)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        assert not server.listens_on(stranger.getsockname()[1])
