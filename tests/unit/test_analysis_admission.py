from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import admission
from analysis.admission import (
    Admission,
    AdmissionPlan,
    Budget,
    Candidates,
    Deferral,
    Extension,
    Preemption,
    active_bytes,
    by_maximum,
    by_point,
    by_quantile,
    future_rows,
    plan_admission,
    recover,
    settle,
)
from harness.errors import UsageError

ROW_BYTES = 131_072
KIB = 1024


def column(*values: int) -> admission.Int64:
    return np.array(values, dtype=np.int64)


# The seed's 28-row table (section 0x06)

HARD, RESERVED, WATERMARK = 28, 8, 4
"""Given by the seed, as are: three first-come requests with one output emitted, C of the lowest priority, and the results tested below."""


def three_requests() -> Candidates:
    """The seed's table of forecasts is lost: maxima, points and draws are reconstructed so that its results come out.

    They are bound to: realized rows of 21 in all and 14 for A and B (29 and 22 rows with the 8 reserved), point rows of 10, p90 rows of 18
    of which C lacks 2 and A and B lack 1, maximum rows of 19 for A and B.
    """
    return Candidates(
        request_id=("A", "B", "C"),
        emitted=column(1, 1, 1),
        uncached_rows=column(0, 0, 0),
        declared_max=column(12, 9, 10),
        point=column(5, 4, 4),
        draws=np.array([[12, 3, 3, 4, 9, 5, 6, 7, 5, 2], [2, 9, 3, 6, 4, 4, 4, 5, 3, 2], [6, 2, 3, 3, 4, 4, 5, 5, 1, 10]]),
        prediction="reconstructed-1",
    )


REALIZED = column(9, 7, 8)
"""Reconstructed as well; nothing below sees it but ``settle``."""

PRIORITY = column(0, 0, 4)


def plan_of(name: str) -> AdmissionPlan:
    requests = three_requests()
    held_back = WATERMARK if name == "watermark" else 0
    forecast = {"maximum": by_maximum(requests), "point": by_point(requests)}.get(name, by_quantile(requests, 0.9))
    return plan_admission(name, requests, forecast, Budget(HARD, RESERVED, 7, held_back), ROW_BYTES)


@pytest.mark.parametrize(
    ("policy", "admits", "unused", "under", "occupied", "breach"),
    [("maximum", "AB", 5, 0, 22, 0), ("point", "ABC", 0, 11, 29, 1), ("p90", "ABC", 0, 3, 29, 1), ("watermark", "AB", 0, 1, 22, 0)],
)
def test_the_28_row_table(policy: str, admits: str, unused: int, under: int, occupied: int, breach: int) -> None:
    plan = plan_of(policy)
    found = settle(plan, REALIZED)
    assert "".join(i.request_id for i in plan.intents if isinstance(i, Admission)) == admits
    assert (found.unused_rows, found.under_rows, found.occupied_rows, found.breach_rows) == (unused, under, occupied, breach)
    assert (found.admitted, found.deferred) == (len(admits), 3 - len(admits))


def test_its_bytes() -> None:
    assert [
        HARD * ROW_BYTES / 2**20,
        WATERMARK * ROW_BYTES / 2**20,
        Budget(HARD, RESERVED, 0, WATERMARK).soft_rows * ROW_BYTES / 2**20,
    ] == [3.5, 0.5, 3]
    rows = [settle(plan_of("maximum"), REALIZED).unused_rows, *(settle(plan_of(p), REALIZED).under_rows for p in ("point", "p90"))]
    assert [r * ROW_BYTES // KIB for r in (*rows, settle(plan_of("p90"), REALIZED).breach_rows)] == [640, 1408, 384, 128]


def test_a_deferral_says_how_short_it_falls() -> None:
    assert plan_of("watermark").intents[2] == Deferral("C", 5, 8 + 8 + 5 + 5 - 24)
    assert plan_of("watermark").intents[0] == Admission("A", 8, 8 * ROW_BYTES, 7)


@pytest.mark.parametrize("policy", ["point", "p90"])
def test_a_hard_breach_names_the_lowest_priority(policy: str) -> None:
    asked = recover(plan_of(policy), column(8, 6, 7), PRIORITY, epoch=8)
    assert asked[0] == Preemption("C", 7, 8)
    assert [i.request_id for i in asked if isinstance(i, Preemption)] == ["C"]


def test_within_the_ceiling_an_extension_needs_no_victim() -> None:
    assert recover(plan_of("watermark"), column(8, 6, 7), PRIORITY, epoch=8) == (Extension("B", 1, 8),)


def test_needs_that_just_reach_the_ceiling_cost_no_one_its_place() -> None:
    assert recover(plan_of("p90"), column(8, 7, 5), PRIORITY, epoch=8) == (Extension("B", 2, 8),)  # 8 + 8 + 7 + 5 = 28


def test_nothing_is_asked_while_reservations_suffice() -> None:
    assert recover(plan_of("p90"), column(8, 5, 5), PRIORITY, epoch=8) == ()


# Lengths stay hidden


def test_no_function_that_decides_takes_a_realized_length() -> None:
    for decide in (Candidates, Budget, future_rows, by_maximum, by_point, by_quantile, plan_admission, recover):
        assert not [p for p in inspect.signature(decide).parameters if "realized" in p]
    assert "realized_outputs" in inspect.signature(settle).parameters


# What holds for all candidates


ROWS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 29), st.integers(0, 20), st.tuples(*[st.integers(0, 29)] * 3), st.integers(0, 2)),
    min_size=1,
    max_size=8,
)


def made_of(rows: list[tuple[int, int, int, tuple[int, int, int], int]]) -> Candidates:
    """Fold any integers into requests that can exist: cheaper than drawing each within the limits of the others."""
    emitted = [e % most for most, e, _, _, _ in rows]
    draws = [[d % most + 1 for d in three] for most, _, _, three, _ in rows]
    return Candidates(
        tuple(f"r{i}" for i in range(len(rows))),
        column(*emitted),
        column(*(uncached if e == 0 else 0 for e, (_, _, uncached, _, _) in zip(emitted, rows, strict=True))),
        column(*(most for most, *_ in rows)),
        column(*(three[row[4]] for three, row in zip(draws, rows, strict=True))),
        np.array(draws, dtype=np.int64),
        "p1",
    )


CANDIDATES = ROWS.map(made_of)

BUDGETS = st.integers(0, 120).flatmap(lambda hard: st.builds(Budget, st.just(hard), st.integers(0, hard), st.just(1), st.integers(0, hard)))


def lengths(of: Candidates, data: st.DataObject) -> admission.Int64:
    least = np.maximum(of.emitted, 1)
    return least + column(*data.draw(numbers(len(least), 29))) % (of.declared_max - least + 1)


def numbers(n: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, most), min_size=n, max_size=n)


@given(CANDIDATES, BUDGETS, st.booleans())
def test_admissions_and_deferrals_partition_the_candidates_and_keep_the_ceiling(asks: Candidates, budget: Budget, may_pass: bool) -> None:
    plan = plan_admission("p", asks, by_point(asks), budget, ROW_BYTES, may_pass=may_pass)
    assert tuple(i.request_id for i in plan.intents) == asks.request_id
    admitted = [i for i in plan.intents if isinstance(i, Admission)]
    assert plan.reserved_after == budget.reserved_rows + sum(i.rows for i in admitted)
    assert not admitted or plan.reserved_after <= budget.soft_rows
    reserved = budget.reserved_rows
    for intent in plan.intents:  # F29 step by step
        fits = reserved + intent.rows <= budget.soft_rows
        assert fits or isinstance(intent, Deferral)
        assert not (may_pass and fits) or isinstance(intent, Admission)
        reserved += intent.rows if isinstance(intent, Admission) else 0


@given(CANDIDATES, BUDGETS)
def test_in_order_no_one_is_admitted_after_a_deferral(asks: Candidates, budget: Budget) -> None:
    admitted = plan_admission("p", asks, by_point(asks), budget, 1).admitted
    assert admitted.tolist() == sorted(admitted.tolist(), reverse=True)


@given(CANDIDATES, BUDGETS, st.integers(0, 20))
def test_a_higher_ceiling_or_a_smaller_forecast_admits_no_fewer(asks: Candidates, budget: Budget, more: int) -> None:
    wider = Budget(budget.hard_rows + more, budget.reserved_rows, 1, budget.watermark_rows)
    most = plan_admission("p", asks, by_maximum(asks), budget, 1).admitted
    assert (plan_admission("p", asks, by_maximum(asks), wider, 1).admitted >= most).all()
    assert (plan_admission("p", asks, by_quantile(asks, 0.5), budget, 1).admitted >= most).all()


@given(CANDIDATES, BUDGETS, st.data())
def test_the_ledger_conserves_rows(asks: Candidates, budget: Budget, data: st.DataObject) -> None:
    plan = plan_admission("p", asks, by_point(asks), budget, ROW_BYTES, may_pass=True)
    found = settle(plan, lengths(asks, data))
    assert plan.reserved_after - found.unused_rows + found.under_rows == found.occupied_rows
    assert found.unused_rows - found.under_rows == found.error_rows.sum()
    assert found.breach_rows == max(found.occupied_rows - budget.hard_rows, 0)
    assert found.admitted + found.deferred == len(asks.request_id)


@given(CANDIDATES, BUDGETS, st.data())
def test_reserving_the_maximum_is_never_short(asks: Candidates, budget: Budget, data: st.DataObject) -> None:
    found = settle(plan_admission("maximum", asks, by_maximum(asks), budget, 1), lengths(asks, data))
    assert (found.under_rows, found.breach_rows) == (0, 0)


@given(CANDIDATES, st.data())
def test_the_order_of_candidates_changes_no_total_where_all_fit(asks: Candidates, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(asks.request_id))))
    realized = lengths(asks, data)
    other = Candidates(
        tuple(asks.request_id[i] for i in order),
        *(c[order] for c in (asks.emitted, asks.uncached_rows, asks.declared_max, asks.point, asks.draws)),
        asks.prediction,
    )
    roomy = Budget(10_000, 3, 1)
    one = settle(plan_admission("p", asks, by_point(asks), roomy, 1), realized)
    two = settle(plan_admission("p", other, by_point(other), roomy, 1), realized[order])
    assert one.error_rows[order].tolist() == two.error_rows.tolist()
    assert (one.unused_rows, one.under_rows, one.occupied_rows) == (two.unused_rows, two.under_rows, two.occupied_rows)


@given(CANDIDATES, BUDGETS, st.data())
def test_what_recovery_asks_for_brings_the_rest_under_the_ceiling(asks: Candidates, budget: Budget, data: st.DataObject) -> None:
    plan = plan_admission("p", asks, by_point(asks), budget, 1)
    n = len(asks.request_id)
    needed = column(*data.draw(numbers(n, 40)))
    priority = column(*data.draw(numbers(n, 3)))
    asked = recover(plan, needed, priority, epoch=2)
    leaving = {i.request_id for i in asked if isinstance(i, Preemption)}
    longer = {i.request_id: i.rows for i in asked if isinstance(i, Extension)}
    stays = [i for i in np.flatnonzero(plan.admitted).tolist() if asks.request_id[i] not in leaving]
    total = budget.reserved_rows + sum(int(plan.estimate_rows[i]) + longer.get(asks.request_id[i], 0) for i in stays)
    assert total <= budget.hard_rows
    assert not leaving & set(longer)
    assert all(needed[i] <= plan.estimate_rows[i] + longer.get(asks.request_id[i], 0) for i in stays)
    held = {asks.request_id[i]: int(max(plan.estimate_rows[i], needed[i])) for i in np.flatnonzero(plan.admitted)}
    last = [i for i in asked if isinstance(i, Preemption)][-1:]
    assert all(total + held[i.request_id] > budget.hard_rows for i in last)  # no victim more than needed


def test_among_equals_the_latest_leaves() -> None:
    plan = plan_of("point")
    assert recover(plan, column(8, 6, 7), column(1, 1, 1), epoch=8)[0] == Preemption("C", 7, 8)
    assert recover(plan, column(8, 6, 7), column(1, 2, 1), epoch=8)[0] == Preemption("B", 6, 8)


# Rows


@pytest.mark.parametrize(
    ("emitted", "uncached", "forecast", "rows"), [(0, 10, 1, 10), (0, 10, 4, 13), (1, 0, 4, 3), (4, 0, 4, 0), (6, 0, 4, 0)]
)
def test_future_rows_of_new_and_of_resumed_requests(emitted: int, uncached: int, forecast: int, rows: int) -> None:
    assert future_rows(column(emitted), column(uncached), column(forecast)).tolist() == [rows]


def test_bytes_of_active_rows() -> None:
    assert active_bytes(column(3, 5), ROW_BYTES) == 2**20


def test_a_deferred_one_may_be_passed_only_if_allowed() -> None:
    asks = Candidates(("big", "small"), column(1, 1), column(0, 0), column(20, 3), column(20, 3), np.array([[20], [3]]), "p")
    budget = Budget(10, 5, 1)
    assert plan_admission("p", asks, by_point(asks), budget, 1).intents == (Deferral("big", 19, 14), Deferral("small", 2, 0))
    assert plan_admission("p", asks, by_point(asks), budget, 1, may_pass=True).admitted.tolist() == [False, True]


# What is refused


def test_all_reasons_come_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        Candidates(("a", "b"), column(3, 1), column(0, 5), column(3, 9), column(2, 1), np.array([[2, 4], [2, 3]]), "p")
    codes = [p.code for p in caught.value.problems]
    assert codes == ["beyond_declared", "nothing_left", "point_outside_draws", "uncached_after_output"]


def test_shapes_and_names() -> None:
    with pytest.raises(UsageError) as caught:
        Candidates(("a", "a"), column(0), column(0, 0), column(3, 3), column(2, 2), column(2, 2), "p")
    assert [p.code for p in caught.value.problems] == ["columns_differ", "draws_misshapen", "request_twice"]


@pytest.mark.parametrize("budget", [(10, 11, 1, 0), (10, 0, 1, 11), (10, 0, 1, -1), (-1, 0, 1, 0)])
def test_ceilings_that_contradict_each_other(budget: tuple[int, int, int, int]) -> None:
    with pytest.raises(UsageError, match="value_too"):
        Budget(*budget)


def test_forecasts_and_truths_that_no_request_can_have() -> None:
    requests, budget = three_requests(), Budget(HARD, RESERVED, 7)
    with pytest.raises(UsageError, match="beyond_declared"):
        plan_admission("p", requests, column(13, 1, 1), budget, ROW_BYTES)
    with pytest.raises(UsageError, match="columns_differ"):
        plan_admission("p", requests, column(1, 1), budget, ROW_BYTES)
    for wrong, code in ((column(13, 7, 8), "beyond_declared"), (column(9, 0, 8), "realized_too_short"), (column(9), "columns_differ")):
        with pytest.raises(UsageError, match=code):
            settle(plan_of("point"), wrong)
    assert settle(plan_of("maximum"), column(9, 7, 99)).unused_rows == 5  # C was not admitted: its length is not read
