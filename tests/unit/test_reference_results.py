"""The result validator and the transition: the seed's iteration 5 as executed, then one invariant broken at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.reference import contract as c
from harness.reference import table as t
from harness.reference.contract import Authorized, IterationResult
from harness.reference.execute import Truths, execute
from harness.reference.results import RESULT_CODES, service_of, validate_result
from harness.reference.table import Table, Terminal
from harness.reference.tokens import Truth
from harness.reference.transition import advance, arrive, initial_state, set_ready
from tests.unit.test_reference_contract import PLAN, ROW_A, ROW_B, ROW_C, STATE, A, B, C, make_plan, make_state, member, table

AUTHORIZED = Authorized.of(PLAN, STATE.running)
TRUTHS = Truths()
for number, natural in ((A, None), (B, 2), (C, None)):
    TRUTHS.add(number, Truth(7, natural))
RESULT = execute(STATE, AUTHORIZED, TRUTHS, tokens=True)
COLUMN = {
    name.lower(): getattr(c, name)
    for name in ("COMPLETED_END", "EMITTED_AFTER", "COMPUTED_AFTER", "COMMITTED_AFTER", "RESIDENT_AFTER", "TERMINAL")
} | {name.lower(): getattr(t, name) for name in ("HANDLE", "GENERATION", "EPOCH")}
PLACE = {B: 0, C: 1, A: 2}


def problems(result: IterationResult, authorized: Authorized = AUTHORIZED) -> set[str]:
    return {problem.code for problem in validate_result(STATE, authorized, result)}


def changed(who: int, /, **cells: int) -> IterationResult:
    rows = RESULT.rows.copy()
    for name, value in cells.items():
        rows[COLUMN[name], PLACE[who]] = value
    return RESULT._replace(rows=rows)


def tokens(handle: int, value: int) -> IterationResult:
    ids = np.array(RESULT.tokens)
    ids[PLACE[handle]] = value
    return RESULT._replace(tokens=ids)


def test_the_seed_result_moves_only_what_completed() -> None:
    assert problems(RESULT) == set()
    after = advance(STATE, AUTHORIZED, RESULT, 10)
    assert (after.state_version, after.decision_id, after.now_ns) == (8, 6, 10)
    assert after.running.handle.tolist() == [A, C]
    assert after.finished.handle.tolist() == [B]
    assert (after.running.computed.tolist(), after.running.emitted.tolist()) == ([2, 4], [0, 2])
    assert after.running.last_ns.tolist() == [-1, 10]
    # B's stream is five tokens long while its cache holds four: the last output was never an input row.
    assert int(after.finished.emitted[0] + after.finished.prompt[0]) == 5
    assert int(after.finished.committed[0]) == 4
    assert after.held_rows == 6
    # client alpha: two prompt rows and one decode row, three completed; client beta one.
    assert RESULT.debits.T.tolist() == [[2, 1], [0, 1]]
    assert after.service.sum(axis=0).tolist() == [3, 1]


BAD_RESULTS: dict[str, tuple[str, Callable[[], IterationResult]]] = {
    "another decision": ("stale_result", lambda: RESULT._replace(decision_id=4)),
    "another state": ("stale_result", lambda: RESULT._replace(input_state_version=6)),
    "another generation": ("stale_result", lambda: changed(B, generation=1)),
    "another suspension": ("stale_result", lambda: changed(B, epoch=1)),
    "unplanned request": ("unplanned_completion", lambda: changed(A, handle=9)),
    "row reported twice": ("unplanned_completion", lambda: RESULT._replace(rows=RESULT.rows[:, [0, 1, 2, 2]])),
    "more than planned": ("unplanned_completion", lambda: changed(A, completed_end=3)),
    "less than nothing": ("unplanned_completion", lambda: changed(C, completed_end=2)),
    "row missing": ("missing_row", lambda: RESULT._replace(rows=RESULT.rows[:, :2])),
    "prompt chunk emits early": ("output_clock", lambda: changed(A, emitted_after=1)),
    "decode emits nothing": ("output_clock", lambda: changed(C, emitted_after=1)),
    "token without a clock": ("output_clock", lambda: tokens(A, 65)),
    "clock without a token": ("output_clock", lambda: tokens(C, -1)),
    "computed clock": ("computed_clock", lambda: changed(A, computed_after=4)),
    "committed clock": ("computed_clock", lambda: changed(A, committed_after=0)),
    "resident clock": ("resident_clock", lambda: changed(A, resident_after=3)),
    "shortfall without a failure": (
        "unexplained_shortfall",
        lambda: changed(A, completed_end=1, computed_after=1, committed_after=1, resident_after=1),
    ),
    "end without a token": ("terminal_without_token", lambda: changed(A, terminal=Terminal.STOP)),
    "alive at the maximum": ("declared_maximum", lambda: changed(C, terminal=0)),
    "planned-service debit": ("service_debit", lambda: RESULT._replace(debits=RESULT.debits + 1)),
    "rebuild as service": ("rebuild_ledger", lambda: RESULT._replace(recomputed_rows=2)),
}


def short_members() -> Table:
    """Members as planned, but C declares two outputs: its second is its last."""
    cells = STATE.running.cells.copy()
    cells[t.MAXIMUM, C] = 2
    return Table(cells)


@pytest.mark.parametrize("name", BAD_RESULTS)
def test_one_broken_invariant_refuses_the_result(name: str) -> None:
    code, build = BAD_RESULTS[name]
    members = short_members() if code == "declared_maximum" else STATE.running
    assert code in problems(build(), Authorized.of(PLAN, members))


def test_every_code_has_a_fixture_it_refuses_and_the_executed_result_has_none() -> None:
    assert {code for code, _ in BAD_RESULTS.values()} == set(RESULT_CODES)
    authorized = Authorized.of(PLAN, short_members())
    assert problems(execute(STATE, authorized, TRUTHS, tokens=True), authorized) == set()


def test_a_failed_row_is_no_service_and_moves_nothing() -> None:
    result = execute(STATE, AUTHORIZED, TRUTHS, tokens=True, failing=frozenset({A}))
    assert problems(result) == set()
    after = advance(STATE, AUTHORIZED, result, 10)
    assert result.debits.T.tolist() == [[0, 1], [0, 1]]
    assert (int(after.running.computed[0]), int(after.running.snapshot[0])) == (0, 4)


def test_a_suspended_decode_rebuilds_without_new_output_or_service() -> None:
    state = make_state(ROW_A, ROW_B | {t.RESIDENT: 0, t.EPOCH: 1}, ROW_C, held=3)
    assert state.running.phase.tolist() == [t.Phase.PREFILL, t.Phase.REBUILD, t.Phase.DECODE]
    plan = make_plan(state, at=(2, 1), widths=(1, 3))
    authorized = Authorized.of(plan, state.running)
    result = execute(state, authorized, TRUTHS, tokens=True)
    assert validate_result(state, authorized, result) == []
    assert (result.debits.T.tolist(), result.recomputed_rows) == ([[0, 0], [0, 1]], 3)
    after = advance(state, authorized, result, 1)
    rebuilt = after.running.take(np.array([1]))
    assert [int(x) for x in (rebuilt.emitted[0], rebuilt.computed[0], rebuilt.resident[0], rebuilt.phase[0])] == [1, 3, 3, t.Phase.DECODE]
    assert after.recomputed_rows == 3


def test_counting_without_tokens_gives_the_same_clocks() -> None:
    counted = execute(STATE, AUTHORIZED, TRUTHS, tokens=False)
    assert counted.tokens is None
    assert np.array_equal(counted.rows, RESULT.rows)
    assert problems(counted) == set()


def test_numbers_are_used_once_and_in_order() -> None:
    state = arrive(initial_state(), table(member(3)))
    with pytest.raises(ValueError, match="used once"):
        arrive(state, table(member(3)))
    with pytest.raises(ValueError, match="used once"):
        arrive(state, table(member(5), member(4)))


def test_a_result_of_another_version_is_not_published() -> None:
    with pytest.raises(ValueError, match="the state is at"):
        advance(arrive(STATE, table(member(9))), AUTHORIZED, RESULT, 0)


def test_readiness_changes_the_snapshot_so_that_older_plans_are_stale() -> None:
    after = set_ready(STATE, [B], ready=False)
    assert after.running.ready.tolist() == [1, 0, 1]
    assert after.running.snapshot.tolist() == [3, 10, 6]
    assert after.waiting is STATE.waiting


def test_debits_of_many_clients_are_exact() -> None:
    debits, rebuilt = service_of(STATE, AUTHORIZED, RESULT.rows)
    one = STATE._replace(service=np.zeros((2, 1), np.int64))
    everyone, _ = service_of(one, Authorized.of(PLAN, table(*(row | {t.CLIENT: 0} for row in (ROW_A, ROW_B, ROW_C)))), RESULT.rows)
    assert (debits.sum(axis=1).tolist(), rebuilt) == ([2, 2], 0)
    assert everyone[:, 0].tolist() == [2, 2]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_a_queue_that_grows_and_loses_its_head_keeps_every_snapshot(steps: list[tuple[int, int]]) -> None:
    queue, expected, number, kept = table(), list[int](), 0, []
    for more, fewer in steps:
        queue = queue.with_more(table(*(member(number + i) for i in range(more))))
        expected += range(number, number + more)
        number += more
        fewer = min(fewer, len(expected))
        queue, expected = queue.without(np.arange(fewer)), expected[fewer:]
        kept.append((queue, list(expected)))
    # A second branch from an old snapshot must not write over the first one's members.
    branches = [(old.with_more(table(member(999))), [*members, 999]) for old, members in kept]
    for snapshot, members in [*kept, *branches]:
        assert snapshot.handle.tolist() == members
        assert snapshot.prompt.tolist() == [4] * len(members)
