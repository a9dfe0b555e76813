"""Virtual time: iterations end where the cost model says, at once. The rules at the cut are those of the server behind its socket.

What gathers while an iteration runs is published at its end. A client's close reaches the server while the next iteration runs, as over a
socket, so a request that is closed after its last wanted token costs one row more.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.record.schema import EndKind
from harness.reference.accounts import NAMES, PLAIN, account_values, plain_values
from harness.reference.contract import COMPUTED_AFTER, EMITTED_AFTER, EMITTED_BEFORE, TERMINAL, Authorized, IterationResult, SchedulerState
from harness.reference.deployment import NO_DECLINED
from harness.reference.engine import Core
from harness.reference.execute import Truths, execute
from harness.reference.foreign import held_on_device, next_receipt_ns
from harness.reference.owner import Owner
from harness.reference.table import HANDLE, Int64, Table, Terminal, all_zero
from harness.reference.tokens import Truth
from harness.simulate.offered import NEVER, Arrivals, Offered

SAMPLE_NS = 250_000_000
"""Four samples a second of the declared gauges, as the sampler takes of a real server."""

GAUGES = ("requests_running", "requests_waiting", "kv_usage_ratio")
COUNTERS = (
    "requests_finished_total", "requests_aborted_total", "prompt_tokens_total", "generation_tokens_total", "preemptions_total",
    "recomputed_rows_total",
)  # fmt: skip

_KINDS = (
    EndKind.DRAIN_END, EndKind.COMPLETE, EndKind.CLIENT_STOP, EndKind.CANCELLED, EndKind.HTTP_ERROR, EndKind.NEVER_SENT, EndKind.NEVER_DUE,
)  # fmt: skip
OPEN, COMPLETE, CLIENT_STOP, CANCELLED, DECLINED, NEVER_SENT, NEVER_DUE = range(len(_KINDS))


@dataclass(frozen=True, slots=True)
class Door:
    """Bounded admission: a request that finds ``waiting`` others waiting, or ``live`` others at all, is declined with ``status``."""

    waiting: int | None = None
    live: int | None = None
    status: int = 503


@dataclass(slots=True)
class Counts:
    """Totals since the start, and what the run cost."""

    finished: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    iterations: int = 0
    intervals: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """What came of each request (n,) and of each token (tokens,), in order of time; instants ns from the epoch.

    ``arrival_ns``: -1 for a turn that never came due. ``end_ns``: -1 when it never came. ``terminal``: Terminal of those served.
    ``samples`` (s, 1 + names): instant and values under ``sampled``: ``GAUGES``, ``COUNTERS`` and ``accounts``.
    """

    arrival_ns: Int64
    end_ns: Int64
    kind: Int64
    terminal: Int64
    token_request: Int64
    token_ns: Int64
    samples: list[tuple[float, ...]]
    counts: Counts
    state: SchedulerState
    door: Door
    sampled: tuple[str, ...]

    def kinds(self) -> list[str]:
        """End of each request in the record's vocabulary."""
        return [_KINDS[code].value for code in self.kind.tolist()]


def simulate(
    core: Core, offered: Offered, *, until_ns: int, door: Door | None = None, sample_ns: int = SAMPLE_NS, owner: Owner | None = None
) -> Simulated:
    """Run ``offered`` from instant 0 until everything ended or ``until_ns``, whichever comes first.

    Every plan and every result is validated. ``owner``: the one that the core's memory rules need, which has served nothing. Raises
    ContractError when the policy breaks the contract.
    """
    with _collector_paused():
        return _Run(core, offered, until_ns, door or Door(), sample_ns, owner).go()


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Iterations make no reference cycles but many short-lived tuples, over which the collector would spend a tenth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Run:
    """One simulation while it runs."""

    def __init__(self, core: Core, offered: Offered, until_ns: int, door: Door, sample_ns: int, owner: Owner | None) -> None:
        count = len(offered)
        self.core, self.offered, self.until_ns, self.door, self.sample_ns = core, offered, until_ns, door, sample_ns
        self.counts = Counts()
        self.state = core.start()
        self.arrivals = Arrivals(self.offered)
        self.truths = Truths()
        self.arrival_ns, self.end_ns = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        self.kind, self.terminal = np.full(count, OPEN, np.int64), np.zeros(count, np.int64)
        self.request_of = np.zeros(count, np.int64)  # the scheduler numbers requests as they arrive
        self.numbered = 0
        self.alive: set[int] = set()
        self.closing: list[int] = []  # closed at the end of the last iteration
        self.leaving: list[int] = []  # closed one iteration earlier: the close has reached the server by the next cut
        self.cancels: list[tuple[int, int]] = []
        self.given_up: list[int] = []  # while the last iteration ran
        self.may_close = bool((self.offered.stop_after >= 0).any())
        self.seen_waiting = self.seen_live = 0
        self.tokens: list[bytes] = []  # numbers of those that emitted, for each of the stamps
        self.stamps: list[int] = []
        self.samples: list[tuple[float, ...]] = []
        self.next_sample = 0
        self.owner = owner
        self.deployed, self.declines = core.workload.deployment is not None, core.policy.declines or owner is not None

    def go(self) -> Simulated:
        """Run to the end."""
        now = 0
        while True:
            self._cut(now)
            if self.deployed:
                self.state = self.core.receive(self.state, now)
            if self.owner is not None:
                self.state = self.core.due(self.state, now, self.owner)
            self.state, authorized, cost_ns, preempted = self.core.settle(self.state, self.owner)
            if self.declines:
                self._declined(now)
            self.counts.preemptions += preempted
            if not len(authorized.plan.work.at):
                later = self._idle_until(now)
                self._sample(min(later, self.until_ns))
                if later >= self.until_ns:
                    break
                now = later
                continue
            done = now + cost_ns
            self._sample(min(done, self.until_ns))
            if done > self.until_ns:
                self._cut(self.until_ns - 1)  # who came while the last iteration ran was sent, and is open
                break
            self.given_up = self._given_up(done - 1)  # before the tokens of this iteration came
            result = execute(self.state, authorized, self.truths, tokens=False)
            self.counts.preemptions += len(authorized.plan.preempt.at)
            self.counts.iterations += 1
            self.counts.intervals += len(authorized.plan.work.at)
            self.state = self.core.publish(self.state, authorized, result, done, self.owner)
            self._note(authorized, result, done)
            if self.declines:
                self._declined(done)
            now = done
        return self._close()

    def _cut(self, now: int) -> None:
        """Publish arrivals, closes and cancellations that gathered up to ``now``."""
        if self.state.now_ns == now < self.arrivals.next_ns() and not (self.leaving or self.closing or self.cancels or self.given_up):
            self.seen_waiting = len(self.state.waiting) + len(self.state.suspended)
            self.seen_live = self.seen_waiting + len(self.state.running)
            return
        gone, self.leaving, self.closing, self.given_up = self.leaving + self.given_up, self.closing, [], []
        requests, came = self.arrivals.due(now)
        new = self._admit(requests, came) if len(requests) else None
        if self.cancels:
            gone = gone + self._given_up(now)
        gone = [number for number in gone if number in self.alive]
        if gone and new is not None:  # who gave up before this cut is withdrawn like behind a socket: it never reaches the scheduler
            new = new.without(np.isin(new.handle, gone).nonzero()[0])
        if gone or new is not None:
            self.alive.difference_update(gone)
            self.counts.aborted += len(gone)
            self.state = self.core.cut(self.state, now, new, gone, owner=self.owner)
        elif self.state.now_ns != now:
            self.state = self.state._replace(now_ns=now)
        self.seen_waiting = len(self.state.waiting) + len(self.state.suspended)
        self.seen_live = self.seen_waiting + len(self.state.running)

    def _admit(self, requests: Int64, came: Int64) -> Table | None:
        """Number those the door lets in; decline the others. The door sees the queues as they were when the iteration began."""
        self.arrival_ns[requests] = came
        limits = [
            limit - seen for limit, seen in ((self.door.waiting, self.seen_waiting), (self.door.live, self.seen_live)) if limit is not None
        ]
        room = max(0, min(limits, default=len(requests)))
        declined = requests[room:]
        self.kind[declined], self.end_ns[declined] = DECLINED, came[room:]
        requests, came = requests[:room], came[:room]
        if not len(requests):
            return None
        numbers = np.arange(self.numbered, self.numbered + len(requests))
        self.request_of[numbers] = requests
        self.numbered += len(requests)
        for number, request, at in zip(numbers.tolist(), requests.tolist(), came.tolist(), strict=True):
            natural, patience = int(self.offered.natural[request]), int(self.offered.give_up_ns[request])
            self.truths.add(number, Truth(0, None if natural == NEVER else natural))
            if patience >= 0:
                heapq.heappush(self.cancels, (at + patience, number))
        self.alive.update(numbers.tolist())
        return self.offered.declare(requests, numbers, came)

    def _given_up(self, now: int) -> list[int]:
        gone = []
        while self.cancels and self.cancels[0][0] <= now:
            at, number = heapq.heappop(self.cancels)
            request = self.request_of[number]
            if self.end_ns[request] < 0:
                self.kind[request], self.end_ns[request] = CANCELLED, at
                gone.append(number)
        return gone

    def _idle_until(self, now: int) -> int:
        """Next instant at which something can change; beyond the end when nothing will."""
        if self.leaving:
            return now
        cancel = self.cancels[0][0] if self.cancels else NEVER
        receipt = next_receipt_ns(self.state) if self.deployed else NEVER
        here = None if self.owner is None else self.owner.next_ns
        return min(self.arrivals.next_ns(), cancel, receipt, NEVER if here is None else here)

    def _note(self, authorized: Authorized, result: IterationResult, done: int) -> None:
        """Keep the stamps of what was emitted, and see who ended."""
        emitted, counts = result.rows, self.counts
        if not authorized.members.decoding:  # else everybody emitted, and not its first
            emitted = emitted.compress(emitted[EMITTED_AFTER] > emitted[EMITTED_BEFORE], axis=1)
            first = emitted[EMITTED_BEFORE] == 0
            counts.prompt_tokens += int(emitted[COMPUTED_AFTER].compress(first).sum())
        numbers = emitted[HANDLE]
        self.tokens.append(numbers.tobytes())
        self.stamps.append(done)
        counts.generation_tokens += len(numbers)
        if self.may_close:
            requests = self.request_of.take(numbers)
            stops = (emitted[EMITTED_AFTER] == self.offered.stop_after.take(requests)) & (emitted[TERMINAL] == 0)
            if np.count_nonzero(stops):
                self._end(requests.compress(stops), CLIENT_STOP, done)
                self.closing = numbers.compress(stops).tolist()
        if not all_zero(emitted[TERMINAL]):
            over = emitted.compress(emitted[TERMINAL] > 0, axis=1)
            requests = self.request_of.take(over[HANDLE])
            self.terminal[requests] = over[TERMINAL]
            counts.finished += self._served(over[HANDLE])
            self._end(requests, COMPLETE, done)

    def _served(self, numbers: Int64) -> int:
        """Take requests that ended out; those whose client had left by then count as aborted at the next cut, and not here."""
        mine = set(numbers.tolist()).difference(self.leaving, self.given_up)
        self.alive -= mine
        return len(mine)

    def _declined(self, at: int) -> None:
        """Answer those that the policy declined as the door does; who gave up before keeps that end."""
        numbers = self.state.declined[0]
        if not len(numbers):
            return
        self.state = self.state._replace(declined=NO_DECLINED)
        requests = self.request_of.take(numbers)
        mine = requests.compress(self.end_ns.take(requests) < 0)
        self.kind[mine], self.end_ns[mine], self.terminal[mine] = DECLINED, at, Terminal.REJECTED
        self._served(numbers)

    def _end(self, requests: Int64, kind: int, done: int) -> None:
        mine = requests.compress(self.end_ns.take(requests) < 0)  # one that was closed or cancelled before keeps that end
        self.kind[mine], self.end_ns[mine] = kind, done
        if self.arrivals.has_followers:
            for request in mine.tolist():
                self.arrivals.ended(request, done)

    def _sample(self, until: int) -> None:
        """Take the samples that fall before ``until``: gauges hold from the cut on, counters from the last completed iteration."""
        if self.next_sample >= until:
            return
        values = self._values()
        while self.next_sample < until:
            self.samples.append((self.next_sample, *values))
            self.next_sample += self.sample_ns

    def _values(self) -> tuple[float, ...]:
        counts, capacity = self.counts, self.core.workload.budgets.kv_capacity
        gauges = (len(self.state.running), self.seen_waiting, held_on_device(self.core.workload, self.state) / capacity)
        known = (*gauges, counts.finished, counts.aborted, counts.prompt_tokens, counts.generation_tokens, counts.preemptions)
        accounts = plain_values(counts.preemptions) if self.owner is None else account_values(self.state, self.owner)
        return (*known, self.state.recomputed_rows, *accounts)

    def _close(self) -> Simulated:
        """Whatever has no end yet is open, was never sent, or never came due."""
        never = self.arrival_ns < 0
        waits = np.zeros(len(never), bool)
        waits[list(self.offered.waits_for)] = True
        self.kind[never & ~waits], self.kind[never & waits] = NEVER_SENT, NEVER_DUE
        self.kind[self.arrivals.thinking()] = NEVER_SENT
        self.arrival_ns = np.where(never & ~waits, self.offered.arrival_ns, self.arrival_ns)
        self.end_ns[(self.kind == OPEN)] = self.until_ns
        requests = self.request_of.take(np.frombuffer(b"".join(self.tokens), np.int64))
        stamps = np.repeat(np.array(self.stamps, np.int64), [len(numbers) // requests.itemsize for numbers in self.tokens])
        seen = stamps <= self.end_ns.take(requests)
        self.samples.append((self.until_ns, *self._values()))
        return Simulated(
            self.arrival_ns, self.end_ns, self.kind, self.terminal, requests.compress(seen), stamps.compress(seen),
            self.samples, self.counts, self.state, self.door, (*GAUGES, *COUNTERS, *(PLAIN if self.owner is None else NAMES)),
        )  # fmt: skip
