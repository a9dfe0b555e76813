"""What stands between execution and state: nothing unplanned, clocks by F07, debits from completed service only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from harness.errors import Problem
from harness.reference.contract import (
    COMMITTED_AFTER,
    COMPLETED_END,
    COMPUTED_AFTER,
    COMPUTED_BEFORE,
    EMITTED_AFTER,
    EMITTED_BEFORE,
    END,
    FAILURE,
    PHASE,
    PLANNED_END,
    RESIDENT_AFTER,
    TERMINAL,
    Authorized,
    IterationPlan,
    IterationResult,
    SchedulerState,
)
from harness.reference.table import (
    CLIENT,
    COMPUTED,
    EMITTED,
    HANDLE,
    MAXIMUM,
    PROMPT,
    RESIDENT,
    Bools,
    Int64,
    Phase,
    all_ones,
    all_zero,
    occurs,
)
from harness.reference.validate import refusal

RESULT_CODES: Final = (
    "stale_result", "missing_row", "unplanned_completion", "computed_clock", "resident_clock", "output_clock", "unexplained_shortfall",
    "declared_maximum", "terminal_without_token", "service_debit", "rebuild_ledger",
)  # fmt: skip
"""Every reason for which a result is refused."""

IDENTITY: Final = RESIDENT + 1
# Numbers: comparing arrays with enum members costs microseconds.
_DECODE, _PREFILL, _REBUILD = int(Phase.DECODE), int(Phase.PREFILL), int(Phase.REBUILD)


def validate_result(state: SchedulerState, authorized: Authorized, result: IterationResult) -> list[Problem]:
    """Hold a result against its plan; empty when the transition may publish it."""
    plan = authorized.plan
    if result.decision_id != plan.decision_id or result.input_state_version != plan.input_state_version:
        return [refusal("stale_result", f"decision_id={result.decision_id}: decision and version are not those of the plan")]
    problems = list(_same_rows(plan, result))
    if not problems:
        if not (authorized.members.decoding and _sound_decode_clocks(plan, authorized.picked, result)):
            problems += _clocks(plan, authorized.picked, result)
        problems += _ends(authorized.picked, result)
        problems += _service(state, authorized, result)
    return problems


def service_of(state: SchedulerState, authorized: Authorized, rows: Int64) -> tuple[Int64, int]:
    """Completed semantic service by client (2, clients), prefill and decode rows, and the rows that were only rebuilt (F53)."""
    work, clients = authorized.plan.work.cells, state.service.shape[1]
    debits = np.zeros((2, clients), np.int64)
    if authorized.members.decoding and rows[COMPLETED_END].tobytes() == work[END].tobytes():  # one row each, as in most iterations
        debits[1] = work.shape[1] if clients == 1 else np.bincount(authorized.picked[CLIENT], minlength=clients)
        return debits, 0
    done, phase = rows[COMPLETED_END] - rows[RESIDENT], work[PHASE]
    mixed = np.count_nonzero(phase)  # Phase.DECODE is 0
    if clients == 1:
        total = int(np.add.reduce(done))
        prefilled = int(done @ (phase == _PREFILL)) if mixed else 0
        decoded = int(done @ (phase == _DECODE)) if _REBUILD in phase.tolist() else total - prefilled
        debits[0, 0], debits[1, 0] = prefilled, decoded
        return debits, total - prefilled - decoded
    client = authorized.picked[CLIENT]
    # Row counts are far below 2^53, so the weighted (float) histogram is exact.
    debits[1] = np.bincount(client, done * (phase == _DECODE) if mixed else done, clients)
    if not mixed:
        return debits, 0
    debits[0] = np.bincount(client, done * (phase == _PREFILL), clients)
    return debits, int(done.sum()) - int(debits.sum())


def _same_rows(plan: IterationPlan, result: IterationResult) -> Iterator[Problem]:
    rows, cells = result.rows, plan.work.cells
    if rows.shape[1] == cells.shape[1] and rows[:IDENTITY].tobytes() == cells[:IDENTITY].tobytes():
        if rows[PLANNED_END].tobytes() == rows[COMPLETED_END].tobytes() == cells[END].tobytes():
            return
        wrong = (rows[PLANNED_END] != cells[END]) | (rows[COMPLETED_END] > cells[END]) | (rows[COMPLETED_END] < cells[RESIDENT])
        if occurs(wrong):
            yield refusal("unplanned_completion", f"{_who(rows, wrong)}: completed beyond, before or beside the planned interval")
        return
    planned = cells[HANDLE].tolist()
    reported = rows[HANDLE].tolist()
    extra = [handle for i, handle in enumerate(reported) if handle not in planned or handle in reported[:i]]
    missing = [handle for handle in planned if handle not in reported]
    if extra:
        yield refusal("unplanned_completion", f"requests={extra}: no planned interval is left for these rows")
    if missing:
        yield refusal("missing_row", f"requests={missing}: planned, and nothing is said of them")
    if not extra and not missing:
        yield refusal("stale_result", "rows: not the generations, snapshots and starts the plan binds, in its order")


def _who(rows: Int64, wrong: Bools) -> str:
    return (
        f"request={int(rows[HANDLE, wrong.argmax()])} [{int(rows[RESIDENT, wrong.argmax()])}, {int(rows[COMPLETED_END, wrong.argmax()])})"
    )


def clocks_of(picked: Int64, completed_end: Int64) -> Int64:
    """Clocks (6, n) from COMPUTED_BEFORE to EMITTED_AFTER that intervals completed up to ``completed_end`` give (F07).

    A rebuild ends at the computed frontier at most, everything else starts there: so computed is the greater of the two. An output comes
    with each decode row and with the row that completes the prompt.
    """
    clocks = np.empty((6, picked.shape[1]), np.int64)
    before, emitted = picked[COMPUTED], picked[EMITTED]
    computed = np.maximum(before, completed_end)
    clocks[0], clocks[1], clocks[2], clocks[3], clocks[4] = before, emitted, completed_end, computed, computed
    clocks[5] = emitted + ((computed > before) & (computed >= picked[PROMPT]))
    return clocks


_CLOCK_CODES: Final = (
    (COMPUTED_BEFORE, "computed_clock", "rows computed before"), (EMITTED_BEFORE, "output_clock", "outputs before"),
    (RESIDENT_AFTER, "resident_clock", "resident rows after"), (COMPUTED_AFTER, "computed_clock", "rows computed after"),
    (COMMITTED_AFTER, "computed_clock", "rows committed after"), (EMITTED_AFTER, "output_clock", "outputs after (F07)"),
)  # fmt: skip


def _sound_decode_clocks(plan: IterationPlan, picked: Int64, result: IterationResult) -> bool:
    """Whether ``_clocks`` would find nothing, for members that all decoded their one row: each clock moved by one (F07)."""
    rows = result.rows
    return (
        result.tokens is None
        and rows[COMPUTED_BEFORE].tobytes() == picked[COMPUTED].tobytes()
        and rows[EMITTED_BEFORE].tobytes() == picked[EMITTED].tobytes()
        and all_ones(rows[RESIDENT_AFTER : EMITTED_AFTER + 1] - picked[RESIDENT : EMITTED + 1])
        and rows[COMPLETED_END].tobytes() == plan.work.cells[END].tobytes()
    )


def _clocks(plan: IterationPlan, picked: Int64, result: IterationResult) -> Iterator[Problem]:
    rows, end = result.rows, result.rows[COMPLETED_END]
    clocks = clocks_of(picked, end)
    if rows[COMPUTED_BEFORE : EMITTED_AFTER + 1].tobytes() != clocks.tobytes():
        for column, code, what in _CLOCK_CODES:
            wrong = rows[column] != clocks[column - COMPUTED_BEFORE]
            if occurs(wrong):
                yield refusal(code, f"{_who(rows, wrong)}: {what} are {int(clocks[column - COMPUTED_BEFORE, wrong.argmax()])}")
    if result.tokens is not None:
        wrong = (result.tokens >= 0) != (clocks[5] > clocks[1])
        if occurs(wrong):
            yield refusal("output_clock", f"{_who(rows, wrong)}: a token without an output, or an output without its token")
    if end.tobytes() == plan.work.cells[END].tobytes():
        return
    wrong = (end < plan.work.cells[END]) & (rows[FAILURE] == 0)
    if occurs(wrong):
        yield refusal("unexplained_shortfall", f"{_who(rows, wrong)}: completed less than planned without a failure")


def _ends(picked: Int64, result: IterationResult) -> Iterator[Problem]:
    rows = result.rows
    emitted, maximum = rows[EMITTED_AFTER], picked[MAXIMUM]
    reached = emitted >= maximum
    if all_zero(rows[TERMINAL]) and not occurs(reached):
        return
    ended = rows[TERMINAL] != 0
    if occurs(reached):
        wrong = (emitted > maximum) | (reached & ~ended)
        if occurs(wrong):
            yield refusal("declared_maximum", f"{_who(rows, wrong)}: at or beyond the declared maximum and still alive")
    if occurs(ended):
        wrong = ended & (emitted == rows[EMITTED_BEFORE]) & (rows[FAILURE] == 0)
        if occurs(wrong):
            yield refusal("terminal_without_token", f"{_who(rows, wrong)}: ended without a token or a failure")


def _service(state: SchedulerState, authorized: Authorized, result: IterationResult) -> Iterator[Problem]:
    debits, rebuilt = service_of(state, authorized, result.rows)
    if result.debits.tobytes() != debits.tobytes():
        yield refusal("service_debit", "debits: not what the completed rows add up to; planned work is no service")
    if result.recomputed_rows != rebuilt:
        yield refusal("rebuild_ledger", f"recomputed_rows={result.recomputed_rows}: completed rebuilds give {rebuilt}")
