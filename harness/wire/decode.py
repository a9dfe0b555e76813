"""Decoders of response bodies: a stream of events, or one JSON object. Never raise on what a server sends.

What an object says is the reader's to know (``harness.wire.payload`` for the OpenAI routes, ``harness.wire.generate`` for SGLang's own).
Tokens of an event are counted by its token ids; without ids, by the growth of continuous usage; without either the event's count is
unknown: kind TOKEN, ``tokens`` = -1, and the response's ``client_tokens`` is None. Usage is held to be continuous until some event brought
text without it: a total that comes only at the end says nothing about the events before. An event whose count is known to be 0 is no TOKEN
event even if it has text (a detokenizer that releases held-back text): t1 and the gaps are about tokens.

A response with several choices (n > 1) is one stream of tokens here, as the server's usage counts it: tokens are added up over all choices,
t1 is the first token of any of them, and gaps lie between successive token events whichever choice they belong to. Continuous usage is
counted choice by choice, because both engines report it so. Nothing in this house asks for more than one choice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import orjson

from harness.vocabulary import EventKind
from harness.wire.contract import Decoded
from harness.wire.payload import Payload, Reader, read_payload
from harness.wire.sse import MAX_EVENT_BYTES, PLAIN_BYTES, Frame, Framer, plain_frames
from harness.wire.usual import Run, usual_run

DONE = b"[DONE]"

UNKNOWN_TOKENS = -1
"""``Event.tokens`` of an event that carried text when neither ids nor continuous usage counted it."""

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Bound of a body that is no stream: four of the largest events a stream may hold."""

MAX_WHOLE_BYTES = 4 * 1024 * 1024
"""Bound of a stream that is decoded in one go, 12,000 tokens of vLLM's: its objects are all there at once, ten times its size."""

NOT_JSON = "an event is not JSON of the protocol"


class _Counter:
    """Counts the tokens of events in order."""

    __slots__ = ("counted", "last_usage", "total", "unknown")

    def __init__(self) -> None:
        self.total = 0
        self.counted = False
        self.unknown = False
        self.last_usage: dict[int | None, int] = {}  # by choice; None: of objects that hold several

    def take(self, payload: Payload) -> int:
        """Tokens that one payload with choices carried, or UNKNOWN_TOKENS."""
        grown = self._growth(payload)
        tokens = payload.ids if payload.ids is not None else grown
        if payload.ids is not None and grown is None:
            # A usage that comes later speaks of these too.
            self.last_usage[payload.choice] = self.last_usage.get(payload.choice, 0) + payload.ids
        if tokens is None:
            if not payload.has_text:
                return 0
            self.unknown = True
            return UNKNOWN_TOKENS
        self.counted = True
        self.total += tokens
        return tokens

    def _growth(self, payload: Payload) -> int | None:
        usage, choice = payload.usage, payload.choice
        if self.unknown or usage is None or usage.completion is None:
            return None
        before = sum(self.last_usage.values()) if choice is None else self.last_usage.get(choice, 0)
        grown = max(0, usage.completion - before)
        self.last_usage[choice] = self.last_usage.get(choice, 0) + grown
        return grown

    @property
    def answer(self) -> int | None:
        """Tokens of the whole response; None when some event could not be counted, or nothing ever counted."""
        return self.total if self.counted and not self.unknown else None


def _kind(payload: Payload, tokens: int) -> EventKind:
    if tokens != 0:
        return EventKind.TOKEN
    if payload.aborted is not None:
        return EventKind.ERROR
    if not payload.has_choices:
        return EventKind.USAGE if payload.usage is not None else EventKind.EMPTY
    return EventKind.ROLE if payload.has_role else EventKind.EMPTY


class _Base:
    """What both decoders do with one decoded payload."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._out = Decoded()
        self._counter = _Counter()
        self.tokens = 0
        """Tokens counted so far; events that cannot be counted add nothing."""

    def _take(self, ns: int, size: int, data: bytes) -> None:
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._malformed(ns, size, NOT_JSON)
        else:
            self._event(ns, size, *self._judge(value))

    def _judge(self, value: object) -> tuple[EventKind, int]:
        """Take one decoded object: what its event is, and its tokens."""
        payload = self._read(value)
        if payload is None or payload.malformed is not None:
            return self._blame(NOT_JSON if payload is None else payload.malformed or "")
        if payload.error is not None:
            self._failed(payload.error, payload.error_status)
            return EventKind.ERROR, 0
        tokens = self._counter.take(payload) if payload.has_choices else 0
        self.tokens = self._counter.total
        self._keep(payload)
        if payload.aborted is not None:
            self._failed(payload.aborted, payload.error_status)
        return _kind(payload, tokens), tokens

    def _failed(self, error: str, status: int | None) -> None:
        """Keep the first error: what follows one is its consequence."""
        if self._out.error is None:
            self._out.error, self._out.error_status = error, status

    def _keep(self, payload: Payload) -> None:
        out, usage = self._out, payload.usage
        out.finish_reason = payload.finish_reason or out.finish_reason
        if usage is None:
            return
        out.usage_prompt_tokens = _newer(usage.prompt, out.usage_prompt_tokens)
        out.usage_completion_tokens = _newer(usage.completion, out.usage_completion_tokens)
        out.usage_cached_tokens = _newer(usage.cached, out.usage_cached_tokens)

    def _malformed(self, ns: int, size: int, why: str) -> None:
        self._event(ns, size, *self._blame(why))

    def _blame(self, why: str) -> tuple[EventKind, int]:
        self._out.malformed = self._out.malformed or why
        return EventKind.MALFORMED, 0

    def _event(self, ns: int, size: int, kind: EventKind, tokens: int = 0) -> None:
        self._out.ns.append(ns)
        self._out.sizes.append(size)
        self._add(kind, tokens)

    def _add(self, kind: EventKind, tokens: int) -> None:
        self._out.tokens.append(tokens)
        self._out.kinds.append(int(kind))

    def _close(self) -> Decoded:
        self._out.client_tokens = self._counter.answer
        return self._out


def _newer(value: int | None, old: int | None) -> int | None:
    return old if value is None else value


class StreamDecoder(_Base):
    """Decoder of a ``text/event-stream`` body. Events behind ``[DONE]`` are kept but make the stream malformed."""

    def __init__(self, limit: int = MAX_EVENT_BYTES, read: Reader = read_payload) -> None:
        super().__init__(read)
        self._framer = Framer(limit)
        self._limit = limit
        self._last_ns = 0

    def feed(self, ns: int, data: bytes) -> None:
        """Take body bytes read at ``ns``."""
        self._last_ns = ns
        before = self._framer.overflow
        for frame in self._framer.feed(data):
            self._frame(ns, frame)
        if self._framer.overflow and not before:
            self._overflow(ns)

    def finish(self) -> Decoded:
        """Close the stream. A last event without its blank line counts if it is whole; otherwise the stream was cut inside it."""
        overflowed = self._framer.overflow
        frame = self._framer.finish()
        if self._framer.overflow and not overflowed:
            self._overflow(self._last_ns)
        elif frame is not None and frame.data is not None:
            self._tail(frame, frame.data)
        return self._close()

    def whole(self, stamps: Sequence[int], sizes: Sequence[int], body: bytes) -> Decoded | None:
        """Decode a stream of plain frames (``plain_frames``), each JSON but for a ``[DONE]`` that is the last; None for any other,
        and for one of more than MAX_WHOLE_BYTES.

        Framing and JSON are done in one go, and an object that nearly every token comes in is read without being described
        (``usual_run``); whatever is not that goes the way of ``feed``, event by event.
        """
        frames = plain_frames(body) if len(body) <= min(self._limit, MAX_WHOLE_BYTES) else None
        if frames is None or sum(sizes) != len(body):
            return None
        lengths = [len(data) + PLAIN_BYTES for data in frames]
        done = frames[-1] == DONE
        try:
            values = list(map(orjson.loads, frames[:-1] if done else frames))
        except orjson.JSONDecodeError:
            return None
        out = self._out
        out.ns, out.sizes = _ended(lengths, stamps, sizes), lengths
        self._judge_all(values)
        if done:
            self._add(EventKind.DONE, 0)
            out.complete = True
        return self._close()

    def _judge_all(self, values: list[object]) -> None:
        rest, counter = iter(values), self._counter
        while self._read is read_payload:
            run = usual_run(rest, counter.last_usage.get(0, 0), follow=not counter.unknown)
            self._take_run(run)
            if not run.left:
                return
            self._add(*self._judge(run.left[0]))
        for value in rest:
            self._add(*self._judge(value))

    def _take_run(self, run: Run) -> None:
        if not run.tokens:
            return
        out, counter = self._out, self._counter
        out.tokens += run.tokens
        out.kinds += [int(EventKind.TOKEN)] * len(run.tokens)
        counter.last_usage[0] = run.after
        counter.counted = True
        counter.total += sum(run.tokens)
        self.tokens = counter.total
        if run.usage is not None:
            out.usage_prompt_tokens, out.usage_completion_tokens = run.usage["prompt_tokens"], run.usage["completion_tokens"]
            out.usage_cached_tokens = _newer(run.cached, out.usage_cached_tokens)

    def _tail(self, frame: Frame, data: bytes) -> None:
        # Bytes cut mid-event are no event: the exchange's end tells who cut them.
        if data == DONE or _whole_json(data):
            self._frame(self._last_ns, frame)
        else:
            self._out.malformed = self._out.malformed or "the stream ends inside an event"

    def _frame(self, ns: int, frame: Frame) -> None:
        if not frame.data:
            self._event(ns, frame.size, EventKind.COMMENT if frame.comment else EventKind.EMPTY)
        elif frame.data.strip() == DONE:
            self._event(ns, frame.size, EventKind.DONE)
            self._out.complete = True
        elif self._out.complete:
            self._malformed(ns, frame.size, "an event came after [DONE]")
        else:
            self._take(ns, frame.size, frame.data)

    def _overflow(self, ns: int) -> None:
        self._malformed(ns, self._limit, f"an event is longer than {self._limit} bytes")


class BodyDecoder(_Base):
    """Decoder of a body that is one JSON object: one event, stamped when its last byte was read."""

    def __init__(self, limit: int = MAX_BODY_BYTES, read: Reader = read_payload) -> None:
        super().__init__(read)
        self._body = bytearray()
        self._limit = limit
        self._last_ns = 0
        self._too_long = False

    def feed(self, ns: int, data: bytes) -> None:
        """Take body bytes read at ``ns``; tokens are known only at the end."""
        self._last_ns = ns
        if len(self._body) + len(data) > self._limit:
            self._too_long = True
        elif not self._too_long:
            self._body += data

    def finish(self) -> Decoded:
        """Parse the body. An empty body has no event and is malformed."""
        if self._too_long:
            self._malformed(self._last_ns, self._limit, f"the body is longer than {self._limit} bytes")
        elif not self._body:
            self._out.malformed = "the body is empty"
        else:
            self._take(self._last_ns, len(self._body), bytes(self._body))
            self._out.complete = self._out.malformed is None
        return self._close()

    def whole(self, stamps: Sequence[int], sizes: Sequence[int], body: bytes) -> Decoded | None:
        """None: there is nothing to gain from one event."""
        del stamps, sizes, body
        return None


def _ended(lengths: list[int], stamps: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Stamp of the piece that holds the last byte of each frame."""
    if lengths == list(sizes):
        return list(stamps)  # a piece a frame, as servers write and idle networks carry them
    ends = list(accumulate(sizes))
    return [stamps[bisect_left(ends, at)] for at in accumulate(lengths)]


def _whole_json(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True
