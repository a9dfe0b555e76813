"""Request bodies, response bytes and the command line of the reference server, without a socket."""

from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.reference import arguments
from harness.reference.api import PRIORITY_LIMIT, ApiError, Asked, Limits, chat_ids, parse_ask, parse_body, prompt_ids
from harness.reference.arguments import metrics_names
from harness.reference.replies import Reply, chunk, stream_head, whole
from harness.reference.table import NO_LIMIT

LIMITS = Limits("tiny", 64, 7)


def ask(chat: bool = False, **fields: Any) -> Asked:
    base: dict[str, Any] = {"model": "tiny"} | ({"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": [1, 2, 3]})
    return parse_ask(base | fields, LIMITS, chat=chat)


def refusal(chat: bool = False, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        ask(chat, **fields)
    return caught.value


def test_defaults_of_both_routes() -> None:
    completion, chat = ask(), ask(chat=True)
    assert (completion.prompt_tokens, completion.max_tokens) == (3, 16)
    assert (chat.prompt_tokens, chat.max_tokens) == (2 + 4 + 3, 64 - 9)
    assert not completion.stream
    assert not completion.ignore_eos


def test_text_is_counted_in_bytes() -> None:
    assert prompt_ids("aé") == b"a\xc3\xa9"
    assert prompt_ids([[5, 6]]) == bytes([5, 6])
    assert len(chat_ids([{"role": "user", "content": [{"type": "text", "text": "ab"}]}])) == 9


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": [256]}),
        ("prompt", {"prompt": [-1]}),
        ("prompt", {"prompt": [True]}),
        ("prompt", {"prompt": None}),
        ("prompt", {"prompt": ["a", "b"]}),
        ("prompt", {"prompt": [1] * 64}),
        ("max_tokens", {"max_tokens": 62}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": "many"}),
        ("max_tokens", {"max_tokens": True}),
        ("min_tokens", {"min_tokens": 9, "max_tokens": 8}),
        ("temperature", {"temperature": -1}),
        ("temperature", {"temperature": "hot"}),
        ("n", {"n": 2}),
        ("stop", {"stop": ["x"]}),
        ("logprobs", {"logprobs": 3}),
        ("stream", {"stream": "yes"}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("stream_options", {"stream": True, "stream_options": 3}),
        ("seed", {"seed": 1.5}),
        ("user", {"user": 3}),
        ("slo", {"slo": 3}),
        ("slo", {"slo": {"ttft_ms": 0}}),
        ("slo", {"slo": {"tbt_ms": "50"}}),
        ("slo", {"slo": {"tbt_ms": True}}),
        ("slo", {"slo": {"ttft_ms": 1e9}}),
        ("model", {"model": 3}),
    ],
)
def test_bad_parameters_are_named(param: str, fields: dict[str, Any]) -> None:
    error = refusal(**fields)
    assert (error.status, error.param) == (400, param)
    body = json.loads(error.body())["error"]
    assert (body["code"], body["type"], body["param"]) == (400, "BadRequestError", param)


def test_declared_limits_are_read_in_ms_and_each_is_optional() -> None:
    assert (ask(slo={"ttft_ms": 800, "tbt_ms": 0.5}).ttft_ns, ask(slo={"ttft_ms": 800, "tbt_ms": 0.5}).tbt_ns) == (800_000_000, 500_000)
    assert (ask(slo={"tbt_ms": 50}).ttft_ns, ask().tbt_ns) == (NO_LIMIT, NO_LIMIT)


def test_metrics_speak_our_own_names_whatever_else() -> None:
    assert metrics_names("trigpoint, vllm,vllm") == ("trigpoint", "vllm")
    for wrong in ("vllm", "trigpoint,tgi", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="give trigpoint"):
            metrics_names(wrong)


def test_a_priority_that_no_scheduler_column_can_hold_is_refused() -> None:
    assert ask(priority=-PRIORITY_LIMIT).priority == -PRIORITY_LIMIT
    for beyond in (PRIORITY_LIMIT + 1, -PRIORITY_LIMIT - 1, 2**64 - 1):
        assert (refusal(priority=beyond).status, refusal(priority=beyond).param) == (400, "priority")


def test_an_unknown_model_is_404_and_unknown_fields_are_ignored() -> None:
    assert refusal(model="nope").status == 404
    assert ask(top_k=-1, anything={"x": 1}).max_tokens == 16


@pytest.mark.parametrize("messages", [None, [], ["hi"], [{"content": "x"}], [{"role": "user", "content": 3}],
                                      [{"role": "user", "content": [{"type": "image_url"}]}]])  # fmt: skip
def test_bad_messages(messages: Any) -> None:
    assert refusal(chat=True, messages=messages).param == "messages"


def test_seeds_are_the_client_s_or_come_from_prompt_and_server() -> None:
    assert ask(seed=5).seed == 5
    assert ask(seed=-1).seed == (1 << 64) - 1
    assert ask().seed == ask().seed != ask(prompt=[1, 2, 4]).seed
    other = parse_ask({"model": "tiny", "prompt": [1, 2, 3]}, Limits("tiny", 64, 8), chat=False)
    assert other.seed != ask().seed


@given(st.binary(max_size=64))
def test_any_body_is_an_object_or_a_400(body: bytes) -> None:
    try:
        parsed, status = parse_body(body), 400
    except ApiError as error:
        parsed, status = {}, error.status
    assert isinstance(parsed, dict)
    assert status == 400


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
JSON = st.recursive(SCALARS, lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=5), c, max_size=3), max_leaves=6)
FIELDS = ("prompt", "messages", "max_tokens", "min_tokens", "stream", "stream_options", "seed", "temperature", "n", "stop", "user")


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5), st.booleans())
def test_any_json_is_accepted_within_limits_or_refused_in_shape(fields: dict[str, Any], chat: bool) -> None:
    code, asked = 400, None
    try:
        asked = ask(chat, **fields)
    except ApiError as error:
        code = json.loads(error.body())["error"]["code"]
    assert code == 400
    if asked is not None:
        assert asked.prompt_tokens >= 1
        assert 1 <= asked.max_tokens <= LIMITS.max_model_len - asked.prompt_tokens


def events(data: bytes) -> list[Any]:
    """Undo the chunking and parse the events."""
    out = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        out, data = out + rest[:length], rest[length + 2 :]
    return [json.loads(e.removeprefix("data: ")) if e != "data: [DONE]" else "done" for e in out.decode().split("\n\n") if e]


def reply(**fields: Any) -> Reply:
    chat = fields.pop("chat", False)
    return Reply(ask(chat, **fields), "id-1", 5, "tiny")


def test_a_stream_carries_ids_usage_and_its_end_mark() -> None:
    made = reply(stream=True, return_token_ids=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    first, last = events(made.stream(72, None)), events(made.stream(0, "stop"))
    assert first[0]["choices"] == [{"index": 0, "text": "H", "logprobs": None, "finish_reason": None, "token_ids": [72]}]
    cached = {"cached_tokens": 0}  # with the first token, for clients that never see the last
    assert first[0]["usage"] == {"prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1, "prompt_tokens_details": cached}
    assert last[0]["choices"][0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop", "token_ids": [0]}
    assert last[1]["choices"] == []
    assert last[1]["usage"]["completion_tokens"] == 2
    assert last[2] == "done"


def test_without_options_a_stream_has_no_usage_and_no_ids() -> None:
    (event,) = events(reply(stream=True).stream(72, None))
    assert "usage" not in event
    assert "token_ids" not in event["choices"][0]


def test_a_chat_stream_begins_with_a_role_in_an_event_of_its_own() -> None:
    role, token = events(reply(chat=True, stream=True).stream(34, None))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert token["choices"][0]["delta"] == {"content": '"'}
    assert token["object"] == "chat.completion.chunk"


def test_a_whole_answer_has_text_and_usage() -> None:
    made = reply(return_token_ids=True)
    for token in (72, 105):
        made.collect(token)
    body = json.loads(made.body("length"))
    assert body["choices"][0] == {"index": 0, "logprobs": None, "finish_reason": "length", "text": "Hi", "token_ids": [72, 105]}
    assert body["usage"]["total_tokens"] == 5


def test_http_framing() -> None:
    assert chunk(b"abc") == b"3\r\nabc\r\n"
    assert whole(503, b"{}", keep_alive=False).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"connection: close" in whole(200, b"", keep_alive=False)
    assert b"connection: close" not in stream_head(keep_alive=True)


@pytest.mark.parametrize(("text", "ns"), [("4ms", 4_000_000), ("20us", 20_000), ("0.5s", 500_000_000), ("0", 0), ("7 ns", 7)])
def test_durations(text: str, ns: int) -> None:
    assert arguments.duration_ns(text) == ns


@pytest.mark.parametrize("text", ["4", "-4ms", "4m", "ms", "1e3ms", "", "999999s", "nanms"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.duration_ns(text)


@given(st.text(max_size=12))
def test_any_duration_is_parsed_or_refused(text: str) -> None:
    parsed = 0
    with contextlib.suppress(argparse.ArgumentTypeError):
        parsed = arguments.duration_ns(text)
    assert 0 <= parsed <= 3600 * 10**9


def test_arguments_that_contradict_each_other_are_refused_together() -> None:
    with pytest.raises(UsageError) as caught:
        arguments.parse(["--kv-cache-tokens", "10", "--max-model-len", "20", "--kv-watermark", "10", "--prefix-cache-tokens", "15"])
    assert [p.code for p in caught.value.problems] == ["kv_too_small", "watermark_too_large", "prefix_cache_too_small"]


@pytest.mark.parametrize(
    ("flags", "codes"),
    [
        ("--policy distserve-like-split --max-model-len 100 --kv-cache-tokens 200", []),
        ("--policy distserve-like-split --max-model-len 100 --kv-cache-tokens 199", ["pool_too_small"]),
        ("--policy distserve-like-split --max-num-seqs 1", ["pool_too_small"]),
        ("--policy layerkv-like --prefix-cache-tokens 64 --prefix-remote", ["prefix_remote"]),
        ("--prefix-remote", ["prefix_remote"]),
        ("--prefix-cache-tokens 64 --prefix-remote", []),
    ],
)
def test_owners_of_transfers_are_refused_what_they_cannot_run_on(flags: str, codes: list[str]) -> None:
    found: list[str] = []
    try:
        args = arguments.parse(flags.split())
    except UsageError as error:
        found = [problem.code for problem in error.problems]
    else:
        costs = arguments.cost_model(args)
        assert (costs.transfer_base_ns, costs.transfer_row_ns) == (1_000_000, 2_000)
    assert found == codes


def test_the_parser_describes_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert arguments.main([]) == 0
    described = {action["flags"][0]: action for action in json.loads(capsys.readouterr().out)}
    assert described["--overload-status"]["choices"] == ["429", "503"]
    assert described["--max-num-seqs"]["nargs"] is None
    assert arguments.main(["--kv-cache-tokens", "1"]) == 2
