"""Every caution has a trace that earns it and one that does not, differing in that alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.cautions import cautions
from analysis.describe import describe
from tests.unit.test_analysis_describe import Columns, Ids, Sessions, lists

S = 10**9
EVEN = np.arange(400) * S // 4
RAMP = np.concatenate((np.arange(10) * 2 * S, 20 * S + np.arange(390) * S // 5))
ROWS = len(EVEN)


def codes(context: int | None = None, raw: dict[str, Any] | None = None, **changes: Any) -> set[str]:
    given = {
        "arrival_ns": EVEN,
        "input_tokens": np.full(ROWS, 9),
        "output_tokens": np.full(ROWS, 3),
        "blocks": Ids(lists([[i, i + 1, i + 2] for i in range(ROWS)])),
    }
    trace = Columns(**(given | changes))
    return {c.code for c in cautions(trace, describe(trace) | (raw or {}), context=context)}


def sessions(pause_s: int) -> Sessions:
    return Sessions(np.zeros(ROWS, dtype=np.int64), np.full(ROWS, pause_s * S))


CASES = [
    ("not_in_order", {"arrival_ns": EVEN[::-1]}, {}),
    ("duplicates", {"raw": {"exact_duplicate_rows": 2}}, {"raw": {"exact_duplicate_rows": 0}}),
    ("no_arrivals", {"clock": "none"}, {}),
    ("head_is_a_ramp", {"arrival_ns": RAMP}, {}),
    ("on_a_grid", {"arrival_ns": EVEN // (3 * S) * 3 * S}, {}),
    ("idle", {"arrival_ns": EVEN * 100}, {}),
    ("beyond_context", {"context": 11}, {"context": 12}),
    ("no_output", {"output_tokens": np.zeros(ROWS, dtype=np.int64)}, {}),
    ("failures", {"failed": np.ones(ROWS, dtype=bool)}, {"failed": np.zeros(ROWS, dtype=bool)}),
    ("no_sharing", {"blocks": None}, {}),
    ("long_pauses", {"turns": sessions(3600)}, {"turns": sessions(60)}),
]


@pytest.mark.parametrize(("code", "bad", "good"), CASES, ids=[code for code, _, _ in CASES])
def test_a_caution_is_given_where_it_is_due_and_nowhere_else(code: str, bad: dict[str, Any], good: dict[str, Any]) -> None:
    assert code in codes(**bad)
    assert code not in codes(**good)


def test_an_even_trace_with_known_prefixes_needs_none() -> None:
    assert codes() == set()


def test_a_trace_that_falls_as_silent_later_is_bursty_and_has_no_ramp() -> None:
    silent_twice = np.concatenate((RAMP, RAMP[-1] + 20 * S + np.arange(100) * S // 5))
    trace = Columns(silent_twice, np.full(len(silent_twice), 9), np.full(len(silent_twice), 3))
    assert "head_is_a_ramp" not in {c.code for c in cautions(trace, describe(trace))}


def test_a_ramp_of_one_part_is_seen_where_the_span_divides_evenly_into_parts() -> None:
    arrival = np.concatenate((np.array([0, 2 * S]), np.arange(5 * S, 100 * S + 1, S // 5)))  # parts of 5 s, the last arrival at 100 s sharp
    trace = Columns(arrival, np.full(len(arrival), 9), np.full(len(arrival), 3))
    assert "head_is_a_ramp" in {c.code for c in cautions(trace, describe(trace))}


def test_a_handful_of_rows_is_not_called_a_ramp() -> None:
    trace = Columns(np.array([0, 50 * S, 51 * S, 52 * S]), np.full(4, 9), np.full(4, 3))
    assert "head_is_a_ramp" not in {c.code for c in cautions(trace, describe(trace))}
