"""Reader qwen-bailian, held to the published description of its columns: no published file was at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracefiles import check_sound, codes, fault, jsonl, read
from workloads.schedule import Trace, Turns
from workloads.traces import get_reader, guess_format

FORMAT = "qwen-bailian"
ROW = {
    "chat_id": 1,
    "parent_chat_id": -1,
    "timestamp": 0.0,
    "input_length": 20,
    "output_length": 5,
    "type": "text",
    "turn": 1,
    "hash_ids": [10, 11],
}
CHILD = {**ROW, "chat_id": 2, "parent_chat_id": 1, "timestamp": 61.125, "turn": 2, "input_length": 40, "hash_ids": [10, 12, 13]}


def turns_of(trace: Trace) -> Turns:
    assert trace.turns is not None
    return trace.turns


def test_seconds_blocks_of_16_and_types_vllm_39795() -> None:
    trace = read(FORMAT, jsonl([ROW, {**CHILD, "type": "search"}]))
    assert trace.arrival_ns.tolist() == [0, 61_125_000_000]
    assert trace.blocks is not None
    assert (trace.blocks.size, trace.blocks.rounding) == (16, "ceil")
    assert trace.kind is not None
    assert trace.kind.values() == ["text", "search"]
    assert get_reader(FORMAT).info.tested == "schema"


def test_ids_compare_within_the_trace_qwen_bailian_1() -> None:
    rule = get_reader(FORMAT).info.prefix
    assert rule is not None
    assert (rule.block_size, rule.scope) == (16, "trace")
    trace = read(FORMAT, jsonl([ROW, {**ROW, "chat_id": 5}]))  # two chats, one salt: equal ids are one prefix
    assert trace.blocks is not None
    assert trace.blocks.ids.row(0).tolist() == trace.blocks.ids.row(1).tolist()


def test_one_block_for_each_id_in_order_qwen_bailian_4() -> None:
    trace = read(FORMAT, jsonl([ROW, CHILD]))
    assert trace.blocks is not None
    assert [trace.blocks.ids.row(i).tolist() for i in (0, 1)] == [[10, 11], [10, 12, 13]]


def test_a_turn_waits_for_its_parent_and_its_pause_is_unknown_inference_sim_1478() -> None:
    turns = turns_of(read(FORMAT, jsonl([ROW, CHILD])))
    assert (turns.session.tolist(), turns.turn.tolist()) == ([0, 0], [0, 1])
    assert [turns.after.row(i).tolist() for i in (0, 1)] == [[], [0]]
    assert turns.think_ns.tolist() == [-1, -1]  # 61.125 s from start to start hold the service of the first


def test_history_is_counted_already_dynamo_14184() -> None:
    trace = read(FORMAT, jsonl([ROW, CHILD]))
    assert turns_of(trace).history == "included"
    assert trace.input_tokens.tolist() == [20, 40]


def test_a_turn_extends_its_parent_when_full_blocks_and_length_say_so() -> None:
    assert turns_of(read(FORMAT, jsonl([ROW, CHILD]))).extends.tolist() == [-1, 0]
    other = {**CHILD, "hash_ids": [99, 12, 13]}
    trace = read(FORMAT, jsonl([ROW, other]))
    assert turns_of(trace).extends.tolist() == [-1, -1]
    assert any("1 later turns do not begin with their parent" in note for note in trace.notes)
    short = {**CHILD, "input_length": 24, "hash_ids": [10, 12]}
    assert turns_of(read(FORMAT, jsonl([ROW, short]))).extends.tolist() == [-1, -1]


def test_branches_of_one_chat_are_one_session() -> None:
    turns = turns_of(read(FORMAT, jsonl([ROW, {**CHILD, "chat_id": 3}, CHILD, {**ROW, "chat_id": 9}])))
    assert turns.session.tolist() == [0, 0, 0, 1]
    assert [turns.after.row(i).tolist() for i in range(4)] == [[], [0], [0], []]


def test_a_parent_outside_the_file_is_counted_and_not_made_up() -> None:
    lost = {**CHILD, "parent_chat_id": 77}
    trace = read(FORMAT, jsonl([ROW, lost, {**lost, "chat_id": 3}]))
    assert turns_of(trace).session.tolist() == [0, 1, 1]
    assert [turns_of(trace).after.row(i).tolist() for i in range(3)] == [[], [], []]
    assert any(note.startswith("2 rows name a parent") for note in trace.notes)


def test_a_parent_may_stand_below_its_child() -> None:
    assert turns_of(read(FORMAT, jsonl([CHILD, ROW]))).after.row(0).tolist() == [1]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([ROW, {**CHILD, "chat_id": 1}], "trace.repeated_id"),
        ([{**ROW, "parent_chat_id": 1}], "trace.parent_order"),
        ([{**ROW, "timestamp": 9.0}, {**CHILD, "timestamp": 3.0}], "trace.parent_order"),
        ([{**ROW, "parent_chat_id": 2}, {**CHILD, "timestamp": 0.0}], "trace.parent_order"),
        ([{**ROW, "parent_chat_id": -2}], "trace.integer"),
        ([{**ROW, "chat_id": 1.5}], "trace.integer"),
        ([{**ROW, "turn": 0}], "trace.integer"),
        ([{**ROW, "type": 3}], "trace.name"),
        ([{**ROW, "type": None}], "trace.missing"),
        ([{**ROW, "hash_ids": [10]}], "trace.block_count"),
        ([{**ROW, "timestamp": -1.0}], "trace.timestamp"),
        ([{**ROW, "timestamp": "1.0"}], "trace.timestamp"),
    ],
)
def test_what_cannot_be_represented_is_refused(rows: list[dict[str, object]], code: str) -> None:
    assert code in codes(FORMAT, jsonl(rows))


def test_a_repeated_chat_names_the_first_line() -> None:
    assert "line 1" in fault(FORMAT, jsonl([ROW, CHILD, {**ROW, "timestamp": 70.0}])).problems[0].what


def test_a_mooncake_reader_refuses_these_rows_and_the_other_way_round() -> None:
    assert "trace.block_count" in codes("mooncake", jsonl([CHILD]))
    assert "trace.missing" in codes(FORMAT, jsonl([{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}]))


@given(st.lists(st.tuples(st.integers(-1, 15), st.integers(0, 100), st.integers(0, 60)), min_size=1, max_size=16))
def test_any_forest_in_time_order_is_read(nodes: list[tuple[int, int, int]]) -> None:
    clock, rows = 0.0, []
    for i, (parent, gap, length) in enumerate(nodes):
        clock += gap / 8
        known = parent if parent < i else -1
        ids = list(range(-(-length // 16)))
        rows.append({**ROW, "chat_id": i, "parent_chat_id": known, "timestamp": clock, "input_length": length, "hash_ids": ids})
    trace = read(FORMAT, jsonl(rows))
    check_sound(trace)
    turns = turns_of(trace)
    for i, line in enumerate(rows):
        parent = int(str(line["parent_chat_id"]))
        assert turns.after.row(i).tolist() == ([parent] if parent >= 0 else [])
        assert parent < 0 or turns.session[i] == turns.session[parent]


def test_a_first_row_of_more_than_a_hundred_thousand_tokens_is_known(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(jsonl([{**ROW, "input_length": 128_000, "hash_ids": list(range(10**8, 10**8 + 8000))}]))
    assert guess_format(path) == FORMAT
