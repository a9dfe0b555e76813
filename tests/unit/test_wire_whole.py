"""A response that is over is decoded in one go, and what comes out is what feeding its pieces says: that stays the definition."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.record.schema import EventKind as K
from harness.wire import PROTOCOLS
from harness.wire.contract import Decoded
from harness.wire.decode import MAX_WHOLE_BYTES, StreamDecoder
from harness.wire.payload import read_payload
from harness.wire.sse import PLAIN_BYTES, Framer, plain_frames
from harness.wire.usual import usual_run
from tests.unit.test_wire_decode import DONE, JSONISH, choice, delta, event, last_usage
from tests.unit.test_wire_generate import answer
from tests.unit.test_wire_sse import cut


def fed(pieces: list[bytes], api: str = "completions", limit: int | None = None) -> Decoded:
    decoder = PROTOCOLS[api].decoder(stream=True) if limit is None else StreamDecoder(limit)
    for i, piece in enumerate(pieces):
        decoder.feed(10 * i, piece)
    return decoder.finish()


def at_once(pieces: list[bytes], api: str = "completions", limit: int | None = None) -> Decoded | None:
    decoder = PROTOCOLS[api].decoder(stream=True) if limit is None else StreamDecoder(limit)
    return decoder.whole([10 * i for i in range(len(pieces))], list(map(len, pieces)), b"".join(pieces))


NUMBERS: st.SearchStrategy[Any] = st.sampled_from([0, 1, 2, 3, 4, 7, 2**31 - 1, 2**31, 2**63, -1, None, True, 1.0, "3", [], {}])
TEXTS = st.sampled_from(["", "a", "é", "\n\n", "data: [DONE]", '"', "\r", None, 3])
IDS: st.SearchStrategy[Any] = st.sampled_from([None, [], [7], [7, 8], [[]], "ab", 3])
REASONS = st.sampled_from([None, "stop", "length", "abort", "error", "", 3, {"type": "abort"}])
ODD = st.sampled_from([None, "a", ["a"], {"code": 503, "message": "m"}, False, 0, {}, "", []])


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def almost(draw: st.DrawFn, /, base: st.SearchStrategy[dict[str, Any]], **fields: st.SearchStrategy[Any]) -> dict[str, Any]:
    """``base`` with at most one field put in, changed or left out: many oddities in one object hide each other."""
    made = draw(base)
    name = draw(st.sampled_from([None, *fields]))
    if name is None:
        return made
    return made | {name: draw(fields[name])} if draw(st.integers(0, 3)) else {key: made[key] for key in made if key != name}


FEW = st.integers(0, 5)
DETAILS = ODD | some(cached_tokens=NUMBERS)
COUNTS = st.fixed_dictionaries({"prompt_tokens": st.just(8), "completion_tokens": FEW})
USAGES = almost(COUNTS, prompt_tokens=NUMBERS, completion_tokens=NUMBERS, prompt_tokens_details=DETAILS)
DELTAS = ODD | some(role=TEXTS, content=TEXTS, reasoning=TEXTS, tool_calls=IDS)
ONE: dict[str, st.SearchStrategy[Any]] = {"index": st.just(0), "text": st.sampled_from(["", "a"]), "finish_reason": st.none()}
PLAIN_CHOICES = st.fixed_dictionaries(ONE, optional={"token_ids": st.sampled_from([[7], [7, 8]])})
CHOICES = almost(PLAIN_CHOICES, index=NUMBERS, text=TEXTS, token_ids=IDS, delta=DELTAS, message=DELTAS, finish_reason=REASONS)
LISTS = CHOICES.map(lambda made: [made])
NEAR = almost(
    st.fixed_dictionaries({"choices": LISTS}, optional={"usage": USAGES}),
    choices=ODD | st.lists(CHOICES | ODD, max_size=2),
    usage=ODD,
    error=ODD,
    object=st.sampled_from(["error", "x", None]),
)
LIKE_GENERATE = st.builds(answer, st.none() | st.lists(st.just(7), max_size=4), FEW)
OBJECTS = st.one_of(NEAR, NEAR, JSONISH, LIKE_GENERATE, st.just(last_usage(3, cached=1)))

BROKEN = st.sampled_from(
    [
        b"",
        b"\n",
        b"\r",
        b"\n\n",
        b"data: ",
        b"data: \n\n",
        b"data:\n\n",
        b"data:{}\n\n",
        b"data:  {}\n\n",
        b"data: [DONE] \n\n",
        b"data: [DONE]\r\n\r\n",
        b"data: [DONE]",
        b": ping\n\n",
        b"id: 3\n",
        b"\xef\xbb\xbf",
        b"\xff",
        b'data: {"choices":[{"text":"a"\n\n',  # and the next would close it, were they read together
        b"data: }]}\n\n",
        b'data: 1,{"choices":[]}\n\n',
        b'data: {"choices":[],\ndata: "usage":{"completion_tokens":3}}\n\n',
        b'data: {"choices":[{"token_ids":[7],"token_ids":3}],"choices":[{"text":"a"}]}\n\n',
        b'data: {"choices":[{"text":"\xff","token_ids":[7]}]}\n\n',
        b"data: NaN\n\n",
    ]
)
PIECES = st.lists(st.one_of(OBJECTS.map(event), OBJECTS.map(event), st.just(DONE), BROKEN), max_size=8)
PLACES = st.lists(st.integers(0, 2000), max_size=6)


@settings(max_examples=400)
@given(PIECES, PLACES, st.booleans(), st.sampled_from(["completions", "generate"]))
def test_what_is_decoded_at_once_is_what_is_decoded_piece_by_piece(pieces: list[bytes], places: list[int], recut: bool, api: str) -> None:
    body = b"".join(pieces)
    parts = cut(body, [p % (len(body) + 1) for p in places]) if recut else pieces
    quick = at_once(parts, api)
    assert quick is None or quick == fed(parts, api)


@given(st.lists(OBJECTS.map(event), min_size=1, max_size=8), st.booleans(), PLACES)
def test_streams_of_plain_frames_are_decoded_at_once_whatever_they_say(events: list[bytes], done: bool, places: list[int]) -> None:
    body = b"".join(events) + DONE * done
    parts = cut(body, [p % (len(body) + 1) for p in places])
    assert at_once(parts) == fed(parts)


@given(
    st.lists(st.sampled_from([b"data: ", b"data: x", b"\n", b"\n\n", b"\r", b"d", b" ", b"\xef\xbb\xbf", b": c"]), max_size=20).map(
        b"".join
    )
)
@example(b"data: x\n\n")
@example(b"data: \n\n")
@example(b"data: x\rx\n\n")
def test_plain_frames_are_the_framers(body: bytes) -> None:
    frames = plain_frames(body)
    if frames is None:
        return
    framer = Framer()
    found = list(framer.feed(body))
    assert [(data, len(data) + PLAIN_BYTES) for data in frames] == [(frame.data, frame.size) for frame in found]
    assert framer.finish() is None


@settings(max_examples=300)
@given(st.lists(NEAR, max_size=4), FEW, st.booleans())
def test_a_run_ends_at_the_first_object_that_is_not_usual_and_loses_none(values: list[dict[str, Any]], before: int, follow: bool) -> None:
    rest = iter(values)
    run = usual_run(rest, before, follow=follow)
    assert [*values[: len(run.tokens)], *run.left, *rest] == values
    assert all(tokens > 0 for tokens in run.tokens)
    for value in values[: len(run.tokens)]:
        payload = read_payload(value)
        assert payload is not None
        assert (payload.choice, payload.error, payload.aborted, payload.finish_reason, payload.malformed) == (0, *[None] * 4)


def test_the_streams_of_the_engines_are_decoded_at_once_and_read_as_usual() -> None:
    vllm, sglang = choice("a", ids=[7], usage=1), delta(1, content="a")
    for first in (vllm, sglang):
        assert usual_run(iter([first]), 0, follow=True) == ([1], 1, first["usage"], None, ())
        out = at_once([event(first), event(last_usage(1)) + DONE])
        assert out is not None
        assert [(e.ns, e.kind, e.tokens) for e in out.events] == [(0, K.TOKEN, 1), (10, K.USAGE, 0), (10, K.DONE, 0)]
        assert (out.client_tokens, out.complete) == (1, True)


@pytest.mark.parametrize(
    "values",
    [
        [choice("a", ids=[1, 2], usage=4), choice("a", ids=[3], usage=2), choice("a", usage=5)],  # a count that fell
        [choice("a", ids=[1, 2]), choice("a", usage=3), choice("a", ids=[4, 5]), choice("a", usage=9)],
        [choice("a"), choice("a", usage=3), choice("a", ids=[4]), choice("a", usage=9)],  # unknown from the first on
        [last_usage(1, cached=4), choice("a", usage=1), choice("a", usage=2)],
        [choice("a", ids=[1]), choice("a", ids=[2], reason=""), choice("", reason="stop")],
    ],
)
def test_counts_that_hang_on_what_came_before_are_the_same(values: list[dict[str, Any]]) -> None:
    events = [event(value) for value in values]
    assert at_once(events) == fed(events)


SINGLE = [None, True, False, 0, 1, 5, -1, 2**31, 2**63, 1.0, "", "ab", "error", [], [7], {}, {"cached_tokens": 3}, {"cached_tokens": None}]
OF_VALUE, OF_CHOICE = ("choices", "usage", "error", "object"), ("index", "finish_reason", "token_ids", "delta", "text")
OF_USAGE = ("prompt_tokens", "completion_tokens", "prompt_tokens_details")


@pytest.mark.parametrize("place", OF_VALUE + OF_CHOICE + OF_USAGE)
@pytest.mark.parametrize("ids", [None, [7]])
def test_each_oddity_alone_behind_a_usual_object_is_read_the_same(place: str, ids: list[int] | None) -> None:
    for odd in SINGLE:
        before, value = choice("a", ids=ids, usage=2), choice("a", ids=ids, usage=3)
        before["usage"]["prompt_tokens_details"] = {"cached_tokens": 1}
        part = value if place in OF_VALUE else value["usage"] if place in OF_USAGE else value["choices"][0]
        part[place] = odd
        for behind in ([], [event(choice("a", usage=4)), DONE]):
            events = [event(before), event(value), *behind]
            assert at_once(events) == fed(events), odd


@pytest.mark.parametrize("limit", [7, 8, 24, 30, 60])
def test_a_stream_near_the_bound_of_an_event_is_held_to_it(limit: int) -> None:
    pieces = [b"data: " + b" " * 14 + b"{}\n\n"] * 2
    quick = at_once(pieces, limit=limit)
    assert quick is None or quick == fed(pieces, limit=limit)
    assert (quick is None) == (limit < 52)


def test_a_stream_whose_objects_would_fill_the_memory_is_fed() -> None:
    long = event(choice("a" * (MAX_WHOLE_BYTES // 2), ids=[1]))
    assert at_once([long]) == fed([long])
    assert at_once([long] * 2) is None


def test_pieces_that_do_not_add_up_to_the_body_are_fed() -> None:
    assert StreamDecoder().whole([1], [3], DONE) is None
    assert StreamDecoder().whole([], [], b"") is None
    assert PROTOCOLS["chat"].decoder(stream=False).whole([1], [2], b"{}") is None
