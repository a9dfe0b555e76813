"""Reader otel-genai: model calls only, usage or an allowed estimate, and what each call waits for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracefiles import check_sound, codes, fault, read
from workloads.schedule import Trace, Turns
from workloads.traces.spandeps import Request, waits_of

FORMAT = "otel-genai"
S = 10**9


def iso(seconds: float, zone: str = "+00:00") -> str:
    return f"2026-02-25T10:00:{seconds:09.6f}{zone}"


def said(*texts: str) -> str:
    """Messages of a prompt: user and assistant in turn, as JSON inside a string."""
    return json.dumps([{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)])


def span(name: str, start: float, end: float, prompt: str = "", answer: str = "", zone: str = "+00:00", **more: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 3}
    facts |= {"gen_ai.input.messages": prompt} if prompt else {}
    facts |= {"gen_ai.output.text": answer} if answer else {}
    facts |= more.pop("attributes", {})
    whole = {"trace_id": "t", "span_id": name, "parent_span_id": None, "start_time": iso(start, zone), "end_time": iso(end, zone)}
    return {**whole, "attributes": facts, "status": {"code": 1}, **more}


def document(*spans: dict[str, Any]) -> bytes:
    return json.dumps({"trace_id": "t", "spans": spans}, indent=1).encode()


def after(trace: Trace) -> list[list[int]]:
    return [turns_of(trace).after.row(i).tolist() for i in range(len(trace))]


def turns_of(trace: Trace) -> Turns:
    assert trace.turns is not None
    return trace.turns


def test_only_model_calls_are_requests_and_the_rest_is_counted() -> None:
    tool = span("b", 1, 2, attributes={"gen_ai.operation.name": "execute_tool"})
    plain = {**span("c", 1, 2), "attributes": {"http.method": "GET"}}
    embed = span("e", 1, 2, attributes={"gen_ai.operation.name": "embeddings"})
    trace = read(FORMAT, document(span("a", 0, 1), tool, plain, embed, span("d", 3, 4)))
    assert trace.source_row.tolist() == [0, 4]
    assert trace.skipped == {"operation execute_tool": 1, "span of no model call": 1, "operation embeddings": 1}
    assert trace.arrival_ns.tolist() == [0, 3 * S]


def test_a_file_without_model_calls_is_refused() -> None:
    assert codes(FORMAT, document({**span("c", 1, 2), "attributes": {}})) == ["trace.no_rows"]


def test_counts_come_from_usage_under_both_names() -> None:
    old = span("a", 0, 1)
    old["attributes"] = {"gen_ai.operation.name": "chat", "gen_ai.usage.prompt_tokens": 50, "gen_ai.usage.completion_tokens": 20}
    trace = read(FORMAT, document(old, span("b", 2, 3)))
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([50, 10], [20, 3])


def test_missing_usage_is_refused_unless_an_estimate_is_allowed() -> None:
    bare = span("a", 0, 1, said("12345678"), "123456789")
    bare["attributes"] = {k: v for k, v in bare["attributes"].items() if "usage" not in k}
    assert codes(FORMAT, document(bare)) == ["trace.missing", "trace.missing"]
    assert "bytes_per_token" in fault(FORMAT, document(bare)).problems[0].remedy
    trace = read(FORMAT, document(bare), bytes_per_token=4.0)
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([2], [3])
    assert any("1 requests have no usage: tokens are estimated at 4 bytes" in note for note in trace.notes)
    silent = {**bare, "attributes": {"gen_ai.operation.name": "chat"}}
    assert codes(FORMAT, document(silent), bytes_per_token=4.0) == ["trace.missing", "trace.missing"]


def test_a_chain_waits_for_the_answers_it_quotes() -> None:
    trace = read(
        FORMAT,
        document(
            span("a", 0, 2.5, said("q"), "x"),
            span("b", 3, 5, said("q", "x", "r"), "y", attributes={"gen_ai.usage.input_tokens": 14}),
            span("c", 6, 8, said("q", "x", "r", "y", "s"), "z", attributes={"gen_ai.usage.input_tokens": 20}),
        ),
    )
    assert after(trace) == [[], [0], [1]]
    assert turns_of(trace).think_ns.tolist() == [-1, S // 2, S]
    assert turns_of(trace).extends.tolist() == [-1, 0, 1]
    assert turns_of(trace).turn.tolist() == [0, 1, 2]


def test_a_fan_in_waits_for_all_whose_answers_it_holds() -> None:
    parts = [span(name, i, i + 2, said(f"q{name}"), f"x{name}") for i, name in enumerate("abc")]
    trace = read(FORMAT, document(*parts, span("d", 6, 9, said("qa", "xa", "qb", "xb", "qc", "xc", "compare"))))
    assert after(trace) == [[], [], [], [0, 1, 2]]
    assert turns_of(trace).think_ns[3] == 2 * S


def test_parallel_branches_join_and_their_root_is_not_waited_for_twice() -> None:
    root, left, right = (
        span("a", 0, 2, said("q"), "x"),
        span("b", 3, 5, said("q", "x", "l"), "y"),
        span("c", 3, 6, said("q", "x", "r"), "z"),
    )
    trace = read(FORMAT, document(root, left, right, span("d", 7, 8, said("q", "x", "l", "y", "r", "z", "end"))))
    assert after(trace) == [[], [0], [0], [1, 2]]


def test_a_users_words_are_no_answer() -> None:
    trace = read(FORMAT, document(span("a", 0, 1, said("q"), "yes"), span("b", 2, 3, said("yes"))))
    assert after(trace) == [[], []]


def test_parts_and_plain_content_are_one_text() -> None:
    answer = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "x"}], "finish_reason": "stop"}])
    first = span("a", 0, 1, said("q"), attributes={"gen_ai.output.messages": answer})
    assert after(read(FORMAT, document(first, span("b", 2, 3, said("q", "x", "r"))))) == [[], [0]]


def test_parents_and_links_are_causes_once_they_had_ended() -> None:
    inside = span("b", 1, 2, parent_span_id="a")
    linked = span("c", 9, 10, links=[{"context": {"trace_id": "t", "span_id": "a"}}, {"span_id": "gone"}])
    trace = read(FORMAT, document(span("a", 0, 8), inside, linked))
    assert after(trace) == [[], [], [0]]


def test_without_links_and_text_the_order_of_times_is_taken_and_told() -> None:
    trace = read(FORMAT, document(span("a", 0, 1), span("b", 2, 4), span("c", 2, 5), span("d", 6, 7)))
    assert after(trace) == [[], [0], [0], [1, 2]]
    assert any(note.startswith("3 requests have neither links nor text") for note in trace.notes)


def test_sessions_are_conversations_or_traces() -> None:
    one = span("a", 0, 1, attributes={"gen_ai.conversation.id": "k"})
    two = {**span("b", 2, 3, attributes={"gen_ai.conversation.id": "k"}), "trace_id": "u"}
    other = {**span("c", 4, 5), "trace_id": "k"}
    vendor = span("d", 6, 7, attributes={"vendor.session.id": "k"})
    assert turns_of(read(FORMAT, document(one, two, other, vendor))).session.tolist() == [0, 0, 1, 0]


def test_errors_are_failures_and_without_counts_are_left_out_and_counted() -> None:
    broken = span("b", 2, 3, status={"code": 2})
    blank = {**broken, "span_id": "c", "attributes": {"gen_ai.operation.name": "chat"}}
    trace = read(FORMAT, document(span("a", 0, 1), broken, blank))
    assert trace.failed is not None
    assert trace.failed.tolist() == [False, True]
    assert trace.skipped == {"failed and without token counts": 1}


def test_clocks_with_and_without_zone_do_not_mix_inference_sim_1606() -> None:
    assert codes(FORMAT, document(span("a", 0, 1), span("b", 2, 3, zone=""))) == ["trace.clock"]
    assert any("no zone" in note for note in read(FORMAT, document(span("a", 0, 1, zone=""))).notes)
    east = read(FORMAT, document(span("a", 0, 1), {**span("b", 0, 1), "start_time": iso(2, "+01:00"), "end_time": iso(3, "+01:00")}))
    assert east.arrival_ns.tolist() == [3598 * S, 0]


def test_the_seventh_digit_counts() -> None:
    late = {**span("b", 0, 1), "start_time": "2026-02-25T10:00:00.000000100+00:00"}
    trace = read(FORMAT, document(span("a", 0, 1), late))
    assert (trace.arrival_ns.tolist(), trace.grid_ns) == ([0, 100], 1)


def otlp(name: str, start_ns: int, end_ns: int, **more: Any) -> dict[str, Any]:
    pairs = {"gen_ai.operation.name": {"stringValue": "chat"}, "gen_ai.usage.input_tokens": {"intValue": "12"}}
    pairs["gen_ai.usage.output_tokens"] = {"intValue": 4}
    attributes = [{"key": key, "value": value} for key, value in pairs.items()]
    times = {"startTimeUnixNano": str(start_ns), "endTimeUnixNano": str(end_ns)}
    return {"traceId": "aa", "spanId": name, "attributes": attributes, "status": {}, **times, **more}


def test_otlp_documents_and_lines_are_read_alike() -> None:
    spans = [otlp("1", 5, 10), otlp("2", 20, 30, parentSpanId="1")]
    whole = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    lines = b"".join(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]}).encode() + b"\n" for one in spans)
    for raw in (json.dumps(whole).encode(), json.dumps(whole, indent=1).encode(), lines):
        trace = read(FORMAT, raw)
        assert (trace.arrival_ns.tolist(), trace.input_tokens.tolist()) == ([0, 15], [12, 12])
        assert (after(trace), turns_of(trace).think_ns.tolist()) == ([[], [0]], [-1, 10])


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({**span("a", 0, 1), "start_time": None}, "trace.timestamp"),
        ({**span("a", 0, 1), "end_time": "2026-02-25"}, "trace.timestamp"),
        ({**span("a", 0, 1), "end_time": "2025-01-01T00:00:00Z"}, "trace.timestamp"),
        ({**span("a", 0, 1), "span_id": 5}, "trace.name"),
        (span("a", 0, 1, attributes={"gen_ai.usage.input_tokens": "10"}), "trace.count"),
        (span("a", 0, 1, attributes={"gen_ai.usage.input_tokens": -1}), "trace.negative_count"),
        (span("z", 0, 1), "trace.repeated_id"),
    ],
)
def test_bad_spans_are_named_with_their_place(bad: dict[str, Any], code: str) -> None:
    problem = fault(FORMAT, document(span("z", 0, 1), bad)).problems[0]
    assert (problem.code, problem.what.split(":")[0]) == (code, "document, span 1")


TIMES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), min_size=1, max_size=12)


@given(TIMES, st.data())
def test_any_times_links_and_quotes_give_no_circle(times: list[tuple[int, int]], data: st.DataObject) -> None:
    names = [str(i) for i in range(len(times))]
    spans = []
    for name, (start, length) in zip(names, times, strict=True):
        links = [{"span_id": other} for other in data.draw(st.lists(st.sampled_from(names), max_size=2))]
        texts = data.draw(st.lists(st.sampled_from("xyz"), max_size=3))
        spans.append(
            span(name, start, start + length, said(*texts) if texts else "", data.draw(st.sampled_from(["", "x", "y"])), links=links)
        )
    trace = read(FORMAT, document(*spans))
    check_sound(trace)
    for row, causes in enumerate(after(trace)):
        for other in causes:
            assert sum(times[other]) <= times[row][0]


@given(TIMES)
def test_the_order_of_times_is_kept_whole_and_reduced(times: list[tuple[int, int]]) -> None:
    requests = [Request("s", ("t", str(i)), a, a + n, (), (), (), 1, 1) for i, (a, n) in enumerate(times)]
    waits, _ = waits_of(requests)
    reach: dict[int, set[int]] = {}
    for row in sorted(range(len(times)), key=lambda r: requests[r].begins):
        reach[row] = {other for cause in waits[row][0] for other in {cause, *reach[cause]}}
    brute = {b: {a for a in range(len(times)) if requests[a].ends <= requests[b].begins} for b in range(len(times))}
    assert reach == brute
    for row, (causes, _) in enumerate(waits):
        assert not any(one in reach[other] for one in causes for other in causes), row


def test_an_integer_beyond_64_bits_in_a_message_is_text_like_any_other() -> None:
    huge = {"kvlistValue": {"values": [{"key": "x", "value": {"intValue": "9" * 20}}]}}
    messages = {"key": "gen_ai.input.messages", "value": {"arrayValue": {"values": [huge]}}}
    counts = [{"key": f"gen_ai.usage.{side}_tokens", "value": {"intValue": "5"}} for side in ("input", "output")]
    assert read(FORMAT, document({**span("a", 0, 1), "attributes": [messages, *counts]})).input_tokens.tolist() == [5]


def test_lines_are_lines_however_long_the_first_one_is() -> None:
    lines = [json.dumps(span(name, start, start + 1, prompt=said("x" * (1 << 20)))) for name, start in (("a", 0), ("b", 2))]
    assert len(read(FORMAT, "\n".join(lines).encode())) == 2
