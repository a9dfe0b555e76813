"""What one JSON object of an OpenAI-style response says, protocol by protocol. Pure; anything may be missing or of the wrong type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_ERROR_CHARS = 200

_TEXT_KEYS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")
"""Where a chat delta or message carries generated text: vLLM says ``reasoning``, SGLang ``reasoning_content``."""

_ECHO = re.compile(r"""(['"`])input\1\s*:.*|\[[^\]]{40,}\]?|(['"`]).{40,}?\2""", re.DOTALL)
"""Places where a validation error repeats what it was sent: pydantic's ``'input': ...``, id lists, long quotations."""


@dataclass(slots=True)
class Usage:
    """A server's own counts; None where it gave none."""

    prompt: int | None
    completion: int | None
    cached: int | None


@dataclass(slots=True)
class Payload:
    """One object, read. ``ids`` None: no choice listed token ids. ``error`` None: it is no error object."""

    has_choices: bool = False
    has_text: bool = False
    has_role: bool = False
    ids: int | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None
    error_status: int | None = None


def read_payload(value: object) -> Payload | None:
    """Read a decoded JSON value; None when it is nothing that the protocol knows."""
    if not isinstance(value, dict):
        return None
    failed = _error(value)
    if failed is not None:
        return Payload(error=failed[0], error_status=failed[1])
    choices, usage = value.get("choices"), _usage(value.get("usage"))
    if not isinstance(choices, list):
        return Payload(usage=usage) if usage is not None else None
    payload = Payload(has_choices=bool(choices), usage=usage)
    for choice in choices:
        if not isinstance(choice, dict):
            return None
        _read_choice(payload, choice)
    return payload


def _read_choice(payload: Payload, choice: dict[str, Any]) -> None:
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        payload.ids = (payload.ids or 0) + len(ids)
    payload.has_text |= bool(choice.get("text")) or any(bool(part.get(key)) for part in _parts(choice) for key in _TEXT_KEYS)
    payload.has_role |= any(bool(part.get("role")) for part in _parts(choice))
    reason = choice.get("finish_reason")
    if isinstance(reason, str):
        payload.finish_reason = reason


def _parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key in ("delta", "message"):
        part = choice.get(key)
        if isinstance(part, dict):
            yield part


def _usage(value: object) -> Usage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return Usage(_count(value.get("prompt_tokens")), _count(value.get("completion_tokens")), cached)


def _count(value: object) -> int | None:
    # bool is an int to Python, and a count to nobody. 2**31 keeps a lying server from overflowing the record's columns.
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _error(value: dict[str, Any]) -> tuple[str, int | None] | None:
    """Find an error object: vLLM and OpenAI nest it, SGLang is one."""
    inner = value.get("error")
    if value.get("object") == "error":
        inner = value
    if not inner:
        return None
    if isinstance(inner, dict):
        kind, message = inner.get("type"), inner.get("message")
        text = ": ".join(t for t in (kind, message) if isinstance(t, str) and t)
        return short_error(text or "error object without a message"), _status(inner.get("code"))
    return short_error(str(inner)), None


def _status(code: object) -> int | None:
    """An error code as a number that fits the column, from 503 or "503"."""
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) <= 5:
        code = int(code)
    number = _count(code)
    return number if number is not None and number < 2**15 else None


def short_error(text: str) -> str:
    """One line, cut short, with whatever may be an echo of the prompt taken out (records hold no prompts)."""
    flat = _ECHO.sub("[cut]", " ".join(text[: 20 * MAX_ERROR_CHARS].split()))
    safe = flat.encode("utf-8", "replace").decode("utf-8")
    return safe if len(safe) <= MAX_ERROR_CHARS else safe[: MAX_ERROR_CHARS - 1] + "…"
