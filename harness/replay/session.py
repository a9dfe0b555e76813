"""The parent's side of a replay: starts worker and spooler, gives the epoch, watches both, and never waits for a dead one."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import re
import time
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait as wait_any
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import RawArray
from typing import Any

from harness.clock import NS_PER_S, Clock
from harness.errors import HostError, Problem, UsageError
from harness.record.schema import EndKind
from harness.replay import spooler, worker
from harness.replay.contract import Progress, ReplayPlan, ReplaySummary
from harness.replay.engine import ENDED, FAILED, IN_FLIGHT, SENT
from harness.replay.rows import missing_rows
from harness.wire import PROTOCOLS

__all__ = ["EndKind", "ReplaySession", "missing_rows"]

READY_S = 120.0
"""Imports, bodies and warm connections take seconds; two minutes is a host that cannot do the job."""

ARM_S = 10.0
STOP_S = 10.0
"""How long an ordered end may take before the process is killed: flushing a second of rows takes milliseconds."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclasses.dataclass(slots=True)
class _Child:
    """A process, its control pipe, and the last word it said."""

    role: str
    process: SpawnProcess
    control: Pipe
    pid: int
    result: Any = None
    cpu_s: float = 0.0
    fault: str | None = None
    over: bool = False


class ReplaySession:
    """One replay of one plan, once. ``start`` -> ``go`` -> ``finished``/``wait``; ``abort`` at any time.

    A lost process ends the session with a fault in words; requests without a row are then the caller's to fill (``missing_rows``).
    """

    def __init__(self, plan: ReplayPlan, clock: Clock) -> None:
        check_plan(plan)
        self._plan, self._clock = plan, clock
        self._counts = RawArray("q", 4)
        self._worker: _Child | None = None
        self._spooler: _Child | None = None

    # -- life

    def start(self) -> None:
        """Spawn both processes and wait until connections stand. HostError when the server cannot be reached or a process fails."""
        if self._worker is not None:
            raise ValueError("a session starts once")
        context = multiprocessing.get_context("spawn")
        lean = dataclasses.replace(self._plan, bodies=())
        spool_read, spool_write = context.Pipe(duplex=False)
        self._worker = _spawn("worker", worker.main, lean, len(self._plan.bodies), spool_write, self._counts)
        self._spooler = _spawn("spooler", spooler.main, lean, spool_read, self._clock)
        # Our copies must go, or neither process would see the other end.
        spool_read.close()
        spool_write.close()
        try:
            with contextlib.suppress(OSError):  # a worker that died says so below
                for body in self._plan.bodies:
                    self._worker.control.send_bytes(body)
            self._expect("ready", READY_S)
        except BaseException:
            self.abort()
            raise

    def go(self, epoch_ns: int) -> None:
        """Set the epoch (CLOCK_MONOTONIC ns, in the future). HostError when it passes before the worker is armed: no silent late start."""
        ahead_ns = epoch_ns - self._clock.now_ns()
        if ahead_ns <= 0:
            self.abort()
            raise _host_error("epoch_passed", f"epoch lies {-ahead_ns} ns in the past: every arrival would be late", "give a later epoch")
        child = self._need(self._worker)
        with contextlib.suppress(OSError):
            child.control.send(("go", epoch_ns))
        try:
            self._expect("armed", ahead_ns / NS_PER_S + ARM_S)
        except BaseException:
            self.abort()
            raise

    def progress(self) -> Progress:
        """Live counts; never blocks."""
        counts = self._counts
        return Progress(sent=counts[SENT], ended=counts[ENDED], in_flight=counts[IN_FLIGHT], failed=counts[FAILED])

    def finished(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for the end; True when both processes are over, in whatever way."""
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
        first, second = self._need(self._worker), self._need(self._spooler)
        if not self._over():
            raise ValueError("the replay is still running")
        faults = [f"{c.role}: {c.fault}" for c in (first, second) if c.fault]
        return ReplaySummary(
            offered=len(self._plan.bodies),
            recorded=second.result if isinstance(second.result, int) else 0,
            fault="; ".join(faults) or None,
            worker_cpu_s=first.cpu_s,
            spooler_cpu_s=second.cpu_s,
        )

    def abort(self, why: str = "aborted by the parent") -> None:
        """Stop the load, keep what was recorded, end both processes; safe to call at any time and twice."""
        if self._worker is None or self._spooler is None:
            return
        if not self._worker.over:
            with contextlib.suppress(OSError, ValueError):
                self._worker.control.send(("abort", why))
        for child in (self._worker, self._spooler):
            deadline = time.monotonic() + STOP_S
            while not child.over and (left := deadline - time.monotonic()) > 0:
                self._listen(left)
            if not child.over:
                child.fault = child.fault or why
                child.process.kill()
                _bury(child, child.fault)

    @property
    def worker_pid(self) -> int:
        """Process id of the worker; ValueError before the start."""
        return self._need(self._worker).pid

    @property
    def spooler_pid(self) -> int:
        """Process id of the spooler; ValueError before the start."""
        return self._need(self._spooler).pid

    # -- watching

    def _over(self) -> bool:
        return all(self._need(c).over for c in (self._worker, self._spooler))

    def _need(self, child: _Child | None) -> _Child:
        if child is None:
            raise ValueError("the session has not been started")
        return child

    def _expect(self, word: str, timeout_s: float) -> None:
        """Wait for one word of the worker; HostError with what happened instead."""
        child = self._need(self._worker)
        deadline = time.monotonic() + timeout_s
        while child.result != word:
            left = deadline - time.monotonic()
            if child.over or left <= 0:
                what = child.fault or f"no answer within {timeout_s:.0f} s"
                target = f"host={self._plan.host} port={self._plan.port}"
                raise _host_error("replay_not_ready", f"{target}: {what}", "check that the server listens there and the host has room")
            self._listen(left)

    def _listen(self, timeout_s: float) -> None:
        """Take messages and deaths that come within ``timeout_s``; returns after the first batch."""
        children = [c for c in (self._worker, self._spooler) if c is not None and not c.over]
        ready = wait_any([c.control for c in children], timeout_s) if children else []
        for child in children:
            if child.control in ready:
                _hear(child)
        self._follow()

    def _follow(self) -> None:
        """A worker without a spooler records nothing: tell it to stop."""
        first, second = self._worker, self._spooler
        if first is not None and second is not None and second.over and second.fault and not first.over:
            with contextlib.suppress(OSError, ValueError):
                first.control.send(("abort", "the spooler is gone"))


def _spawn(role: str, target: Any, plan: ReplayPlan, *args: Any) -> _Child:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    ordered = (plan, *args, theirs)
    process = context.Process(target=target, args=ordered, name=f"trigpoint-{role}", daemon=True)
    process.start()
    theirs.close()
    return _Child(role, process, ours, process.pid or 0)


def _hear(child: _Child) -> None:
    """Take one message; the end of the pipe is the end of the process."""
    try:
        word, value, cpu_s = child.control.recv()
    except (EOFError, OSError):
        child.process.join(STOP_S)
        code = child.process.exitcode
        _bury(child, f"the process died without a word (exit code {code})")
        return
    if word == "done":
        child.cpu_s = cpu_s
        if child.role == "spooler":
            child.result = value
            _bury(child, None)
        else:
            _bury(child, value)
    elif word in ("stopped", "fault"):
        _bury(child, value)
    else:
        child.result = word


def _bury(child: _Child, fault: str | None) -> None:
    child.over = True
    child.fault = fault
    child.process.join(STOP_S)
    if child.process.exitcode is None:
        child.process.kill()
        child.process.join()
    child.process.close()
    child.control.close()


def check_plan(plan: ReplayPlan) -> None:
    """Refuse a plan that cannot be replayed as written; all problems at once (UsageError)."""
    problems = []
    sizes = {"arrival_ns": len(plan.arrival_ns), "bodies": len(plan.bodies), "stop_after": len(plan.stop_after)}
    if len(set(sizes.values())) != 1:
        problems.append(Problem("plan_lengths", f"{sizes}: one entry a request is needed in each", "build the plan from one schedule"))
    if any(b < a for a, b in zip(plan.arrival_ns[:-1], plan.arrival_ns[1:], strict=True)):
        problems.append(Problem("plan_order", "arrival_ns does not ascend: a later entry would be sent late", "sort the schedule"))
    if plan.protocol not in PROTOCOLS:
        problems.append(Problem("plan_protocol", f"protocol={plan.protocol!r} is not one of {sorted(PROTOCOLS)}", "use one of those"))
    if plan.concurrency_cap is not None and plan.concurrency_cap < 1:
        problems.append(Problem("plan_cap", f"concurrency_cap={plan.concurrency_cap}: nothing would be sent", "use 1 or more, or none"))
    for name, value in {**plan.headers, ":path": plan.path}.items():
        # The value is never printed: it may be a key.
        if "\r" in value or "\n" in value or not (name == ":path" or _HEADER_NAME.fullmatch(name)) or not value.isascii():
            problems.append(Problem("plan_header", f"header {name!r} holds characters that end or break a head", "give plain ASCII values"))
    if problems:
        raise UsageError(*problems)


def _host_error(code: str, what: str, remedy: str) -> HostError:
    return HostError(Problem(code, what, remedy))
