"""Servers that somebody else runs: which coordinates are theirs to know, what their users vouch for, and how both meet what was seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from harness.observe import check_attested, check_pins
from harness.record.coordinates import RUN_COORDINATES, Coordinate, Known, NotApplicable, Unknown
from harness.record.facts import Fact, PinResult
from harness.record.spec import RunSpec
from harness.system import Arm, EvidenceClass, Pins

ATTACHED = "endpoint"
"""The runtime that we attach to and do not start."""

NO_GPU = "none"
OF_A_GPU = ("hardware.driver", "hardware.gpu_settings")
SPLITS = {f"parallelism.{axis}": f"server.{axis}_parallel" for axis in ("tensor", "pipeline", "data", "expert")}
"""Degrees of parallelism and the facts that state them."""

STATED = SPLITS | {"runtime.name": "server.engine", "parallelism.replicas": "server.replicas", "parallelism.disaggregation": "server.roles"}
"""Coordinates that are declared of a server we start, and the facts in which another one states them."""

BY_ROLE = "servers are counted by role"
UNCOUNTED = "attached endpoint: nobody counted how many servers answer behind it"

UNSAID = {
    "runtime.name": "it does not say what serves",
    "runtime.args": "somebody else started it",
    "runtime.env": "somebody else started it",
}


def unseen(spec: RunSpec, facts: Mapping[str, Fact]) -> dict[str, Coordinate]:
    """Coordinates that the manifest decides for a server we start and cannot decide for this one: seen by a fact, or unknown."""
    if spec.arm.runtime != ATTACHED:
        return {}
    sources = dict.fromkeys(UNSAID, "") | {"runtime.name": "server.engine"} | SPLITS
    reasons = UNSAID | dict.fromkeys(SPLITS, "it does not say how it is split")
    found = {name: _seen(facts.get(fact), f"attached endpoint: {reasons[name]}") for name, fact in sources.items()}
    return found | _behind(spec.pins, facts)


def _behind(pins: Pins, facts: Mapping[str, Fact]) -> dict[str, Coordinate]:
    """Servers behind the address, as they were counted: a pin says how many there should be, and nothing of how many there are."""
    roles, replicas = facts.get("server.roles"), _seen(facts.get("server.replicas"), UNCOUNTED)
    split = pins.parallelism.disaggregation
    if split is None:
        apart: Coordinate = Known(value="none", source="declared") if isinstance(replicas, Known) else Unknown(reason=UNCOUNTED)
        return {"parallelism.replicas": replicas, "parallelism.disaggregation": apart}
    counted = roles is not None and isinstance(roles.value, Mapping)
    apart = Known(value={**roles.value, "connector": split.connector}) if roles is not None and counted else Unknown(reason=UNCOUNTED)
    return {"parallelism.replicas": NotApplicable(reason=BY_ROLE), "parallelism.disaggregation": apart}


def _seen(fact: Fact | None, reason: str) -> Coordinate:
    return Unknown(reason=reason) if fact is None or fact.value is None else Known(value=fact.value)


def vouched(found: Mapping[str, Coordinate], arm: Arm, seen: Collection[str]) -> dict[str, Coordinate]:
    """What the user vouches for of all that was neither ``seen`` (though it changed since) nor declared, and what follows from it."""
    known = {n: Known(value=v, source="attested") for n, v in arm.attested.items() if n in RUN_COORDINATES and n not in seen}
    said: dict[str, Coordinate] = {n: k for n, k in known.items() if not isinstance(found.get(n), Known)}
    return said | implied({**found, **said})


def implied(found: Mapping[str, Coordinate]) -> dict[str, Coordinate]:
    """Coordinates without a meaning beside what is known: no accelerator, no driver or settings; a digest identifies files by itself."""
    said: dict[str, Coordinate] = {}
    gpu = found.get("hardware.gpu")
    if isinstance(gpu, Known) and gpu.value == NO_GPU:
        said |= {name: NotApplicable(reason="no accelerator") for name in OF_A_GPU if not isinstance(found.get(name), Known)}
    if isinstance(found.get("model.revision"), Unknown) and isinstance(found.get("model.digest"), Known):
        # The files' digest pins a local model more firmly than a name could.
        said["model.revision"] = NotApplicable(reason="identified by model.digest")
    return said


def held_pins(pins: Pins, arm: Arm, facts: Mapping[str, Fact], names: Mapping[str, str]) -> tuple[PinResult, ...]:
    """Every pin and every attestation against what was found; ``names``: coordinate -> fact."""
    held: Sequence[PinResult] = check_pins(pins, facts, arm.attested)
    return (*held, *check_attested(arm.attested, facts, {**names, **STATED}, held))


def evidence_class(own: EvidenceClass, facts: Mapping[str, Fact]) -> EvidenceClass:
    """Class of what is measured on a server: its runtime's, unless the server says that it is simulated itself."""
    stated = facts.get("server.evidence_class")
    return "synthetic" if stated is not None and stated.value == "synthetic" else own
