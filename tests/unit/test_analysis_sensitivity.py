from __future__ import annotations

from dataclasses import asdict, replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.chunking import equal_bounds, ledger
from analysis.sensitivity import (
    CASES,
    CONTROLS,
    HIDDEN,
    OUTPUTS,
    Base,
    Case,
    admission_intents,
    cases_for,
    ledger_of,
    piggyback_rows,
    surface,
)
from harness.errors import UsageError

MOVES = {
    "prompt_rows": {"chunks", "causal_pairs", "history_rows", "history_bytes", "piggyback_rows", "uncached_rows"},
    "chunk_rows": {"chunks", "history_rows", "history_bytes", "piggyback_rows"},
    "ready_decodes": {"piggyback_rows"},
    "token_budget": {"piggyback_rows"},
    "sequence_budget": {"piggyback_rows"},
    "row_bytes": {"history_bytes"},
    "ceiling_rows": {"admission_intents"},
    "live_rows": {"admission_intents"},
    "forecast_rows": {"admission_intents"},
    "low_priority": {"aging_crossover"},
    "high_priority": {"aging_crossover"},
    "aging_quantum": {"aging_crossover"},
    "offered_events": {"offered_total", "largest_offered_share"},
    "prefix_hit": {"uncached_rows"},
    "foreign_ready": {"eligible"},
    "realized_outputs": {"realized_output_total"},
}
"""Read off the formulas F49, F61 and F68-F72 by hand; the module's own table must say the same."""


def test_the_base_of_the_seed() -> None:
    """Chunks, pairs, exposed rows and bytes, decodes beside a chunk, reservations, tick of the crossover (section 0x0E)."""
    found = ledger_of(Base())
    assert [found[n] for n in ("chunks", "causal_pairs", "history_rows", "history_bytes")] == [4, 136, 24, 3 * 2**20]
    assert [found[n] for n in ("piggyback_rows", "admission_intents", "aging_crossover")] == [4, 4, 8]
    assert (found["uncached_rows"], found["offered_total"], found["largest_offered_share"], found["eligible"]) == (
        16,
        12,
        Fraction(2, 3),
        True,
    )
    assert found["realized_output_total"] is None  # no lengths were given: unknown, not 0


def test_each_output_reads_what_its_formula_names() -> None:
    for control in CONTROLS:
        assert {o.name for o in OUTPUTS if control in o.reads} == MOVES[control], control


def test_nothing_online_reads_hidden_lengths() -> None:
    assert all(o.offline or not HIDDEN & set(o.reads) for o in OUTPUTS)


def case_of(control: str, value: object) -> Case:
    return surface(Base(), [(control, value)]).cases[0]  # type: ignore[list-item]


def test_smaller_chunks_leave_room_for_decodes_and_expose_more_history() -> None:
    """The seed's counterexample to one best chunk. Its two rows are lost; 2 and 8 around the base of 4 are reconstructed."""
    small, large = case_of("chunk_rows", 2), case_of("chunk_rows", 8)
    value = {(c, r.output): r.value for c, case in (("small", small), ("large", large)) for r in case.readings}
    assert (value["small", "piggyback_rows"], value["large", "piggyback_rows"]) == (4, 0)
    assert (value["small", "history_rows"], value["large", "history_rows"]) == (56, 8)
    assert (value["small", "chunks"], value["large", "chunks"]) == (8, 2)
    assert value["small", "causal_pairs"] == value["large", "causal_pairs"] == 136
    assert set(small.must_not_move) == {o.name for o in OUTPUTS} - MOVES["chunk_rows"]


def test_hidden_lengths_move_only_the_offline_outcome() -> None:
    assert case_of("realized_outputs", (3, 9, 30)).moved == ("realized_output_total",)


def test_ten_cases_over_nine_axes_each_move_something() -> None:
    found = surface(Base())
    assert (len(CASES), len({control for control, _ in CASES})) == (10, 9)
    assert all(case.moved for case in found.cases)
    assert all(set(case.moved) <= MOVES[case.control] for case in found.cases)


# What holds for every shape

SMALL = st.integers(1, 60)
BASES = st.builds(
    lambda hit, live, spare, **rest: Base(prefix_hit=hit % (rest["prompt_rows"] + 1), live_rows=live, ceiling_rows=live + spare, **rest),
    hit=SMALL,
    live=st.integers(0, 40),
    spare=st.integers(0, 40),
    prompt_rows=SMALL,
    chunk_rows=SMALL,
    ready_decodes=st.integers(0, 20),
    token_budget=st.integers(0, 40),
    sequence_budget=st.integers(0, 20),
    forecast_rows=SMALL,
    low_priority=st.integers(-3, 9),
    aging_quantum=SMALL,
    offered_events=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
OTHER = {
    "foreign_ready": st.booleans(),
    "offered_events": st.lists(st.integers(0, 9), max_size=4).map(tuple),
    "realized_outputs": st.lists(st.integers(1, 9), max_size=4).map(tuple),
}


@given(BASES, st.sampled_from(CONTROLS), st.data())
def test_a_control_moves_only_what_its_formulas_name(base: Base, control: str, data: st.DataObject) -> None:
    value = data.draw(OTHER.get(control, st.integers(-2, 60)))
    try:
        found = surface(base, [(control, value)])
    except UsageError:  # the base's own value, or one that makes the shape impossible: then there is no case
        return
    (case,) = found.cases
    assert set(case.moved) <= MOVES[control]
    assert {r.output: r.value for r in case.readings} == ledger_of(replace(base, **{control: value}))
    assert {k: v for k, v in asdict(found.base).items() if k != control} == {k: v for k, v in asdict(base).items() if k != control}


@given(BASES)
def test_the_ledgers_of_chunks_agree_with_an_explicit_cut(base: Base) -> None:
    found, cut = ledger_of(base), ledger(equal_bounds(base.prompt_rows, base.chunk_rows), base.row_bytes)
    assert (found["chunks"], found["causal_pairs"]) == (len(cut.sizes), cut.total_pairs)
    assert (found["history_rows"], found["history_bytes"]) == (cut.history_rows, cut.history_bytes)


@given(BASES)
def test_a_mixed_iteration_keeps_both_budgets(base: Base) -> None:
    decodes = piggyback_rows(base.ready_decodes, base.token_budget, base.sequence_budget, base.chunk_rows, base.prompt_rows)
    assert 0 <= decodes <= base.ready_decodes
    assert not decodes or decodes + min(base.chunk_rows, base.prompt_rows) <= base.token_budget
    assert not decodes or decodes + 1 <= base.sequence_budget


def test_a_chunk_longer_than_the_prompt_takes_only_the_prompt_from_the_budget() -> None:
    assert piggyback_rows(ready_decodes=9, token_budget=8, sequence_budget=8, chunk_rows=16, prompt_rows=3) == 5


@given(BASES)
def test_one_more_intent_would_pass_the_ceiling(base: Base) -> None:
    count = admission_intents(base.ceiling_rows, base.live_rows, base.forecast_rows)
    assert base.live_rows + count * base.forecast_rows <= base.ceiling_rows < base.live_rows + (count + 1) * base.forecast_rows


@given(BASES, st.permutations(CASES))
def test_the_order_of_cases_changes_no_case(base: Base, mixed: list[tuple[str, object]]) -> None:
    kept, _ = cases_for(base)
    found = surface(base, [c for c in mixed if c in kept]).cases  # type: ignore[misc]
    assert {(c.control, str(c.value)): c for c in found} == {(c.control, str(c.value)): c for c in surface(base, kept).cases}


def test_a_share_of_no_events_is_undefined() -> None:
    assert ledger_of(Base(offered_events=()))["largest_offered_share"] is None


# What is refused


def test_an_impossible_shape_names_every_reason() -> None:
    with pytest.raises(UsageError) as caught:
        Base(prompt_rows=0, chunk_rows=-1, live_rows=29, prefix_hit=1, offered_events=(3, -1), realized_outputs=(0,))
    text = str(caught.value)
    for name in ("prompt_rows=0", "chunk_rows=-1", "live_rows=29", "prefix_hit=1", "offered_events[1]=-1", "realized_outputs[0]=0"):
        assert name in text


@pytest.mark.parametrize(
    ("control", "value", "code"),
    [
        ("chunks", 3, "control_unknown"),
        ("chunk_rows", 4, "case_is_base"),
        ("chunk_rows", 0, "value_too_small"),
        ("chunk_rows", True, "control_mistyped"),
        ("foreign_ready", 0, "control_mistyped"),
        ("prefix_hit", 17, "value_too_large"),
    ],
)
def test_what_is_no_case(control: str, value: object, code: str) -> None:
    with pytest.raises(UsageError, match=code):
        case_of(control, value)


def test_cases_that_a_base_does_not_permit_are_left_out_with_their_reason() -> None:
    kept, left_out = cases_for(Base(prompt_rows=4, chunk_rows=8))
    assert [p.code for p in left_out] == ["case_is_base", "value_too_large"]
    assert kept == tuple(c for c in CASES if c not in (("chunk_rows", 8), ("prefix_hit", 8)))
