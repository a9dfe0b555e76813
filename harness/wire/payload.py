"""What one JSON object of a response says, in words that all protocols share; and how an OpenAI-style object is read.

Pure; anything may be missing or of the wrong type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MAX_ERROR_CHARS = 200

MAX_COUNT = 2**31
"""No count comes near it; it keeps a lying server from overflowing the record's columns."""

MAX_REASON_CHARS = 40
"""Finish reasons are words; whatever is longer is something else, which the record would keep as often as there are requests."""

_TEXT_KEYS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")
"""Where a chat delta or message carries generated text: vLLM says ``reasoning``, SGLang ``reasoning_content``."""

_BROKEN_OFF = frozenset({"abort", "error"})
"""Finish reasons by which an engine says that it gave the answer up: what came before is no answer, although the stream is well formed."""

_ECHO = re.compile(r"""(['"`])input\1\s*:.*|\[[^\]]{40,}\]?|(['"`]).{40,}?\2""", re.DOTALL)
"""Places where a validation error repeats what it was sent: pydantic's ``'input': ...``, id lists, long quotations."""

_CUT_ECHO = re.compile(_ECHO.pattern + r"""|(['"`]).{40,}""", re.DOTALL)
"""The same in a text whose end was not looked at: there a quotation need not end."""


@dataclass(slots=True)
class Usage:
    """A server's own counts; None where it gave none."""

    prompt: int | None
    completion: int | None
    cached: int | None


@dataclass(slots=True)
class Payload:
    """One object, read. ``ids`` None: no choice listed token ids, or one brought text without. ``error`` None: it is no error object.

    ``choice``: number of the only choice; None when there are several, whose usage can only be their sum. ``aborted``: an object that may
    carry tokens and says that the server gave the answer up. ``malformed``: it contradicts the objects before it.
    """

    has_choices: bool = False
    has_text: bool = False
    has_role: bool = False
    choice: int | None = None
    ids: int | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None
    error_status: int | None = None
    aborted: str | None = None
    malformed: str | None = None


Reader = Callable[[object], Payload | None]
"""Reads the decoded JSON values of one response in their order; None for a value that is nothing the protocol knows."""


def read_payload(value: object) -> Payload | None:
    """Read a decoded JSON value; None when it is nothing that the protocol knows."""
    if not isinstance(value, dict):
        return None
    failed = read_error(value)
    if failed is not None:
        return failed
    choices, usage = value.get("choices"), _usage(value.get("usage"))
    if not isinstance(choices, list):
        return Payload(usage=usage) if usage is not None else None
    payload = Payload(has_choices=bool(choices), usage=usage)
    for choice in choices:
        if not isinstance(choice, dict):
            return None
        _read_choice(payload, choice)
    payload.choice = _number(choices[0]) if len(choices) == 1 else None
    if payload.ids is not None and any(not isinstance(choice.get("token_ids"), list) and _brings_text(choice) for choice in choices):
        payload.ids = None  # those of the others are not all
    return payload


def _number(choice: dict[str, Any]) -> int:
    return count(choice.get("index")) or 0  # a server of one choice need not number it


def _read_choice(payload: Payload, choice: dict[str, Any]) -> None:
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        payload.ids = (payload.ids or 0) + len(ids)
    payload.has_text |= _brings_text(choice)
    payload.has_role |= any(bool(part.get("role")) for part in _parts(choice))
    reason = choice.get("finish_reason")
    if isinstance(reason, str):
        payload.finish_reason = short_reason(reason)
        if reason in _BROKEN_OFF:
            payload.aborted = f"finish_reason: {reason}"


def _brings_text(choice: dict[str, Any]) -> bool:
    return bool(choice.get("text")) or any(bool(part.get(key)) for part in _parts(choice) for key in _TEXT_KEYS)


def _parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key in ("delta", "message"):
        part = choice.get(key)
        if isinstance(part, dict):
            yield part


def _usage(value: object) -> Usage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return Usage(count(value.get("prompt_tokens")), count(value.get("completion_tokens")), cached)


def count(value: object) -> int | None:
    """A number of tokens as a server may have meant one; None for everything else."""
    # bool is an int to Python, and a count to nobody.
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT else None


def read_error(value: dict[str, Any]) -> Payload | None:
    """Find an error object: vLLM, OpenAI and /generate nest it, SGLang's OpenAI routes send one that is it."""
    inner = value.get("error")
    if value.get("object") == "error":
        inner = value
    if not inner:
        return None
    if isinstance(inner, dict):
        kind, message = inner.get("type"), inner.get("message")
        text = ": ".join(t for t in (kind, message) if isinstance(t, str) and t)
        return Payload(error=short_error(text or "error object without a message"), error_status=status_of(inner.get("code")))
    return Payload(error=short_error(str(inner)))


def status_of(code: object) -> int | None:
    """An error code as a number that fits the column, from 503 or "503"."""
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) <= 5:
        code = int(code)
    number = count(code)
    return number if number is not None and number < 2**15 else None


def short_reason(reason: str) -> str:
    """A finish reason, cut short."""
    return reason if len(reason) <= MAX_REASON_CHARS else reason[: MAX_REASON_CHARS - 1] + "…"


def short_error(text: str) -> str:
    """One line, cut short, with whatever may be an echo of the prompt taken out (records hold no prompts)."""
    looked = text[: 20 * MAX_ERROR_CHARS]
    echo = _ECHO if len(looked) == len(text) else _CUT_ECHO
    flat = echo.sub("[cut]", " ".join(looked.split()))
    safe = flat.encode("utf-8", "replace").decode("utf-8")
    return safe if len(safe) <= MAX_ERROR_CHARS else safe[: MAX_ERROR_CHARS - 1] + "…"
