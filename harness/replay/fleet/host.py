"""What lives in an actor: one share's session with its worker and spooler, in processes of their own beside Ray's threads."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from harness.clock import MonotonicClock
from harness.errors import HostError, Problem
from harness.replay.contract import Progress, ReplaySummary
from harness.replay.fleet.contract import Beside, Hello, Look
from harness.replay.fleet.pieces import read_pieces
from harness.replay.session import ReplaySession
from harness.replay.shares import Share

NOTHING = Progress(0, 0, 0, 0)


class FleetHost:
    """Runs one share where it is placed. No method waits for long but ``start`` and ``go``; expected failures are returned, not raised,
    so that the driver gets them as they are.
    """

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self._nice = _back_to_normal()
        self._folder: Path | None = None
        self._bodies: list[bytes] = []
        self._session: ReplaySession | None = None
        self._stop_beside: Callable[[], None] = _nothing_to_stop

    def hello(self) -> Hello:
        """Say who hosts it."""
        return Hello(self._beside.identity(), pid_namespace(), self._beside.source(), self._nice)

    def now(self) -> int:
        """Read this host's clock."""
        return time.monotonic_ns()

    def take(self, bodies: list[bytes]) -> None:
        """Take the next request bodies, in order."""
        self._bodies += bodies

    def start(self, share: Share) -> tuple[Problem, ...]:
        """Start worker and spooler of ``share``, whose plan comes without bodies, and wait until connections stand."""
        self._folder = folder = Path(tempfile.mkdtemp(prefix="trigpoint-fleet-"))
        plan = dataclasses.replace(share.plan, bodies=self._bodies, segments=folder)
        session = ReplaySession(plan, MonotonicClock(), [dataclasses.replace(share, plan=plan)])
        try:
            with _no_main():
                session.start()
        except HostError as error:
            shutil.rmtree(folder, ignore_errors=True)
            return error.problems
        self._session = session
        return ()

    def roles(self) -> dict[str, int]:
        """Process ids of worker and spooler by what samples call them."""
        return {} if self._session is None else self._session.roles()

    def go(self, epoch_ns: int, watched: bool) -> tuple[Problem, ...]:
        """Set the epoch, on this host's clock, and begin what goes on beside, unless the driver watches these processes itself."""
        session, folder = self._session, self._folder
        if session is None or folder is None:
            raise ValueError("it is started first")
        try:
            session.go(epoch_ns)
        except HostError as error:
            return error.problems
        if not watched:
            self._stop_beside = self._beside.begin(session.roles(), epoch_ns, folder)
        return ()

    def look(self, have: Mapping[str, int]) -> Look:
        """Say how it goes and hand over what was written since; ``have``: bytes that arrived before, by file."""
        session, folder = self._session, self._folder
        if session is None or folder is None:
            return Look(True, NOTHING, (), False)
        over = session.finished(0)
        if over:
            self._end_beside()  # first, so that its last bytes are among those handed over
        return Look(over, session.progress(), *read_pieces(folder, have))

    def abort(self, why: str) -> None:
        """Stop the load and keep what was recorded."""
        if self._session is not None:
            self._session.abort(why)

    def close(self) -> ReplaySummary | None:
        """Remove the local files and say what the session said of itself; None when it never stood."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        return None if self._session is None else self._session.summary()

    def _end_beside(self) -> None:
        stop, self._stop_beside = self._stop_beside, _nothing_to_stop
        stop()


def pid_namespace() -> str | None:
    """Name of the scope in which process ids of this host mean something; None when it cannot be told."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None


def _nothing_to_stop() -> None:
    return


def _back_to_normal() -> int:
    """Ray runs its workers at nice 15, and children inherit it: a worker that yields to everybody stamps late. Returns what holds now."""
    with contextlib.suppress(OSError):  # without the privilege it stays, and is recorded
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    return os.getpriority(os.PRIO_PROCESS, 0)


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """Spawned children import the parent's main module again; here that is Ray's, which would bring all of Ray into the load engine."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
