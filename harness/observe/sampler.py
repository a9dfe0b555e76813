"""Sampling host, processes and server metrics during a run, from a thread of the parent process: never from the load engine."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pynvml

from harness.clock import NS_PER_S, Clock
from harness.observe.cgroup import group_chain, throttled_s
from harness.observe.counters import HostTime, TreeReader, host_time, memory_bytes
from harness.observe.gpu_watch import GpuWatch
from harness.observe.metrics import canonical_values
from harness.record.segments import SegmentWriter
from harness.runtimes.asking import ask
from harness.runtimes.contract import MetricRule
from harness.runtimes.guard import below, process_table

TREE_AGE_NS = 2 * NS_PER_S
"""How long a walk over all processes is trusted: servers make their processes at the start, and the walk is the dear part."""

NICE = 10
"""A ninth of the weight of a thread with none: the worker keeps its core, and the sampler is not starved by it."""

Row = dict[str, Any]


class Sampler:
    """Rows for ``server_metrics`` and ``host`` at jittered instants, so that no period of the server can hide between them.

    ``roles``: name -> pid of the root of its tree ("server", "client", "spooler"); ``client/w1`` is one of several clients, whose rows
    have the source ``client`` and the label ``w1``. A scrape that failed is counted in ``failures``; it makes no row. ``metrics_url`` None:
    the server has no such page. Accelerators are sampled (through ``nvml``) where the server is a process of this host, which has a role.
    """

    def __init__(
        self, writer_server: SegmentWriter, writer_host: SegmentWriter, *, clock: Clock, epoch_ns: int, period_s: float, jitter_seed: int,
        roles: Mapping[str, int], metrics_url: str | None, rules: Sequence[MetricRule], nvml: Any = pynvml,
    ) -> None:  # fmt: skip
        self._server, self._host = writer_server, writer_host
        self._clock, self._epoch_ns, self._period_s = clock, epoch_ns, period_s
        self._draw = random.Random(jitter_seed)  # noqa: S311 - spreads instants, hides nothing
        self._metrics_url, self._rules = metrics_url, tuple(rules)
        self._watch = HostWatch(clock, roles)
        self._failures, self._gpu_failures = Failures(), Failures()
        self._gpu = GpuWatch(lambda: self._watch.pids("server"), self._gpu_fail, nvml) if "server" in roles else None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._one = threading.Lock()  # the writers are not safe for two threads
        self._fault: BaseException | None = None

    def start(self) -> None:
        """Begin sampling; the first sample follows at once."""
        self._thread = threading.Thread(target=self._loop, name="sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End sampling and wait for the last sample; raises what stopped the thread before (a full disk, say)."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._gpu is not None:
            self._gpu.close()
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def scrape_now(self, t_ns: int) -> bool:
        """Take a counter snapshot stamped ``t_ns`` (ns since the epoch) and flush it; False when the page did not answer."""
        with self._one:
            before = self._failures.count
            rows = self._scrape(t_ns)
            self._server.append(rows)
            self._server.flush()
            return self._failures.count == before and bool(rows)

    def sample(self) -> None:
        """Take one sample of everything, stamped when it was read."""
        with self._one:
            self._host.append(self._between(self._watch.rows))
            self._host.append(self._between(lambda _: self._gpu.rows() if self._gpu else []))
            self._server.append(self._between(self._scrape))
            self._server.tick()
            self._host.tick()

    def failures(self) -> list[dict[str, Any]]:
        """Failed scrapes by reason: {reason, count, first_ns, last_ns}, ns since the epoch."""
        return self._failures.listed()

    def gpu_failures(self) -> list[dict[str, Any]]:
        """What the accelerators' driver did not answer, in the same form."""
        return self._gpu_failures.listed()

    def _now(self) -> int:
        return self._clock.now_ns() - self._epoch_ns

    def _between(self, read: Callable[[int], list[Row]]) -> list[Row]:
        """Rows stamped in the middle of their reading: a gauge is read somewhere between question and answer, half of that off at most."""
        asked = self._now()
        rows = read(asked)
        answered = self._now()
        return [row | {"t_ns": (asked + answered) // 2} for row in rows]

    def _gpu_fail(self, reason: str) -> None:
        self._gpu_failures.add(self._now(), reason)

    def _loop(self) -> None:
        _give_way()
        try:
            while not self._stopping.is_set():
                self.sample()
                self._stopping.wait(self._period_s * self._draw.uniform(0.5, 1.5))
        except BaseException as fault:
            self._fault = fault

    def _scrape(self, t_ns: int) -> list[Row]:
        if self._metrics_url is None:
            return []
        reply = ask(self._metrics_url, "", timeout_s=1.0)
        if reply is None or reply.status != 200:
            self._failures.add(t_ns, "no answer" if reply is None else f"HTTP {reply.status}")
            return []
        try:
            values = canonical_values(reply.body.decode("utf-8"), self._rules)
        except ValueError:
            self._failures.add(t_ns, "not a metrics page")
            return []
        if not values:
            self._failures.add(t_ns, "none of the expected metrics is on the page")
        return [_page_row(t_ns, name, value) for name, value in values.items()]


def _give_way() -> None:
    """Let the worker have the core first, where both want the same: reading a page of metrics takes milliseconds, and a send would be late
    by them. A thread that gives way by more already keeps to that: nobody but root may take it back. Where threads have no priority of
    their own, nothing is done."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))


class Failures:
    """What went wrong, each reason once with its count and its first and last instant."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}
        self.count = 0

    def add(self, t_ns: int, reason: str) -> None:
        """Count one; ``t_ns``: ns since the epoch."""
        self.count += 1
        entry = self._found.setdefault(reason, {"reason": reason, "count": 0, "first_ns": t_ns})
        entry |= {"count": entry["count"] + 1, "last_ns": t_ns}

    def listed(self) -> list[dict[str, Any]]:
        """Copies, in order of first appearance: {reason, count, first_ns, last_ns}."""
        return [dict(entry) for entry in self._found.values()]


def _page_row(t_ns: int, name: str, value: float) -> Row:
    metric, _, label = name.partition("/")
    return {"t_ns": t_ns, "source": "server", "metric": metric, "labels": label or None, "value": value}


def _row(t_ns: int, role: str, metric: str, value: float) -> Row:
    source, _, label = role.partition("/")
    return {"t_ns": t_ns, "source": source, "metric": metric, "labels": label or None, "value": value}


class HostWatch:
    """Rows about the host and the process trees of the roles. Ratios are over the time since the call before, so the first gives none."""

    def __init__(self, clock: Clock, roles: Mapping[str, int], proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._clock, self._roles, self._proc = clock, dict(roles), proc
        self._cgroups = cgroups
        self._groups: tuple[Path, ...] = ()
        self._readers = {role: TreeReader(proc) for role in roles}
        # Who measures is not foreign: this process counts as ours, though it has no role.
        self._self = TreeReader(proc)
        self._trees: dict[str, list[int]] = {}
        self._walked_ns: int | None = None
        self._before: tuple[HostTime, float] | None = None

    def pids(self, role: str) -> list[int]:
        """Processes of a role as the last walk found them."""
        return self._trees.get(role, [])

    def rows(self, t_ns: int) -> list[Row]:
        """Return one sample, stamped ``t_ns``; what cannot be read is left out."""
        self._walk()
        found: list[Row] = []
        for role, reader in self._readers.items():
            tree = reader.read(self._trees[role])
            if tree is None:
                continue
            found += [_row(t_ns, role, "cpu_s_total", tree.cpu_s), _row(t_ns, role, "rss_bytes", float(tree.rss))]
            if tree.run_delay_s is not None:
                found.append(_row(t_ns, role, "run_delay_s_total", tree.run_delay_s))
        self._self.read([os.getpid()])
        # A role that is gone has used what it used: without it all of that would look like foreign load of this one sample.
        return found + self._host_rows(t_ns, sum(reader.cpu_s for reader in (*self._readers.values(), self._self)))

    def _host_rows(self, t_ns: int, ours_s: float) -> list[Row]:
        values = memory_bytes(self._text("meminfo"))
        held = throttled_s(self._groups)
        if held is not None:
            values["throttled_s_total"] = held
        now = host_time(self._text("stat"))
        if now is not None:
            values |= _ratios(self._before, (now, ours_s))
            self._before = (now, ours_s)
        return [_row(t_ns, "host", name, value) for name, value in values.items()]

    def _walk(self) -> None:
        """Find the trees and control groups again when the last walk is old. A process in two roles' trees is the nearer root's only."""
        now_ns = self._clock.now_ns()
        if self._walked_ns is not None and now_ns - self._walked_ns < TREE_AGE_NS:
            return
        self._walked_ns = now_ns
        table = process_table()
        trees = {role: {pid, *below(table, pid)} for role, pid in self._roles.items()}
        for role, pid in self._roles.items():
            for other, root in self._roles.items():
                if other != role and root in trees[role] and pid not in trees[other]:
                    trees[role] -= trees[other]
        self._trees = {role: sorted(pids) for role, pids in trees.items()}
        self._groups = _groups(self._proc, self._cgroups, self.pids("server"))

    def _text(self, name: str) -> str:
        try:
            return (self._proc / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def _groups(proc: Path, root: Path, server: Collection[int]) -> tuple[Path, ...]:
    """Control groups that can hold the measurement back: ours, and those of the server's processes, which a launch prefix may have put
    into others; () when one that is in force is not visible.
    """
    chains = [group_chain(proc, root)]
    for pid in server:
        chain = group_chain(proc, root, pid=pid)
        if chain or (proc / str(pid)).exists():  # else it ended meanwhile
            chains.append(chain)
    return tuple(dict.fromkeys(group for chain in chains for group in chain)) if all(chains) else ()


def _ratios(before: tuple[HostTime, float] | None, after: tuple[HostTime, float]) -> dict[str, float]:
    """Shares of all cores' time between two readings; {} for the first reading or no time between.

    Foreign load is host busy time minus ours. The host counts in ticks of 10 ms, so a difference below zero is rounding and becomes 0.
    """
    if before is None or after[0].total <= before[0].total:
        return {}
    (was, ours_was), (now, ours_now) = before, after
    total = now.total - was.total
    busy = now.busy - was.busy
    foreign = max(0.0, busy - (ours_now - ours_was))
    return {
        "cpu_busy_ratio": max(0.0, busy) / total,
        "cpu_steal_ratio": max(0.0, now.steal - was.steal) / total,
        "foreign_cpu_ratio": foreign / total,
    }
