"""Real time for the time-free engine: an iteration's tokens are published at its planned end, on absolute deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from harness.alarm import Alarm
from harness.clock import Clock
from harness.reference.contract import IterationResult
from harness.reference.deployment import NOT_MOVING
from harness.reference.engine import Engine
from harness.reference.iterations import Iterations
from harness.reference.latencies import Latencies


class Sink(Protocol):
    """Takes the tokens of one request."""

    def fail(self) -> None:
        """End the answer with an error: the engine broke, no token will follow."""
        ...

    def publish(self, token: int, finish: str | None) -> None:
        """Send one token; ``finish`` is the reason when it is the last."""
        ...

    def decline(self, reason: str) -> None:
        """Answer that the policy will not serve the request; nothing of it was sent."""
        ...

    def reused(self, tokens: int) -> None:
        """Take note, before the first token, of how much of the prompt came from the prefix store; not called when nothing did."""
        ...


@dataclass(slots=True)
class Lateness:
    """How far this process fell behind its own declared times, ns.

    ``restarts``: it was more than one iteration behind and gave up catching up; the declared cost did not hold for that stretch.
    """

    iterations: int = 0
    total_ns: int = 0
    worst_ns: int = 0
    restarts: int = 0

    def note(self, late_ns: int) -> None:
        """Add one iteration."""
        self.iterations += 1
        self.total_ns += late_ns
        self.worst_ns = max(self.worst_ns, late_ns)


@dataclass(slots=True)
class Counters:
    """Monotone totals since the start, tokens and requests."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    stopped: int = 0
    at_length: int = 0
    aborted: int = 0
    declined: int = 0


class Driver:
    """Runs iterations back to back while there is work: each starts at the planned end of the one before, not when we got round to it.

    Otherwise our own bookkeeping would add itself to every iteration and the declared cost would not be the observed one.
    """

    def __init__(
        self, engine: Engine, clock: Clock, alarm: Alarm, loop: asyncio.AbstractEventLoop, on_fault: Callable[[], None] = lambda: None
    ) -> None:
        """``on_fault`` is called once, after an exception ended every answer; ``fault`` then says what it was."""
        self.engine = engine
        self.fault: Exception | None = None
        self._on_fault = on_fault
        self.counters = Counters()
        self.lateness = Lateness()
        self.iterations = Iterations()
        self.latencies = Latencies()
        self._clock = clock
        self._alarm = alarm
        self._loop = loop
        self._sinks: dict[str, Sink] = {}
        self._deadline_ns: int | None = None
        self._receipt_ns: int | None = None  # when idle: the instant to look again, because a transfer ends then
        self._cost_ns = 0
        self._kicked = False
        loop.add_reader(alarm.fd, self._on_alarm)

    def now_ns(self) -> int:
        """Instant on the engine's clock."""
        return self._clock.now_ns()

    def attach(self, request_id: str, sink: Sink) -> None:
        """Route the tokens of a request just submitted to ``sink`` and wake the engine if it is idle."""
        if self.fault is not None:
            sink.fail()
            return
        self._sinks[request_id] = sink
        self.latencies.arrived(request_id, self._clock.now_ns())
        self._kick()

    def detach(self, request_id: str) -> None:
        """Abort a request whose client left; its KV is freed at the next cut."""
        if self._sinks.pop(request_id, None) is not None:
            self.counters.aborted += 1
            self.latencies.forget(request_id)
            self.engine.abort(request_id)
            self._kick()

    def close(self) -> None:
        """Stop the alarm."""
        self._loop.remove_reader(self._alarm.fd)
        self._alarm.close()

    def _kick(self) -> None:
        # Through call_soon, so that arrivals of one socket sweep are planned together.
        if self._deadline_ns is None and not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._kicked = False
        if self._deadline_ns is None:
            self._guarded(lambda: self._plan(self._clock.now_ns()))

    def _guarded(self, step: Callable[[], None]) -> None:
        """Take one step of the engine. Out of a callback an exception would only be logged, and the server live on without serving."""
        if self.fault is not None:
            return
        try:
            step()
        except Exception as error:
            self.fault = error
            sinks, self._sinks = self._sinks, {}
            self._deadline_ns = self._receipt_ns = None
            for sink in sinks.values():
                sink.fail()
            self._on_fault()

    def _plan(self, start_ns: int) -> None:
        begun = self.engine.begin(start_ns)
        self._receipt_ns = None
        self._decline()
        if begun is None:
            self._deadline_ns = None
            self._await_receipt()
            return
        self._cost_ns = begun[1]
        self._deadline_ns = start_ns + self._cost_ns
        self._alarm.arm(self._deadline_ns)

    def _await_receipt(self) -> None:
        receipt = self.engine.next_receipt_ns
        if receipt != NOT_MOVING:
            self._receipt_ns = receipt
            self._alarm.arm(receipt)

    def _decline(self) -> None:
        if not len(self.engine.state.declined[0]):
            return
        for request_id, reason in self.engine.take_declined():
            sink = self._sinks.pop(request_id, None)
            if sink is not None:  # else its client left while the iteration ran
                self.counters.declined += 1
                self.latencies.forget(request_id)
                sink.decline(reason)

    def _on_alarm(self) -> None:
        self._alarm.clear()
        self._guarded(self._step)

    def _step(self) -> None:
        deadline = self._deadline_ns
        if deadline is None:
            if self._receipt_ns is not None and self._clock.now_ns() >= self._receipt_ns:
                self._plan(self._receipt_ns)
            return
        now = self._clock.now_ns()
        if now < deadline:  # a firing of an earlier setting
            self._alarm.arm(deadline)
            return
        self.lateness.note(now - deadline)
        self._publish(self.engine.complete(deadline))
        behind = self._clock.now_ns() - deadline
        if behind > max(self._cost_ns, 1_000_000):  # 1 ms: below it a catch-up is invisible beside any iteration worth declaring
            self.lateness.restarts += 1
            deadline += behind
        self._plan(deadline)

    def _publish(self, result: IterationResult) -> None:
        counters, now_ns = self.counters, self._clock.now_ns()
        self.iterations.add(result.rows)
        for request_id, token, prompt_tokens, finish, cached_tokens in self.engine.tokens_of(result):
            counters.generation_tokens += 1
            counters.prompt_tokens += prompt_tokens
            counters.cached_tokens += cached_tokens
            sink = self._sinks.get(request_id)
            if sink is None:  # its client left while the iteration ran
                continue
            if finish is not None:
                del self._sinks[request_id]
                counters.stopped += finish == "stop"
                counters.at_length += finish == "length"
            self.latencies.token(request_id, now_ns, last=finish is not None)
            if cached_tokens:
                sink.reused(cached_tokens)
            sink.publish(token, finish)
        self._decline()
