"""The load engine of one worker: admits arrivals, matches them with connections, ends every request exactly once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from harness.clock import NS_PER_MS, NS_PER_S
from harness.record.schema import EndKind
from harness.replay.agenda import Agenda
from harness.replay.connection import Connection
from harness.replay.contract import ReplayPlan
from harness.replay.dialer import Address, Dialer
from harness.replay.exchange import FAILED_KINDS, Exchange, connect_end, connect_problem, not_sent
from harness.replay.frames import encode_exchange
from harness.replay.limits import Limits
from harness.replay.pacer import burst
from harness.replay.pool import Pool
from harness.replay.reader import Reader, supported
from harness.replay.rest import Rest
from harness.replay.timers import Timer, make_timer
from harness.wire import PROTOCOLS
from harness.wire.contract import Decoder
from workloads.schedule import Int64

BURST_NS = 50 * NS_PER_MS
"""Opening a connection takes a few loop passes, well under 50 ms even on a busy host: arrivals closer than that need one each, ready."""

BACK_OFF_NS = 100 * NS_PER_MS
"""After a background open failed, none for 100 ms: a dead server must not be asked hundreds of times a second. Requests still ask."""

CLOSE_NS = 2 * NS_PER_S
"""Aborted transports close at the next loop pass; two seconds without that is a defect that must not become a hang."""

OPEN_AT_ONCE = 8
"""Background opens in parallel: each costs the loop about 0.1 ms, so a refill never holds a stream's read by more than one."""


NEVER_NS = 2**63 - 1


class Sink(Protocol):
    """Where ended requests go; must not block."""

    def write(self, data: bytes) -> None:
        """Queue bytes."""
        ...


class Counts(Protocol):
    """Shared counters for progress lines."""

    def __setitem__(self, index: int, value: int) -> None: ...


SENT, ENDED, IN_FLIGHT, FAILED = range(4)


class Engine:
    """Sends on absolute deadlines, whether the clock or the end of another request set them. ``done``: every offered request has ended.

    A request that waits for others ends as never_due when one of them does not complete (unless the plan lets it follow any end), and as
    never_sent when the run ends before it came due; both without an arrival.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, plan: ReplayPlan, payloads: Sequence[bytes], address: Address, counts: Counts
    ) -> None:
        self.loop, self.plan = loop, plan
        self.done: asyncio.Future[None] = loop.create_future()
        self.fault: str | None = None
        self.connect_problem: str | None = None
        self.open_connections = 0
        self.live: set[Exchange] = set()
        protocol = PROTOCOLS[plan.protocol]
        self.live_decoder: Callable[[bool], Decoder] = lambda stream: protocol.decoder(stream=stream)
        self.too_long = EndKind.CLIENT_FAULT if protocol.cumulative else EndKind.MALFORMED
        self._payloads = payloads
        self._stop_after = [int(s) for s in plan.stop_after]
        self._agenda = Agenda(plan.arrival_ns.tolist(), plan.end_ns, plan.after, _listed(plan.think_ns))
        self._cancel_after = _listed(plan.cancel_after_ns)
        self._pool: Pool[Connection] = Pool(self._first_aim())
        self._reader = self._make_reader()
        tls_host = plan.host if plan.tls else None
        self._dialer = Dialer(loop, self, address, tls_host, self._opened, self._connect_failed, self._reader)
        self._backlog: deque[Exchange] = deque()  # arrived, held by the concurrency cap
        self._waiting: deque[Exchange] = deque()  # in flight, without a connection yet
        self._timeouts, self._cancels = Limits(), Limits()
        self._timer: Timer | None = None
        self._sink: Sink | None = None
        self._epoch_ns = 0
        self._tally = [0, 0, 0, 0]
        self._counts = counts
        self._over = False
        self._no_open_before_ns = 0

    def _first_aim(self) -> int:
        need = max(self.plan.warm_connections, burst(self._agenda.by_clock, BURST_NS))
        return need if self.plan.concurrency_cap is None else min(need, self.plan.concurrency_cap)

    def _make_reader(self) -> Reader | None:
        if self.plan.tls or not supported():
            return None
        # Where the end of one request lets another go, what it is read late is slip.
        waits = self.plan.after is not None or self.plan.concurrency_cap is not None
        return Reader(self.loop, self._next_arrival_ns, self._send_due, None if waits else Rest())

    @property
    def reads(self) -> tuple[int, int] | None:
        """Reads, and those of them that the kernel did not stamp; None: it stamps none."""
        return None if self._reader is None else (self._reader.reads, self._reader.unstamped)

    @property
    def rest_ns(self) -> int | None:
        """How long what comes is left unread; None: it is read at once."""
        return None if self._reader is None or self._reader.rest is None else self._reader.rest.ns

    @property
    def ahead(self) -> int:
        """Connections that are opened before the first arrival."""
        return self._pool.aim

    # -- life

    async def warm_up(self, timeout_s: float) -> int:
        """Open connections ahead; return how many stand when all do, when one failed, or when the time is up."""
        deadline_ns = time.monotonic_ns() + round(timeout_s * NS_PER_S)
        self._refill()
        while self._dialer.opening and time.monotonic_ns() < deadline_ns:
            await asyncio.sleep(0.001)
        return len(self._pool)

    def arm(self, epoch_ns: int, sink: Sink) -> None:
        """Start pacing on ``epoch_ns``."""
        self._epoch_ns, self._sink = epoch_ns, sink
        self._timer = make_timer(self.loop, self._on_deadline)
        self._timer.arm(self.next_deadline_ns())

    def next_deadline_ns(self) -> int:
        """Absolute instant of the next arrival or planned cancellation, or of the drain's end."""
        arrival, cancel = self._next_arrival_ns(), self._cancels.next_ns()
        return arrival if cancel is None else min(arrival, cancel)

    def _next_arrival_ns(self) -> int:
        # Connections are read before there is an epoch: nothing is due by then.
        return NEVER_NS if self._timer is None else self._epoch_ns + self._agenda.next_ns()

    def abort(self, why: str) -> None:
        """End everything now: what is under way is our fault, what has not arrived was never sent."""
        self.fault = self.fault or why
        self._end_all(EndKind.CLIENT_FAULT, why)

    async def close(self) -> None:
        """Close every connection and the timer."""
        self._over = True
        if self._timer is not None:
            self._timer.close()
        await self._dialer.close()
        for connection in self._pool.drain():
            connection.close()
        deadline_ns = time.monotonic_ns() + CLOSE_NS
        while self.open_connections and time.monotonic_ns() < deadline_ns:
            await asyncio.sleep(0.001)
        if self._reader is not None:
            self._reader.close()
        self._publish()

    def tick(self, now_ns: int) -> None:
        """Every 10 ms: request deadlines, stale connections, refill, counts."""
        if any(limit_ns is not None and limit_ns <= now_ns for limit_ns in (self._cancels.next_ns(), self._timeouts.next_ns())):
            self._catch_up()
        self._cancel(now_ns)  # first: a cancellation that has a limit was planned before the time limit
        for exchange in self._timeouts.due(now_ns):
            self._stop(exchange, EndKind.TIMEOUT, "no end of the response within the request's time limit")
        for connection in self._pool.retire(now_ns):
            connection.close()
        self._refill()
        self._publish()

    def _publish(self) -> None:
        self._tally[IN_FLIGHT] = len(self.live) + len(self._backlog)
        for index, value in enumerate(self._tally):
            self._counts[index] = value

    # -- arrivals

    def _on_deadline(self) -> None:
        now_ns = time.monotonic_ns()
        self._admit_until(now_ns)
        cancel_ns = self._cancels.next_ns()
        over = now_ns - self._epoch_ns >= self.plan.end_ns
        if over or (cancel_ns is not None and cancel_ns <= now_ns):
            self._catch_up()
            self._cancel(now_ns)
        if over:
            self._end_all(EndKind.DRAIN_END, "")
        else:
            self._rearm()
        self._refill()

    def _send_due(self) -> None:
        """Admit what has come due between two reads."""
        self._admit_until(time.monotonic_ns())
        if self._waiting:
            self._refill()  # here, for an end among those reads may set the timer to a later deadline

    def _admit_until(self, now_ns: int) -> None:
        for arrival_ns, request_id in self._agenda.due(now_ns - self._epoch_ns):
            self._admit(request_id, arrival_ns)

    def _catch_up(self) -> None:
        """Before a request is given up: what came for it in time may lie unread."""
        if self._reader is not None:
            self._reader.catch_up()

    def _rearm(self) -> None:
        if self._timer is not None and not self._over:
            self._timer.arm(self.next_deadline_ns())

    def _admit(self, request_id: int, arrival_ns: int) -> None:
        followed = self._agenda.followed(request_id)
        exchange = Exchange(request_id, self._epoch_ns + arrival_ns, self._stop_after[request_id], followed)
        self._limit(exchange)
        cap = self.plan.concurrency_cap
        if cap is not None and len(self.live) >= cap:
            self._backlog.append(exchange)
        else:
            self._launch(exchange)

    def _limit(self, exchange: Exchange) -> None:
        """From the arrival, as every clock of a request: a wait for the cap or for a connection is part of it."""
        timeout_ns = self.plan.request_timeout_ns
        if timeout_ns is not None:
            self._timeouts.put(exchange.arrival_ns + timeout_ns, exchange)
        cancel_ns = self._cancel_after[exchange.request_id] if self._cancel_after else -1
        if cancel_ns >= 0 and (timeout_ns is None or cancel_ns < timeout_ns):
            self._cancels.put(exchange.arrival_ns + cancel_ns, exchange)

    def _launch(self, exchange: Exchange) -> None:
        self.live.add(exchange)
        connection = self._fit_connection()
        if connection is None:
            self._waiting.append(exchange)
        else:
            self._send(connection, exchange)

    def _fit_connection(self) -> Connection | None:
        while (connection := self._pool.take(time.monotonic_ns())) is not None:
            if not connection.stale():
                return connection
            connection.close()
        return None

    def _send(self, connection: Connection, exchange: Exchange) -> None:
        self._tally[SENT] += 1
        connection.send(exchange, self._payloads[exchange.request_id])

    def _cancel(self, now_ns: int) -> None:
        for exchange in self._cancels.due(min(now_ns, self._epoch_ns + self.plan.end_ns - 1)):
            self._stop(exchange, EndKind.CANCELLED, "")

    # -- connections

    def made(self) -> None:
        """Count an open connection."""
        self.open_connections += 1

    def _opened(self, connection: Connection) -> None:
        if self._over:
            connection.close()
        elif connection.stale():
            # Closed while we were being told that it stands; a request must not pay for it.
            connection.close()
            self._connect_failed(ConnectionResetError("the server closed the connection as it was opened"))
        else:
            self._place(connection, used=False)
            self._refill()

    def released(self, connection: Connection) -> None:
        """Take back a clean connection."""
        if self._waiting and connection.stale():
            connection.close()  # the server closed behind its answer without a word; who waits must not pay for it
            self._refill()
        else:
            self._place(connection, used=True)

    def lost(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self.open_connections -= 1
        self._pool.drop(connection)

    def _place(self, connection: Connection, *, used: bool) -> None:
        if self._waiting:
            self._send(connection, self._waiting.popleft())
        else:
            self._pool.put(connection, time.monotonic_ns(), used=used)

    def _connect_failed(self, error: BaseException) -> None:
        self.connect_problem = connect_problem(error)
        self._no_open_before_ns = time.monotonic_ns() + BACK_OFF_NS
        # A background open that fails costs nobody; only when too few are left under way does the oldest waiting request fail.
        if len(self._waiting) > self._dialer.opening:
            exchange = self._waiting.popleft()
            self.ended(exchange, connect_end(error), time.monotonic_ns(), f"connect: {self.connect_problem:.150}")

    def _refill(self) -> None:
        if self._over:
            return
        cap = self.plan.concurrency_cap
        opening = self._dialer.opening
        room = None if cap is None else cap - self.open_connections - opening
        at_once = OPEN_AT_ONCE if time.monotonic_ns() >= self._no_open_before_ns else 0
        count = self._pool.to_open(waiting=len(self._waiting), opening=opening, at_once=at_once, room=room)
        self._dialer.open(count)

    # -- ends

    def ended(self, exchange: Exchange, kind: EndKind, now_ns: int, error: str) -> None:
        """Record an end, let the next held arrival go, and see whether that was the last."""
        exchange.end(kind, now_ns, error)
        self.live.discard(exchange)
        self._tally[ENDED] += 1
        self._tally[FAILED] += exchange.kind in FAILED_KINDS
        if self._sink is not None:
            self._sink.write(encode_exchange(exchange.raw(self._epoch_ns)))
        if exchange.followed:
            self._follow(exchange)
        exchange.forget()
        if not self._over and self._backlog and len(self.live) < (self.plan.concurrency_cap or 0):
            self._launch(self._backlog.popleft())
        self._see_if_done()

    def _follow(self, exchange: Exchange) -> None:
        pause_ns = 0 if exchange.completed() else self.plan.failed_pause_ns
        if pause_ns is not None and exchange.end_ns is not None:
            self._agenda.ended(exchange.request_id, exchange.end_ns - self._epoch_ns, pause_ns)
            self._rearm()
            return
        for request_id in self._agenda.lost(exchange.request_id):
            self._write_off(request_id, EndKind.NEVER_DUE)

    def _write_off(self, request_id: int, kind: EndKind, arrival_ns: int | None = None) -> None:
        """Record the end of a request that did not come due."""
        self._tally[ENDED] += 1
        end_ns = None if arrival_ns is None else time.monotonic_ns() - self._epoch_ns
        if self._sink is not None:
            self._sink.write(encode_exchange(not_sent(request_id, kind, arrival_ns, end_ns)))

    def _see_if_done(self) -> None:
        if self._tally[ENDED] == len(self._payloads) and not self.done.done():
            self.done.set_result(None)

    def _stop(self, exchange: Exchange, kind: EndKind, error: str) -> None:
        if exchange.connection is not None:
            exchange.connection.stop(kind, error)
            return
        for line in (self._waiting, self._backlog):
            if exchange in line:
                line.remove(exchange)
        self.ended(exchange, kind, time.monotonic_ns(), error)

    def _end_all(self, kind: EndKind, error: str) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.close()
        for exchange in [*self.live, *self._backlog]:
            self._stop(exchange, kind, error)
        for request_id, arrival_ns in self._agenda.rest():
            self._write_off(request_id, EndKind.NEVER_SENT, arrival_ns)
        self._see_if_done()


def _listed(values: Int64 | None) -> list[int]:
    return [] if values is None else values.tolist()
