from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.wire.sse import Frame, Framer


def frames(*chunks: bytes, limit: int = 1000) -> list[Frame]:
    framer = Framer(limit)
    out = [frame for chunk in chunks for frame in framer.feed(chunk)]
    last = framer.finish()
    return out + ([last] if last else [])


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_line_ending_ends_a_frame(end: bytes) -> None:
    assert [f.data for f in frames(b"data: a" + end + end + b"data: b" + end + end)] == [b"a", b"b"]


def test_data_lines_are_joined_and_one_space_is_taken_off() -> None:
    assert frames(b"data:a\ndata:  b\ndata\n\n")[0].data == b"a\n b\n"


def test_a_frame_is_known_when_its_carriage_return_is_read() -> None:
    framer = Framer()
    assert [f.data for f in framer.feed(b"data: a\r\n\r")] == [b"a"]
    assert list(framer.feed(b"\n")) == []


def test_comments_and_fields_without_data() -> None:
    got = frames(b": ping\n\n", b"event: x\nid: 3\n\n", b": c\ndata: d\n\n")
    assert [(f.data, f.comment) for f in got] == [(None, True), (None, False), (b"d", False)]


def test_a_missing_last_blank_line_does_not_lose_the_frame() -> None:
    assert [f.data for f in frames(b"data: a\n\ndata: b\n")] == [b"a", b"b"]
    assert [f.data for f in frames(b"data: a\n\ndata: b")] == [b"a", b"b"]


def test_a_byte_order_mark_is_no_part_of_the_first_field() -> None:
    assert frames(b"\xef\xbb", b"\xbfdata: a\n\n")[0].data == b"a"


def test_sizes_add_up_to_the_body() -> None:
    body = b": x\n\ndata: 1\n\n\n\ndata: 22\nid: 4\n\n"
    assert sum(f.size for f in frames(body)) == len(body)
    assert [f.size for f in frames(body)] == [5, 9, 18]


def test_a_line_beyond_the_limit_stops_the_stream_without_holding_it() -> None:
    framer = Framer(limit=10)
    assert [f.data for f in framer.feed(b"data: a\n\ndata: " + b"x" * 20)] == [b"a"]
    assert framer.overflow
    assert list(framer.feed(b"\n\ndata: b\n\n")) == []
    assert framer.finish() is None


def test_many_data_lines_share_the_limit() -> None:
    framer = Framer(limit=10)
    assert list(framer.feed(b"data: aaaa\ndata: bbbb\ndata: cccc\n\n")) == []
    assert framer.overflow


def cut(body: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(body) + 1) for p in places), len(body)]
    return [body[a:b] for a, b in pairwise(edges)]


SSE_BYTES = st.lists(
    st.sampled_from(
        [b"data: a", b"data:", b"data", b":c", b"id: 1", b"\n", b"\r", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"\xc3", b"longer line here"]
    )
).map(b"".join)


@given(SSE_BYTES, st.lists(st.integers(0, 10_000)))
def test_any_split_gives_the_same_frames(body: bytes, places: list[int]) -> None:
    assert frames(*cut(body, places), limit=14) == frames(body, limit=14)


@given(SSE_BYTES)
def test_one_byte_at_a_time_gives_the_same_frames(body: bytes) -> None:
    assert frames(*[body[i : i + 1] for i in range(len(body))]) == frames(body)


@given(SSE_BYTES)
def test_no_frame_is_larger_than_what_came(body: bytes) -> None:
    assert sum(f.size for f in frames(body)) <= len(body)


def test_a_hundred_thousand_data_lines_of_one_event_are_bounded_by_their_sum() -> None:
    framer = Framer(limit=100_000)
    assert list(framer.feed(b"data:\n" * 99_999)) == []
    assert not framer.overflow
    assert list(framer.feed(b"data:\n" * 3)) == []
    assert framer.overflow
