"""Field types of the manifest: what a value may be, how an editor is told, and how it is written back in the resolved form."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
)
from pydantic.json_schema import JsonSchemaValue, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from harness.manifest import units

HOUR_NS = 3600 * 10**9

_SHA256 = r"^[0-9a-f]{64}$"
_MODEL_ID = r"^[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,95}(?:/[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,95})?$"

SLUG_PATTERN = r"^[a-z0-9](?:[a-z0-9_-]|\.(?!\.)){0,62}$"
"""Becomes a folder name: no separators, no dot-dot, no upper case (some file systems fold it), at most 63 characters."""


class Section(BaseModel):
    """Base of every manifest section: frozen, strict (no guessing of types), hyphenated keys, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
    )


def refuse(code: str, what: str, remedy: str) -> PydanticCustomError:
    """Make the error of one bad value; the loader turns it into a Problem with a line number."""
    # The text goes in as a field, because braces in a template would be taken for fields themselves.
    return PydanticCustomError(code, "{what}", {"what": what, "remedy": remedy})


def _unit(parse: Callable[[object], float]) -> BeforeValidator:
    def _read(raw: object) -> float:
        try:
            return parse(raw)
        except units.UnitError as bad:
            raise refuse("bad_unit", bad.what, bad.remedy) from bad

    return BeforeValidator(_read)


def _within(low: float, high: float, text: str, why: str) -> AfterValidator:
    def _check(value: float) -> float:
        if not (math.isfinite(value) and low <= value <= high):
            raise refuse("out_of_range", f"must lie in {text}: {why}", f"choose a value in {text}")
        return value

    return AfterValidator(_check)


def _quantity(pattern: str, examples: list[str]) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": examples})


_Duration = Annotated[
    int,
    _unit(units.parse_duration),
    PlainSerializer(units.format_duration, return_type=str),
    _quantity(units.DURATION_PATTERN, ["100ms", "2s", "10m"]),
]

Duration = Annotated[_Duration, _within(0, 24 * HOUR_NS, "[0s, 24h]", "a longer run outlives boots and clocks it relies on")]
"""ns; 0 allowed."""
PositiveDuration = Annotated[
    _Duration, _within(1, 24 * HOUR_NS, "(0s, 24h]", "zero measures nothing, and longer outlives boots and clocks")
]
"""ns, above 0."""
TraceTime = Annotated[_Duration, _within(0, 8784 * HOUR_NS, "[0s, 8784h]", "public traces span at most a year")]
"""ns of trace time."""

Rate = Annotated[
    float,
    _unit(units.parse_rate),
    _within(1e-4, 1e6, "[0.0001/s, 1000000/s]", "slower sends nothing in a day, faster is beyond any fleet this engine drives"),
    PlainSerializer(units.format_rate, return_type=str),
    _quantity(units.RATE_PATTERN, ["5/s", "90/m"]),
]
"""Events per second."""

Size = Annotated[
    int,
    _unit(units.parse_size),
    _within(1, 2**50, "[1B, 1024TiB]", "no single host holds more"),
    PlainSerializer(units.format_size, return_type=str),
    _quantity(units.SIZE_PATTERN, ["16MiB", "2GiB"]),
]
"""Bytes."""

Fraction = Annotated[
    float,
    _unit(units.parse_fraction),
    _within(1e-6, 1 - 1e-6, "(0, 1), i.e. (0%, 100%)", "it is a share strictly between nothing and everything"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": units.PERCENT_PATTERN},
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            ],
            "examples": ["2%", 0.02],
        }
    ),
]
"""Share in (0, 1)."""

Factor = Annotated[float, _within(1e-3, 1e3, "[0.001, 1000]", "three orders of magnitude leave nothing of the trace's own structure")]
"""Pure ratio, e.g. a time compression."""


def _shaped(pattern: str, code: str, what: str, remedy: str) -> AfterValidator:
    compiled = re.compile(pattern[1:-1], re.ASCII)

    def _check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise refuse(code, what, remedy)
        return value

    return AfterValidator(_check)


Slug = Annotated[
    str,
    _shaped(
        SLUG_PATTERN,
        "bad_name",
        "it becomes a folder name, so it must be 1-63 of a-z, 0-9, '-', '_' and '.', start with a letter or digit and hold no '..'",
        "rename it, e.g. budget-512",
    ),
    WithJsonSchema({"type": "string", "pattern": SLUG_PATTERN}),
]
"""A name that becomes a folder name."""


def _format_one(value: int) -> int:
    if value != 1:
        raise refuse(
            "other_format",
            "this version reads manifests of format 1",
            "write trigpoint: 1, or use the version that the manifest was written for",
        )
    return value


# Not a Literal: to Python true equals 1.
FormatNumber = Annotated[int, AfterValidator(_format_one), WithJsonSchema({"const": 1})]
"""The manifest format this version reads."""

Sha256 = Annotated[
    str,
    _shaped(_SHA256, "bad_digest", "must be 64 lower-case hexadecimal digits", "write what `sha256sum FILE` prints"),
    WithJsonSchema({"type": "string", "pattern": _SHA256}),
]

ModelId = Annotated[
    str,
    _shaped(
        _MODEL_ID,
        "bad_model_id",
        "must be NAME or ORG/NAME of letters, digits, '-', '_' and '.', without '..': a manifest never holds a path",
        "write the model's name, and tell this machine where models lie in your own configuration",
    ),
    WithJsonSchema({"type": "string", "pattern": _MODEL_ID}),
]


def _scalar(raw: object) -> object:
    # Checked ahead of the union, which would answer once per member.
    if not isinstance(raw, bool | int | float | str):
        raise refuse("bad_scalar", "must be one value: text, a number, true or false", "write lists and mappings as one quoted text")
    return raw


Scalar = Annotated[bool | int | float | str, BeforeValidator(_scalar), WithJsonSchema({"type": ["boolean", "number", "string"]})]
"""What a server argument may be."""


def _load_value(raw: object) -> object:
    if isinstance(raw, str):
        try:
            units.parse_rate(raw)
        except units.UnitError as bad:
            raise refuse("bad_unit", bad.what, bad.remedy) from bad
        return raw
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not 1e-3 <= raw <= 1e3:
        raise refuse("bad_load", "must be a compression in [0.001, 1000], or a rate", "write e.g. 2.0 or 5/s")
    return float(raw)


LoadValue = Annotated[
    float | str,
    BeforeValidator(_load_value),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "pattern": units.RATE_PATTERN}]}),
]
"""A place on a load axis: a bare time compression, or a rate with its unit."""

Core = Annotated[int, Field(ge=0, le=4095)]
"""A CPU number; beyond 4095 it is a typing error sooner than a host."""


@dataclass(frozen=True)
class Shorthand:
    """Let a lone value stand for a mapping with one key: ``tbt: 100ms`` for ``tbt: {limit: 100ms}``."""

    key: str
    schema: dict[str, Any] = field(hash=False)

    def _expand(self, raw: object) -> object:
        return raw if isinstance(raw, dict) else {self.key: raw}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Put the expansion before the model's own validation."""
        return core_schema.no_info_before_validator_function(self._expand, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe both forms to an editor."""
        return {"anyOf": [self.schema, handler(schema)]}
