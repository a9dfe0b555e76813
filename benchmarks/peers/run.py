"""One client against one truth server: both started anew, the client watched from outside, the log read when both are gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.peers import bare, ours
from benchmarks.peers.aiperf import AIPerf
from benchmarks.peers.figures import Figures, figures
from benchmarks.peers.guidellm import GuideLLM
from benchmarks.peers.load import GAP_MS, TTFT_MS, Load
from benchmarks.peers.peer import Command, Peer, write_lines
from benchmarks.peers.seen import Seen, measured, written
from benchmarks.peers.sglang import SGLang, SGLangRust
from benchmarks.peers.usage import Usage, Watch
from benchmarks.peers.vllm import VLLM
from harness.clock import MonotonicClock
from harness.runtimes.ports import HOST, free_port
from harness.runtimes.process import ServerProcess
from harness.runtimes.truth import LOG_NAME, TruthRuntime
from harness.runtimes.truth_log import read_log
from harness.runtimes.truth_server import MODEL
from harness.system import Arm, ModelPin, Pins

ROOT = Path(__file__).resolve().parents[2]

START_S = 300.0
"""Beyond the load itself: a tool that imports an engine on a cold disk takes minutes; longer is a hang."""

READY_S = 30.0


class Engine(Peer):
    """This project's load engine."""

    name = "trigpoint"

    def command(self, load: Load, port: int, folder: Path) -> Command:
        """The program of ``ours``."""
        path = write_lines(folder / "load.json", [load.to_json()])
        argv = [sys.executable, "-m", "benchmarks.peers.ours", str(path), str(port), str(folder / "out")]
        return Command(argv, {"PYTHONPATH": str(ROOT)})

    def read(self, folder: Path, load: Load, wall_ns: int) -> list[Seen]:
        """Its record."""
        del wall_ns
        return ours.read(folder / "out", load)

    def decoded_ns(self, folder: Path) -> int:
        """When its last row was on disk."""
        return ours.told(folder / "out")["done_ns"]


class Bare(Peer):
    """No client, but what every one has to do that reads each token as it comes."""

    name = "bare reads"
    notes = ("bare reads: C, looks once in 2 ms and throws away what it reads: the least that reading each token costs a client here",)

    def command(self, load: Load, port: int, folder: Path) -> Command:
        """The program of ``bare``."""
        path = write_lines(folder / "load.json", [load.to_json()])
        argv = [sys.executable, "-m", "benchmarks.peers.bare", str(path), str(port), str(folder / "out")]
        return Command(argv, {"PYTHONPATH": str(ROOT)})

    def read(self, folder: Path, load: Load, wall_ns: int) -> list[Seen]:
        """What it counted."""
        del load, wall_ns
        return bare.read(folder / "out")


ENGINE, BARE = Engine(), Bare()
PEERS: tuple[Peer, ...] = (VLLM(), SGLang(), SGLangRust(), AIPerf(), GuideLLM())


class RunError(Exception):
    """A client that could not be measured: what happened, in words."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Which cores the server and a client of one process get; empty where the host has only one."""

    server: tuple[int, ...]
    client: tuple[int, ...]

    @classmethod
    def of_host(cls) -> Cores:
        """The last core for the server, the others for the client."""
        cores = sorted(os.sched_getaffinity(0))
        return cls((cores[-1],), tuple(cores[:-1])) if len(cores) > 1 else cls((), ())


def measure(peer: Peer, load: Load, cores: Cores, folder: Path) -> Figures:
    """Run one client on one load. Raises RunError."""
    folder.mkdir(parents=True)
    with _truth(folder, cores) as port:
        command = peer.command(load, port, folder)
        before = wall_offset()
        wall_s, usage = start_and_wait(command, folder, load, () if peer.spread else cores.client)
        after = wall_offset()
    rows = measured(written(read_log(folder / LOG_NAME)), load.requests)
    try:
        seen = peer.read(folder, load, (before + after) // 2)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise RunError(f"its result could not be read: {type(error).__name__}: {error}") from error
    found = figures(load, seen, rows, usage, wall_s, constant=peer.constant, decoded_ns=peer.decoded_ns(folder))
    return replace(found, wall_drift_ns=after - before)


def wall_offset() -> int:
    """CLOCK_MONOTONIC minus the wall clock, ns: the closest of a few looks, so that a preemption between two readings does not count."""
    looks = []
    for _ in range(20):
        first, wall, second = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        looks.append((second - first, (first + second) // 2 - wall))
    return min(looks)[1]


@contextlib.contextmanager
def _truth(folder: Path, cores: Cores) -> Iterator[int]:
    runtime, server, port = TruthRuntime(), ServerProcess(), free_port()
    arm = Arm(name="truth", runtime="truth", args={"ttft": TTFT_MS, "gap": GAP_MS})
    try:
        command = runtime.command(arm, Pins(model=ModelPin(id=MODEL, dtype="none")), port, folder)
        server.start(command, folder / "truth.log", cores.server)
        server.wait_ready(lambda: runtime.ready(f"http://{HOST}:{port}"), READY_S, MonotonicClock())
        yield port
    finally:
        server.stop()


def start_and_wait(command: Command, folder: Path, load: Load, cpus: Sequence[int]) -> tuple[float, Usage]:
    """Run a command to its end under a watch; wall seconds and usage. Raises RunError, with its last lines, when it fails or hangs."""
    log = folder / "client.log"
    dropped = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    env = {name: value for name, value in os.environ.items() if name not in dropped} | dict(command.env)
    began = time.monotonic()
    with log.open("wb") as out, _pinned(cpus):
        child = subprocess.Popen(
            list(command.argv), cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    watch = Watch(child.pid)
    try:
        code, spent_s = _reap(child, began + load.requests / load.rate + START_S)
    finally:
        watch.stop()
        with contextlib.suppress(ProcessLookupError):  # its session is its own: whatever it left behind
            os.killpg(child.pid, signal.SIGKILL)
    if code != 0:
        tail = "\n    ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
        raise RunError(f"{'it hung and was ended' if code is None else f'it ended with {code}'}; its last lines:\n    {tail}")
    watch.usage.close(time.monotonic_ns(), spent_s)
    return time.monotonic() - began, watch.usage


@contextlib.contextmanager
def _pinned(cpus: Sequence[int]) -> Iterator[None]:
    """Cores that a child started inside inherits."""
    own = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def _reap(child: subprocess.Popen[bytes], deadline: float) -> tuple[int | None, float]:
    """Exit code (None: it had to be killed) and CPU seconds of the child and all that it waited for."""
    late = False
    while True:
        pid, status, used = os.wait4(child.pid, os.WNOHANG)
        if pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return (None if late else child.returncode), used.ru_utime + used.ru_stime
        if not late and time.monotonic() > deadline:
            late = True
            os.killpg(child.pid, signal.SIGKILL)
        time.sleep(0.05)
