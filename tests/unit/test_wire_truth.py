"""Streams made from a known truth, in every dress that a server may put on them: what comes out is the truth.

Framing is held against the standard read literally (WHATWG HTML, section 9.2.6), which needs the whole body at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.record.schema import EventKind as K
from harness.wire import PROTOCOLS
from harness.wire.sse import Framer
from tests.unit.test_wire_sse import cut

PLACES = st.lists(st.integers(0, 10_000), max_size=12)


@dataclass(frozen=True, slots=True)
class Step:
    """One event of the truth: which choice it belongs to, how many tokens it brings, whether any of them shows as text."""

    choice: int
    tokens: int
    shows: bool


STEPS = st.lists(st.builds(Step, st.integers(0, 2), st.integers(0, 5), st.booleans()), max_size=10)
DRESSES = st.tuples(
    st.sampled_from(["completions", "chat", "generate"]),
    st.booleans(),  # ids, or the server's running count
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.booleans(),  # the data over several lines
    st.booleans(),  # comments and other fields between
)


def value(api: str, ids: bool, step: Step, before: int) -> dict[str, Any]:
    """An object that brings ``step`` after ``before`` tokens of the same choice."""
    text, now = "é" * step.shows, before + step.tokens
    if api == "generate":
        made: dict[str, Any] = {"index": step.choice, "text": text, "meta_info": {"completion_tokens": now}}
        return made | ({"output_ids": list(range(now))} if ids else {})
    said = {"text": text} if api == "completions" else {"delta": {"reasoning" if step.choice else "content": text}}
    choice = {"index": step.choice, "finish_reason": None, **said}
    return {"choices": [choice | {"token_ids": [7] * step.tokens}]} if ids else {"choices": [choice], "usage": {"completion_tokens": now}}


def dressed(data: bytes, end: bytes, lines: bool, extras: bool) -> bytes:
    rows = data.split(b" ") if lines else [data]
    fields = [b"data: " + row for row in rows]
    if extras:
        fields = [b": ping", b"event: message", *fields, b"id: 3"]
    return end.join(fields) + end + end


@given(STEPS, DRESSES, PLACES)
def test_what_was_sent_is_what_is_counted(steps: list[Step], dress: tuple[str, bool, bytes, bool, bool], places: list[int]) -> None:
    api, ids, end, lines, extras = dress
    counts = [0, 0, 0]
    body = b""
    for step in steps:
        body += dressed(json.dumps(value(api, ids, step, counts[step.choice]), ensure_ascii=False).encode(), end, lines, extras)
        counts[step.choice] += step.tokens
    body += dressed(b"[DONE]", end, False, extras)
    decoder = PROTOCOLS[api].decoder(stream=True)
    for ns, piece in enumerate(cut(body, [p % (len(body) + 1) for p in places])):
        decoder.feed(ns, piece)
    out = decoder.finish()
    assert (out.complete, out.malformed, out.error) == (True, None, None)
    assert [e.tokens for e in out.events[:-1]] == [step.tokens for step in steps]
    assert [e.kind is K.TOKEN for e in out.events[:-1]] == [step.tokens > 0 for step in steps]
    assert decoder.tokens == sum(counts)
    assert out.client_tokens == (sum(counts) if steps else None)
    assert [e.ns for e in out.events] == sorted(e.ns for e in out.events)


def literally(body: bytes) -> list[bytes]:
    """Data of each event block that a blank line ends, by the words of the standard."""
    text = body.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    out, data = [], []
    for line in text.split(b"\n")[:-1]:
        name, _, rest = line.partition(b":")
        if name == b"data" and line[:1] != b":":
            data.append(rest.removeprefix(b" "))
        elif not line and data:
            out.append(b"\n".join(data))
            data = []
    return out


SOUP = st.lists(st.sampled_from([b"data", b":", b" ", b"\r", b"\n", b"\r\n", b"x", b"data: ", b"\n\n", b"\xef\xbb\xbf"]), max_size=40).map(
    b"".join
)


@given(SOUP, PLACES)
def test_frames_are_those_of_the_standard(body: bytes, places: list[int]) -> None:
    framer = Framer(limit=10_000)
    pieces = cut(body, [p % (len(body) + 1) for p in places])
    found = [frame.data for piece in pieces for frame in framer.feed(piece) if frame.data is not None]
    assert found == literally(body)
