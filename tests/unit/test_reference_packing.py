"""Packing: the seed's five rows in mixed phases, routes, visibility, and the packed path against each request by itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.reference.contract import Authorized, make_work
from harness.reference.packing import (
    PACKING_CODES,
    Layer,
    PackedIteration,
    attend,
    global_visibility,
    is_row_wise,
    mask_of,
    pack,
    run_apart,
    run_packed,
    validate_packing,
    validate_visibility,
    visible,
)
from harness.reference.table import Phase
from tests.unit.test_reference_contract import PLAN, member, table

WIDTH, HEADS = 4, 2

# Stated by the seed: q = [1, 3, 1], labels A5, B0, B1, B2, C2. Their prompts are reconstructed: A decodes behind five rows, B starts a
# prompt of four, C decodes behind two.
MEMBERS = table(
    member(0, prompt=5, emitted=1, computed=5, committed=5, resident=5, snapshot=6),
    member(1, prompt=4, snapshot=1),
    member(2, prompt=2, emitted=1, computed=2, committed=2, resident=2, snapshot=3),
)
AT = np.array([0, 1, 2])
AUTHORIZED = Authorized.of(PLAN._replace(work=make_work(MEMBERS, AT, np.array([1, 3, 1]))), MEMBERS)
PACKED = pack(AUTHORIZED)
GENERATOR = np.random.default_rng(7)
LAYER = Layer(GENERATOR.normal(size=(WIDTH, 3 * WIDTH)), GENERATOR.normal(size=(WIDTH, WIDTH)), HEADS)
HIDDEN = GENERATOR.normal(size=(5, WIDTH))
CACHE = {number: (GENERATOR.normal(size=(rows, WIDTH)), GENERATOR.normal(size=(rows, WIDTH))) for number, rows in ((0, 5), (1, 0), (2, 2))}


def test_five_rows_of_mixed_phases() -> None:
    assert PACKED.rows == 5
    assert PACKED.offsets.tolist() == [0, 1, 4, 5]
    assert PACKED.request.tolist() == [0, 1, 1, 1, 2]
    assert PACKED.position.tolist() == [5, 0, 1, 2, 2]
    assert PACKED.phase.tolist() == [Phase.DECODE, Phase.PREFILL, Phase.PREFILL, Phase.PREFILL, Phase.DECODE]
    assert PACKED.cache[0] == "logical-kv:0:0:v6"
    assert validate_packing(AUTHORIZED, PACKED) == []


def test_each_row_sees_its_own_request_up_to_itself() -> None:
    seen = [[key for key, ok in enumerate(row) if ok] for segment in range(3) for row in visible(PACKED, segment).tolist()]
    assert seen == [[0, 1, 2, 3, 4, 5], [0], [0, 1], [0, 1, 2], [0, 1, 2]]


def test_no_query_sees_another_request() -> None:
    key_segment, key_position = PACKED.segment, PACKED.position
    allowed = global_visibility(PACKED, key_segment, key_position)
    across = allowed & (PACKED.segment[:, None] != key_segment[None, :])
    assert across.sum(axis=1).tolist() == [0, 0, 0, 0, 0]
    assert validate_visibility(PACKED, key_segment, key_position, allowed) == []


def test_the_packed_layer_equals_each_request_by_itself() -> None:
    packed = run_packed(LAYER, PACKED, HIDDEN, CACHE)
    for number, rows in ((0, slice(0, 1)), (1, slice(1, 4)), (2, slice(4, 5))):
        # One reduction order against another: double precision agrees to its last digits and no further is claimed.
        assert np.allclose(packed[rows], run_apart(LAYER, HIDDEN[rows], CACHE[number]), rtol=1e-12, atol=1e-12)


def test_another_request_s_rows_change_nothing() -> None:
    other = HIDDEN.copy()
    other[1:4] += 100.0
    one, two = run_packed(LAYER, PACKED, HIDDEN, CACHE), run_packed(LAYER, PACKED, other, CACHE)
    assert np.array_equal(one[[0, 4]], two[[0, 4]])
    assert not np.allclose(one[1:4], two[1:4])


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_chunks_of_a_prompt_equal_the_prompt_at_once(chunks: list[int]) -> None:
    hidden = np.random.default_rng(3).normal(size=(sum(chunks), WIDTH))
    empty = np.zeros((0, WIDTH))
    whole, parts, done = run_apart(LAYER, hidden, (empty, empty)), [], 0
    _, key, value = np.split(hidden @ LAYER.fused, 3, axis=1)
    for chunk in chunks:
        parts.append(run_apart(LAYER, hidden[done : done + chunk], (key[:done], value[:done])))
        done += chunk
    assert np.allclose(np.concatenate(parts), whole, rtol=1e-9, atol=1e-9)


def test_row_wise_operations_may_share_the_packed_axis_and_others_may_not() -> None:
    parts = [HIDDEN[:1], HIDDEN[1:4], HIDDEN[4:]]
    assert is_row_wise(lambda rows: rows @ LAYER.output, parts)
    assert is_row_wise(np.tanh, parts)
    assert not is_row_wise(lambda rows: rows - rows.mean(axis=0), parts)


def test_the_mask_hides_with_minus_infinity() -> None:
    assert mask_of(np.array([[True, False]])).tolist() == [[0.0, -np.inf]]
    ones = np.ones((2, 3))
    assert attend(np.ones((1, 3)), ones, np.array([[1.0], [9.0]]), np.array([[0.0, -np.inf]])).tolist() == [[1.0]]


def _with(**columns: object) -> Callable[[], set[str]]:
    return lambda: {problem.code for problem in validate_packing(AUTHORIZED, PACKED._replace(**columns))}


def _seen(query: int, key: int) -> Callable[[], set[str]]:
    allowed = global_visibility(PACKED, PACKED.segment, PACKED.position)
    allowed[query, key] = True
    return lambda: {problem.code for problem in validate_visibility(PACKED, PACKED.segment, PACKED.position, allowed)}


BAD: dict[str, Callable[[], set[str]]] = {
    "packed_offsets": _with(offsets=np.array([0, 1, 3, 5])),
    "packed_route": _with(request=np.array([0, 1, 1, 2, 2])),
    "packed_positions": _with(position=np.array([5, 0, 1, 3, 2])),
    "packed_phase": _with(phase=np.zeros(5, np.int64)),
    "duplicate_cache_handle": _with(cache=("x", "x", "y")),
    "future_row": _seen(1, 2),
    "cross_request": _seen(0, 1),
}


@pytest.mark.parametrize("code", BAD)
def test_one_corrupted_field_is_refused(code: str) -> None:
    assert BAD[code]() == {code}


def test_every_packing_code_has_a_fixture() -> None:
    assert set(BAD) == set(PACKING_CODES)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_offsets_and_positions_follow_the_widths(widths: list[int]) -> None:
    members = table(*(member(number, prompt=9) for number in range(len(widths))))
    at = np.arange(len(widths))
    packed: PackedIteration = pack(Authorized.of(PLAN._replace(work=make_work(members, at, np.array(widths))), members))
    assert packed.offsets.tolist() == [sum(widths[:i]) for i in range(len(widths) + 1)]
    assert packed.position.tolist() == [row for width in widths for row in range(width)]
    assert packed.request.tolist() == [number for number, width in enumerate(widths) for _ in range(width)]
