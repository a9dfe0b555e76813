"""OpenAI request bodies in, a plain ask or an error out. Pure: no sockets, no engine.

A parameter that would change the meaning of the answer and is not implemented is refused with 400; unknown fields are ignored, as real
servers do.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import orjson

from harness.clock import NS_PER_MS
from harness.reference.table import NO_LIMIT
from harness.reference.tokens import VOCAB_SIZE, encode_text

CHAT_MESSAGE_OVERHEAD = 4
"""Template tokens around each chat message: role mark, newline, end mark, newline."""

CHAT_GENERATION_OVERHEAD = 3
"""Template tokens that open the assistant's turn."""

PRIORITY_LIMIT = 2**31 - 1
"""Greatest priority number of either sign: columns of the scheduler hold 64 bits, and ageing (F61) needs room below and above."""

_LIMIT_MOST_MS = 86_400_000  # a day: beyond it a limit is a mistake of units
_COMPLETION_DEFAULT_MAX = 16  # OpenAI's documented default for completions


class ApiError(Exception):
    """An answer in OpenAI's error shape. ``message`` never repeats a prompt."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    def body(self) -> bytes:
        """JSON body of the response."""
        kinds = {
            404: "NotFoundError",
            429: "RateLimitError",
            503: "ServiceUnavailableError",
            405: "MethodNotAllowed",
            500: "InternalServerError",
        }
        kind = kinds.get(self.status, "BadRequestError")
        return orjson.dumps({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}})


@dataclass(frozen=True, slots=True)
class Asked:
    """One accepted request. ``ids``: its prompt, a byte for each id. ``seed`` is 64 bits: the client's, or derived from prompt and server
    seed.
    """

    chat: bool
    ids: bytes
    prompt_tokens: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    seed: int
    priority: int
    client: str
    ttft_ns: int
    tbt_ns: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_ids: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server accepts."""

    model: str
    max_model_len: int
    seed: int


def parse_body(body: bytes) -> dict[str, Any]:
    """Decode a JSON object. Raises ApiError 400."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise ApiError(400, "The body is not valid JSON.", "body") from None
    if not isinstance(value, dict):
        raise ApiError(400, "The body must be a JSON object.", "body")
    return value


def parse_ask(fields: dict[str, Any], limits: Limits, *, chat: bool) -> Asked:
    """Check a completions or chat body. Raises ApiError 400 or 404."""
    check_model(fields, limits.model)
    _refuse_unsupported(fields)
    ids = chat_ids(fields.get("messages")) if chat else prompt_ids(fields.get("prompt"))
    stream, include, continuous = _stream_options(fields)
    maximum = _max_tokens(fields, limits, len(ids), chat=chat)
    minimum = _whole(fields, "min_tokens", 0, low=0)
    if minimum > maximum:
        raise ApiError(400, f"min_tokens={minimum} must be less than or equal to max_tokens={maximum}.", "min_tokens")
    seed = fields.get("seed")
    ttft_ns, tbt_ns = _declared_limits(fields)
    return Asked(
        chat=chat,
        ids=ids,
        prompt_tokens=len(ids),
        max_tokens=maximum,
        min_tokens=minimum,
        ignore_eos=_flag(fields, "ignore_eos"),
        seed=_derived_seed(ids, limits.seed) if seed is None else _whole(fields, "seed", 0) & ((1 << 64) - 1),
        priority=_priority(fields),
        client=_text(fields, "user"),
        ttft_ns=ttft_ns,
        tbt_ns=tbt_ns,
        stream=stream,
        include_usage=include,
        continuous_usage=continuous,
        return_ids=_flag(fields, "return_token_ids"),
    )


def check_model(fields: dict[str, Any], served: str) -> None:
    """Raise ApiError 400 without a model name, 404 for another one than the served."""
    model = fields.get("model")
    if not isinstance(model, str):
        raise ApiError(400, "model must be given as a string.", "model")
    if model != served:
        raise ApiError(404, f"The model `{model[:100]}` does not exist. Served: {served}.", "model")


def prompt_ids(prompt: Any) -> bytes:
    """Token ids of a completions prompt, a byte each: a text, a list of ids, or a list that holds exactly one of these."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        ids = encode_text(prompt)
    elif isinstance(prompt, list) and set(map(type, prompt)) <= {int}:
        ids = _in_vocabulary(prompt)
    elif isinstance(prompt, list) and len(prompt) > 1 and all(isinstance(item, str | list) for item in prompt):
        raise ApiError(400, "One prompt a request: batches of prompts are not supported.", "prompt")
    else:
        raise ApiError(400, "prompt must be a string or a list of token ids.", "prompt")
    if not ids:
        raise ApiError(400, "prompt must not be empty.", "prompt")
    return ids


def _in_vocabulary(ids: list[int]) -> bytes:
    try:
        return bytes(ids)  # the vocabulary is the byte values; nothing here is written a token at a time, prompts have 100,000 of them
    except ValueError:
        raise ApiError(400, f"A token id is out of vocabulary; ids are 0 to {VOCAB_SIZE - 1}.", "prompt") from None


def chat_ids(messages: Any) -> bytes:
    """Token ids of a chat prompt: bytes of every content, plus the declared template tokens (ids 1, so that they cost what they claim)."""
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a non-empty list.", "messages")
    parts: list[bytes] = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(400, "Every message must be an object with a role.", "messages")
        parts += [b"\1" * CHAT_MESSAGE_OVERHEAD, encode_text(_content(message.get("content")))]
    return b"".join(parts) + b"\1" * CHAT_GENERATION_OVERHEAD


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        parts = [text for text in texts if isinstance(text, str)]
        if len(parts) == len(content):
            return "".join(parts)
    raise ApiError(400, "content must be a string or a list of text parts.", "messages")


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "logprobs": (False, 0), "top_logprobs": (0,), "suffix": ("",), "stop": ("", []),
    "stop_token_ids": ([],), "tools": ([],), "truncate_prompt_tokens": (), "response_format": ({"type": "text"},),
}  # fmt: skip


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    for name, neutral in _NEUTRAL.items():
        value = fields.get(name)
        if value is not None and value not in neutral:
            raise ApiError(400, f"{name} is not supported by this server.", name)
    temperature = fields.get("temperature")
    if temperature is not None and (type(temperature) not in {int, float} or not math.isfinite(temperature) or temperature < 0):
        raise ApiError(400, "temperature must be a non-negative number.", "temperature")


def _stream_options(fields: dict[str, Any]) -> tuple[bool, bool, bool]:
    stream = _flag(fields, "stream")
    options = fields.get("stream_options")
    if options is None:
        return stream, False, False
    if not stream:
        raise ApiError(400, "stream_options can only be given when stream is true.", "stream_options")
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object.", "stream_options")
    include = _flag(options, "include_usage")
    return stream, include, include and _flag(options, "continuous_usage_stats")


def _max_tokens(fields: dict[str, Any], limits: Limits, prompt: int, *, chat: bool) -> int:
    room = limits.max_model_len - prompt
    if room < 1:
        raise ApiError(400, f"The maximum context length is {limits.max_model_len} tokens; the prompt alone has {prompt}.", "prompt")
    name = "max_completion_tokens" if chat and fields.get("max_completion_tokens") is not None else "max_tokens"
    asked = _whole(fields, name, room if chat else min(_COMPLETION_DEFAULT_MAX, room), low=1)
    if asked > room:
        raise ApiError(
            400, f"{name}={asked} with a prompt of {prompt} exceeds the maximum context length of {limits.max_model_len} tokens.", name
        )
    return asked


def _whole(fields: dict[str, Any], name: str, default: int, *, low: int | None = None) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise ApiError(400, f"{name} must be a whole number.", name)
    if low is not None and value < low:
        raise ApiError(400, f"{name} must be at least {low}, got {value}.", name)
    return value


def _priority(fields: dict[str, Any]) -> int:
    value = _whole(fields, "priority", 0)
    if abs(value) > PRIORITY_LIMIT:
        raise ApiError(400, f"priority must lie within -{PRIORITY_LIMIT} and {PRIORITY_LIMIT}, got {value}.", "priority")
    return value


def _declared_limits(fields: dict[str, Any]) -> tuple[int, int]:
    """Read the latency limits that a client declares, ns: ``"slo": {"ttft_ms": 800, "tbt_ms": 50}``, each optional. An extension, for
    policies that look at deadlines. NO_LIMIT where none is given."""
    slo = fields.get("slo")
    if slo is None:
        return NO_LIMIT, NO_LIMIT
    if not isinstance(slo, dict):
        raise ApiError(400, "slo must be an object.", "slo")
    ttft, tbt = (_limit_ns(slo, name) for name in ("ttft_ms", "tbt_ms"))
    return ttft, tbt


def _limit_ns(slo: dict[str, Any], name: str) -> int:
    value = slo.get(name)
    if value is None:
        return NO_LIMIT
    if type(value) not in {int, float} or not 0 < value <= _LIMIT_MOST_MS:
        raise ApiError(400, f"slo.{name} must be a number of milliseconds above 0 and up to {_LIMIT_MOST_MS}.", "slo")
    limit_ns: int = round(value * NS_PER_MS)
    return limit_ns


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if type(value) is not bool:
        raise ApiError(400, f"{name} must be true or false.", name)
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > 256:
        raise ApiError(400, f"{name} must be a string of at most 256 characters.", name)
    return value


def _derived_seed(ids: bytes, server_seed: int) -> int:
    digest = hashlib.blake2b(ids, digest_size=8, key=server_seed.to_bytes(32, "big"))
    return int.from_bytes(digest.digest(), "big")
