"""The load of a simulation as columns, and which requests are due when."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.errors import UsageError
from harness.record.spec import Slo
from harness.reference.table import (
    ARRIVAL_NS,
    CLIENT,
    COLUMNS,
    HANDLE,
    LAST_NS,
    MAXIMUM,
    NO_LIMIT,
    ORDER,
    PRIORITY,
    PROMPT,
    READY,
    TBT_NS,
    TTFT_NS,
    Int64,
    Table,
)
from workloads import Schedule

NEVER = np.iinfo(np.int64).max
_NOBODY = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Offered:
    """Requests 0..n-1 by arrival, every column (n,) int64, instants ns from the epoch.

    ``maximum``: output limit the engine is told. ``natural``: output length at which end of sequence comes (NEVER: it does not), hidden
    from policies. ``stop_after``: the client closes after that many tokens (-1: it does not). ``give_up_ns``: planned cancellation, from
    the arrival (-1: none). ``ttft_ns``, ``tbt_ns``: limits declared to the scheduler (n,) or the same for all (NO_LIMIT: none).
    ``waits_for``: for each request the ones whose end it waits for, with ``think_ns`` from the last of them.
    """

    arrival_ns: Int64
    prompt: Int64
    maximum: Int64
    natural: Int64
    stop_after: Int64
    give_up_ns: Int64
    priority: Int64
    client: Int64
    ttft_ns: Int64 | int = NO_LIMIT
    tbt_ns: Int64 | int = NO_LIMIT
    waits_for: dict[int, list[int]] = field(default_factory=dict)
    think_ns: Int64 | None = None

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def declare(self, requests: Int64, numbers: Int64, arrival_ns: Int64) -> Table:
        """Rows of requests as the scheduler sees them on arrival."""
        cells = np.zeros((COLUMNS, len(requests)), np.int64)
        cells[HANDLE] = cells[ORDER] = numbers
        cells[PROMPT], cells[MAXIMUM] = self.prompt.take(requests), self.maximum.take(requests)
        cells[PRIORITY], cells[CLIENT] = self.priority.take(requests), self.client.take(requests)
        cells[ARRIVAL_NS] = arrival_ns
        for column, limits in ((TTFT_NS, self.ttft_ns), (TBT_NS, self.tbt_ns)):
            cells[column] = limits if isinstance(limits, int) else limits.take(requests)
        cells[LAST_NS], cells[READY] = -1, 1
        return Table(cells)


def declared_limits(schedule: Schedule, slo: Slo, classes: Mapping[str, Slo]) -> tuple[Int64, Int64]:
    """TTFT and TBT limit (n,) that each request declares, ns: those of its class where ``classes`` names it, else those of ``slo``, as
    analysis judges it."""
    names = () if schedule.request_class is None else schedule.request_class.names
    each = [*(classes.get(name, slo) for name in names), slo]
    codes = np.full(len(schedule), -1) if schedule.request_class is None else schedule.request_class.codes
    ttft, tbt = (np.array([NO_LIMIT if limit is None else limit for limit in column], np.int64) for column in _limits_of(each))
    return ttft.take(codes, mode="wrap"), tbt.take(codes, mode="wrap")  # code -1, of no class: the last


def _limits_of(each: Sequence[Slo]) -> tuple[list[int | None], list[int | None]]:
    return [slo.ttft_ns for slo in each], [slo.tbt_ns for slo in each]


def offer(schedule: Schedule, *, max_model_len: int, limits: tuple[Int64, Int64] | None = None) -> Offered:
    """Take a schedule's columns. Where the server may end by itself, it ends where the trace did; elsewhere end of sequence never comes.

    ``limits``: what each request declares to the scheduler (``declared_limits``). Raises UsageError ``prompt_too_long``.
    """
    prompt = schedule.input_tokens.astype(np.int64)
    room = max_model_len - prompt
    if int(room.min(initial=1)) < 1:
        longest = int(prompt.max())
        what = f"input_tokens={longest}: leaves no room for an output within max_model_len={max_model_len}"
        raise UsageError.single("prompt_too_long", what, "raise max-model-len, or clip the lengths of the workload")
    turns, zeros = schedule.turns, np.zeros(len(schedule), np.int64)
    return Offered(
        arrival_ns=schedule.arrival_ns,
        prompt=prompt,
        maximum=np.minimum(np.where(schedule.max_tokens < 0, room, schedule.max_tokens), room),
        natural=np.where(schedule.ignore_eos, np.int64(NEVER), np.maximum(schedule.output_tokens, 1)),
        stop_after=schedule.stop_after,
        give_up_ns=zeros - 1 if schedule.cancel_after_ns is None else schedule.cancel_after_ns,
        priority=zeros if schedule.priority is None else schedule.priority,
        client=zeros if schedule.client is None else schedule.client.codes.astype(np.int64) + 1,
        ttft_ns=NO_LIMIT if limits is None else limits[0],
        tbt_ns=NO_LIMIT if limits is None else limits[1],
        waits_for={} if turns is None else {i: rows for i in range(len(schedule)) if (rows := turns.after.row(i).tolist())},
        think_ns=None if turns is None else turns.think_ns,
    )


class Arrivals:
    """Requests in the order in which they come due; those that wait for others come due when these have ended."""

    def __init__(self, offered: Offered) -> None:
        waiting = np.array(sorted(offered.waits_for), np.int64)
        self._offered = offered
        self._fixed = np.setdiff1d(np.arange(len(offered)), waiting)
        self._fixed = self._fixed.take(offered.arrival_ns.take(self._fixed).argsort(kind="stable"))
        self._fixed_ns = offered.arrival_ns.take(self._fixed)
        self._next = 0
        self._soonest_ns = int(self._fixed_ns[0]) if len(self._fixed_ns) else NEVER
        self._heap: list[tuple[int, int]] = []
        self._missing = {request: set(rows) for request, rows in offered.waits_for.items()}
        self._followers: dict[int, list[int]] = {}
        for request, rows in offered.waits_for.items():
            for row in rows:
                self._followers.setdefault(row, []).append(request)

    def next_ns(self) -> int:
        """When the next request comes due; NEVER when none is known to."""
        return min(self._soonest_ns, self._heap[0][0]) if self._heap else self._soonest_ns

    def due(self, now_ns: int) -> tuple[Int64, Int64]:
        """Requests due up to and at ``now_ns`` and their arrivals, by (arrival, request); each is given once."""
        if now_ns < self._soonest_ns and not self._heap:
            return _NOBODY, _NOBODY
        stop = int(self._fixed_ns.searchsorted(now_ns, side="right"))
        requests, arrivals = self._fixed[self._next : stop], self._fixed_ns[self._next : stop]
        self._next = stop
        self._soonest_ns = int(self._fixed_ns[stop]) if stop < len(self._fixed_ns) else NEVER
        if not (self._heap and self._heap[0][0] <= now_ns):
            return requests, arrivals
        both = list(zip(arrivals.tolist(), requests.tolist(), strict=True))
        while self._heap and self._heap[0][0] <= now_ns:
            both.append(heapq.heappop(self._heap))
        both.sort()
        return np.array([request for _, request in both], np.int64), np.array([at for at, _ in both], np.int64)

    def ended(self, request: int, at_ns: int) -> None:
        """A request was served to its end: whoever waited for it last comes due after the thinking time."""
        for follower in self._followers.get(request, ()):
            self._missing[follower].discard(request)
            if not self._missing[follower]:
                think = 0 if self._offered.think_ns is None else max(0, int(self._offered.think_ns[follower]))
                heapq.heappush(self._heap, (at_ns + think, follower))

    def thinking(self) -> list[int]:
        """Requests that will come due although they have not yet: all they waited for was served."""
        return [request for _, request in self._heap]

    @property
    def has_followers(self) -> bool:
        """Whether any request waits for others."""
        return bool(self._followers)
