"""The keeper between us and a server: whatever happens to us, nothing that the server started outlives it.

Run as a script by an isolated interpreter (standard library only). It is the child subreaper of everything the server starts, so processes
that leave the server's group or session, or whose parent dies, still belong to its tree and can be found. It ends when anything more
comes over the control pipe, when that closes, when the process that started it ends (a child forked from that one may hold the pipe
open), or when the server ends; and it takes the whole tree with it.

PR_SET_PDEATHSIG alone would not do: it reaches only direct children and is lost with every fork that vLLM makes. The server itself still
gets it, against a SIGKILL of this keeper.

Protocol: one JSON line on the control pipe ({"argv", "cwd", "cpus", "stop"}); on the status pipe ``pid N`` and later ``exit N``
(negative: signal).
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
"""Only the pipe ends the keeper: a signal meant for somebody else must not leave the server unguarded."""
STOP_WAIT_S = 30.0
"""A container gets ten seconds before it is killed, and a busy daemon takes some more."""
_LAST_WORDS_S = 1.0
"""Children of a dead server may still write why it died; after this they are killed."""


def prctl(option: int, value: int) -> None:
    """Call prctl(2) with one argument; OSError when the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def process_table() -> dict[int, tuple[int, int]]:
    """Return pid -> (parent, session) of all live processes, from one pass over /proc; zombies are left out."""
    table: dict[int, tuple[int, int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - starts in milliseconds without pathlib
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:  # noqa: PTH123 - same
                state, parent, _group, session = stat.read().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue  # it ended meanwhile
        if state != "Z":
            table[int(name)] = (int(parent), int(session))
    return table


def below(table: dict[int, tuple[int, int]], root: int) -> list[int]:
    """Return the ids below ``root`` in a process table, without ``root``."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _session) in table.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    front = [root]
    while front:
        front = [child for parent in front for child in children.get(parent, ())]
        found += front
    return found


def descendants(root: int, session: int | None = None) -> list[int]:
    """Return the ids of all live processes below ``root``, in order.

    ``session``: processes of that session count too, wherever they hang (their keeper may have been killed).
    """
    table = process_table()
    return sorted({*below(table, root), *(pid for pid, (_parent, its) in table.items() if its == session)})


def reap(server: int) -> int | None:
    """Collect every ended child; return the server's exit code if it was among them (negative: killed by that signal)."""
    code: int | None = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == server:
            code = os.waitstatus_to_exitcode(status)


def sweep(server: int) -> int | None:
    """SIGKILL everything below this process until nothing is left; a fork in between is caught by the next round.

    A process whose first thread is gone looks dead before its other threads are: it is waited for, or its exit code would be lost.
    """
    give_up = time.monotonic() + _LAST_WORDS_S
    code: int | None = None
    while True:
        left = descendants(os.getpid())
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        ended = reap(server)
        code = ended if ended is not None else code
        if not left and (_childless() or time.monotonic() > give_up):
            return code
        time.sleep(0.01)


def call_off(stop: Sequence[str]) -> None:
    """Run the command that ends what lives outside this tree; its words go to the log. Whether it helped is seen at the port."""
    if not stop:
        return
    import subprocess  # here: it would double the start of a keeper that has nothing to call off

    try:
        subprocess.run(list(stop), stdin=subprocess.DEVNULL, timeout=STOP_WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        os.write(2, f"cannot run {stop[0]}: {error}\n".encode())


def _childless() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def launch(argv: Sequence[str], cwd: str, cpus: Sequence[int], close: Sequence[int]) -> int:
    """Fork and exec the server in a session of its own, on its cores; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for fd in close:
            os.close(fd)
        signal.set_wakeup_fd(-1)
        for number in (*IGNORED, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)  # exec would hand our ignored signals down, SIGTERM among them
        if cpus:
            os.sched_setaffinity(0, cpus)
        os.chdir(cwd)
        os.execvp(argv[0], list(argv))  # noqa: S606 - a list, no shell
    except BaseException as error:  # the child must never return into the keeper's code
        os.write(2, f"cannot start {argv[0]}: {error}\n".encode())
    os._exit(127)


def keep(control: int, status: int) -> None:
    """Start the server, watch it and our end of the pipe, and leave nothing behind."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with os.fdopen(os.dup(control), "rb", buffering=0) as source:
        line = source.readline()
    if not line:
        return
    order = json.loads(line)
    stop = order.pop("stop", [])
    server = launch(**order, close=(control, status, woken, wake))
    _tell(status, f"pid {server}\n")
    ends = (control, *_parent())
    code = _watch(server, ends, woken)
    if code is not None:
        _tell(status, f"exit {code}\n")
        _last_words(server, ends, woken)
    call_off(stop)
    ended = sweep(server)
    if code is None and ended is not None:
        _tell(status, f"exit {ended}\n")


def _tell(status: int, line: str) -> None:
    try:
        os.write(status, line.encode())
    except BrokenPipeError:
        return  # nobody is left to be told


def _parent() -> tuple[int, ...]:
    """Return a descriptor that becomes readable when our parent ends; () on a kernel without such descriptors (before 5.3)."""
    try:
        return (os.pidfd_open(os.getppid()),)
    except OSError:
        return ()


def _watch(server: int, ends: Sequence[int], woken: int) -> int | None:
    """Return the server's exit code, or None when we are to end first."""
    while True:
        code = reap(server)
        if code is not None:
            return code
        if _asked_to_end(ends, woken, None):
            return None


def _asked_to_end(ends: Sequence[int], woken: int, wait_s: float | None) -> bool:
    """Wait for a child to end, for ``wait_s`` to pass, or for one of ``ends``; True for the last."""
    ready, _, _ = select.select([*ends, woken], [], [], wait_s)
    if woken in ready:
        os.read(woken, 4096)
    return any(end in ready for end in ends)


def _last_words(server: int, ends: Sequence[int], woken: int) -> None:
    deadline = time.monotonic() + _LAST_WORDS_S
    while descendants(os.getpid()) and (left := deadline - time.monotonic()) > 0:
        if _asked_to_end(ends, woken, min(left, 0.05)):
            return
        reap(server)


if __name__ == "__main__":
    for ignored in IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    keep(int(sys.argv[1]), int(sys.argv[2]))
