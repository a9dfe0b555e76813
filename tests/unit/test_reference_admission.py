"""Admission: the seed's 28-row table, the boundary to hidden lengths, and each input that is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.reference.admission import (
    ADMISSION_CODES,
    Candidate,
    Ceiling,
    Decision,
    Family,
    Hindsight,
    decide,
    errors_of,
    forecast,
    future_rows,
    payload_bytes,
)

ROW_BYTES, KIB = 131_072, 1024
CEILING = Ceiling(hard=28, reserved=8, watermark=4)
# Stated: eight rows reserved of 28, watermark 4, three requests that have emitted one output each, and every result below. The totals are
# reconstructed so that they yield them: maxima 9, 12, 9; point 4, 5, 4; p90 7, 8, 6; realized 7, 9, 8. C has the lowest priority.
REQUESTS = (
    Candidate(0, maximum=9, emitted=1, point=4, quantile=7, prediction="toy-1"),
    Candidate(1, maximum=12, emitted=1, point=5, quantile=8, prediction="toy-1", priority=1),
    Candidate(2, maximum=9, emitted=1, point=4, quantile=6, prediction="toy-1", priority=2),
)
REALIZED = {0: 7, 1: 9, 2: 8}


def score(family: Family) -> tuple[list[int], Hindsight]:
    decisions = decide(family, CEILING, REQUESTS)
    return [decision.handle for decision in decisions if decision.admitted], errors_of(CEILING, REQUESTS, decisions, REALIZED)


def test_reserving_the_maximum_leaves_five_rows_unused() -> None:
    admitted, result = score(Family.MAXIMUM)
    assert (admitted, result.unused, result.missing, result.breach) == ([0, 1], 5, 0, 0)
    assert payload_bytes(result.unused, ROW_BYTES) == 640 * KIB


def test_the_point_forecast_is_short_by_eleven_rows_and_breaches_by_one() -> None:
    admitted, result = score(Family.POINT)
    assert (admitted, result.missing, result.demand, result.breach) == ([0, 1, 2], 11, 29, 1)
    assert payload_bytes(result.missing, ROW_BYTES) == 1.375 * 1024 * KIB
    assert result.victims == (2,)


def test_the_p90_forecast_is_short_by_three_rows_and_breaches_by_one() -> None:
    admitted, result = score(Family.QUANTILE)
    assert (admitted, result.missing, result.demand, result.breach) == ([0, 1, 2], 3, 29, 1)
    assert payload_bytes(result.missing, ROW_BYTES) == 384 * KIB
    assert payload_bytes(result.breach, ROW_BYTES) == 128 * KIB
    assert result.victims == (2,)


def test_the_watermark_is_short_by_one_row_and_needs_no_victim() -> None:
    admitted, result = score(Family.WATERMARK)
    assert CEILING.soft == 24
    assert (admitted, result.missing, result.demand, result.breach, result.victims) == ([0, 1], 1, 22, 0, ())
    assert result.extensions == (1,)
    assert [payload_bytes(rows, ROW_BYTES) / KIB / 1024 for rows in (28, 4, 24)] == [3.5, 0.5, 3.0]


def test_decisions_do_not_move_with_the_hidden_lengths() -> None:
    for family in Family:
        frozen = decide(family, CEILING, REQUESTS)
        for realized in (REALIZED, {0: 1, 1: 1, 2: 1}, {0: 9, 1: 12, 2: 9}):
            errors_of(CEILING, REQUESTS, frozen, realized)
            assert decide(family, CEILING, REQUESTS) == frozen


def test_the_scheduler_has_no_allocation_to_give() -> None:
    assert all(decision.allocation is None for family in Family for decision in decide(family, CEILING, REQUESTS))
    assert not {name for name in Decision.__slots__ if "block" in name or "address" in name}


def test_the_first_output_comes_with_the_prompt_and_the_last_is_no_row() -> None:
    new = Candidate(0, maximum=10, uncached_prompt=100)
    assert [future_rows(new, total) for total in (1, 2, 10)] == [100, 101, 109]
    assert [future_rows(REQUESTS[0], total) for total in (0, 1, 2)] == [0, 0, 1]


def _refused(ceiling: Ceiling = CEILING, family: Family = Family.QUANTILE, **changes: int | None) -> Callable[[], object]:
    fields = {"handle": 0, "maximum": 9, "emitted": 1, "point": 4, "quantile": 7} | changes
    return lambda: decide(family, ceiling, [Candidate(**fields)])  # type: ignore[arg-type]  # whole numbers and None by name


BAD: dict[str, Callable[[], object]] = {
    "forecast_order": _refused(point=8),
    "forecast_above_maximum": _refused(quantile=10),
    "watermark_range": _refused(Ceiling(28, 8, 28)),
    "emitted_range": _refused(emitted=10),
    "no_forecast": _refused(quantile=None),
}


@pytest.mark.parametrize("code", BAD)
def test_one_wrong_input_is_refused(code: str) -> None:
    with pytest.raises(UsageError) as caught:
        BAD[code]()
    assert [problem.code for problem in caught.value.problems] == [code]


def test_every_admission_code_has_a_fixture() -> None:
    assert set(BAD) == set(ADMISSION_CODES)


LENGTHS = st.tuples(st.integers(1, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))


@settings(deadline=None)
@given(st.lists(LENGTHS, max_size=8), st.integers(0, 60), st.integers(0, 20))
def test_no_family_reserves_above_its_ceiling_and_errors_add_up(rows: list[tuple[int, int, int, int]], free: int, watermark: int) -> None:
    ceiling = Ceiling(hard=free + 21, reserved=21, watermark=watermark)
    requests = [
        Candidate(i, maximum=maximum, emitted=min(emitted, maximum), point=min(a, b, maximum), quantile=min(max(a, b), maximum))
        for i, (maximum, emitted, a, b) in enumerate(rows)
    ]
    for family in Family:
        decisions = decide(family, ceiling, requests)
        reserved = ceiling.reserved + sum(decision.estimate for decision in decisions if decision.admitted)
        assert reserved <= max(ceiling.reserved, ceiling.soft if family is Family.WATERMARK else ceiling.hard)
        result = errors_of(ceiling, requests, decisions, {i: maximum for i, (maximum, *_) in enumerate(rows)})
        assert result.demand == reserved - result.unused + result.missing
        assert family is not Family.MAXIMUM or result.missing == 0
        assert forecast(Candidate(0, maximum=5), Family.MAXIMUM) == 5
