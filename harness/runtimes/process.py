"""Starting, watching and stopping a server under test: its whole tree, its log, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from harness.clock import NS_PER_S, Clock
from harness.errors import HostError, Problem
from harness.runtimes import guard
from harness.runtimes.contract import Command
from harness.runtimes.ports import check_port, free_port, listeners

__all__ = ["ServerProcess", "check_port", "free_port"]

PROBE_S = 0.25
"""Between readiness probes: small beside the seconds a server takes, and a waiting server is not asked more than 4 times a second."""

KILL_WAIT_S = 10.0
"""A SIGKILLed process is gone in milliseconds unless it hangs in the kernel; ten seconds tell the two apart."""

EXIT_WAIT_S = 1.0
"""A process is seen dead some milliseconds before its keeper can collect and tell its exit code."""

_TAIL_BYTES = 1 << 18
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
"""Terminal escapes and control characters: a server's log is printed to a person's terminal, so it must not drive it."""


class ServerProcess:
    """One server process tree under a keeper (``guard``): dies with us, even by SIGKILL. Not safe for two threads."""

    def __init__(self) -> None:
        self._guard: subprocess.Popen[bytes] | None = None
        self._control = -1
        self._status = -1
        self._heard = b""
        self._pid: int | None = None
        self._exit: int | None = None
        self._log: Path | None = None
        self._redacted: tuple[str, ...] = ()
        self._wait_s = KILL_WAIT_S

    @property
    def pid(self) -> int:
        """Process id of the server itself, root of its tree."""
        if self._pid is None:
            raise RuntimeError("the server was not started")
        return self._pid

    def start(self, command: Command, log: Path, cpus: Sequence[int] = ()) -> None:
        """Start ``command`` in a session of its own: stdin closed, stdout and stderr to ``log`` (truncated, private to the user).

        ``cpus``: cores the whole tree may use; empty for all. Raises HostError ``cpus_unavailable`` or ``start_failed``.
        """
        if self._guard is not None:
            raise RuntimeError("this process was already started")
        _require_cpus(cpus)
        self._log, self._redacted = log, tuple(filter(None, command.redacted))
        self._wait_s += guard.STOP_WAIT_S if command.stop else 0.0
        control_read, self._control = os.pipe()
        self._status, status_write = os.pipe()
        try:
            self._guard = _spawn_guard(command, log, control_read, status_write)
        finally:
            os.close(control_read)
            os.close(status_write)
        order = {"argv": command.argv, "cwd": str(command.cwd), "cpus": list(cpus), "stop": command.stop}
        os.write(self._control, json.dumps(order).encode() + b"\n")
        self._listen(KILL_WAIT_S)
        if self._pid is None:
            self.stop(0.0)
            raise HostError.single("start_failed", f"the keeper of {command.argv[0]} did not start it", f"read {log}")

    def wait_ready(self, probe: Callable[[], bool], deadline_s: float, clock: Clock) -> None:
        """Ask ``probe`` until it is True. HostError ``server_died`` or ``server_not_ready`` carries the last log lines."""
        end_ns = clock.now_ns() + round(deadline_s * NS_PER_S)
        while True:
            if not self.alive():
                raise self._failure("server_died", f"exit_code={self.exit_code()}: the server ended before it was ready")
            if probe():
                return
            if clock.now_ns() >= end_ns:
                raise self._failure("server_not_ready", f"ready within {deadline_s:g} s: no, though its process lives")
            self._listen(PROBE_S)

    def alive(self) -> bool:
        """Whether the server itself runs (not a zombie, not ended)."""
        self._listen(0.0)
        if self._guard is None or self._pid is None or self._exit is not None:
            return False
        try:
            return psutil.Process(self._pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def exit_code(self) -> int | None:
        """Exit code of the ended server, negative for the signal that killed it; None while it runs or when nobody could see it end."""
        self._listen(0.0)
        if self._exit is None and not self.alive():
            self._listen(EXIT_WAIT_S)
        return self._exit

    def tree_pids(self) -> tuple[int, ...]:
        """Ids of the server and everything below it; also what left its group or lost its parent, which the keeper adopts."""
        if self._guard is None:
            return ()
        return tuple(guard.descendants(self._guard.pid, self._pid))

    def listens_on(self, port: int) -> bool:
        """Whether a process of this tree holds ``port``: an answer from there is the server's own."""
        return not listeners(port).isdisjoint(self.tree_pids())

    def stop(self, grace_s: float = 10.0) -> None:
        """End the whole tree: SIGTERM to the group, ``grace_s`` to leave, then SIGKILL to whatever is left of the tree.

        Safe to call twice or before a start. Raises HostError ``server_not_stopped`` naming what survived even that.
        """
        if self._guard is None:
            return
        tree = _identities(self.tree_pids())
        if self.alive() and grace_s > 0:
            _signal_group(self.pid, signal.SIGTERM)
            self._await_exit(grace_s)
        self._close_control()  # the keeper now kills what is left of its tree and ends
        try:
            self._guard.wait(self._wait_s)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        self._listen(0.0)
        self._close_status()
        _require_gone(tree)
        self._clean_log()

    def copy_log(self, to: Path) -> None:
        """Copy the log as far as it goes to ``to``, without the command's redacted values; empty without a log. OSError of the files."""
        with to.open("wb") as out:
            if self._log is None or not self._log.exists():
                return
            with self._log.open("rb") as source:
                if not self._redacted:
                    shutil.copyfileobj(source, out)
                    return
                for line in source:
                    out.write(self._without_secrets(line))

    def _clean_log(self) -> None:
        """What ended need not keep secrets; where the disk refuses, the log stays as it was, private to the user."""
        if not self._redacted or self._log is None:
            return
        clean = self._log.with_suffix(".clean")
        with contextlib.suppress(OSError):
            clean.touch(0o600)
            self.copy_log(clean)
            clean.replace(self._log)

    def _without_secrets(self, text: bytes) -> bytes:
        for secret in sorted(self._redacted, key=len, reverse=True):  # one may be part of another
            text = text.replace(secret.encode(), b"[redacted]")
        return text

    def log_tail(self, n: int = 20) -> list[str]:
        """Return the last ``n`` non-empty lines of the log, without terminal escapes and without the command's redacted values."""
        if self._log is None or not self._log.exists():
            return []
        with self._log.open("rb") as source:
            source.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
            text = self._without_secrets(source.read()).decode("utf-8", errors="replace")
        lines = (_CONTROL.sub("", line).rstrip() for line in text.splitlines())
        return [line for line in lines if line][-n:]

    def _failure(self, code: str, what: str) -> HostError:
        tail = "\n      ".join(self.log_tail(15)) or "(the log is empty)"
        remedy = f"cure what the log says; all of it is in {self._log}"
        return HostError(Problem(code, f"{what}; its last log lines:\n      {tail}", remedy))

    def _listen(self, timeout_s: float) -> None:
        """Take what the keeper said, waiting up to ``timeout_s`` for the first byte; wakes at once when the server ends."""
        if self._status < 0:
            return
        wait = timeout_s
        while select.select([self._status], [], [], wait)[0]:
            data = os.read(self._status, 4096)
            if not data:
                self._close_status()
                break
            self._heard += data
            wait = 0.0
        self._understand()

    def _understand(self) -> None:
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            word, value = line.split()
            if word == b"pid":
                self._pid = int(value)
            else:
                self._exit = int(value)

    def _await_exit(self, grace_s: float) -> None:
        """Wait for the server to end, then for the keeper, which leaves when the tree is empty."""
        self._listen(grace_s)
        assert self._guard is not None  # noqa: S101 - callers hold a started process
        if self._exit is not None:
            try:
                self._guard.wait(grace_s)
            except subprocess.TimeoutExpired:
                return  # children that linger are killed next

    def _close_control(self) -> None:
        if self._control >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._control, b"stop\n")  # closing is not enough where a forked child of ours still holds the pipe
            os.close(self._control)
            self._control = -1

    def _close_status(self) -> None:
        if self._status >= 0:
            os.close(self._status)
            self._status = -1


def _spawn_guard(command: Command, log: Path, control: int, status: int) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(control), str(status)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=dict(command.env),
            pass_fds=(control, status),
            start_new_session=True,
        )
    finally:
        os.close(out)


def _require_cpus(cpus: Sequence[int]) -> None:
    missing = sorted(set(cpus) - os.sched_getaffinity(0))
    if missing:
        raise HostError.single(
            "cpus_unavailable",
            f"cpus={list(cpus)}: cores {missing} are not among those this process may use ({sorted(os.sched_getaffinity(0))})",
            "place the server on cores of this machine, or run without a placement",
        )


def _signal_group(pgid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pgid, number)
    except ProcessLookupError:
        return


def _identities(pids: Sequence[int]) -> list[psutil.Process]:
    """Processes with their start times, so that a reused id is never taken for the old process."""
    found = []
    for pid in pids:
        try:
            found.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return found


def _require_gone(tree: Sequence[psutil.Process]) -> None:
    for process in tree:
        if process.is_running():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
    _gone, alive = psutil.wait_procs(list(tree), timeout=KILL_WAIT_S)
    if alive:
        raise HostError.single(
            "server_not_stopped",
            f"pids={[p.pid for p in alive]} survived SIGKILL: they would load the host of the next run",
            "find out what they wait for (often a device driver), end them, then resume",
        )
