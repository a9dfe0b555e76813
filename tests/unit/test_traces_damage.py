"""Every reader of JSON lines, spans and sessions under damage: a sound trace or a refusal with a place, and no other way to end."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from tests.tracefiles import check_outcome, codes, fault, jsonl, read
from workloads.traces import guess_format, read_trace
from workloads.traces.jsonl import DEEPEST, repeated_key

MOONCAKE = {"timestamp": 5, "input_length": 1000, "output_length": 5, "hash_ids": [7, 8]}
BAILIAN = {**MOONCAKE, "chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1, "input_length": 20}
RAGPULSE = {
    **MOONCAKE,
    "timestamp": "5",
    "session_id": "a",
    "hash_ids": {"sys_prompt": [1], "passages_ids": [], "history": [2], "web_search": [], "user_input": [3]},
}
ROUND = {
    "session_id": "a",
    "round_index": 0,
    "input_tokens_total": 7,
    "prefix_tokens": 3,
    "newly_append_tokens": 4,
    "output_tokens": 2,
    "timing_events": [{"event_type": "user_message", "timestamp": "2026-06-01T05:40:20.151Z"}],
}
REQUEST = {"t": 0.0, "type": "n", "in": 70, "out": 5, "hash_ids": [1], "api_time": 1.5, "think_time": 0.0}
AGENT = {"t": 9.5, "type": "subagent", "duration_ms": 2000, "requests": [REQUEST]}
SESSION = {"id": "x", "block_size": 64, "hash_id_scope": "local", "requests": [REQUEST, AGENT, {**REQUEST, "t": 12.0}]}
USAGE = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 2}
SPAN = {
    "trace_id": "t",
    "span_id": "s",
    "start_time": "2026-06-01T05:40:20Z",
    "end_time": "2026-06-01T05:40:21.5Z",
    "links": [{"context": {"span_id": "s"}}],
    "attributes": {**USAGE, "gen_ai.input.messages": '[{"role": "user", "content": [{"text": "x"}]}]'},
}
CSV = (
    b"session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
    b"0,117,0,0,2318,200,300\n0,117,1,2518,348,131,154\n"
)
SAMPLES = {
    "mooncake": jsonl([MOONCAKE, {**MOONCAKE, "timestamp": 9}]),
    "qwen-bailian": jsonl([BAILIAN, {**BAILIAN, "chat_id": 2, "parent_chat_id": 1, "timestamp": 9.5}]),
    "ragpulse": jsonl([RAGPULSE, {**RAGPULSE, "timestamp": "9"}]),
    "weka-agentic": json.dumps(SESSION).encode(),
    "tracelab": jsonl([ROUND, {**ROUND, "round_index": 1}]),
    "otel-genai": json.dumps({"spans": [SPAN, {**SPAN, "span_id": "r"}]}).encode(),
}
ROWS = {"mooncake": MOONCAKE, "qwen-bailian": BAILIAN, "ragpulse": RAGPULSE, "tracelab": ROUND}


@pytest.mark.parametrize("fmt", sorted(SAMPLES))
def test_the_samples_are_sound_plain_and_packed_and_known_by_their_head(fmt: str, tmp_path: Path) -> None:
    plain = check_outcome(fmt, SAMPLES[fmt])
    packed = check_outcome(fmt, gzip.compress(SAMPLES[fmt]))
    assert plain is not None
    assert packed is not None
    assert plain.input_tokens.tolist() == packed.input_tokens.tolist()
    for name, raw in (("a.bin", SAMPLES[fmt]), ("b.bin", gzip.compress(SAMPLES[fmt]))):
        (tmp_path / name).write_bytes(raw)
        assert guess_format(tmp_path / name) == fmt


def test_the_csv_is_known_by_its_header(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_bytes(CSV)
    assert guess_format(tmp_path / "w.csv") == "tracelab"
    assert check_outcome("tracelab", CSV) is not None


@pytest.mark.parametrize("fmt", sorted(SAMPLES))
@given(data=st.data())
def test_a_damaged_file_gives_a_trace_or_a_refusal(fmt: str, data: st.DataObject) -> None:
    raw = bytearray(SAMPLES[fmt] if fmt != "tracelab" or data.draw(st.booleans()) else CSV)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=3))
    check_outcome(fmt, bytes(raw))


@pytest.mark.parametrize("fmt", sorted(SAMPLES))
@given(raw=st.binary(max_size=200))
def test_any_bytes_give_a_trace_or_a_refusal(fmt: str, raw: bytes) -> None:
    check_outcome(fmt, raw)
    check_outcome(fmt, SAMPLES[fmt] + raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("fmt", sorted(ROWS))
@given(data=st.data(), value=JSON)
def test_any_value_under_any_key_gives_a_trace_or_a_refusal(fmt: str, data: st.DataObject, value: object) -> None:
    key = data.draw(st.sampled_from(sorted(ROWS[fmt])))
    check_outcome(fmt, jsonl([{**ROWS[fmt], key: value}]))


@settings(max_examples=40)  # four files an example
@given(data=st.data(), value=JSON)
def test_any_value_in_a_session_or_a_span_gives_a_trace_or_a_refusal(data: st.DataObject, value: object) -> None:
    place = data.draw(st.sampled_from(["id", "requests", "block_size", *REQUEST]))
    bad = {**SESSION, place: value} if place in SESSION else {**SESSION, "requests": [{**REQUEST, place: value}, AGENT]}
    check_outcome("weka-agentic", json.dumps(bad).encode())
    check_outcome(
        "weka-agentic", json.dumps({**SESSION, "requests": [{**AGENT, data.draw(st.sampled_from(sorted(AGENT))): value}]}).encode()
    )
    check_outcome("otel-genai", json.dumps({"spans": [{**SPAN, data.draw(st.sampled_from(sorted(SPAN))): value}]}).encode())
    attributes = {**USAGE, data.draw(st.sampled_from([*USAGE, "gen_ai.input.messages", "gen_ai.output.messages"])): value}
    check_outcome("otel-genai", json.dumps({"spans": [{**SPAN, "attributes": attributes}]}).encode())


@pytest.mark.parametrize("fmt", sorted(ROWS))
@pytest.mark.parametrize(
    ("tail", "code"),
    [
        (b'{"timestamp": 5, "inp', "trace.torn_row"),
        (b'{"a": 1, "a": 2}\n', "trace.repeated_key"),
        (b'{"a" :1, "a":2}\n', "trace.repeated_key"),
        (b'{"a": {"b": 1, "b": 1}}\n', "trace.repeated_key"),
        (b'{"a": [1, {"b": 1, "b": 1}]}\n', "trace.repeated_key"),
        (b'{"timestamp": NaN}\n', "trace.json"),
        (b'{"timestamp": 1e999}\n', "trace.json"),
        (b'{"timestamp": "\xff"}\n', "trace.encoding"),
        (b'{"timestamp": 5\x00}\n', "trace.nul"),
        (b"[1]\n", "trace.row_type"),
        (b"null\n", "trace.row_type"),
        (b"5\n", "trace.row_type"),
        (b"[" * 5000 + b"]" * 5000 + b"\n", "trace.json"),
        (b"\n{}\n", "trace.blank_row"),
    ],
)
def test_bad_lines_are_named_with_their_number(fmt: str, tail: bytes, code: str) -> None:
    problem = fault(fmt, SAMPLES[fmt] + tail).problems[0]
    assert (problem.code, problem.where) == (code, "t.jsonl:3")


def test_deep_nesting_is_refused_before_anything_can_run_out_of_stack() -> None:
    deep = b'{"a":' * (DEEPEST + 2) + b"1" + b"}" * (DEEPEST + 2)
    assert codes("mooncake", SAMPLES["mooncake"] + deep + b"\n")[0] == "trace.nested"
    assert codes("weka-agentic", deep) == ["trace.nested"]
    assert codes("otel-genai", b'{"spans": [' + deep + b"]}") == ["trace.nested"]
    quoted = {**SPAN, "attributes": {**USAGE, "gen_ai.input.messages": "[" * 200 + "]" * 200}}
    assert check_outcome("otel-genai", json.dumps({"spans": [quoted]}).encode()) is not None


@pytest.mark.parametrize("fmt", sorted(ROWS))
def test_empty_files_and_marks_are_named(fmt: str) -> None:
    assert codes(fmt, b"") == ["trace.no_rows"]
    assert codes(fmt, b"\n\n") == ["trace.no_rows"]
    assert codes(fmt, b"\xef\xbb\xbf" + SAMPLES[fmt]) == ["trace.bom"]
    assert codes(fmt, gzip.compress(SAMPLES[fmt])[:-9]) == ["trace.unreadable"]


def test_a_carriage_return_ends_no_line() -> None:
    raw = SAMPLES["mooncake"]
    assert len(read("mooncake", raw.replace(b"\n", b"\r\n"))) == 2
    assert len(read("mooncake", raw.replace(b", ", b",\r"))) == 2


def test_twenty_problems_are_listed_and_the_rest_counted() -> None:
    error = fault("mooncake", jsonl([{**MOONCAKE, "input_length": -1, "hash_ids": []}] * 50))
    assert len(error.problems) == 21
    assert "problems_not_listed=30" in error.problems[20].what


def test_absent_files_and_folders_are_refused(tmp_path: Path) -> None:
    for fmt in SAMPLES:
        for path in (tmp_path / "absent", tmp_path):
            with pytest.raises(UsageError, match=r"trace\.unreadable"):
                read_trace(fmt, path)


@given(JSON, st.booleans())
def test_valid_json_without_a_repeated_key_passes(value: object, spaced: bool) -> None:
    text = json.dumps(value, separators=(" ,", " : ") if spaced else (", ", ": "), allow_nan=False, default=str) if _finite(value) else "1"
    assert repeated_key(text.encode(), json.loads(text)) is None


def _finite(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


@given(st.dictionaries(st.text(max_size=5), JSON.filter(_finite), min_size=1, max_size=4), st.data())
def test_any_repeated_key_is_found(row: dict[str, object], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(row)))
    pairs = [*row.items(), (key, 5)]
    text = "{" + ", ".join(f"{json.dumps(k)}{data.draw(st.sampled_from(['', ' ']))}: {json.dumps(v)}" for k, v in pairs) + "}"
    assert repeated_key(text.encode(), json.loads(text)) == key
