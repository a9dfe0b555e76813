"""One worker away: where it sits, what it was dealt, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from harness.record.facts import Fact
from harness.replay.contract import Progress, ReplaySummary
from harness.replay.fleet.clocks import Offset
from harness.replay.fleet.cluster import Ref, Seat
from harness.replay.fleet.contract import Hello
from harness.replay.fleet.host import NOTHING
from harness.replay.fleet.pieces import Landing
from harness.replay.shares import Share

ASKED = "round trips over Ray"


@dataclass(slots=True, eq=False)
class Post:
    """``before``/``after``: its clock against ours, before and after the load. ``same_clock``: it is on this host, and what was measured
    agrees. ``standing``: its connections are. ``ref``: the look under way, asked for at ``asked_s``; ``hurry``: the next shall not wait.
    ``roles``: its process ids, when they mean something on this host.
    """

    share: Share
    seat: Seat
    landing: Landing
    hello: Hello | None = None
    before: Offset | None = None
    after: Offset | None = None
    same_clock: bool = False
    standing: bool = False
    roles: Mapping[str, int] = field(default_factory=dict)
    progress: Progress = NOTHING
    ref: Ref | None = None
    asked_s: float = 0.0
    hurry: bool = False
    over: bool = False
    fault: str | None = None
    summary: ReplaySummary | None = None

    @property
    def name(self) -> str:
        """What its samples and facts call it."""
        return self.share.label or "w0"

    @property
    def identity(self) -> str | None:
        """Machine and boot of its host, once it has said so."""
        return None if self.hello is None else self.hello.identity

    @property
    def shift_ns(self) -> int:
        """What is added to an instant on our clock to name it on its clock."""
        return 0 if self.same_clock or self.before is None else self.before.offset_ns

    def compared(self, before: Offset, *, here: bool) -> None:
        """Take note of the first comparison. One host has one clock, unless what was measured says otherwise (a time namespace)."""
        self.before, self.same_clock = before, here and before.holds_zero

    def facts_before(self) -> Iterator[tuple[str, Fact]]:
        """Where it ran and how its clock stood, as ``fleet.<name>.*``."""
        unseen = "it was lost before it said so"
        values = {
            "host": (self.identity, "host.machine and host.boot", unseen if self.hello is None else "no boot id"),
            "node": (self.seat.node, "Ray", ""),
            "nice": (None if self.hello is None else self.hello.nice, "getpriority", unseen),
            "clock": (None if self.before is None else "shared" if self.same_clock else "own", "host identity and " + ASKED, unseen),
            "shift_ns": (None if self.before is None else self.shift_ns, "host identity and " + ASKED, unseen),
            "offset_ns": (None if self.before is None else self.before.offset_ns, ASKED, unseen),
            "uncertainty_ns": (None if self.before is None else self.before.uncertainty_ns, ASKED, unseen),
        }
        for name, (value, source, reason) in values.items():
            yield f"fleet.{self.name}.{name}", Fact(value=value, source=source, reason=reason if value is None else "")

    def facts_after(self) -> Iterator[tuple[str, Fact]]:
        """How its clock stood after the load, and how far it went meanwhile."""
        after, before = self.after, self.before
        for name in ("offset_ns", "uncertainty_ns", "drift_ns"):
            if after is None or before is None:
                fact = Fact(reason=f"its clock was not compared again: {self.fault or 'lost'}", source=ASKED)
            else:
                value = after.offset_ns - before.offset_ns if name == "drift_ns" else getattr(after, name)
                fact = Fact(value=value, source=ASKED)
            yield f"fleet.{self.name}.{name}", fact
