"""Reader burstgpt: both headers by name, failures kept, sessions chained by who waited for whom, and the problems users had elsewhere."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads.schedule import Trace
from workloads.traces import get_reader, guess_format, read_trace
from workloads.traces.burstgpt import BurstGptOptions, parse

SIX = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
EIGHT = b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
ROWS = b"5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,API log\n118,GPT-4,417,0,417,Conversation log\n"


def read(raw: bytes, **options: Any) -> Trace:
    return parse(raw, "b.csv", BurstGptOptions(**options))


def refused(raw: bytes, **options: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(raw, **options)
    return caught.value


def outcome(raw: bytes) -> Trace | UsageError:
    try:
        return read(raw)
    except UsageError as error:
        return error


def test_six_columns_without_sessions() -> None:
    trace = read(SIX + ROWS)
    assert trace.arrival_ns.tolist() == [0, 40 * 10**9, 113 * 10**9]
    assert trace.grid_ns == 10**9
    assert trace.input_tokens.tolist() == [472, 1087, 417]
    assert trace.kind is not None
    assert trace.kind.values() == ["ChatGPT", "ChatGPT", "GPT-4"]
    assert trace.turns is None
    assert any("first stamp is 5 s" in note for note in trace.notes)
    assert "rows by Log Type: API log 1, Conversation log 2" in trace.notes


def test_zero_response_tokens_are_a_failure_that_stays() -> None:
    trace = read(SIX + ROWS)
    assert trace.failed is not None
    assert trace.failed.tolist() == [False, False, True]
    assert trace.output_tokens.tolist() == [18, 230, 0]
    assert any(note.startswith("1 of 3 rows have 0 response tokens") for note in trace.notes)
    assert trace.skipped == {}


def test_columns_are_read_by_name_wherever_they_stand() -> None:
    moved = b"Log Type,Response tokens,Extra,Model,Request tokens,Timestamp\nAPI log,18,x,GPT-4,472,5.5\n"
    trace = read(moved)
    assert trace.input_tokens.tolist() == [472]
    assert "columns not used: Extra" in trace.notes
    assert trace.grid_ns == 10**8


def session_rows(*rows: tuple[str, str, str, int, int]) -> bytes:
    lines = (f"{t},{sid},{took},GPT-4,{i},{o},{i + o},Conversation log\n" for t, sid, took, i, o in rows)
    return EIGHT + "".join(lines).encode()


def test_a_session_waits_for_the_answer_before_and_thinks_from_its_end() -> None:
    trace = read(session_rows(("100.0", "s", "10", 5, 7), ("105.0", "t", "1", 4, 4), ("130.0", "s", "3", 20, 9), ("500.0", "", "", 3, 3)))
    turns = trace.turns
    assert turns is not None
    assert turns.history == "included"
    assert turns.turn.tolist() == [0, 0, 1, 0]
    assert len(set(turns.session.tolist())) == 3
    assert turns.session[0] == turns.session[2]
    assert [turns.after.row(i).tolist() for i in range(4)] == [[], [], [0], []]
    assert turns.think_ns.tolist() == [-1, -1, 20 * 10**9, -1]
    assert turns.extends.tolist() == [-1, -1, 0, -1]
    assert "1 rows without a Session ID are sessions of one turn" in trace.notes


def test_without_elapsed_time_the_pause_is_unknown_and_not_the_gap() -> None:
    raw = session_rows(("0", "s", "", 5, 7), ("30", "s", "", 20, 9))
    trace = read(raw)
    assert trace.turns is not None
    assert trace.turns.after.row(1).tolist() == [0]
    assert trace.turns.think_ns.tolist() == [-1, -1]
    assert any("think time is unknown on 1 later turns" in note for note in trace.notes)


@pytest.mark.parametrize(("second", "after", "think"), [("109", [0], 0), ("108", [], -1), ("110", [0], 0), ("111", [0], 10**9)])
def test_a_turn_sent_before_the_answer_ended_did_not_wait_for_it(second: str, after: list[int], think: int) -> None:
    trace = read(session_rows(("100", "s", "10", 5, 7), (second, "s", "3", 20, 9)))
    assert trace.turns is not None
    assert trace.turns.after.row(1).tolist() == after
    assert trace.turns.think_ns[1] == think


@pytest.mark.parametrize(("answer", "prompt", "extends"), [(7, 12, 0), (7, 11, -1), (0, 12, -1)])
def test_a_prompt_extends_the_turn_before_only_where_there_is_room_for_it(answer: int, prompt: int, extends: int) -> None:
    trace = read(session_rows(("0", "s", "1", 5, answer), ("10", "s", "1", prompt, 3)))
    assert trace.turns is not None
    assert trace.turns.extends[1] == extends


def test_rows_out_of_order_keep_the_files_order_and_chain_by_time() -> None:
    trace = read(session_rows(("50", "s", "1", 9, 9), ("40", "s", "1", 3, 3)))
    assert trace.arrival_ns.tolist() == [10 * 10**9, 0]
    assert trace.turns is not None
    assert trace.turns.turn.tolist() == [1, 0]
    assert trace.turns.after.row(0).tolist() == [1]
    assert any("arrivals go back on 1 rows" in note for note in trace.notes)


def test_a_total_that_does_not_add_up_is_told() -> None:
    assert any("on 1 rows Total tokens is not" in note for note in read(SIX + b"5,GPT-4,1,2,4,API log\n").notes)


def test_models_and_log_types_are_chosen_on_purpose_and_counted() -> None:
    trace = read(SIX + ROWS, models=("ChatGPT",), log_types=("API log",), kind="log-type")
    assert trace.source_row.tolist() == [1]
    assert trace.skipped == {"model not chosen": 1, "log type not chosen": 1}
    assert trace.kind is not None
    assert trace.kind.values() == ["API log"]


def test_a_choice_that_no_row_has_is_refused() -> None:
    assert "GPT-5" in str(refused(SIX + ROWS, models=("GPT-5",)))
    assert "leave no row" in str(refused(SIX + ROWS, models=("GPT-4",), log_types=("API log",)))


def converted(*rows: dict[str, Any]) -> bytes:
    base = {"request_id": "r", "arrival_ms": 0.0, "input_length": 1, "output_length": 2, "session_id": "s"}
    return b"".join(json.dumps(base | row).encode() + b"\n" for row in rows)


def test_the_known_conversion_is_read_and_says_what_it_lost(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_bytes(converted({}, {"arrival_ms": 1500.0}, {"arrival_ms": 2000.25, "session_id": None}))
    assert guess_format(path) == "burstgpt"
    trace = read_trace("burstgpt", path)
    assert trace.arrival_ns.tolist() == [0, 1_500_000_000, 2_000_250_000]
    assert trace.grid_ns == 10_000
    assert trace.kind is None
    assert trace.turns is not None
    assert trace.turns.think_ns.tolist() == [-1, -1, -1]
    assert trace.turns.after.row(1).tolist() == [0]
    with pytest.raises(UsageError, match="neither column"):
        read_trace("burstgpt", path, {"models": ["GPT-4"]})


@pytest.mark.parametrize("row", [{"input_length": -1}, {"arrival_ms": None}, {"session_id": 7}, {"arrival_ms": "soon"}])
def test_a_faulty_converted_row_is_refused_with_its_line(tmp_path: Path, row: dict[str, Any]) -> None:
    path = tmp_path / "b.jsonl"
    path.write_bytes(converted({}, row))
    with pytest.raises(UsageError) as caught:
        read_trace("burstgpt", path)
    assert [problem.where for problem in caught.value.problems] == ["b.jsonl:2"]


def test_options_may_be_hyphened_as_in_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_bytes(SIX + ROWS)
    assert guess_format(path) == "burstgpt"
    assert len(read_trace("burstgpt", path, {"log-types": ["API log"]})) == 1


def ramp() -> bytes:
    head = [f"{100 * i},GPT-4,1,1,2,API log\n" for i in range(10)]
    return SIX + "".join(head + [f"{1000 + i},GPT-4,1,1,2,API log\n" for i in range(900)]).encode()


def test_burstgpt_11_a_ramp_at_the_head_is_told() -> None:
    assert any("ramp at the head: the first tenth" in note for note in read(ramp()).notes)
    steady = SIX + "".join(f"{i},GPT-4,1,1,2,API log\n" for i in range(1000)).encode()
    assert not any("ramp at the head" in note for note in read(steady).notes)
    assert any("begin with a ramp" in note for note in read(SIX + ROWS).notes)


def test_vllm_13063_every_model_every_failure_and_every_time_is_kept() -> None:
    trace = read(SIX + ROWS)
    assert len(trace) == 3
    assert trace.source_row.tolist() == [0, 1, 2]
    assert len(np.unique(trace.arrival_ns)) == 3


def test_aiperf_786_missing_columns_are_one_refusal_and_not_rows_skipped() -> None:
    problems = refused(b"Timestamp,Model,Log Type\n" + b"1,GPT-4,API log\n" * 50).problems
    assert [problem.code for problem in problems] == ["trace.columns"]
    assert "Request tokens, Response tokens" in problems[0].what


def test_aiperf_988_a_file_without_times_is_refused() -> None:
    assert "without column Timestamp" in str(refused(SIX.replace(b"Timestamp,", b"") + b"GPT-4,1,1,2,API log\n"))
    assert [problem.code for problem in refused(SIX + b",GPT-4,1,1,2,API log\n").problems] == ["trace.timestamp"]


def test_aiperf_273_all_rows_come_once_in_the_files_order() -> None:
    raw = SIX + "".join(f"{i},GPT-4,{i + 1},1,{i + 2},API log\n" for i in range(500)).encode()
    assert read(raw).input_tokens.tolist() == list(range(1, 501))


def test_guidellm_620_the_clock_and_where_it_starts_are_said() -> None:
    info = get_reader("burstgpt").info
    assert info.clock == "relative"
    assert "seconds from midnight" in info.time_unit
    assert any(note.startswith("the first stamp is 5 s of the file's own clock") for note in read(SIX + ROWS).notes)


FIELDS = st.sampled_from(["", "0", "1", "7.5", "19440110.0", "-1", "GPT-4", "s1", "s2", "API log", '"', "\xff", "1e3"])


@given(st.sampled_from([SIX, EIGHT]), st.lists(st.lists(FIELDS, min_size=6, max_size=8), max_size=4), st.binary(max_size=20))
def test_any_bytes_end_in_a_sound_trace_or_in_located_problems(header: bytes, rows: list[list[str]], tail: bytes) -> None:
    raw = header + "".join(",".join(row) + "\n" for row in rows).encode() + tail
    trace = outcome(raw)
    if isinstance(trace, UsageError):
        assert all(problem.code.startswith("trace.") and problem.where for problem in trace.problems)
        return
    assert trace.arrival_ns.min() == 0
    assert trace.failed is not None
    assert trace.failed.tolist() == (trace.output_tokens == 0).tolist()
    if trace.turns is not None:
        assert (trace.turns.think_ns >= -1).all()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 60), st.sampled_from(["", "a", "b"]), st.sampled_from(["", "0", "5"]), st.integers(0, 9), st.integers(0, 9)
        ),
        min_size=1,
        max_size=12,
    )
)
def test_turns_of_a_session_are_numbered_by_time_and_wait_backwards_only(rows: list[tuple[int, str, str, int, int]]) -> None:
    trace = read(session_rows(*((str(t), sid, took, i, o) for t, sid, took, i, o in rows)))
    turns = trace.turns
    assert turns is not None
    for session in set(turns.session.tolist()):
        members = np.flatnonzero(turns.session == session)
        by_turn = members[np.argsort(turns.turn[members])]
        assert turns.turn[by_turn].tolist() == list(range(len(members)))
        assert (np.diff(trace.arrival_ns[by_turn]) >= 0).all()
        for before, row in pairwise(by_turn):
            assert turns.after.row(int(row)).tolist() in ([], [before])
