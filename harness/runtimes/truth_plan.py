"""What the truth server is asked and when it answers: pure, so that the loop has nothing to decide while tokens are due."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from harness.clock import NS_PER_MS

MAX_TOKENS = 100_000
MAX_GAP_MS = 3_600_000
LONG_BYTES = 64 * 1024
"""Parsing 64 KiB of JSON takes about half a millisecond, which is as late as a token may be made by one request."""

NAME_CHARS = 32
"""A name is a word; a prompt without spaces must not be kept whole."""

_IDS = b'"prompt":['


class Asked(NamedTuple):
    """One request: how many tokens it wants, how long its prompt is, what it is called in the log, whether it wants usage, and the time
    between its tokens (None: the server's), which it may set itself so that one server can hold streams of many speeds."""

    tokens: int
    prompt: int
    name: str
    usage: bool
    gap_ns: int | None = None


def read_ask(body: bytes) -> Asked:
    """Read the fields of a completions request. Raises ValueError when it is none."""
    shorn, ids = without_ids(body)
    try:
        fields = orjson.loads(shorn)
        tokens = fields.get("max_tokens", 16)
        prompt = len(fields["prompt"]) if ids is None else ids
        name = str(fields.get("user") or fields.get("request_id") or _first_word(fields["prompt"]))
        usage = bool((fields.get("stream_options") or {}).get("include_usage"))
        gap_ms = fields.get("gap_ms")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not a completions request") from error
    if type(tokens) is not int or not 1 <= tokens <= MAX_TOKENS:
        raise ValueError("max_tokens")
    if gap_ms is not None and (type(gap_ms) is not int or not 1 <= gap_ms <= MAX_GAP_MS):
        raise ValueError("gap_ms")
    return Asked(tokens, prompt, name, usage, None if gap_ms is None else gap_ms * NS_PER_MS)


def _first_word(prompt: object) -> str:
    """What a text prompt begins with: other load generators name their requests nowhere else, and a file of prompts can."""
    return prompt[:NAME_CHARS].split(" ", 1)[0] if isinstance(prompt, str) else ""


def without_ids(body: bytes) -> tuple[bytes, int | None]:
    """A long body with its prompt's ids counted and left out: parsing 128k ids would make every other stream late by milliseconds.

    Quotes inside a JSON string are escaped, so the marker can only be the key itself. None: nothing was left out.
    """
    start = body.find(_IDS) if len(body) >= LONG_BYTES else -1
    stop = body.find(b"]", start) if start >= 0 else -1
    if stop < 0:
        return body, None
    inside = start + len(_IDS)
    return body[:inside] + body[stop:], body.count(b",", inside, stop) + 1


@dataclass(frozen=True, slots=True)
class Timing:
    """When tokens are due, ns. Token k is planned ``ttft_ns + k * gap_ns`` after the request was received, and up to ``jitter_ns`` later,
    drawn uniformly for each write by ``seed``. ``per_write`` tokens leave in one send, each an event of its own, at the first one's time.

    Raises ValueError when the jitter could bring tokens out of order.
    """

    ttft_ns: int
    gap_ns: int
    jitter_ns: int = 0
    seed: int = 0
    per_write: int = 1

    def __post_init__(self) -> None:
        if self.per_write < 1:
            raise ValueError(f"per_write={self.per_write}: nothing would be written; use 1 or more")
        if not 0 <= self.jitter_ns <= self.gap_ns * self.per_write:
            raise ValueError(f"jitter_ns={self.jitter_ns}: beyond the time between writes, tokens would be out of order; use at most that")

    def delays(self) -> random.Random | None:
        """The source of one server's delays; None when there are none."""
        return random.Random(self.seed) if self.jitter_ns else None  # noqa: S311 - spreads instants, hides nothing
