"""The object that nearly every token comes in, read without being described. Whatever is not one is left to ``read_payload``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from harness.wire.payload import MAX_COUNT, count


class Run(NamedTuple):
    """Usual objects in a row. ``tokens``: of each, at least 1; ``after``: the running count behind them; ``usage``: the last one said;
    ``cached``: the last number of cached tokens said; ``left``: the object that ended the run, which is to be judged, or nothing."""

    tokens: list[int]
    after: int
    usage: dict[str, Any] | None
    cached: int | None
    left: tuple[object, ...]


def usual_run(values: Iterator[object], before: int, *, follow: bool) -> Run:
    """Take decoded JSON values up to the first that is not usual. ``before``: running count of choice 0; ``follow``: usage counts.

    Usual is: no error; one choice, its number 0, without a finish reason; a list of ids, or usage that grew (both: the ids count);
    usage whose two numbers are counts. Of such an object ``read_payload`` and the counter say the same, as tests hold. Types are not
    looked at where anything else than the right one raises: only a dict has keys, and orjson makes no subclasses.
    """
    tokens: list[int] = []
    said, cached = None, None
    value: Any = None
    try:
        for value in values:
            (choice,) = value["choices"]
            if choice["finish_reason"] is not None or choice["index"] != 0 or "error" in value or value.get("object") == "error":
                return Run(tokens, before, said, cached, (value,))
            ids, usage = choice.get("token_ids"), value.get("usage")
            listed = type(ids) is list
            brought, after = len(ids) if listed else 0, before
            if usage is not None:
                prompt, completion, details = usage["prompt_tokens"], usage["completion_tokens"], usage.get("prompt_tokens_details")
                if type(prompt) is not int or type(completion) is not int or not (0 <= prompt < MAX_COUNT and 0 <= completion < MAX_COUNT):
                    return Run(tokens, before, said, cached, (value,))
            if usage is None or not follow:
                after += brought
            elif completion > before:
                after = completion
            grown = brought if listed else after - before
            if grown <= 0:
                return Run(tokens, before, said, cached, (value,))
            if usage is not None:
                said, cached = usage, _newer_cached(details, cached) if details else cached
            tokens.append(grown)
            before = after
    except (KeyError, TypeError, ValueError):
        return Run(tokens, before, said, cached, (value,))
    return Run(tokens, before, said, cached, ())


def _newer_cached(details: object, old: int | None) -> int | None:
    new = count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return old if new is None else new
