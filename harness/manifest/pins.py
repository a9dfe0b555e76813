"""Pins of one arm, and which coordinates arms differ in on purpose."""

from __future__ import annotations

from typing import Any

from harness.manifest.schema import Arm, Pins, PinsOverride
from harness.record import spec

_COORDINATE = {"hardware.count": "hardware.gpu_count"}
"""Pins whose coordinate has another name."""


def merge_pins(pins: Pins, override: PinsOverride) -> spec.Pins:
    """Return the pins of an arm: the campaign's, with what the arm overrides."""
    merged = pins.model_dump()
    for section, values in override.model_dump().items():
        merged[section] |= {key: value for key, value in values.items() if value is not None}
    return spec.Pins.model_validate(merged)


def pin_coordinates(pins: spec.Pins) -> dict[str, Any]:
    """Return pinned values by the name of their run coordinate; null: not pinned."""
    pairs = ((f"{section}.{key}", value) for section, values in pins.model_dump().items() for key, value in values.items())
    return {_COORDINATE.get(name, name): value for name, value in pairs}


def stated(arm: Arm, pins: Pins) -> dict[str, Any]:
    """Return every coordinate an arm's own text decides."""
    own: dict[str, Any] = {
        "runtime.name": arm.runtime,
        "runtime.version": arm.version,
        "runtime.args": arm.args,
        "runtime.env": arm.env,
    }
    if arm.without_clients:  # the schedule follows from it, and with it its digest
        own |= {"workload.transforms": sorted(arm.without_clients), "workload.digests": sorted(arm.without_clients)}
    pinned = pin_coordinates(merge_pins(pins, arm.pins))
    if pinned["parallelism.disaggregation"] is not None:  # whose servers are counted by role
        pinned["parallelism.replicas"] = "by role"
    return own | pinned | arm.attest


def declared(arms: dict[str, Arm], pins: Pins) -> dict[str, tuple[str, ...]]:
    """Return, by arm, the coordinates in which it differs on purpose from the first arm by name.

    For any pair the union of the two covers every stated difference (two arms that differ cannot both agree with the first), and holds
    nothing that neither arm changed: what arm c changes excuses no difference between a and b.
    """
    ordered = sorted(arms)
    first = stated(arms[ordered[0]], pins)
    return {name: _differing(first, stated(arms[name], pins)) for name in ordered}


def _differing(a: dict[str, Any], b: dict[str, Any]) -> tuple[str, ...]:
    # The type counts: argument 1 and argument true are the same to Python and not to a command line.
    return tuple(sorted(k for k in a.keys() | b.keys() if repr(a.get(k)) != repr(b.get(k)) and not _same_mapping(a.get(k), b.get(k))))


def _same_mapping(a: Any, b: Any) -> bool:
    return isinstance(a, dict) and isinstance(b, dict) and sorted(map(repr, a.items())) == sorted(map(repr, b.items()))
