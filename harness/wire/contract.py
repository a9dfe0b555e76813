"""What the load engine and the decoders agree on. No sockets, no clocks: stamps come in from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from harness.vocabulary import EventKind


class Event(NamedTuple):
    """One decoded event: when its last byte was read, tokens it carried, its size in bytes on the wire (body), what it was."""

    ns: int
    tokens: int
    size: int
    kind: EventKind


@dataclass(slots=True)
class Decoded:
    """Everything a response body said, in order of arrival. The events are four columns of one length: ``ns``, ``tokens``, ``sizes``,
    ``kinds`` (numbers of EventKind); ``Event`` says what they hold.

    ``client_tokens`` is counted by token ids, else by continuous usage; None when neither was there. ``complete``: the protocol's own end
    mark was seen (``[DONE]`` for a stream, a whole JSON object otherwise). ``error``: text of an in-stream error (never a prompt).
    """

    ns: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    client_tokens: int | None = None
    usage_prompt_tokens: int | None = None
    usage_completion_tokens: int | None = None
    usage_cached_tokens: int | None = None
    finish_reason: str | None = None
    complete: bool = False
    malformed: str | None = None
    error: str | None = None
    error_status: int | None = None

    @property
    def events(self) -> list[Event]:
        """The columns as rows."""
        columns = zip(self.ns, self.tokens, self.sizes, self.kinds, strict=True)
        return [Event(ns, tokens, size, EventKind(kind)) for ns, tokens, size, kind in columns]


class Decoder(Protocol):
    """Incremental decoder of one response body; split at any byte gives the same events."""

    tokens: int
    """Tokens counted so far (for client_stop)."""

    def feed(self, ns: int, data: bytes) -> None:
        """Take body bytes read at ``ns``."""
        ...

    def finish(self) -> Decoded:
        """Return what was decoded; callable once, after the last feed."""
        ...

    def whole(self, stamps: Sequence[int], sizes: Sequence[int], body: bytes) -> Decoded | None:
        """Decode a response that is over, in place of all feeds and ``finish``, and with the same answer. ``stamps`` and ``sizes``: one
        entry a piece. None, and nothing taken, for one that must be fed."""
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to encode. ``prompt`` is token ids or text; ``max_tokens``, ``priority`` and the limits ``ttft_ns`` and ``tbt_ns`` None
    tell the server nothing."""

    model: str
    prompt: Sequence[int] | npt.NDArray[np.int32] | str
    max_tokens: int | None
    ignore_eos: bool
    seed: int
    temperature: float = 0.0
    priority: int | None = None
    ttft_ns: int | None = None
    tbt_ns: int | None = None


class Protocol_(Protocol):  # noqa: N801 - the word is taken by typing
    """One wire protocol: where to post, how to encode, how to decode. Pure.

    ``cumulative``: each event repeats all before it, so that an honest answer may be longer than anybody can hold.
    """

    name: str
    path: str
    cumulative: bool

    def encode(self, ask: Ask) -> bytes:
        """Body bytes of the request (JSON)."""
        ...

    def decoder(self, *, stream: bool) -> Decoder:
        """Make a decoder for one response; ``stream`` from its content type."""
        ...
