"""One byte string for one value: what digests, seals and byte-identical re-analysis rest on (DESIGN 5).

Rules: UTF-8 JSON, keys sorted by code point, no spaces, floats rounded to 9 significant digits (more would print the platform's last-bit
noise, fewer would drop a nanosecond in a second), -0.0 is 0.0. JSON has no infinity, so an infinite bound becomes the string "inf" or
"-inf". NaN is refused: a missing number is null beside its reason.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from numbers import Integral, Real
from typing import Any

from pydantic import BaseModel

DIGITS = 9


def canonical_json(obj: object, *, digits: int | None = DIGITS, indent: int | None = None) -> bytes:
    """Encode mappings, sequences, scalars, enums, dataclasses and pydantic models.

    ``digits`` None keeps floats exact (for records that are read back). Raises ValueError on NaN, TypeError on anything without one
    canonical form (sets, bytes, mappings whose keys are not text).
    """
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(plain(obj, digits=digits), sort_keys=True, ensure_ascii=False, allow_nan=False, separators=separators, indent=indent)
    return text.encode()


def digest(obj: object) -> str:
    """Hex sha256 of the canonical JSON; values equal to 9 significant digits share it."""
    return hashlib.sha256(canonical_json(obj)).hexdigest()


def plain(obj: object, *, digits: int | None = DIGITS) -> Any:
    """Reduce to dicts, lists and JSON scalars under the rules of this module."""
    if obj is None or isinstance(obj, bool):
        return obj
    if isinstance(obj, Enum):
        return plain(obj.value, digits=digits)
    if isinstance(obj, str):
        return str(obj)
    if isinstance(obj, Integral):
        return int(obj)
    if isinstance(obj, Real):
        return _number(float(obj), digits)
    if isinstance(obj, BaseModel):
        return plain(dict(obj), digits=digits)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return {f.name: plain(getattr(obj, f.name), digits=digits) for f in dataclasses.fields(obj)}
    if isinstance(obj, Mapping):
        return {_key(k): plain(v, digits=digits) for k, v in obj.items()}
    if isinstance(obj, list | tuple):
        return [plain(v, digits=digits) for v in obj]
    raise TypeError(f"type={type(obj).__name__}: has no canonical JSON form")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"key={key!r}: a canonical mapping has text keys only")
    return str(key.value) if isinstance(key, Enum) else key


def _number(value: float, digits: int | None) -> float | str:
    if math.isnan(value):
        raise ValueError("value=nan: a missing number is written as null beside its reason")
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    rounded = value if digits is None else float(f"{value:.{digits}g}")
    return rounded + 0.0  # turns -0.0 into 0.0
