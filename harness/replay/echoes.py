"""Servers that say back what they were sent: the value of a header is a key, and no record holds one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HIDDEN = "[hidden]"

LEAST_CHARS = 8
"""A shorter word of a header is no key, and would be found in texts that have nothing to do with it."""

SAID = ("error", "finish_reason")
"""Columns of a request's row that hold a server's own words."""


def keys_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """What must not come back: each value and its words (``Bearer`` apart from the key behind it), the longest first."""
    words = {word for value in headers.values() for word in (value, *value.split())}
    return tuple(sorted((word for word in words if len(word) >= LEAST_CHARS), key=lambda word: (-len(word), word)))


def hide(row: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """``row`` with every key in its server's words replaced, also one that was cut off where a text was cut short."""
    return row | {name: _without(row[name], keys) for name in SAID if row[name]} if keys else row


def _without(text: str, keys: tuple[str, ...]) -> str:
    for key in keys:
        text = text.replace(key, HIDDEN)
    if text.endswith("…"):
        for key in keys:
            cut = next((n for n in range(len(key) - 1, LEAST_CHARS // 2, -1) if text[:-1].endswith(key[:n])), 0)
            text = f"{text[: -1 - cut]}{HIDDEN}…" if cut else text
    return text
