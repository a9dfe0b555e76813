"""Keeping the server under test: one at a time, started for a server start of an arm, shared by the replicates that declare it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from harness.campaign.launching import is_ours, refuse_answering, refuse_left, server_pid
from harness.clock import Clock
from harness.errors import HostError, UsageError
from harness.manifest import PlannedRun
from harness.record.facts import ServerExit
from harness.runtimes import get_runtime
from harness.runtimes.asking import ask, distrust
from harness.runtimes.contract import Runtime, Target
from harness.runtimes.endpoint import EndpointRuntime, authorisation
from harness.runtimes.launch import Launch, masked, wrap
from harness.runtimes.ports import HOST, holder
from harness.runtimes.process import ServerProcess, free_port

READY_DEADLINE_S = 300.0
"""vLLM on two CPU cores was seen ready after 50-80 s; a large model on a cold disk takes minutes. Past this something is wrong."""

PROBES = 3


@dataclass(slots=True)
class Server:
    """A running server, ours or somebody else's (``process`` None)."""

    key: tuple[str, int]
    runtime: Runtime
    target: Target
    process: ServerProcess | None
    log: Path | None
    argv: tuple[str, ...]
    served: int = 0
    """replicates that were prepared on it so far"""
    pid: int | None = None
    """root of its processes on this host, as far as they can be seen"""
    launch: Launch | None = None
    port: int | None = None

    def copy_log(self, to: Path) -> None:
        """Copy what it has logged so far to ``to``, without secrets of its launch; an empty file where nobody here sees its log."""
        if self.process is None:
            to.write_text("", encoding="utf-8")
        else:
            self.process.copy_log(to)

    def exit_state(self) -> ServerExit:
        """Say whether it still serves, and how it ended if it does not."""
        if self.process is None:
            return ServerExit(survived=self._answers())
        alive = self.process.alive() and (self.launch is None or self._answers())
        tail = () if alive else tuple(self.process.log_tail(20))
        return ServerExit(survived=alive, pid=self.process.pid, exit_code=None if alive else self.process.exit_code(), log_tail=tail)

    def _answers(self) -> bool:
        """A server that is up to its neck may let a probe wait for longer than its second or two; one that is gone refuses them all."""
        return any(self.runtime.ready(self.target.base_url) for _ in range(PROBES))


class Keeper:
    """Hands out the server a run needs and stops the one before it. Use as a context manager: nothing is left running."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        say: Callable[[str], None],
        ready_deadline_s: float = READY_DEADLINE_S,
        launches: Mapping[str, Launch] | None = None,
    ) -> None:
        """``launches``: the user's launch prefix by arm; others are started directly."""
        self._folder = folder
        self._launches = launches or {}
        self._clock = clock
        self._say = say
        self._ready_deadline_s = ready_deadline_s
        self._server: Server | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def use(self, run: PlannedRun) -> Server:
        """Return the server of the run's arm and server start, starting it when it is not the one that runs."""
        key = (run.arm.name, run.server_start)
        if self._server and self._server.key == key and self._server.exit_state().survived:
            return self._server
        self.stop()
        self._server = self._start(run, key)
        return self._server

    def stop(self) -> None:
        """Stop the current server and everything it started."""
        last, self._server = self._server, None
        if last and last.process:
            last.process.stop()
            if last.launch and last.port:
                refuse_left(last.launch, last.port, self._clock)

    def _start(self, run: PlannedRun, key: tuple[str, int]) -> Server:
        runtime = get_runtime(run.arm.runtime)
        check_arm(runtime, run)
        if not runtime.managed:
            base_url = run.arm.base_url or ""
            if not runtime.ready(base_url):
                raise _unreachable(run.arm.name, base_url)
            return Server(key, EndpointRuntime(run.arm.metrics), runtime.target(run.arm, run.pins, base_url), None, None, ())
        return self._launch(runtime, run, key)

    def _launch(self, runtime: Runtime, run: PlannedRun, key: tuple[str, int]) -> Server:
        self._folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        log = self._folder / f"{key[0]}-{key[1]}.log"
        command = runtime.command(run.arm, run.pins, port, self._folder)
        argv, launch = _recorded(command.argv), self._launches.get(key[0])
        if launch is not None:
            refuse_answering(launch, port)
            argv, command = (*_recorded(masked(launch.prefix)), *argv), wrap(command, launch, port)
        process, cpus = ServerProcess(), run.placement.get("server", ())
        self._say(f"starting {run.arm.runtime} for arm {key[0]} (start {key[1]}){f' by {launch.name}' if launch else ''}")
        try:
            process.start(command, log, cpus=cpus)
            base_url = f"http://{launch.url_host if launch else HOST}:{port}"
            process.wait_ready(lambda: runtime.ready(base_url), self._ready_deadline_s, self._clock)
            refuse_stranger(process, port, key[0], launch)
            pid = server_pid(process, port, launch, cpus)
            target = runtime.target(run.arm, run.pins, base_url)
        except BaseException:
            process.stop()
            raise
        return Server(key, runtime, target, process, log, argv, pid=pid, launch=launch, port=port)


def _recorded(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command line as records keep it: the program by name, since the folder it lies in is this machine's and changes no number."""
    return tuple(Path(word).name if i == 0 else word for i, word in enumerate(argv))


def refuse_stranger(process: ServerProcess, port: int, arm: str, launch: Launch | None = None) -> None:
    """Raise HostError ``stale_server`` when what answers on ``port`` is not the server we started (somebody took the port in between)."""
    if is_ours(process, port, launch):
        return
    raise HostError.single(
        "stale_server",
        f"port={port}: arm {arm} was started for it, but {holder(port)} answers there; its numbers would be another server's",
        "stop that process, then run the same command again",
    )


def _unreachable(arm: str, base_url: str) -> HostError:
    reply = ask(base_url, "/v1/models", timeout_s=1.0, headers=authorisation(base_url))
    said = "no answer" if reply is None else f"HTTP {reply.status}, which lists no model"
    doubt = distrust(base_url) if reply is None else None
    if doubt is not None:
        said = f"a certificate that is not trusted ({doubt})"
        remedy = "name the authority's certificate in SSL_CERT_FILE, or correct the host in the arm's url"
    elif reply is not None and reply.status in (401, 403):
        remedy = "bind a key to this host in keys.toml of your configuration folder"
    else:
        remedy = "start the server, or correct the arm's url; /v1/models is appended to it, so it does not end in /v1"
    what = f"arms.{arm}.url={base_url}: GET {base_url}/v1/models gave {said}; there is no OpenAI-compatible server to measure"
    return HostError.single("endpoint_unreachable", what, remedy)


def check_arm(runtime: Runtime, run: PlannedRun) -> None:
    """Raise every problem of an arm that can be known before a start."""
    problems = runtime.check(run.arm, run.pins)
    if problems:
        raise UsageError(*problems)
