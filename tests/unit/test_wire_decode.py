from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.record.schema import EventKind as K
from harness.wire import PROTOCOLS
from harness.wire.contract import Decoded
from harness.wire.decode import UNKNOWN_TOKENS, BodyDecoder, StreamDecoder
from harness.wire.payload import short_error
from tests.unit.test_wire_sse import cut

DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def choice(text: str = "", ids: list[int] | None = None, usage: int | None = None, reason: str | None = None) -> dict[str, Any]:
    """One completions chunk in vLLM's shape."""
    return {
        "object": "text_completion",
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "token_ids": ids}],
        "usage": None if usage is None else {"prompt_tokens": 8, "total_tokens": 8 + usage, "completion_tokens": usage},
    }


def delta(usage: int | None = None, reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """One chat chunk in SGLang's shape (no usage key where it has none)."""
    chunk: dict[str, Any] = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}
    return chunk if usage is None else chunk | {"usage": {"prompt_tokens": 15, "completion_tokens": usage}}


def last_usage(completion: int, cached: int | None = None) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    return {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": completion, "prompt_tokens_details": details}}


def decode(*chunks: bytes) -> Decoded:
    decoder = StreamDecoder()
    for i, chunk in enumerate(chunks):
        decoder.feed(i, chunk)
    return decoder.finish()


def seen(decoded: Decoded) -> list[tuple[K, int]]:
    return [(e.kind, e.tokens) for e in decoded.events]


def test_token_ids_count_tokens_and_the_prompts_ids_do_not() -> None:
    first = choice(" a", ids=[7], usage=1)
    first["choices"][0]["prompt_token_ids"] = [1, 2, 3]
    out = decode(event(first), event(choice("b c", ids=[8, 9], usage=3, reason="length")), event(last_usage(3, cached=4)), DONE)
    assert seen(out) == [(K.TOKEN, 1), (K.TOKEN, 2), (K.USAGE, 0), (K.DONE, 0)]
    assert (out.client_tokens, out.usage_completion_tokens, out.usage_prompt_tokens, out.usage_cached_tokens) == (3, 3, 8, 4)
    assert (out.finish_reason, out.complete, out.malformed, out.error) == ("length", True, None, None)


def test_half_a_character_is_a_token_although_its_text_is_empty() -> None:
    out = decode(event(choice("", usage=1)), event(choice("é", usage=2)), DONE)
    assert seen(out)[:2] == [(K.TOKEN, 1), (K.TOKEN, 1)]
    assert out.client_tokens == 2


def test_several_tokens_of_one_event_are_counted_by_the_growth_of_usage() -> None:
    out = decode(event(delta(role="assistant", content="")), event(delta(1, content="a")), event(delta(6, content="bcdef")), DONE)
    assert seen(out) == [(K.ROLE, 0), (K.TOKEN, 1), (K.TOKEN, 5), (K.DONE, 0)]
    assert out.client_tokens == 6


def test_without_ids_or_continuous_usage_the_count_is_unknown_and_never_guessed() -> None:
    out = decode(event(choice("a")), event(choice("b c")), event(last_usage(3)), DONE)
    assert seen(out)[:2] == [(K.TOKEN, UNKNOWN_TOKENS)] * 2
    assert out.client_tokens is None
    assert out.usage_completion_tokens == 3


def test_a_total_on_the_last_choice_is_not_continuous_usage() -> None:
    out = decode(event(choice("a")), event(choice("b", usage=2, reason="stop")), DONE)
    assert seen(out)[:2] == [(K.TOKEN, UNKNOWN_TOKENS)] * 2
    assert out.client_tokens is None


def test_a_total_behind_ids_counts_nothing_twice() -> None:
    out = decode(event(choice("a", ids=[1])), event(choice("b", ids=[2])), event(choice("", usage=2, reason="stop")), DONE)
    assert [tokens for _, tokens in seen(out)] == [1, 1, 0, 0]
    assert (out.client_tokens, out.usage_completion_tokens) == (2, 2)


def test_a_choice_that_brings_text_without_its_ids_leaves_the_event_uncounted() -> None:
    value = choice("a", ids=[1])
    value["choices"].append({"index": 1, "text": "b", "finish_reason": None})
    out = decode(event(value), DONE)
    assert (seen(out)[0], out.client_tokens) == ((K.TOKEN, UNKNOWN_TOKENS), None)


def test_text_that_brings_no_new_token_is_no_token_event() -> None:
    out = decode(event(choice("a", usage=1)), event(choice("held back", usage=1)), DONE)
    assert seen(out) == [(K.TOKEN, 1), (K.EMPTY, 0), (K.DONE, 0)]


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning", "tool_calls"])
def test_every_kind_of_generated_output_is_output(field: str) -> None:
    out = decode(event(delta(**{field: [{"index": 0}] if field == "tool_calls" else "x"})), DONE)
    assert seen(out)[0] == (K.TOKEN, UNKNOWN_TOKENS)


def test_a_finish_event_without_output_is_empty() -> None:
    out = decode(event(delta(1, content="a")), event(delta(reason="stop", reasoning_content=None)), DONE)
    assert seen(out)[1] == (K.EMPTY, 0)
    assert (out.finish_reason, out.client_tokens) == ("stop", 1)


def test_an_error_inside_a_stream_in_both_servers_shapes() -> None:
    vllm = decode(event({"error": {"message": "queue is full", "type": "Overloaded", "param": None, "code": 503}}), DONE)
    assert (seen(vllm)[0], vllm.error, vllm.error_status, vllm.complete) == ((K.ERROR, 0), "Overloaded: queue is full", 503, True)
    sglang = decode(event({"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}))
    assert (sglang.error, sglang.error_status, sglang.complete) == ("BadRequestError: too long", 400, False)
    assert decode(event({"error": "plain", "code": 1})).error == "plain"


def test_a_comment_is_an_event_of_its_own() -> None:
    assert seen(decode(b": keep-alive\n\n", DONE)) == [(K.COMMENT, 0), (K.DONE, 0)]


def test_bad_json_is_malformed_and_the_stream_goes_on() -> None:
    out = decode(b'data: {"choices": [\n\n', event(choice("a", ids=[1])), DONE)
    assert seen(out) == [(K.MALFORMED, 0), (K.TOKEN, 1), (K.DONE, 0)]
    assert out.malformed is not None


def test_a_stream_cut_inside_a_character_is_cut_and_adds_no_event() -> None:
    cut_event = event(choice("x", ids=[2]))[:-9] + "é".encode()[:1]
    out = decode(event(choice("a", ids=[1])), cut_event)
    assert seen(out) == [(K.TOKEN, 1)]
    assert out.malformed == "the stream ends inside an event"
    assert not out.complete


def test_a_whole_last_event_without_its_blank_line_counts() -> None:
    assert decode(event(choice("a", ids=[1])), DONE.rstrip()).complete
    assert decode(event(choice("a", ids=[1])).rstrip()).client_tokens == 1


def test_an_event_beyond_the_bound_is_malformed_once() -> None:
    decoder = StreamDecoder(limit=50)
    decoder.feed(1, b"data: " + b"x" * 100)
    decoder.feed(2, b"x" * 100 + b"\n\n" + DONE)
    out = decoder.finish()
    assert seen(out) == [(K.MALFORMED, 0)]
    assert not out.complete


def test_stamps_are_those_of_the_read_that_ended_the_event() -> None:
    whole = event(choice("a", ids=[1]))
    assert [e.ns for e in decode(whole[:5], whole[5:-1], whole[-1:] + DONE).events] == [2, 2]


def test_live_count_follows_the_stream() -> None:
    decoder = StreamDecoder()
    counts = []
    for i in range(3):
        decoder.feed(i, event(choice("a", ids=[1] * (i + 1))))
        counts.append(decoder.tokens)
    assert counts == [1, 3, 6]


@pytest.mark.parametrize("count", [True, -1, "3", 2**40, None, 1.5])
def test_a_nonsense_usage_is_no_usage(count: Any) -> None:
    usage = {"completion_tokens": count}
    out = decode(event(choice("a") | {"usage": usage}), DONE)
    assert out.client_tokens is None
    assert out.usage_completion_tokens is None


def test_a_whole_body_is_one_event_at_its_last_byte() -> None:
    body = json.dumps(
        {
            "object": "chat.completion",
            "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        }
    ).encode()
    decoder = BodyDecoder()
    decoder.feed(5, body[:10])
    decoder.feed(9, body[10:])
    out = decoder.finish()
    assert [tuple(e) for e in out.events] == [(9, 2, len(body), K.TOKEN)]
    assert (out.complete, out.client_tokens, out.finish_reason) == (True, 2, "stop")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"choices": 3}', b'{"choices": [3]}', b'{"choices": [{"text": "a"}'])
def test_a_body_that_is_not_the_protocol_is_malformed(body: bytes) -> None:
    decoder = BodyDecoder()
    decoder.feed(1, body)
    out = decoder.finish()
    assert out.malformed is not None
    assert not out.complete


def test_a_body_beyond_the_bound_is_malformed() -> None:
    decoder = BodyDecoder(limit=8)
    decoder.feed(1, b"123456789")
    assert decoder.finish().malformed == "the body is longer than 8 bytes"


def test_an_error_never_repeats_the_prompt() -> None:
    prompt_text = "the patient's name is in here, and it is quite long"
    told = short_error(f"bad value: {{'loc': 'body', 'input': {prompt_text!r}}}")
    assert "patient" not in told
    assert "1234" not in short_error(f"ids {[1234] * 40} out of range")
    assert "patient" not in short_error(f'cannot parse "{prompt_text}" as JSON')
    assert len(short_error("x " * 1000)) <= 200
    assert short_error(f'cannot parse "{prompt_text * 100}" as JSON') == "cannot parse [cut]"  # the quotation ends where nobody looked


@pytest.mark.parametrize("value", [choice("a", [1], reason="x" * 1000), {"output_ids": [1], "meta_info": {"finish_reason": "x" * 1000}}])
def test_a_reason_that_is_no_word_is_cut_short(value: dict[str, Any]) -> None:
    decoder = PROTOCOLS["generate" if "meta_info" in value else "completions"].decoder(stream=True)
    decoder.feed(1, event(value) + DONE)
    assert decoder.finish().finish_reason == "x" * 39 + "…"


KEYS = st.sampled_from(["choices", "delta", "message", "usage", "error", "code", "token_ids", "completion_tokens", "text", "object"])
JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


@given(st.lists(JSONISH, max_size=4))
def test_any_json_decodes_without_raising_and_counts_are_sane(values: list[Any]) -> None:
    out = decode(*[event(v) for v in values], DONE)
    assert len(out.events) >= len(values)
    assert all(e.tokens >= UNKNOWN_TOKENS for e in out.events)
    known = [e.tokens for e in out.events if e.tokens > 0]
    assert out.client_tokens is None or out.client_tokens == sum(known)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(data: bytes) -> None:
    decode(data)
    body = BodyDecoder()
    body.feed(1, data)
    body.finish()


WHOLE = b"".join(
    [
        event(delta(role="assistant", content="")),
        b": c\r\n\r\n",
        event(choice("é", ids=[1, 2])),
        event(choice("", usage=3)).replace(b"\n", b"\r\n"),
        b"data: {broken\n\n",
        event({"error": {"message": "m", "code": 503}}),
        event(last_usage(4)),
        DONE,
        b"data: tail",
    ]
)


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12), st.integers(0, len(WHOLE)))
def test_any_split_gives_the_same_events(places: list[int], stop: int) -> None:
    body = WHOLE[:stop]
    whole, split = decode(body), decode(*cut(body, places))
    assert [e[1:] for e in split.events] == [e[1:] for e in whole.events]
    for field in ("client_tokens", "complete", "malformed", "error", "finish_reason", "usage_completion_tokens"):
        assert getattr(split, field) == getattr(whole, field)


def numbered(index: int, **more: Any) -> dict[str, Any]:
    chunk = choice("a", **more)
    chunk["choices"][0]["index"] = index
    return chunk


def test_choices_share_one_stream_and_their_tokens_add_up() -> None:
    """n > 1: t1 is the first token of any choice, counts are sums, and events stay in the order they came."""
    chunks = [numbered(1, ids=[7]), numbered(0, ids=[8, 9]), numbered(1, ids=[7])]
    out = decode(*map(event, chunks), event(last_usage(4)), DONE)
    assert [(e.ns, e.tokens) for e in out.events[:3]] == [(0, 1), (1, 2), (2, 1)]
    assert out.client_tokens == out.usage_completion_tokens == 4


def test_continuous_usage_of_several_choices_is_counted_choice_by_choice() -> None:
    """Both engines put one choice into an event and that choice's own count beside it; the total comes last."""
    chunks = [numbered(0, usage=1), numbered(1, usage=1), numbered(0, usage=2), numbered(1, usage=4)]
    out = decode(*map(event, chunks), event(last_usage(6)), DONE)
    assert [tokens for _, tokens in seen(out)] == [1, 1, 1, 3, 0, 0]
    assert out.client_tokens == 6


def test_one_object_of_several_choices_counts_by_their_sum() -> None:
    body = json.dumps({"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}], "usage": {"completion_tokens": 9}}).encode()
    decoder = BodyDecoder()
    decoder.feed(1, body)
    assert decoder.finish().client_tokens == 9
    both = choice("a", usage=5)
    both["choices"].append(both["choices"][0] | {"index": 1})
    assert seen(decode(event(numbered(0, usage=2)), event(both), DONE))[:2] == [(K.TOKEN, 2), (K.TOKEN, 3)]


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_answer_that_the_server_gave_up_is_an_error_although_its_stream_is_whole(reason: str) -> None:
    out = decode(event(choice("a", ids=[1])), event(choice("b", ids=[2], reason=reason)), DONE)
    assert (seen(out)[1], out.error, out.complete) == ((K.TOKEN, 1), f"finish_reason: {reason}", True)
    assert seen(decode(event(choice(reason=reason)), DONE))[0] == (K.ERROR, 0)


@pytest.mark.parametrize(
    ("kind", "chunks", "expected"),
    [
        # reasoning first, then the answer; names of vLLM and of SGLang
        ("vllm", [delta(1, reasoning="hm"), delta(3, reasoning=" so"), delta(4, content="yes")], [1, 2, 1]),
        ("sglang", [delta(1, reasoning_content="hm", content=None), delta(2, reasoning_content=None, content="yes")], [1, 1]),
        # a parser holds a call back and lets its tokens out together
        ("tool", [delta(1, tool_calls=[{"index": 0, "function": {"name": "f"}}]), delta(9, tool_calls=[{"index": 0}])], [1, 8]),
        ("held", [delta(1, content="a"), delta(5, content=""), delta(6, content="b")], [1, 4, 1]),
    ],
)
def test_reasoning_and_calls_are_counted_by_usage(kind: str, chunks: list[dict[str, Any]], expected: list[int]) -> None:
    out = decode(event(delta(0, role="assistant", content="")), *map(event, chunks), event(last_usage(sum(expected))), DONE)
    assert seen(out)[0] == (K.ROLE, 0), kind
    assert [tokens for _, tokens in seen(out)[1:-2]] == expected
    assert out.client_tokens == sum(expected)


def test_several_events_of_one_read_share_its_stamp_and_one_event_over_reads_has_the_last() -> None:
    events = [event(choice("a", ids=[k])) for k in range(19)]
    out = decode(b"".join(events) + events[0][:7], events[0][7:9], events[0][9:])
    assert [e.ns for e in out.events] == [0] * 19 + [2]


def test_data_on_several_lines_is_one_event() -> None:
    lines = json.dumps(choice("a", ids=[1, 2]), indent=1).splitlines()
    body = b"event: message\nid: 4\n" + b"".join(b"data: " + line.encode() + b"\n" for line in lines) + b"\n"
    assert seen(decode(body, DONE)) == [(K.TOKEN, 2), (K.DONE, 0)]


def test_without_its_end_mark_a_stream_is_whole_and_not_complete() -> None:
    out = decode(event(choice("a", ids=[1])), event(last_usage(1)))
    assert (out.complete, out.client_tokens, out.malformed) == (False, 1, None)


def test_an_event_behind_the_end_mark_is_malformed() -> None:
    assert seen(decode(DONE, event(choice("a", ids=[1])))) == [(K.DONE, 0), (K.MALFORMED, 0)]
