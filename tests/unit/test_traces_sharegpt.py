"""Reader sharegpt: every question with its answer is a row, and every turn that is none is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads.schedule import Trace
from workloads.tokens import ByteTokenizer
from workloads.traces import guess_format, read_trace
from workloads.traces.sharegpt import ShareGptOptions, read_texts

BYTES = ShareGptOptions(tokenizer="bytes")


def talk(*turns: tuple[str, str], name: str = "c") -> dict[str, Any]:
    return {"id": name, "conversations": [{"from": role, "value": text} for role, text in turns]}


def write(folder: Path, content: Any) -> Path:
    path = folder / "sg.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode())
    return path


def read(path: Path) -> Trace:
    return read_trace("sharegpt", path, {"tokenizer": "bytes"})


def outcome(path: Path) -> Trace | UsageError:
    try:
        return read(path)
    except UsageError as error:
        return error


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read(path)
    return str(caught.value)


def test_vllm_54783_every_turn_is_a_row_whatever_its_length(tmp_path: Path) -> None:
    turns = [(role, f"{role}{i} " * 1000) for i in range(5) for role in ("human", "gpt")]
    path = write(tmp_path, [talk(*turns), talk(("human", "x"), ("gpt", "y"))])
    trace = read(path)
    assert trace.input_tokens.tolist() == [7000] * 5 + [1]
    assert trace.output_tokens.tolist() == [5000] * 5 + [1]
    assert trace.skipped == {}
    assert trace.turns is not None
    assert trace.turns.session.tolist() == [0] * 5 + [1]
    assert trace.turns.turn.tolist() == [0, 1, 2, 3, 4, 0]
    assert [trace.turns.after.row(i).tolist() for i in range(6)] == [[], [0], [1], [2], [3], []]
    assert trace.turns.extends.tolist() == [-1, 0, 1, 2, 3, -1]
    assert trace.turns.think_ns.tolist() == [-1] * 6
    assert trace.turns.history == "excluded"


def test_lengths_are_those_of_the_named_tokenizer_and_it_is_recorded(tmp_path: Path) -> None:
    trace = read(write(tmp_path, [talk(("user", "h€"), ("assistant", "ö"))]))
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([4], [2])
    assert trace.clock == "none"
    assert ByteTokenizer.digest in trace.notes[0]


def test_without_a_tokenizer_the_error_says_what_to_name(tmp_path: Path) -> None:
    path = write(tmp_path, [talk(("human", "a"), ("gpt", "b"))])
    with pytest.raises(UsageError, match=r"tokenizer\.json of the served model"):
        read_trace("sharegpt", path)
    with pytest.raises(UsageError, match="no tokenizer"):
        read_trace("sharegpt", path, {"tokenizer": "absent"})


def test_what_is_no_pair_is_counted_by_reason(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [
            talk(("system", "be kind"), ("gpt", "hello"), ("human", "q1"), ("gpt", "a1"), ("gpt", "a1b"), ("tool", "t")),
            talk(("human", "q2"), ("human", "q3"), ("gpt", "a3"), ("human", ""), ("human", "q4"), ("gpt", "")),
            talk(("human", "q5")),
            talk(),
        ],
    )
    trace = read(path)
    assert read_texts(path, BYTES) == ["q1", "q3"]
    assert trace.skipped == {
        "answer without a question": 2,
        "empty answer": 1,
        "empty question": 1,
        "question without an answer": 3,
        "system turn": 1,
        "unknown role 'tool'": 1,
    }


def test_half_a_surrogate_pair_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        rb'[{"conversations": [{"from": "human", "value": "\ud800"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}]',
    )
    trace = read(path)
    assert len(trace) == 1
    assert trace.skipped == {"unencodable question": 1}


def test_texts_have_the_rows_of_the_trace(tmp_path: Path) -> None:
    path = write(tmp_path, [talk(("human", "é" * i), ("gpt", "b")) for i in range(5)])
    trace, texts = read(path), read_texts(path, BYTES)
    assert trace.source_row.tolist() == list(range(4))
    assert [len(texts[row].encode()) for row in trace.source_row] == trace.input_tokens.tolist()


@pytest.mark.parametrize("piece", [1, 2, 3, 7])
def test_where_the_file_is_cut_while_it_is_read_changes_nothing(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, [talk(("human", "h€llo, ]}"), ("gpt", "wörld [{"))] * 3)
    whole = read(path)
    monkeypatch.setattr("workloads.traces.sharegpt.PIECE", piece)
    assert read(path).input_tokens.tolist() == whole.input_tokens.tolist()
    assert read_texts(path, BYTES) == ["h€llo, ]}"] * 3


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "not a JSON list"),
        (b"{}", "not a JSON list"),
        (b"[]", "no question with an answer in 0 conversations"),
        (b"[1]", "not an object with a list `conversations`"),
        (b'[{"conversations": [{"from": "human", "value": 5}]}]', "conversation 0, turn 0"),
        (b'[{"conversations": []} {}]', "a comma or the list's end"),
        (b'[{"conversations": []},', "not JSON"),
        (b'[{"conversations": []}', "not JSON"),
        (b'[{"conversations": []}] x', "text after the list's end"),
        (b'[{"x": NaN}]', "NaN is no number"),
        (b'["\xff"]', "utf-8"),
        (b"[" * 100_000, "recursion"),
        (b"[" + b"9" * 5000 + b"]", "not JSON"),
    ],
)
def test_what_is_no_list_of_conversations_is_refused(tmp_path: Path, raw: bytes, said: str) -> None:
    assert said in refused(write(tmp_path, raw))


def test_all_faulty_items_are_told_by_their_number(tmp_path: Path) -> None:
    message = refused(write(tmp_path, [talk(("human", "a"), ("gpt", "b")), {}, {"conversations": ["x", {"from": "gpt"}]}]))
    assert "conversation 1={}" in message
    assert "conversation 2, turn 0" in message
    assert "conversation 2, turn 1" in message


def test_the_format_is_guessed_by_its_keys(tmp_path: Path) -> None:
    assert guess_format(write(tmp_path, [talk(("human", "a"), ("gpt", "b"))])) == "sharegpt"


TURNS = st.lists(st.tuples(st.sampled_from(["human", "gpt", "system", "odd"]), st.sampled_from(["", "q", "é]", '"{'])), max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(TURNS, min_size=1, max_size=4))
def test_every_turn_is_in_one_pair_or_counted_once(tmp_path: Path, talks: list[list[tuple[str, str]]]) -> None:
    path = write(tmp_path, [talk(("human", "q"), ("gpt", "a"))] + [talk(*turns) for turns in talks])
    trace = read(path)
    assert 2 * len(trace) + sum(trace.skipped.values()) == 2 + sum(map(len, talks))
    assert len(read_texts(path, BYTES)) == len(trace)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.binary(max_size=30)
    | st.lists(st.sampled_from([b"[", b"]", b"{", b"}", b",", b'"conversations":', b'"a"', b"1", b" ", b"\xc3"])).map(b"".join)
)
def test_any_bytes_end_in_a_trace_or_in_problems(tmp_path: Path, raw: bytes) -> None:
    path = write(tmp_path, b"[" + raw)
    result = outcome(path)
    if isinstance(result, UsageError):
        assert all(problem.code.startswith("trace.") and problem.where == "sg.json" for problem in result.problems)
    else:
        assert len(result) > 0
