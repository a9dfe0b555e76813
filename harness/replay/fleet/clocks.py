"""How far a host's CLOCK_MONOTONIC stands from ours, from round trips of a question."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from harness.clock import Clock

ROUNDS = 40
"""Of forty round trips of about 1 ms each, the quickest met no queue on either side; more would let the clocks drift while we ask."""


class Round(NamedTuple):
    """One question: asked and answered on our clock, read on theirs in between (ns)."""

    asked_ns: int
    there_ns: int
    answered_ns: int


@dataclass(frozen=True, slots=True)
class Offset:
    """``offset_ns``: their clock minus ours; the truth lies within ``uncertainty_ns`` of it, however the two ways shared the delay."""

    offset_ns: int
    uncertainty_ns: int

    @property
    def holds_zero(self) -> bool:
        """Whether one and the same clock on both sides agrees with what was measured."""
        return abs(self.offset_ns) <= self.uncertainty_ns


def offset_of(rounds: Iterable[Round]) -> Offset:
    """Take the quickest round: its clock was read between question and answer, so the middle is off by half the delay at most.

    The minimum-delay rule of network time protocols (RFC 5905, section 10). Raises ValueError without rounds.
    """
    asked, there, answered = min(rounds, key=lambda r: r.answered_ns - r.asked_ns)
    # One nanosecond more: the middle of an odd delay is rounded.
    return Offset(there - (asked + answered) // 2, (answered - asked) // 2 + 1)


def measure(read: Callable[[], int], clock: Clock, rounds: int = ROUNDS) -> Offset:
    """Ask ``read`` (their clock, ns) ``rounds`` times against ``clock``, ours; raises what it raises."""
    found = []
    for _ in range(rounds):
        asked = clock.now_ns()
        found.append(Round(asked, read(), clock.now_ns()))
    return offset_of(found)
