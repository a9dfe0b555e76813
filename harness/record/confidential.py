"""A guard at the door of the record: prompts, headers and keys are never stored (DESIGN 5)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from harness.errors import Problem, UsageError

_NAMES = frozenset({"prompt", "prompttext", "headers", "authorization", "proxyauthorization", "apikey", "xapikey", "cookie", "password"})
_REDACTED = re.compile(r"\*+|<?redacted>?", re.IGNORECASE)


def refuse_secrets(what: str, value: object) -> None:
    """Raise UsageError naming every field or flag in ``value`` that is called like a secret and has content; the content is not shown."""
    found = sorted(set(_secrets(value, what)))
    if found:
        text = f"fields={found}: prompts, headers and keys are never stored in a record"
        remedy = "bind keys to hosts in your own configuration, not in the manifest or its arguments"
        raise UsageError(Problem("record_secret", text, remedy))


def _secrets(value: object, where: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if _is_secret(str(key)) and _has_content(inner):
                yield f"{where}.{key}"
            yield from _secrets(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        yield from _flags(value, where)
        for inner in value:
            yield from _secrets(inner, where)


def _flags(argv: Sequence[object], where: str) -> Iterator[str]:
    """Command lines: ``--api-key VALUE`` and ``--api-key=VALUE``."""
    for item, following in zip_longest(argv, argv[1:]):
        if not isinstance(item, str) or not item.startswith("-"):
            continue
        flag, equals, given = item.partition("=")
        if _is_secret(flag) and _has_content(given if equals else following):
            yield f"{where}:{flag}"


def _is_secret(name: str) -> bool:
    return re.sub(r"[^a-z]", "", name.lower()) in _NAMES


def _has_content(value: object) -> bool:
    return value is not None and not (isinstance(value, str) and (not value or _REDACTED.fullmatch(value)))
