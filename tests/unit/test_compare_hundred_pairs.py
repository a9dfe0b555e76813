"""Pairs that must be refused and pairs that must not, each made from a comparable base by changing one thing; no error among them.

Refused pairs name the changed coordinate and nothing else. Pairs are generated from the registry, so that a new coordinate joins by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from analysis.compare import HOST_FACTS, NEVER_FACTORS, Side, compare
from analysis.coordinates import ALL_COORDINATES, result_coordinates
from harness.record.canonical import canonical_json
from harness.record.coordinates import CONSEQUENCES, RUN_COORDINATES, Coordinate, Known, NotApplicable, Unknown
from harness.record.spec import LoadPoint, Rank, Slo
from tests.builders import make_coordinates

NONE, BLANK = NotApplicable(reason="there is none"), Unknown(reason="could not be read")
TREATMENT = frozenset({"runtime.args"})
RESULT = result_coordinates(Rank(metric="goodput", margin=0.02), "goodput", Slo(ttft_ns=1), LoadPoint(kind="rate", value=1.0))
BASE: Mapping[str, Coordinate] = make_coordinates(workload_digests=Known(value={"0": "d0", "1": "d1"})) | RESULT


@dataclass(frozen=True)
class Pair:
    """A pair and what it is about; ``named``: the coordinates that its answer lists."""

    about: str
    a: Side
    b: Side
    named: frozenset[str]
    factors: frozenset[str] = frozenset()
    same_campaign: bool = False

    def answer(self) -> tuple[bool, frozenset[str]]:
        found = compare(self.a, self.b, factors=self.factors, same_campaign=self.same_campaign)
        return found.comparable, frozenset(d.coordinate for d in found.differences)


def side(changes: Mapping[str, Coordinate] | None = None, declared: frozenset[str] = frozenset()) -> Side:
    return Side("side", {**BASE, **(changes or {})}, declared)


def another(name: str) -> Known:
    """A value of the same kind as the base's that differs in one place."""
    value = getattr(BASE[name], "value", None)
    return Known(value={**value, "1": "other"} if isinstance(value, dict) else f"{value}, but another")


def valued(name: str) -> Known | None:
    """A value where the base has none; None: the base's own."""
    return None if isinstance(BASE[name], Known) else Known(value="one")


def pair(about: str, name: str, one: Coordinate | None, two: Coordinate | None, **more: Any) -> Pair:
    """A pair whose sides have ``one`` and ``two`` at ``name``; None: as the base has it."""
    sides = [side({} if c is None else {name: c}, more.get("declared", frozenset())) for c in (one, two)]
    rest = {k: v for k, v in more.items() if k != "declared"}
    return Pair(f"{about}: {name}", sides[0], sides[1], frozenset({name}), **rest)


def refused() -> Iterator[Pair]:
    for name in ALL_COORDINATES:
        base = BASE[name]
        yield pair("another value", name, None, another(name))
        yield pair("unknown on one side", name, None, BLANK)
        yield pair("not recorded on one side", name, None, None)
        if name not in HOST_FACTS:
            yield pair("unknown on both sides", name, BLANK, BLANK)
        yield pair("a value against not applicable", name, valued(name), NONE)
        if isinstance(base, Known):
            yield pair("text against the number it spells", name, Known(value="1"), Known(value=1))
        yield pair(
            "another coordinate is the factor",
            name,
            None,
            another(name),
            factors=frozenset({"runtime.version"} - {name} or {"runtime.args"}),
        )
        yield pair("unknown, though declared", name, None, BLANK, declared=frozenset({name}), same_campaign=True)
        yield pair("unknown, though a factor", name, BLANK, another(name), factors=frozenset({name}))
        yield pair("declared, but in another campaign", name, None, another(name), declared=frozenset({name}))
    for name in sorted(NEVER_FACTORS):
        yield pair("can't be a factor", name, None, another(name), factors=frozenset({name}))
        yield pair("can't be declared", name, None, another(name), declared=frozenset({name}), same_campaign=True)
    for name in sorted(CONSEQUENCES):
        yield pair("a consequence of nothing", name, None, another(name), same_campaign=True)
        yield pair("a consequence of a treatment that does not differ", name, None, another(name), declared=TREATMENT, same_campaign=True)
    for name in sorted(HOST_FACTS):
        yield pair("a host fact known on one side of one host", name, BLANK, None)


def nothing_recorded(one: Pair) -> Pair:
    """Take the coordinate itself out of the second side."""
    if not one.about.startswith("not recorded"):
        return one
    (name,) = one.named
    return replace(one, b=Side("side", {n: c for n, c in one.b.coordinates.items() if n != name}))


def allowed() -> Iterator[Pair]:
    yield Pair("a base against itself", side(), side(), frozenset())
    yield Pair("the same names in another order", side(), Side("side", {name: BASE[name] for name in reversed(list(BASE))}), frozenset())
    for name in ALL_COORDINATES:
        equal = frozenset[str]()
        yield replace(pair("not applicable on both, in other words", name, NONE, NotApplicable(reason="elsewhere too")), named=equal)
        yield replace(pair("the same value from another source", name, Known(value=1, source="attested"), Known(value=1)), named=equal)
        one, two = Known(value={"x": 1, "y": [1, {"p": 0.1 + 0.2, "q": None}]}), Known(value={"y": [1, {"q": None, "p": 0.3}], "x": 1})
        yield replace(pair("the same mapping in another order", name, one, two), named=equal)
        if name in NEVER_FACTORS:
            continue
        yield pair("a factor", name, None, another(name), factors=frozenset({name}))
        yield pair("a factor that one side does not have", name, valued(name), NONE, factors=frozenset({name}))
        yield pair("declared", name, None, another(name), declared=frozenset({name}), same_campaign=True)
    for name in sorted(CONSEQUENCES):
        cause = "runtime.version" if name == "runtime.packages" else "runtime.args"
        treated = frozenset({cause})
        for treatment in (Known(value="another"), NONE):
            changes: dict[str, Coordinate] = {cause: treatment, name: another(name)}
            yield Pair(f"follows: {name}", side({}, treated), side(changes, treated), treated | {name}, same_campaign=True)
            yield Pair(f"follows from a factor: {name}", side(), side(changes), treated | {name}, factors=treated)
    for name in sorted(HOST_FACTS):
        yield replace(pair("a host fact unknown on both sides of one host", name, BLANK, BLANK), named=frozenset())


REFUSED, ALLOWED = [nothing_recorded(p) for p in refused()], list(allowed())


def test_there_are_enough_pairs_of_each_kind_and_each_is_another() -> None:
    assert len(REFUSED) >= 50
    assert len(ALLOWED) >= 50
    for pairs in (REFUSED, ALLOWED):
        assert len({p.about for p in pairs}) >= len(pairs) - len(CONSEQUENCES) * 2  # a consequence follows from two kinds of treatment
    assert {name for p in REFUSED for name in p.named} == set(ALL_COORDINATES)


def test_no_pair_that_must_be_refused_is_compared() -> None:
    wrong = [p.about for p in REFUSED if p.answer() != (False, p.named)]
    assert wrong == []


def test_no_pair_that_may_be_compared_is_refused() -> None:
    wrong = [p.about for p in ALLOWED if p.answer() != (True, p.named)]
    assert wrong == []


def test_a_pair_has_one_answer_from_both_sides() -> None:
    for p in (*REFUSED, *ALLOWED):
        assert replace(p, a=p.b, b=p.a).answer() == p.answer()


@pytest.mark.parametrize("one", [p for p in REFUSED if p.about.startswith(("another value", "unknown on one side"))], ids=lambda p: p.about)
def test_a_refusal_says_both_values_and_the_way_out(one: Pair) -> None:
    (difference,) = compare(one.a, one.b).differences
    (name,) = one.named
    assert difference.answer == ("unknown" if isinstance(one.b.coordinates[name], Unknown) else "different")
    assert difference.a != difference.b
    assert name in difference.remedy


def test_every_coordinate_of_a_record_is_compared() -> None:
    assert set(RUN_COORDINATES) <= set(ALL_COORDINATES)
    assert all(canonical_json(getattr(c, "value", None)) is not None for c in BASE.values())
