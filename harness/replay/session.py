"""The parent's side of a replay: starts workers and spoolers, gives the epoch, watches all, and never waits for a dead one."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.sharedctypes import RawArray
from typing import Any

from harness.clock import NS_PER_S, Clock
from harness.errors import HostError, Problem
from harness.record.schema import EndKind
from harness.replay import spooler, worker
from harness.replay.check import check_plan
from harness.replay.children import STOP_S, Child, listen, spawn
from harness.replay.contract import FleetFacts, Progress, ReplayPlan, ReplaySummary
from harness.replay.engine import ENDED, FAILED, IN_FLIGHT, SENT
from harness.replay.rows import missing_rows
from harness.replay.shares import Share, share_out

__all__ = ["EndKind", "ReplaySession", "check_plan", "missing_rows"]

READY_S = 120.0
"""Imports, bodies and warm connections take seconds; two minutes is a host that cannot do the job."""

ARM_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """A worker, the spooler it writes to, and the counts it shows."""

    share: Share
    worker: Child
    spooler: Child
    counts: Any


class ReplaySession:
    """One replay of one plan, once. ``start`` -> ``go`` -> ``finished``/``wait``; ``abort`` at any time.

    A lost process ends its own requests and leaves the fault in words; the other workers go on, so that the record shows what was lost and
    what was not. Requests without a row are then the caller's to fill (``missing_rows``). ``shares``: what its workers replay, when
    somebody else has dealt the plan out already.
    """

    def __init__(self, plan: ReplayPlan, clock: Clock, shares: Sequence[Share] | None = None) -> None:
        check_plan(plan)
        self._plan, self._clock, self._shares = plan, clock, shares
        self._pairs: list[_Pair] = []

    # -- life

    def start(self) -> None:
        """Spawn all processes and wait until connections stand. HostError when the server cannot be reached or a process fails."""
        if self._pairs:
            raise ValueError("a session starts once")
        shares = share_out(self._plan) if self._shares is None else self._shares
        try:
            # All are started before the first is fed: they import side by side.
            for share in shares:
                self._pairs.append(_start(share, self._clock))
            for pair, share in zip(self._pairs, shares, strict=True):
                with contextlib.suppress(OSError):  # a worker that died says so below
                    for body in share.plan.bodies:
                        pair.worker.control.send_bytes(body)
            self._expect("ready", READY_S)
        except BaseException:
            self.abort()
            raise

    def go(self, epoch_ns: int) -> None:
        """Set the epoch (CLOCK_MONOTONIC ns, in the future). HostError when it passes before all are armed: no silent late start."""
        self._need()
        ahead_ns = epoch_ns - self._clock.now_ns()
        if ahead_ns <= 0:
            self.abort()
            raise _host_error("epoch_passed", f"epoch lies {-ahead_ns} ns in the past: every arrival would be late", "give a later epoch")
        for pair in self._pairs:
            pair.worker.tell("go", epoch_ns)
        try:
            self._expect("armed", ahead_ns / NS_PER_S + ARM_S)
        except BaseException:
            self.abort()
            raise

    def progress(self) -> Progress:
        """Live counts over all workers; never blocks."""
        sent, ended, in_flight, failed = (sum(p.counts[i] for p in self._pairs) for i in (SENT, ENDED, IN_FLIGHT, FAILED))
        return Progress(sent=sent, ended=ended, in_flight=in_flight, failed=failed)

    def finished(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for the end; True when all processes are over, in whatever way."""
        deadline = time.monotonic() + timeout_s
        while not self._over():
            left = deadline - time.monotonic()
            self._listen(max(0.0, left))
            if left <= 0:
                break
        return self._over()

    def wait(self, timeout_s: float) -> ReplaySummary:
        """Wait for the end and summarise. When the time is up the replay is aborted and the summary's fault says so."""
        if not self.finished(timeout_s):
            self.abort(f"not finished after {timeout_s} s")
        return self.summary()

    def summary(self) -> ReplaySummary:
        """What the engine says of itself; ValueError while it still runs."""
        if not self._over():
            raise ValueError("the replay is still running")
        spoolers = [p.spooler for p in self._pairs]
        faults = [f"{c.name}: {c.fault}" for c in self._children() if c.fault]
        return ReplaySummary(
            offered=len(self._plan.bodies),
            recorded=sum(s.result for s in spoolers if isinstance(s.result, int)),
            fault="; ".join(faults) or None,
            worker_cpu_s=sum(p.worker.cpu_s for p in self._pairs),
            spooler_cpu_s=sum(s.cpu_s for s in spoolers),
        )

    def abort(self, why: str = "aborted by the parent") -> None:
        """Stop the load, keep what was recorded, end all processes; safe to call at any time and twice."""
        for pair in self._pairs:
            pair.worker.stop(why)
        # Spoolers end when their workers have, so they get their own time.
        for role in ([p.worker for p in self._pairs], [p.spooler for p in self._pairs]):
            deadline = time.monotonic() + STOP_S
            while not all(c.over for c in role) and (left := deadline - time.monotonic()) > 0:
                self._listen(left)
            for child in role:
                if not child.over:
                    child.kill()
                    child.end(why)

    def roles(self) -> dict[str, int]:
        """Process ids by what samples call their source: ``client`` and ``spooler``, or ``client/w0``, ``spooler/w0``, ... for several."""
        self._need()
        marks = ["" if p.share.label is None else f"/{p.share.label}" for p in self._pairs]
        pairs = list(zip(marks, self._pairs, strict=True))
        return {f"client{mark}": p.worker.pid for mark, p in pairs} | {f"spooler{mark}": p.spooler.pid for mark, p in pairs}

    def facts(self) -> FleetFacts:
        """Nothing to tell: all workers run on this host and read its clock."""
        return FleetFacts()

    @property
    def worker_pid(self) -> int:
        """Process id of the first worker; ValueError before the start."""
        self._need()
        return self._pairs[0].worker.pid

    # -- watching

    def _need(self) -> None:
        if not self._pairs:
            raise ValueError("the session has not been started")

    def _children(self) -> list[Child]:
        return [child for p in self._pairs for child in (p.worker, p.spooler)]

    def _over(self) -> bool:
        self._need()
        return all(child.over for child in self._children())

    def _expect(self, word: str, timeout_s: float) -> None:
        """Wait for one word of every worker; HostError with what happened instead."""
        deadline = time.monotonic() + timeout_s
        while silent := [p.worker for p in self._pairs if p.worker.said != word]:
            left = deadline - time.monotonic()
            gone = next((c for c in silent if c.over), None)
            if gone is not None or left <= 0:
                what = (gone and gone.fault) or f"no answer within {timeout_s:.0f} s"
                target = f"host={self._plan.host} port={self._plan.port}"
                raise _host_error("replay_not_ready", f"{target}: {what}", "check that the server listens there and the host has room")
            self._listen(left)

    def _listen(self, timeout_s: float) -> None:
        """Hear what comes within ``timeout_s``. A worker without a spooler records nothing: it is told to stop."""
        listen(self._children(), timeout_s)
        for pair in self._pairs:
            if pair.spooler.over and pair.spooler.fault:
                pair.worker.stop("the spooler is gone")


def _start(share: Share, clock: Clock) -> _Pair:
    lean = dataclasses.replace(share.plan, bodies=())
    counts = RawArray("q", 4)
    read, write = multiprocessing.get_context("spawn").Pipe(duplex=False)
    sender = spawn("worker", share.label, worker.main, lean, len(share.ids), write, counts)
    try:
        keeper = spawn("spooler", share.label, spooler.main, dataclasses.replace(share, plan=lean), read, clock)
    except BaseException:
        sender.kill()
        raise
    finally:
        # Our copies must go, or neither process would see the other end.
        read.close()
        write.close()
    return _Pair(share, sender, keeper, counts)


def _host_error(code: str, what: str, remedy: str) -> HostError:
    return HostError(Problem(code, what, remedy))
