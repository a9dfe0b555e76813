"""SGLang's /generate: what is sent, and what its cumulative events are read as."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.record.schema import EventKind as K
from harness.wire import PROTOCOLS
from harness.wire.contract import Ask, Decoded
from tests.unit.test_wire_decode import DONE, JSONISH, event, seen
from tests.unit.test_wire_sse import cut

GENERATE = PROTOCOLS["generate"]


def ask(**changes: Any) -> Ask:
    base: dict[str, Any] = {"model": "tiny", "prompt": [5, 6], "max_tokens": 7, "ignore_eos": True, "seed": 3}
    return Ask(**(base | changes))


def answer(ids: list[int] | None, counted: int | None = None, *, text: str = "t", reason: Any = None, **meta: Any) -> dict[str, Any]:
    """One event in the server's shape: all ids so far, and how many tokens it says that is."""
    counted = len(ids) if counted is None and ids is not None else counted
    told = {"id": "x", "finish_reason": reason, "prompt_tokens": 4, "completion_tokens": counted, "cached_tokens": 1, "queue_time": 0.0}
    value: dict[str, Any] = {"text": text, "meta_info": told | meta}
    return value if ids is None else value | {"output_ids": ids}


def decode(*chunks: bytes) -> Decoded:
    decoder = GENERATE.decoder(stream=True)
    for i, chunk in enumerate(chunks):
        decoder.feed(i, chunk)
    return decoder.finish()


def test_ids_and_sampling_are_sent_as_the_route_takes_them() -> None:
    assert json.loads(GENERATE.encode(ask())) == {
        "input_ids": [5, 6],
        "sampling_params": {"temperature": 0.0, "sampling_seed": 3, "max_new_tokens": 7, "ignore_eos": True},
        "stream": True,
    }
    assert GENERATE.encode(ask(prompt=np.array([5, 6], dtype=np.int32))) == GENERATE.encode(ask())


def test_no_declared_maximum_is_said_to_be_none_because_the_default_is_one() -> None:
    body = json.loads(GENERATE.encode(ask(prompt="hé", max_tokens=None, ignore_eos=False, priority=2, ttft_ns=5)))
    assert body == {
        "text": "hé",
        "sampling_params": {"temperature": 0.0, "sampling_seed": 3, "max_new_tokens": None},
        "priority": 2,
        "stream": True,
    }


def test_an_empty_prompt_is_refused_before_the_run() -> None:
    with pytest.raises(UsageError, match="prompt_unsendable"):
        GENERATE.encode(ask(prompt=[]))


def test_tokens_are_the_growth_of_the_ids() -> None:
    end = {"type": "length", "length": 4}
    out = decode(event(answer([7])), event(answer([7, 8, 9])), event(answer([7, 8, 9, 9], reason=end)), DONE)
    assert seen(out) == [(K.TOKEN, 1), (K.TOKEN, 2), (K.TOKEN, 1), (K.DONE, 0)]
    assert (out.client_tokens, out.usage_completion_tokens, out.usage_prompt_tokens, out.usage_cached_tokens) == (4, 4, 4, 1)
    assert (out.finish_reason, out.complete, out.malformed, out.error) == ("length", True, None, None)


def test_half_a_character_and_a_repeated_token_are_tokens() -> None:
    out = decode(event(answer([7], text="")), event(answer([7, 7], text="")), DONE)
    assert seen(out)[:2] == [(K.TOKEN, 1), (K.TOKEN, 1)]


def test_without_ids_the_servers_count_is_followed() -> None:
    out = decode(event(answer(None, 1)), event(answer(None, 4)), event(answer(None, 4)), DONE)
    assert seen(out)[:3] == [(K.TOKEN, 1), (K.TOKEN, 3), (K.EMPTY, 0)]
    assert out.client_tokens == 4


def test_an_event_that_repeats_the_last_one_carries_no_token() -> None:
    assert seen(decode(event(answer([7])), event(answer([7])), DONE))[1] == (K.EMPTY, 0)


def test_ids_ahead_of_the_count_beside_them_are_tokens_already() -> None:
    out = decode(event(answer([7, 8], 1)), event(answer([7, 8], 2)), DONE)
    assert (seen(out)[:2], out.malformed) == ([(K.TOKEN, 2), (K.EMPTY, 0)], None)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (answer([7]), "do not begin"),  # shrank
        (answer([7, 9, 8]), "do not begin"),  # jumped
        (answer([7, 8], 3), "hold 2 of 3"),
        (answer(None, 1), "fell"),
    ],
)
def test_a_list_that_shrinks_or_jumps_is_malformed(second: dict[str, Any], why: str) -> None:
    out = decode(event(answer([7, 8])), event(second), DONE)
    assert seen(out)[1] == (K.MALFORMED, 0)
    assert out.malformed is not None
    assert why in out.malformed


def test_a_server_that_streams_increments_is_found_out_even_by_one_token_repeated() -> None:
    out = decode(event(answer([7], 1)), event(answer([7], 2)), DONE)
    assert out.malformed == "output_ids hold 1 of 2 completion_tokens: the stream is not cumulative"


def test_an_abort_inside_a_stream_is_an_error_with_its_status() -> None:
    full = {"type": "abort", "message": "The request queue is full.", "status_code": 503, "err_type": "ServiceUnavailable"}
    out = decode(event(answer([], text="", reason=full)), DONE)
    assert (seen(out)[0], out.error, out.error_status) == ((K.ERROR, 0), "abort: The request queue is full.", 503)
    late = decode(event(answer([7])), event(answer([7, 8], reason={"type": "abort"})), DONE)
    assert (seen(late)[1], late.error, late.error_status, late.client_tokens) == ((K.TOKEN, 1), "abort", None, 2)


def test_an_error_object_inside_a_stream() -> None:
    out = decode(event({"error": {"message": "Input is longer", "type": "invalid_request_error", "code": 400, "retryable": False}}), DONE)
    assert (seen(out)[0], out.error, out.error_status) == ((K.ERROR, 0), "invalid_request_error: Input is longer", 400)


def test_choices_are_counted_apart() -> None:
    one, two = ({"index": 1}, {"index": 0})
    out = decode(event(answer([7]) | one), event(answer([3]) | two), event(answer([7, 8]) | one), event(answer([3, 4, 5]) | two), DONE)
    assert [tokens for _, tokens in seen(out)[:4]] == [1, 1, 1, 2]
    assert out.client_tokens == 5


def test_an_answer_in_one_piece() -> None:
    body = json.dumps(answer([1, 2, 3], reason={"type": "stop", "matched": 2})).encode()
    decoder = GENERATE.decoder(stream=False)
    decoder.feed(5, body)
    out = decoder.finish()
    assert [tuple(e) for e in out.events] == [(5, 3, len(body), K.TOKEN)]
    assert (out.complete, out.finish_reason, out.client_tokens) == (True, "stop", 3)


@pytest.mark.parametrize("value", [[], {}, {"text": "a"}, {"output_ids": [1]}, {"meta_info": 3}])
def test_what_has_no_meta_info_is_not_the_protocol(value: Any) -> None:
    assert decode(event(value), DONE).malformed is not None


def test_a_live_count_stops_at_the_token_wanted() -> None:
    decoder = GENERATE.decoder(stream=True)
    counts = []
    for i in range(1, 4):
        decoder.feed(i, event(answer(list(range(i)))))
        counts.append(decoder.tokens)
    assert counts == [1, 2, 3]


@given(st.lists(JSONISH, max_size=4))
def test_any_json_decodes_without_raising(values: list[Any]) -> None:
    wrapped = [{"meta_info": v, "output_ids": v, "index": v, "text": v} for v in values]
    out = decode(*map(event, [*values, *wrapped]), DONE)
    assert len(out.events) >= 2 * len(values)
    assert all(e.tokens >= -1 for e in out.events)


@given(st.lists(st.integers(0, 4), max_size=8), st.lists(st.integers(0, 4000), max_size=10), st.booleans())
def test_growth_adds_up_however_the_bytes_were_cut(steps: list[int], places: list[int], with_ids: bool) -> None:
    lengths = list(accumulate(steps))
    body = b"".join(event(answer(list(range(n)) if with_ids else None, n)) for n in lengths) + DONE
    whole, split = decode(body), decode(*cut(body, [p % (len(body) + 1) for p in places]))
    assert [e.tokens for e in whole.events[:-1]] == steps
    assert [e[1:] for e in split.events] == [e[1:] for e in whole.events]
    assert split.client_tokens == whole.client_tokens == (sum(steps) if steps else None)
