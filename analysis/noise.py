"""The A/A noise floor: what identical arms differ by, printed beside every comparison (rigor 12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from analysis.compare import Side, compare
from analysis.effect_model import NoiseFloor
from analysis.model import Comparison, Effect, Reason

FREE = frozenset(
    {
        *("runtime.name", "runtime.version", "runtime.args", "runtime.env"),
        *("runtime.packages", "runtime.effective_config", "runtime.kv_capacity_tokens"),
        *("workload.window", "workload.digests", "result.declaration"),
    }
)
"""Coordinates an A/A run need not share with the comparison it stands beside: the treatment and what follows from it, and which slices of
the trace were played. Everything else (host and boot, model, trace, load, SLO, window, client) makes another noise."""


def identical(found: Comparison) -> bool:
    """Tell whether two cells are the same thing under two names: every coordinate equal, and comparable."""
    return found.comparable and not found.differences


def stands_apart(effect: Effect) -> bool:
    """Tell whether identical arms came out different: then the place measures something beside the arms."""
    return effect.verdict in ("better", "worse")


def broken_floor(noise: NoiseFloor) -> Reason:
    """Refuse a claim made where identical arms come out different."""
    e = noise.effect
    what = f"{e.b} against {e.a}, which are identical, came out {e.verdict}: {e.scale} [{e.low:.4g}, {e.high:.4g}] ({noise.source})"
    remedy = "find what differs between identical arms (order, neighbours, clock speed) or add replicates; no claim holds until they agree"
    return Reason("noise_floor", what, remedy)


def widest(floors: Sequence[NoiseFloor]) -> NoiseFloor | None:
    """Return the floor whose interval reaches farthest: of several A/A pairs the loudest is the floor, and one that stands apart is louder
    than any that does not, however wide.
    """
    return max(floors, key=lambda n: (stands_apart(n.effect), n.effect.high - n.effect.low, n.source), default=None)


def floors_of(effects: Sequence[Effect], twins: frozenset[frozenset[str]], campaign: str) -> tuple[NoiseFloor, ...]:
    """Return the floors that a campaign's own identical arms give; ``twins``: their names, two each."""
    return tuple(NoiseFloor(f"arms {e.a} and {e.b} of {campaign}", e) for e in effects if frozenset((e.a, e.b)) in twins)


def attach(effects: Sequence[Effect], floors: Sequence[NoiseFloor]) -> tuple[Effect, ...]:
    """Put beside each effect the widest floor of the campaign that is not the effect itself."""
    return tuple(_beside(e, widest([floor for floor in floors if floor.effect is not e])) for e in effects)


def _beside(effect: Effect, floor: NoiseFloor | None) -> Effect:
    reason = "" if floor else "no other two arms of this campaign are identical"
    return replace(effect, noise=floor, noise_reason=reason)


def stands_elsewhere(noise: Side, compared: Side) -> str:
    """Say in which coordinates an A/A run differs from the comparison it would stand beside; empty when it may."""
    found = compare(noise, compared, factors=FREE)
    return ", ".join(d.coordinate for d in found.differences if d.answer in ("different", "unknown"))
