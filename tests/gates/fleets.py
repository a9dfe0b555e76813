"""Facts of runs whose workers sat on the hosts of a Ray cluster, for the gates of the client."""

from __future__ import annotations

from typing import Any

from harness.record.coordinates import Known
from harness.record.facts import Fact, Facts
from tests.builders import MS, make_certificate, make_coordinates, make_facts, make_host_samples, make_spec


def fleet_facts(
    *,
    offset_ns: int = 10**12,
    drift_ns: int = 0,
    uncertainty_ns: int = MS // 2,
    shared: bool = False,
    lost: bool = False,
    unseen: bool = False,
) -> Facts:
    """Worker w0 shares the driver's clock; w1 stood ``offset_ns`` away and ``drift_ns`` farther after the load. ``unseen``: nothing
    is told of w1 at all."""
    before: dict[str, Any] = {"clock": "shared" if shared else "own", "shift_ns": 0 if shared else offset_ns, "offset_ns": offset_ns}
    after: dict[str, Any] = {"offset_ns": offset_ns + drift_ns}
    base = make_facts()
    found = []
    for when, values in ((base.before, before), (base.after, after)):
        near = {"clock": "shared", "shift_ns": 0, "offset_ns": 1000} if values is before else {"offset_ns": -1000}
        facts = {f"fleet.w0.{name}": Fact(value=value) for name, value in (near | {"uncertainty_ns": 300_000}).items()}
        facts |= {f"fleet.w1.{name}": Fact(value=value) for name, value in (values | {"uncertainty_ns": uncertainty_ns}).items()}
        found.append({**when, **facts})
    if lost:
        found[1] |= {name: Fact(reason="its clock was not compared again: gone") for name in found[1] if name.startswith("fleet.w1.")}
    if unseen:
        found = [{name: fact for name, fact in facts.items() if not name.startswith("fleet.w1.")} for facts in found]
    return base.model_copy(update={"before": found[0], "after": found[1]})


def of_workers(*names: str) -> list[dict[str, Any]]:
    """Host samples in which each of the named workers has its own, all alike."""
    samples = make_host_samples()
    others = [s for s in samples if s["source"] != "client"]
    return others + [s | {"labels": name} for name in names for s in samples if s["source"] == "client"]


def of_fleet(hosts: Any = "m:b", **facts: Any) -> dict[str, Any]:
    """Parts of a record: its spec, its facts and the client's hosts."""
    return {
        "spec": make_spec(workers=2, fleet="ray", certificate=make_certificate(workers=2)),
        "facts": fleet_facts(**facts),
        "host": of_workers("w0", "w1"),
        "coordinates": make_coordinates(client_host=Known(value=hosts)),
    }
