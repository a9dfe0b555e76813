"""Preemption and resume: the seed's eight cases, then each fact of the conjunction taken away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.reference.resume import (
    OWNERS,
    TICKET_CODES,
    Binding,
    Derived,
    Mode,
    Needs,
    PreemptionIntent,
    Receipt,
    Status,
    derive_ticket,
    reclaimed_rows,
)

NOW = Binding(request=7, generation=2, snapshot=30, epoch=10)
NEEDS = Needs()


def intent(target: int = 6, mode: Mode = Mode.PRESERVE_EXACT, fallback: Mode = Mode.RECOMPUTE, binding: Binding = NOW) -> PreemptionIntent:
    return PreemptionIntent(binding, mode, fallback, target, "cache short", "p", 4)


def receipt(kind: str, status: Status = Status.READY, binding: Binding = NOW, **facts: int) -> Receipt:
    return Receipt(OWNERS[kind], kind, binding, status, **facts)


def facts(ready_rows: int | None = None, preserved: Status = Status.READY, binding: Binding = NOW) -> list[Receipt]:
    """Everything that has to be ready; ``ready_rows`` None: nothing was preserved."""
    common = [
        receipt("release", binding=binding, reclaimed_rows=6),
        receipt("allocation", binding=binding),
        receipt("placement", binding=binding),
    ]
    kept = [] if ready_rows is None else [receipt("preservation", preserved, binding, ready_rows=ready_rows)]
    return common + kept


def interval(derived: Derived) -> tuple[int, int]:
    assert derived.ticket is not None, derived.problems
    return derived.ticket.rebuild_start, derived.ticket.target


def codes(derived: Derived) -> set[str]:
    return {problem.code for problem in derived.problems}


def test_exact_preservation_leaves_nothing_to_rebuild() -> None:
    derived = derive_ticket(NOW, intent(), facts(6), NEEDS)
    assert interval(derived) == (6, 6)
    assert derived.ticket is not None
    assert derived.ticket.recompute_rows == 0  # ordinary work goes on with [6, 7)


def test_full_recomputation_rebuilds_everything() -> None:
    assert interval(derive_ticket(NOW, intent(mode=Mode.RECOMPUTE), facts(), NEEDS)) == (0, 6)


def test_a_partial_exact_prefix_rebuilds_the_rest() -> None:
    assert interval(derive_ticket(NOW, intent(target=7), facts(4), NEEDS)) == (4, 7)


def test_failed_preservation_takes_the_declared_fallback() -> None:
    assert interval(derive_ticket(NOW, intent(target=5), facts(5, Status.FAILED), NEEDS)) == (0, 5)


def test_a_request_that_is_to_stay_suspended_has_no_ticket_whatever_came_through() -> None:
    assert codes(derive_ticket(NOW, intent(mode=Mode.REMAIN_SUSPENDED), facts(6), NEEDS)) == {"no_resume"}


def test_cancellation_makes_every_receipt_of_the_old_generation_stale() -> None:
    after = NOW._replace(generation=3, snapshot=31)
    derived = derive_ticket(after, intent(), facts(6), NEEDS)
    assert codes(derived) == {"cancelled"}
    assert len(derived.stale) == 4
    assert reclaimed_rows(after, facts(6)) == 0


def test_an_earlier_suspension_s_receipt_cannot_serve_a_later_one() -> None:
    again = NOW._replace(epoch=11)
    assert codes(derive_ticket(again, intent(), facts(6), NEEDS)) == {"stale_suspension"}
    mixed = [*facts(binding=again), receipt("preservation", binding=NOW, ready_rows=6)]
    derived = derive_ticket(again, intent(binding=again), mixed, NEEDS)
    assert codes(derived) == {"preservation_unready"}
    assert [old.binding.epoch for old in derived.stale] == [10]


def test_a_promotion_in_flight_gives_no_ticket() -> None:
    coming = [*facts(6), receipt("promotion", Status.INFLIGHT)]
    assert codes(derive_ticket(NOW, intent(), coming, Needs(promotion=True))) == {"promotion_unready"}
    assert interval(derive_ticket(NOW, intent(), [*facts(6), receipt("promotion")], Needs(promotion=True))) == (6, 6)


def test_a_release_in_flight_frees_nothing_and_gives_no_ticket() -> None:
    pending = [replace(r, status=Status.INFLIGHT) if r.kind == "release" else r for r in facts(6)]
    assert codes(derive_ticket(NOW, intent(), pending, NEEDS)) == {"release_unready"}
    assert (reclaimed_rows(NOW, pending), reclaimed_rows(NOW, facts(6))) == (0, 6)


def _without(kind: str) -> Callable[[], Derived]:
    return lambda: derive_ticket(NOW, intent(), [r for r in facts(6) if r.kind != kind], NEEDS)


REFUSED: dict[str, Callable[[], Derived]] = {
    "cancelled": lambda: derive_ticket(NOW, intent(), facts(6), NEEDS, cancelled=True),
    "stale_suspension": lambda: derive_ticket(NOW._replace(snapshot=31), intent(), facts(6), NEEDS),
    "release_unready": _without("release"),
    "allocation_unready": _without("allocation"),
    "placement_unready": _without("placement"),
    "preservation_unready": _without("preservation"),
    "promotion_unready": lambda: derive_ticket(NOW, intent(), facts(6), Needs(promotion=True)),
    "layers_unready": lambda: derive_ticket(NOW, intent(), [*facts(6), receipt("layer", layer=0)], Needs(layers=frozenset({0, 1}))),
    "preservation_failed": lambda: derive_ticket(NOW, intent(fallback=Mode.REMAIN_SUSPENDED), facts(6, Status.FAILED), NEEDS),
    "no_resume": lambda: derive_ticket(NOW, intent(fallback=Mode.ABORT), facts(6, Status.FAILED), NEEDS),
    "no_token_history": lambda: derive_ticket(NOW, intent(), facts(4), Needs(token_history=False)),
    "wrong_owner": lambda: derive_ticket(NOW, intent(), [*facts(6), replace(receipt("layer"), owner="scheduler")], NEEDS),
    "ready_frontier": lambda: derive_ticket(NOW, intent(), facts(7), NEEDS),
}


@pytest.mark.parametrize("code", REFUSED)
def test_one_missing_fact_refuses_the_ticket(code: str) -> None:
    derived = REFUSED[code]()
    assert derived.ticket is None
    assert codes(derived) == {code}


def test_every_ticket_code_has_a_fixture() -> None:
    assert set(REFUSED) == set(TICKET_CODES)


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 3), st.integers(0, 3))
def test_a_ticket_rebuilds_what_is_missing_and_nothing_else(target: int, ready: int, generation: int, epoch: int) -> None:
    binding = Binding(1, generation, 5, epoch)
    derived = derive_ticket(binding, intent(target, binding=binding), facts(ready, binding=binding), NEEDS)
    if ready > target:
        assert codes(derived) == {"ready_frontier"}
    else:
        assert interval(derived) == (ready, target)
