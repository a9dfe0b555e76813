"""Ends a cluster of our own with its driver, however that ends: Ray's own agents were seen to outlive a driver that was killed.

Run as a script by an isolated interpreter (standard library only). It waits for the driver's end of a pipe to close, or for the driver to
end, kills what carries the cluster's mark and removes its folder. What belongs to the cluster is known by its environment, or by a file it
holds open in the folder: parents are gone by then, and Ray writes its own words over command lines.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

MARK = "TRIGPOINT_CLUSTER"
"""Variable that names the folder; handed down to all that the cluster starts."""

SWEEP_S = 10.0
"""A killed process is gone in milliseconds; what hangs in the kernel for longer is nothing that another signal would end."""


class Reaper:
    """The driver's side: ``folder`` and its processes are gone when ``end`` returns, or soon after the driver was killed."""

    def __init__(self, folder: str) -> None:
        theirs, self._ours = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(theirs), folder, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs,),
                start_new_session=True,  # Ctrl-C is the driver's to understand
            )
        except BaseException:
            os.close(self._ours)
            raise
        finally:
            os.close(theirs)

    def end(self) -> None:
        """Have it sweep now; safe to call twice."""
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1
        try:
            self._process.wait(2 * SWEEP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def belonging(folder: str, but: Collection[int]) -> Iterator[int]:
    """Ids of live processes of ours that carry the mark of ``folder`` or hold a file in it, without those of ``but``."""
    mark, below = f"{MARK}={folder}".encode(), folder.rstrip("/") + "/"
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):  # noqa: PTH208 - names are all that is wanted
        if pid in but:
            continue
        place = Path("/proc") / str(pid)
        with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
            if mark in (place / "environ").read_bytes().split(b"\0") or any(_leads(file, below) for file in (place / "fd").iterdir()):
                yield pid


def _leads(link: Path, below: str) -> bool:
    try:
        return str(link.readlink()).startswith(below)
    except OSError:
        return False


def sweep(folder: str, driver: int) -> None:
    """Kill all that belongs to ``folder`` until nothing does, and remove it; a driver that lives may still hold a log of Ray's open."""
    deadline = time.monotonic() + SWEEP_S
    while (found := list(belonging(folder, (os.getpid(), driver)))) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def wait_for_the_end(pipe: int, driver: int) -> None:
    """Return when ``pipe`` closes, or process ``driver`` ends: a child forked from it may hold the pipe open."""
    ends = [pipe]
    with contextlib.suppress(OSError):  # no such process: it ended before we began; or a kernel before 5.3
        ends.append(os.pidfd_open(driver))
    select.select(ends, [], [])


if __name__ == "__main__":
    parent = int(sys.argv[3])
    wait_for_the_end(int(sys.argv[1]), parent)
    sweep(sys.argv[2], parent)
