"""Reader ragpulse: strings as times, two passes in one file, prompts of components whose prefix identity is rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracefiles import check_sound, codes, fault, jsonl, read
from workloads.profiles import profile
from workloads.schedule import Trace
from workloads.traces.ragpulse import ORDER, _Chains

FORMAT = "ragpulse"
KEYS = {
    "1_sys_prompt.jsonl": "sys_prompt_id",
    "2_passages.jsonl": "passage_id",
    "3_history.jsonl": "history_id",
    "4_user_input.jsonl": "user_input_id",
    "5_web_search.jsonl": "web_search_id",
}
LENGTHS = {
    "1_sys_prompt.jsonl": {1: 40, 2: 7},
    "2_passages.jsonl": {10: 33, 11: 20},
    "3_history.jsonl": {20: 11},
    "4_user_input.jsonl": {30: 9, 31: 9},
    "5_web_search.jsonl": {40: 50},
}
FILES = {name: jsonl({KEYS[name]: i, "token_length": n} for i, n in ids.items()) for name, ids in LENGTHS.items()}
TOKENS = {i: n for ids in LENGTHS.values() for i, n in ids.items()}


def row(timestamp: object = "82", session: object = "a", glue: int = 8, **lists: list[int]) -> dict[str, Any]:
    ids = {"sys_prompt": [1], "passages_ids": [10], "history": [20], "web_search": [], "user_input": [30], **lists}
    total = sum(TOKENS.get(i, 0) for kind in ids.values() for i in kind) + glue
    return {"timestamp": timestamp, "input_length": total, "output_length": 5, "hash_ids": ids, "session_id": session}


def loaded(*rows: dict[str, Any], beside: dict[str, bytes] = FILES, tail: bytes = b"", **options: Any) -> Trace:
    return read(FORMAT, jsonl(rows) + tail, "0_trace.jsonl", beside, **options)


def shared(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def common(trace: Trace, a: int, b: int) -> int:
    """Equal leading ids of two rows."""
    assert trace.blocks is not None
    first, second = trace.blocks.ids.row(a).tolist(), trace.blocks.ids.row(b).tolist()
    return shared(first, second)


def test_times_are_strings_and_compare_as_numbers() -> None:
    trace = loaded(row("93"), row("125"))
    assert trace.arrival_ns.tolist() == [0, 32_000_000_000]
    assert trace.grid_ns == 1_000_000_000


def test_two_passes_stay_in_file_order_and_are_told() -> None:
    trace = loaded(row("82"), row("604453"), row("0"), row("604603"))
    assert trace.arrival_ns.tolist() == [s * 10**9 for s in (82, 604453, 0, 604603)]
    assert any("time goes back 1 times, first at row 2" in note for note in trace.notes)


def test_an_empty_last_line_is_no_row() -> None:
    assert len(loaded(row(), tail=b"\n")) == 1
    assert len(loaded(row(), tail=b"\n\n \n")) == 1


def test_a_blank_line_between_rows_is_refused() -> None:
    assert codes(FORMAT, jsonl([row()]) + b"\n" + jsonl([row()])) == ["trace.blank_row"]


def test_sessions_follow_time_across_passes() -> None:
    trace = loaded(row("50"), row("90", "b"), row("10"), row("60"))
    assert trace.turns is not None
    assert trace.turns.session.tolist() == [0, 1, 0, 0]
    assert trace.turns.turn.tolist() == [1, 0, 0, 2]
    assert [trace.turns.after.row(i).tolist() for i in range(4)] == [[2], [], [], [0]]
    assert trace.turns.think_ns.tolist() == [-1] * 4
    assert trace.turns.history == "included"


def test_equal_components_share_full_blocks_up_to_where_prompts_part() -> None:
    trace = loaded(row(), row(user_input=[31]), row(passages_ids=[11]), row(sys_prompt=[2]))
    assert trace.blocks is not None
    assert (trace.blocks.size, trace.blocks.rounding) == (16, "floor")
    # 40 + 33 + 11 = 84 tokens before the question: 5 blocks; 40 before the passages: 2.
    assert [common(trace, 0, i) for i in (1, 2, 3)] == [5, 2, 0]


def test_the_same_component_elsewhere_shares_nothing() -> None:
    trace = loaded(row(passages_ids=[10, 11]), row(passages_ids=[11, 10]))
    assert common(trace, 0, 1) == 40 // 16


def test_tokens_of_no_component_are_shared_by_nobody() -> None:
    trace = loaded(row(glue=12), row(glue=12), block_size=1)
    assert trace.blocks is not None
    assert common(trace, 0, 1) == 40 + 33 + 11 + 9
    assert len(trace.blocks.ids.row(0)) == 40 + 33 + 11 + 9 + 12


def test_the_order_is_a_choice_and_told() -> None:
    order = ["sys_prompt", "history", "passages_ids", "web_search", "user_input"]
    pair = row(), row(passages_ids=[11])
    assert common(loaded(*pair, order=order, block_size=1), 0, 1) == 40 + 11
    assert common(loaded(*pair, block_size=1), 0, 1) == 40
    assert any("not stated upstream; taken as sys_prompt, history" in note for note in loaded(*pair, order=order).notes)


@pytest.mark.parametrize("order", [["sys_prompt"], [*ORDER, "history"], ["a", *ORDER[1:]], "sys_prompt"])
def test_an_order_names_each_component_once(order: object) -> None:
    assert codes(FORMAT, jsonl([row()]), order=order)[0] == "trace.options"


def test_without_component_files_nothing_is_shared_and_the_note_says_which_are_lost() -> None:
    beside = {name: raw for name, raw in FILES.items() if name != "3_history.jsonl"}
    trace = loaded(row(), beside=beside)
    assert trace.blocks is None
    assert any("component files not found beside the trace (3_history)" in note for note in trace.notes)


def test_component_files_are_told_by_digest() -> None:
    other = {**FILES, "3_history.jsonl": FILES["3_history.jsonl"] + b'{"history_id": 21, "token_length": 1}\n'}
    one, two = (next(n for n in loaded(row(), beside=files).notes if "sha256" in n) for files in (FILES, other))
    assert one != two


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (row("1e3"), "trace.timestamp"),
        (row("-5"), "trace.timestamp"),
        (row(""), "trace.timestamp"),
        (row(None), "trace.missing"),
        (row(session=5), "trace.name"),
        (row(history=[99]), "trace.component_length"),
        (row(glue=-1), "trace.component_sum"),
        ({**row(), "hash_ids": [1, 2]}, "trace.hash_ids"),
        ({**row(), "hash_ids": {"sys_prompt": [1]}}, "trace.component"),
        (row(images=[1]), "trace.component"),
        (row(history=[True]), "trace.component"),
    ],
)
def test_bad_rows_are_named(bad: dict[str, Any], code: str) -> None:
    with pytest.raises(Exception, match=code.replace(".", r"\.")) as caught:
        loaded(row(), bad)
    assert any(p.where == "0_trace.jsonl:2" for p in caught.value.problems)  # type: ignore[attr-defined]


def test_two_lengths_of_one_component_are_refused_in_their_file() -> None:
    beside = {**FILES, "3_history.jsonl": FILES["3_history.jsonl"] + b'{"history_id": 20, "token_length": 12}\n'}
    with pytest.raises(Exception, match=r"3_history\.jsonl:2: history_id=20: 12 tokens here and 11 above"):
        loaded(row(), beside=beside)


def test_a_plain_list_of_ids_points_to_its_formats() -> None:
    assert "mooncake or qwen-bailian" in fault(FORMAT, jsonl([{**row(), "hash_ids": [1]}])).problems[0].remedy


CHAINS = st.lists(
    st.tuples(st.lists(st.sampled_from([1, 2]), max_size=2), st.lists(st.sampled_from([10, 11]), max_size=3), st.integers(0, 20)),
    min_size=2,
    max_size=6,
)


@given(CHAINS, st.integers(1, 40))
def test_shared_blocks_are_what_token_by_token_comparison_finds(chains: list[tuple[list[int], list[int], int]], size: int) -> None:
    rows = [row(sys_prompt=system, passages_ids=passages, glue=glue) for system, passages, glue in chains]
    trace = loaded(*rows, block_size=size)
    check_sound(trace)
    spelled = []
    for i, line in enumerate(rows):
        flat = [(component, k) for kind in ORDER for component in line["hash_ids"][kind] for k in range(TOKENS[component])]
        spelled.append(flat + [("own", i, k) for k in range(line["input_length"] - len(flat))])
    for a, b in pairwise(range(len(rows))):
        tokens = shared(spelled[a], spelled[b])
        chains_of = [[c for kind in ORDER for c in rows[i]["hash_ids"][kind]] for i in (a, b)]
        whole = sum(TOKENS[c] for c in chains_of[0][: shared(*chains_of)])
        assert whole // size <= common(trace, a, b) <= tokens // size


def test_components_longer_than_their_row_are_refused_without_making_their_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = {**FILES, "2_passages.jsonl": jsonl([{"passage_id": 10, "token_length": 1 << 24}])}
    made: list[int] = []
    monkeypatch.setattr(_Chains, "_node", lambda _, parent, component, blocks: made.append(blocks) or (0, 0, 0))
    assert codes(FORMAT, jsonl([row(passages_ids=[10] * 1000)]), name="0_trace.jsonl", beside=longest, **{"block-size": 1}) == [
        "trace.component_sum"
    ]
    assert not made


def test_the_profile_takes_the_component_files_and_times_that_the_reader_takes(tmp_path: Path) -> None:
    (tmp_path / "0_trace.jsonl").write_bytes(jsonl([row("0.5")]))
    for name, raw in FILES.items():
        (tmp_path / name).write_bytes(raw)
        (tmp_path / f"{name}.gz").write_bytes(b"not what the reader reads")
    shown = profile(tmp_path / "0_trace.jsonl", FORMAT)
    assert shown["rows_component_sum_ne_input_length"] == 1
    assert shown["components"]["2_passages"]["max_id"] == 11
