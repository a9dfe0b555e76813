"""Reader tracelab: rounds with wall times of their events, and the replayer's CSV whose input_len is the new part only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracefiles import check_sound, codes, jsonl, read
from workloads.schedule import Trace, Turns

FORMAT = "tracelab"
HEADER = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
MS = 1_000_000


def stamp(ms: int) -> str:
    return f"2026-06-01T05:{ms // 60_000:02d}:{ms // 1000 % 60:02d}.{ms % 1000:03d}Z"


def events(*pairs: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"event_type": kind, "timestamp": stamp(ms), "source": "x"} for kind, ms in pairs]


def turn(
    index: int, total: int, out: int, *pairs: tuple[str, int], session: str = "claude:1", prefix: int = 0, **more: Any
) -> dict[str, Any]:
    return {
        "provider": "claude",
        "session_id": session,
        "round_index": index,
        "input_tokens_total": total,
        "prefix_tokens": prefix,
        "newly_append_tokens": total - prefix,
        "claude_cache_read_input_tokens": None,
        "output_tokens": out,
        "timing_events": events(*pairs),
        "first_input_event_type": pairs[0][0] if pairs else None,
        **more,
    }


FIRST = turn(0, 100, 20, ("user_message", 1000), ("text", 4000), ("tool_call", 5000))
SECOND = turn(1, 150, 30, ("tool_result", 5500), ("tool_result", 24_000), ("text", 30_000), prefix=110)


def turns_of(trace: Trace) -> Turns:
    assert trace.turns is not None
    return trace.turns


def csv(*rows: str) -> bytes:
    return (HEADER + "".join(f"{row}\n" for row in rows)).encode()


def test_a_round_arrives_with_its_last_input_and_the_pause_runs_from_the_end_before_inference_sim_1478() -> None:
    trace = read(FORMAT, jsonl([FIRST, SECOND]))
    assert (trace.clock, trace.grid_ns) == ("absolute", MS)
    assert trace.arrival_ns.tolist() == [0, 23_000 * MS]
    assert turns_of(trace).think_ns.tolist() == [-1, 19_000 * MS]  # 24.0 - 5.0 s, not 24.0 - 1.0 s
    assert turns_of(trace).after.row(1).tolist() == [0]


def test_the_whole_prompt_is_counted_once_dynamo_14184() -> None:
    trace = read(FORMAT, jsonl([FIRST, SECOND]))
    assert trace.input_tokens.tolist() == [100, 150]
    assert turns_of(trace).history == "included"
    assert turns_of(trace).extends.tolist() == [-1, 0]


def test_a_human_pause_of_tens_of_minutes_is_kept_and_told_aiperf_1262() -> None:
    late = turn(1, 150, 30, ("user_message", 5000 + 1_800_000), ("text", 5000 + 1_801_000))
    trace = read(FORMAT, jsonl([FIRST, late]))
    assert turns_of(trace).think_ns[1] == 1_800_000 * MS
    assert any("1 pauses exceed 10 min, the longest lasts 1800 s" in note for note in trace.notes)


def test_a_shortened_history_extends_nothing() -> None:
    trace = read(FORMAT, jsonl([FIRST, turn(1, 110, 30, ("user_message", 9000), ("text", 9500))]))
    assert turns_of(trace).extends.tolist() == [-1, -1]
    assert any("1 later rounds are shorter" in note for note in trace.notes)


def test_rounds_follow_their_numbers_and_missing_ones_are_told() -> None:
    trace = read(FORMAT, jsonl([turn(3, 300, 1, ("tool_result", 60_000), ("text", 61_000)), SECOND, FIRST]))
    assert [turns_of(trace).after.row(i).tolist() for i in range(3)] == [[1], [2], []]
    assert any("rounds are missing from the file" in note for note in trace.notes)


def test_null_cache_columns_are_no_fault_and_unread_keys_are_named() -> None:
    assert any("claude_cache_read_input_tokens" in note for note in read(FORMAT, jsonl([FIRST])).notes)


def test_a_round_without_output_events_has_no_end() -> None:
    trace = read(FORMAT, jsonl([turn(0, 100, 20, ("user_message", 1000)), SECOND]))
    assert turns_of(trace).think_ns.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({**FIRST, "newly_append_tokens": 99}, "trace.token_sum"),
        ({**FIRST, "timing_events": []}, "trace.timestamp"),
        ({**FIRST, "timing_events": None}, "trace.timestamp"),
        ({**FIRST, "timing_events": [{"event_type": "text", "timestamp": "2026-06-01T05:00:00.000"}]}, "trace.timestamp"),
        ({**FIRST, "timing_events": [{"event_type": "text", "timestamp": "2026-06-31T05:00:00Z"}]}, "trace.timestamp"),
        ({**FIRST, "output_tokens": None}, "trace.missing"),
        ({**FIRST, "round_index": -1}, "trace.integer"),
        ({**FIRST, "session_id": ""}, "trace.name"),
    ],
)
def test_bad_rounds_are_named(row: dict[str, Any], code: str) -> None:
    assert code in codes(FORMAT, jsonl([row]))


def test_a_round_that_stands_twice_is_refused() -> None:
    assert codes(FORMAT, jsonl([FIRST, FIRST])) == ["trace.repeated_id"]


def test_input_len_of_the_csv_is_the_new_part_and_the_prompt_holds_the_prefix() -> None:
    trace = read(FORMAT, csv("0,117,0,0,2318,200,300", "0,117,1,2518,348,131,154", "1,393,0,0,861,107,273"), name="w.csv")
    assert (trace.clock, trace.grid_ns) == ("relative", MS)
    assert trace.input_tokens.tolist() == [2318, 2866, 861]
    assert turns_of(trace).extends.tolist() == [-1, 0, -1]
    assert turns_of(trace).think_ns.tolist() == [-1, 300 * MS, -1]
    assert turns_of(trace).session.tolist() == [0, 0, 1]


def test_the_csvs_sessions_arrive_in_ms_and_later_rounds_by_their_waits() -> None:
    trace = read(FORMAT, csv("0,100,0,0,10,5,30", "0,100,1,15,5,5,40", "0,100,2,25,5,5,0", "1,50,0,0,1,1,0"), name="w.csv")
    assert trace.arrival_ns.tolist() == [50 * MS, 80 * MS, 120 * MS, 0]
    assert any("as if answers took no time" in note for note in trace.notes)


def test_columns_of_the_csv_are_found_by_name() -> None:
    raw = b"session_id,note,round_idx,arrival_time,prefix_len,input_len,output_len,tool_wait_after_ms\r\n0,x,0,1,0,7,8,9\r\n"
    assert read(FORMAT, raw, name="w.csv").input_tokens.tolist() == [7]
    assert codes(FORMAT, raw.replace(b"input_len", b"new_len"), name="w.csv") == ["trace.columns"]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (["0,1,0,0,10,5"], "trace.torn_row"),
        (["0,1,0,0,10,5,x"], "trace.count"),
        (["0,1,0,0,10,-5,0"], "trace.count"),
        (["0,1,0,0,99999999,5,0"], "trace.count"),
        (["0,1,1,0,10,5,0"], "trace.round_order"),
        (["0,1,0,0,10,5,0", "0,2,1,15,10,5,0"], "trace.round_order"),
        (["0,1,0,0,10,5,0", "0,1,0,15,10,5,0"], "trace.round_order"),
        (["0,1,0,0,10,5,0", "", "0,1,1,15,10,5,0"], "trace.blank_row"),
        ([], "trace.no_rows"),
    ],
)
def test_bad_csv_rows_are_named(rows: list[str], code: str) -> None:
    assert code in codes(FORMAT, csv(*rows), name="w.csv")


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 500), st.integers(0, 90), st.integers(0, 5000)), min_size=1, max_size=5), min_size=1, max_size=5
    )
)
def test_csv_sessions_come_back_as_written(sessions: list[list[tuple[int, int, int]]]) -> None:
    rows, totals = [], []
    for i, rounds in enumerate(sessions):
        prefix = 0
        for k, (new, out, wait) in enumerate(rounds):
            rows.append(f"{i},{7 * i},{k},{prefix},{new},{out},{wait}")
            prefix += new
            totals.append(prefix)
            prefix += out
    trace = read(FORMAT, csv(*rows), name="w.csv")
    check_sound(trace)
    assert trace.input_tokens.tolist() == totals
    assert (turns_of(trace).extends >= 0).sum() == sum(len(rounds) - 1 for rounds in sessions)


def test_tool_waits_that_add_up_to_decades_are_refused() -> None:
    assert set(codes(FORMAT, csv(*(f"1,0,{i},0,5,5,1152921504606" for i in range(12))), name="t.csv")) == {"trace.timestamp"}
