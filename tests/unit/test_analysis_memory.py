"""What a cache cost: read from counters that were sampled, added up by cell, told where there is something to tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.clocks import derive_clocks
from analysis.memory import COUNTERS, IDLE, LEDGER, MemoryUse, add_memory, memory_use
from analysis.report.memory import memory_tables
from tests import report_demo
from tests.builders import MS, S, make_record, make_request, make_sample

ROWS = [make_request(0, 0), make_request(1, 500 * MS)]
LEDGER_COUNTS = {"reserved_rows_total": 40, "unused_rows_total": 12, "under_rows_total": 3, "used_rows_total": 31, "reservations_total": 2}


def use_of(samples: list[dict[str, Any]]) -> MemoryUse:
    record = make_record(ROWS, server_metrics=samples)
    return memory_use(record, derive_clocks(record))


def sampled(counts: dict[str, int], before: int = 0) -> list[dict[str, Any]]:
    first = [make_sample(-10 * MS, "server", name, before) for name in counts]
    return first + [make_sample(60 * S, "server", name, before + value) for name, value in counts.items()]


def test_growth_over_the_run_counts_and_what_was_never_sampled_is_absent() -> None:
    found = use_of(sampled({"preemptions_total": 3, "recomputed_rows_total": 70}, before=9))
    assert found == MemoryUse({"preemptions_total": 3, "recomputed_rows_total": 70})
    assert found.happened
    assert found.closes is None
    assert use_of([]) == MemoryUse({})
    assert not use_of([]).happened


def test_a_counter_that_fell_or_was_cut_short_is_absent() -> None:
    fell = [make_sample(-10 * MS, "server", "preemptions_total", 9), make_sample(60 * S, "server", "preemptions_total", 2)]
    short = [make_sample(-10 * MS, "server", "preemptions_total", 0), make_sample(1 * MS, "server", "preemptions_total", 2)]
    assert use_of(fell).counts == use_of(short).counts == {}


def test_idle_rows_are_a_mean_over_samples() -> None:
    idle = [make_sample(t * S, "server", IDLE, value) for t, value in enumerate((0, 6, 3))]
    assert use_of(idle).idle_rows == 3
    assert use_of(idle).happened


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6))
def test_a_ledger_that_closes_closes_when_runs_are_added(runs: list[tuple[int, int]]) -> None:
    uses = []
    for reserved, used in runs:
        rows = (reserved, max(reserved - used, 0), max(used - reserved, 0), used)
        uses.append(MemoryUse(dict(zip(LEDGER, rows, strict=True))))
    assert all(use.closes for use in uses)
    assert add_memory(uses).closes
    broken = MemoryUse(dict(uses[0].counts) | {"used_rows_total": runs[0][1] + 1})
    assert broken.closes is False
    assert add_memory([broken, *uses[1:]]).closes is False


def test_runs_add_up_where_each_has_the_counter() -> None:
    one = MemoryUse({"preemptions_total": 3, "recomputed_rows_total": 7}, 4.0)
    other = MemoryUse({"preemptions_total": 2}, None)
    assert add_memory([one, other]) == MemoryUse({"preemptions_total": 5}, 4.0)
    assert set(LEDGER) <= set(COUNTERS)


def told(*uses: MemoryUse | None) -> list[tuple[str, tuple[str, ...], tuple[tuple[str, ...], ...], str]]:
    """Tables of a campaign whose first cells have these uses in every run."""
    made = report_demo.campaign()
    cells = tuple(
        replace(cell, runs=tuple(replace(run, memory=use) for run in cell.runs[:1])) for cell, use in zip(made.cells, uses, strict=False)
    )
    return [(t.title, t.header, t.rows, t.note) for t in memory_tables(replace(made, cells=cells))]


def test_no_table_where_there_is_nothing_to_tell() -> None:
    assert told(None, None) == []
    assert told(MemoryUse({"preemptions_total": 0, "recomputed_rows_total": 0}), None) == []


def test_a_real_engine_has_one_column_and_no_guess_beside_it() -> None:
    ((title, header, rows, _),) = told(MemoryUse({"preemptions_total": 4}))
    assert title == "Preemptions"
    assert header == ("Cell", "All")
    assert [row[1] for row in rows] == ["4"]


def test_promises_and_preemptions_stand_apart_and_an_unknown_is_said() -> None:
    full = MemoryUse(
        LEDGER_COUNTS | {"preemptions_total": 1, "recomputed_rows_total": 9, "breach_rows_total": 1, "extensions_total": 5}, 2.5
    )
    promises, preemptions = told(full, MemoryUse({"preemptions_total": 2}))
    assert promises[1] == ("Cell", "Requests", "Reserved", "Used", "Unused", "Under", "Breach", "Extensions")
    assert [row[1:] for row in promises[2]] == [("2", "40", "31", "12", "3", "1", "5")]
    assert preemptions[1] == ("Cell", "All", "Rows recomputed", "Idle rows of last blocks (mean)")
    assert [row[1:] for row in preemptions[2]] == [("1", "9", "2.5"), ("2", "unknown", "unknown")]


@pytest.mark.parametrize(("used", "said"), [(31, False), (30, True)])
def test_a_ledger_that_does_not_close_says_so(used: int, said: bool) -> None:
    (promises,) = told(MemoryUse(LEDGER_COUNTS | {"used_rows_total": used}))[:1]
    assert ("does not close" in promises[3]) is said
