"""Holding pins against facts. Matched, mismatched or unknown; what is not pinned is not mentioned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from harness.record.facts import Fact, PinResult
from harness.record.spec import Pins

Rule = Callable[[Any, Any], bool]

_COORDINATE = {"hardware.count": "hardware.gpu_count"}
"""Pins whose coordinate, which is what a user attests, has another name."""


def equal(expected: Any, observed: Any) -> bool:
    """Same value; text without regard to case."""
    if isinstance(expected, str) and isinstance(observed, str):
        return expected.casefold() == observed.casefold()
    return bool(expected == observed) and isinstance(expected, bool) == isinstance(observed, bool)


def prefix(expected: Any, observed: Any) -> bool:
    """Driver 580 holds for 580.65.06, not for 5801: the next character must end the number."""
    want, have = str(expected), str(observed)
    return have == want or (have.startswith(want) and not (want[-1:].isdigit() and have[len(want) :][:1].isdigit()))


def substring(expected: Any, observed: Any) -> bool:
    """CPU names carry clock rates and marketing words around the model."""
    return str(expected).casefold() in str(observed).casefold()


def check_pins(pins: Pins, facts: Mapping[str, Fact], attested: Mapping[str, Any] | None = None) -> tuple[PinResult, ...]:
    """Hold every pin against its fact, in the order of the manifest; where no fact is known, against what the arm's user ``attested``.

    An attestation (coordinate -> value) that contradicts a fact is a mismatch, whatever is pinned.

    A degree of parallelism of 1 that neither a fact nor the user speaks of is left out: it is the schema's default, not something that
    was pinned, and a runtime that cannot be split has no such fact. Above 1, silence is unknown.
    """
    said = attested or {}
    return tuple(_hold(*row, facts, said) for row in _rows(pins, facts, said))


def _rows(pins: Pins, facts: Mapping[str, Fact], attested: Mapping[str, Any]) -> Iterator[tuple[str, Any, str, Rule]]:
    """Yield (pin, expected, fact, rule) of everything that is pinned."""
    model, hardware = pins.model, pins.hardware
    rows: list[tuple[str, Any, str, Rule]] = [
        ("model.id", model.id, "model.id", equal),
        ("model.revision", model.revision, _revision_fact(facts), _revision),
        ("model.dtype", model.dtype, "server.dtype", equal),
        ("model.quantization", model.quantization, "server.quantization", equal),
        ("hardware.gpu", hardware.gpu, "host.gpu", equal),
        ("hardware.count", hardware.count, "host.gpu_count", equal),
        ("hardware.driver", hardware.driver, "host.driver", prefix),
        ("hardware.cpu", hardware.cpu, "host.cpu_model", substring),
        ("hardware.cores", hardware.cores, "host.cores", equal),
    ]
    yield from (row for row in rows if row[1] is not None)
    yield from _placement(pins, facts)
    for axis, degree in pins.parallelism.model_dump(exclude={"replicas", "disaggregation"}).items():
        fact = f"server.{axis}_parallel"
        if degree != 1 or fact in facts or f"parallelism.{axis}" in attested:
            yield f"parallelism.{axis}", degree, fact, equal


def _placement(pins: Pins, facts: Mapping[str, Fact]) -> Iterator[tuple[str, Any, str, Rule]]:
    """Servers behind the address. Without addresses to ask, one server is what we started ourselves, or nobody's to know."""
    replicas, roles = pins.parallelism.replicas, pins.parallelism.disaggregation
    if replicas is not None and (replicas != 1 or "server.replicas" in facts):
        yield "parallelism.replicas", replicas, "server.replicas", equal
    if roles is not None:
        # What carries the cache is no page's to say: it stands in the coordinates as declared.
        yield "parallelism.disaggregation", {"prefill": roles.prefill, "decode": roles.decode}, "server.roles", equal


def _revision_fact(facts: Mapping[str, Fact]) -> str:
    """A local directory has no revision; its content digest identifies it more firmly."""
    revision = facts.get("model.revision")
    return "model.revision" if revision is not None and revision.value is not None else "model.digest"


def _revision(expected: Any, observed: Any) -> bool:
    """A revision or digest may be abbreviated, to no fewer than 7 digits: below, two contents could share it."""
    want, have = str(expected), str(observed)
    return have == want or (len(want) >= 7 and have.startswith(want))


def _hold(pin: str, expected: Any, name: str, rule: Rule, facts: Mapping[str, Fact], attested: Mapping[str, Any]) -> PinResult:
    fact, said = facts.get(name), attested.get(_COORDINATE.get(pin, pin))
    if fact is not None and fact.value is not None:
        return _observed(pin, expected, name, rule, fact.value, said)
    if said is not None:
        held = rule(expected, said)
        return PinResult(
            pin=pin,
            expected=expected,
            observed=said,
            result="matched" if held else "mismatched",
            reason="attested" if held else f"{said!r} is attested",
            source="attested",
        )
    reason = fact.reason if fact is not None and fact.reason else f"fact {name} was not collected"
    return PinResult(pin=pin, expected=expected, result="unknown", reason=reason)


def _observed(pin: str, expected: Any, name: str, rule: Rule, value: Any, said: Any) -> PinResult:
    """What was seen decides; who vouched for something else vouched for another system, even where the pin itself holds."""
    held, agreed = rule(expected, value), said is None or rule(said, value)
    reasons = ([] if held else [f"{name} is {value!r}"]) + ([] if agreed else [f"{said!r} is attested, {value!r} was found"])
    result: Literal["matched", "mismatched"] = "matched" if held and agreed else "mismatched"
    return PinResult(pin=pin, expected=expected, observed=value, result=result, reason="; ".join(reasons), source="observed")


def check_attested(
    attested: Mapping[str, Any], facts: Mapping[str, Fact], names: Mapping[str, str], pins: Sequence[PinResult]
) -> tuple[PinResult, ...]:
    """Hold what an endpoint's user vouches for against what was seen after all; ``names``: coordinate -> fact.

    Only what none of ``pins`` spoke of, and only where there is a fact: the rest stays somebody's word.
    """
    found, spoken = [], {_COORDINATE.get(p.pin, p.pin) for p in pins}
    for name, said in sorted(attested.items()):
        fact = facts.get(names.get(name, ""))
        if name in spoken or fact is None or fact.value is None:
            continue
        held = _same(said, fact.value)
        reason = "" if held else f"{said!r} is attested, {fact.value!r} was found"
        result: Literal["matched", "mismatched"] = "matched" if held else "mismatched"
        found.append(PinResult(pin=name, expected=said, observed=fact.value, result=result, reason=reason, source="observed"))
    return tuple(found)


def _same(said: Any, value: Any) -> bool:
    """An attestation is one word or number; of what has parts it can only be the text."""
    return equal(said, value) or (isinstance(value, Mapping | list | tuple) and str(said) == str(value))
