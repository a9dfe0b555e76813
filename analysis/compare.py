"""The comparison-coordinate rule (F67): two results compare when every coordinate is equal or differs on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.coordinates import ALL_COORDINATES
from analysis.model import Answer, Comparison, Difference
from harness.errors import Problem, UsageError
from harness.record.canonical import canonical_json
from harness.record.coordinates import CAUSES, CONSEQUENCES, Coordinate, Known, NotApplicable, Unknown

HOST_FACTS = frozenset({"hardware.gpu", "hardware.gpu_count", "hardware.driver", "hardware.cpu", "hardware.cores", "hardware.memory"})
"""Facts about the server's machine; on the same machine and boot they are equal by that identity even where they could not be read."""

NEVER_FACTORS = frozenset(
    {
        *("evidence.class", "protocol.measurement"),
        *("result.metric", "result.unit", "result.denominator", "result.percentile_rule"),
        *("result.slo", "result.fairness", "result.baseline"),
    }
)
"""Coordinates no declaration may vary: classes of evidence are never mixed, another protocol is another instrument, and figures that mean
something else have no difference. What a valid request is, and what is called fair, are part of that: a laxer limit is no better server."""


@dataclass(frozen=True, slots=True)
class Side:
    """One result to compare: its name, all its coordinates (run and result) and the coordinates its arm declares as treatment."""

    name: str
    coordinates: Mapping[str, Coordinate]
    declared: frozenset[str] = frozenset()


def compare(a: Side, b: Side, *, factors: frozenset[str] = frozenset(), same_campaign: bool = False) -> Comparison:
    """Hold two results side by side over every registered coordinate.

    Within a campaign what the arms declare may differ; across campaigns only what ``factors`` names may. A coordinate absent on a side is
    unknown there. Nothing short-circuits: the answer lists every coordinate that is not plainly equal.
    """
    allowed = ((a.declared | b.declared) if same_campaign else frozenset()) | factors
    allowed -= NEVER_FACTORS
    found: list[Difference] = []
    equal = 0
    declared = _declared_differences(a, b, allowed)
    for name in ALL_COORDINATES:
        one, two = _side(a, name), _side(b, name)
        answer = _answer(name, one, two, allowed, declared, _same_host(a, b))
        if answer == "equal":
            equal += 1
        else:
            found.append(Difference(name, _shown(one), _shown(two), answer, _remedy(name, one, two, answer)))
    comparable = all(d.answer in ("differs_by_declaration", "differs_by_consequence") for d in found)
    return Comparison(a.name, b.name, comparable, tuple(found), equal)


def check_factors(names: Iterable[str]) -> frozenset[str]:
    """Return the named coordinates as factors. UsageError names those that do not exist; what no
    declaration may vary is left to ``compare``, which says so in its answer."""
    wanted = sorted(set(names))
    problems = [
        Problem("factor_unknown", f"factor={name}: there is no such coordinate", "choose among: " + ", ".join(ALL_COORDINATES))
        for name in wanted
        if name not in ALL_COORDINATES
    ]
    if problems:
        raise UsageError(*problems)
    return frozenset(wanted)


def _side(side: Side, name: str) -> Coordinate:
    return side.coordinates.get(name, Unknown(reason="not recorded"))


def _same_host(a: Side, b: Side) -> bool:
    return _equal(_side(a, "hardware.host"), _side(b, "hardware.host"))


def _equal(one: Coordinate, two: Coordinate) -> bool:
    if isinstance(one, NotApplicable) and isinstance(two, NotApplicable):
        return True
    return isinstance(one, Known) and isinstance(two, Known) and canonical_json(one.value) == canonical_json(two.value)


def _declared_differences(a: Side, b: Side, allowed: frozenset[str]) -> frozenset[str]:
    """Name the declared coordinates that really differ: without one nothing can be a consequence."""
    pairs = ((n, _side(a, n), _side(b, n)) for n in allowed)
    return frozenset(n for n, x, y in pairs if not isinstance(x, Unknown) and not isinstance(y, Unknown) and not _equal(x, y))


def _follows(name: str, declared: frozenset[str]) -> bool:
    """Whether ``name`` is on the closed list and one of the differences ``declared`` can be its cause."""
    return name in CONSEQUENCES and any(cause.startswith(CAUSES[name]) for cause in declared)


def _answer(name: str, one: Coordinate, two: Coordinate, allowed: frozenset[str], declared: frozenset[str], same_host: bool) -> Answer:
    if _equal(one, two):
        return "equal"
    if isinstance(one, Unknown) or isinstance(two, Unknown):
        both = isinstance(one, Unknown) and isinstance(two, Unknown)
        return "equal" if both and same_host and name in HOST_FACTS else "unknown"
    if name in allowed:
        return "differs_by_declaration"
    if _follows(name, declared):
        return "differs_by_consequence"
    return "different"


def narrow(a: Any, b: Any) -> tuple[Any, Any]:
    """Reduce two mappings to the parts in which they differ, for printing; anything else is returned as it is."""
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        return a, b
    pairs = {key: narrow(a.get(key), b.get(key)) for key in sorted({*a, *b}) if a.get(key) != b.get(key)}
    return {key: one for key, (one, _) in pairs.items()}, {key: two for key, (_, two) in pairs.items()}


def _shown(coordinate: Coordinate) -> object:
    return coordinate.value if isinstance(coordinate, Known) else f"{coordinate.state} ({coordinate.reason})"


def _remedy(name: str, one: Coordinate, two: Coordinate, answer: Answer) -> str:
    meaning = ALL_COORDINATES[name]
    if answer == "unknown":
        sides = " and ".join(s for s, c in (("a", one), ("b", two)) if isinstance(c, Unknown))
        return f"make {name} ({meaning}) known on side {sides}: pin it in the manifest, or attest it for an attached endpoint"
    if answer == "different":
        if name in NEVER_FACTORS:
            return f"repeat one side so that {name} ({meaning}) agrees; this coordinate can't be a factor"
        return f"run both with the same {name} ({meaning}), or declare it as the treatment (an arm's field, or --factor {name})"
    return "none needed"
