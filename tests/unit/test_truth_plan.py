"""What the truth server reads of a request and when it plans to answer."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runtimes.truth_plan import LONG_BYTES, MAX_TOKENS, Asked, Timing, read_ask, without_ids

IDS = list(range(100_000, 100_000 + LONG_BYTES // 6))
IDS_JSON = orjson.dumps(IDS)


def ask(**changes: Any) -> bytes:
    return orjson.dumps({"model": "truth", "prompt": [1, 2], "max_tokens": 5, "user": "c1"} | changes)


def test_the_fields_that_matter_are_read() -> None:
    assert read_ask(ask()) == Asked(5, 2, "c1", False)
    assert read_ask(ask(stream_options={"include_usage": True}, user=None, request_id="r")) == Asked(5, 2, "r", True)
    assert read_ask(b'{"prompt":"c7 and so on"}') == Asked(16, 12, "c7", False)
    assert read_ask(b'{"prompt":"' + b"x" * 99 + b'"}').name == "x" * 32


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", ask(prompt=3), ask(max_tokens=0), ask(max_tokens=True), ask(max_tokens=MAX_TOKENS + 1)]
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_ask(body)


def test_a_long_prompt_is_counted_without_being_parsed() -> None:
    body = ask(prompt=IDS)
    shorn, count = without_ids(body)
    assert (count, len(shorn)) == (len(IDS), len(ask(prompt=[])))
    assert read_ask(body) == Asked(5, len(IDS), "c1", False)
    assert without_ids(ask()) == (ask(), None)


@given(st.text(st.sampled_from('"\\prompt:[]a'), max_size=40), st.integers(1, 50))
def test_no_text_can_be_taken_for_the_prompt(text: str, tokens: int) -> None:
    fields = {"user": text + '"prompt":[1,2]', "max_tokens": tokens}
    body = orjson.dumps(fields)[:-1] + b',"prompt":' + IDS_JSON + b"}"
    assert read_ask(body) == Asked(tokens, len(IDS), text + '"prompt":[1,2]', False)


def test_delays_come_from_the_seed_and_cannot_reorder_tokens() -> None:
    assert Timing(20, 10).delays() is None
    first, again, other = (Timing(20, 10, 10, seed).delays() for seed in (1, 1, 2))
    assert first is not None
    assert again is not None
    assert other is not None
    drawn = [first.randint(0, 10) for _ in range(20)]
    assert drawn == [again.randint(0, 10) for _ in range(20)] != [other.randint(0, 10) for _ in range(20)]
    assert Timing(20, 10, 20, per_write=2).per_write == 2
    for bad in ({"jitter_ns": 11}, {"jitter_ns": -1}, {"per_write": 0}):
        with pytest.raises(ValueError, match=r"jitter_ns|per_write"):
            Timing(20, 10, **bad)
