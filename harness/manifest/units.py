"""Quantities with units: text in, exact numbers out, and back.

A bare number is refused, because 100 may be ms to one reader and s to another.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

_NUMBER = r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,24})?"
DURATION_PATTERN = rf"^{_NUMBER}(ns|us|ms|s|m|h)$"
SIZE_PATTERN = rf"^{_NUMBER}(B|KiB|MiB|GiB|TiB)$"
RATE_PATTERN = rf"^{_NUMBER}/(s|m|h)$"
PERCENT_PATTERN = rf"^{_NUMBER}%$"

_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_PER = {"s": 1, "m": 60, "h": 3600}


class UnitError(ValueError):
    """A quantity that cannot be read; ``remedy`` says how to write it."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what}: {remedy}")


def _split(raw: object, pattern: str, kind: str, example: str) -> tuple[Fraction, str]:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise UnitError(f"not a {kind}", f"write a {kind} such as {example}")
    if not isinstance(raw, str):
        raise UnitError(f"a bare number is not a {kind}: its unit would be a guess", f"write the unit, e.g. {example}")
    if not re.fullmatch(pattern[1:-1], raw, re.ASCII):
        raise UnitError(f"not a {kind} with a unit this reader knows", f"write it without spaces, e.g. {example}")
    number = re.match(_NUMBER, raw, re.ASCII)
    digits = number.group() if number else ""
    return Fraction(digits), raw[len(digits) :]


def _whole(value: Fraction, smallest: str) -> int:
    whole = int(value)
    if whole != value:
        raise UnitError(f"finer than one {smallest}", f"round it to a whole number of {smallest}")
    return whole


def parse_duration(raw: object) -> int:
    """Read ``250us``, ``100ms``, ``2s``, ``1.5s``, ``10m`` or ``1h`` as whole ns, exactly. Raises UnitError."""
    number, unit = _split(raw, DURATION_PATTERN, "duration", "100ms, 2s or 10m")
    return _whole(number * _NS[unit], "ns")


def parse_size(raw: object) -> int:
    """Read ``16MiB`` as whole bytes; binary units only, since MB means two things. Raises UnitError."""
    number, unit = _split(raw, SIZE_PATTERN, "size", "512KiB, 16MiB or 2GiB")
    return _whole(number * _BYTES[unit], "byte")


def parse_rate(raw: object) -> float:
    """Read ``5/s``, ``90/m`` or ``100/h`` as events per second. Raises UnitError."""
    number, unit = _split(raw, RATE_PATTERN, "rate", "5/s or 90/m")
    return float(number / _PER[unit.lstrip("/")])


def parse_fraction(raw: object) -> float:
    """Read ``2%`` as 0.02; a bare number is taken as the fraction itself. Raises UnitError."""
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return float(raw)
    number, _ = _split(raw, PERCENT_PATTERN, "share", "2% or 0.02")
    return float(number / 100)


def format_duration(ns: int) -> str:
    """Write whole ns in the largest unit that holds it without a fraction; ``parse_duration`` reads it back exactly."""
    unit = next((u for u in ("h", "m", "s", "ms", "us") if ns and ns % _NS[u] == 0), "ns")
    return f"{ns // _NS[unit]}{unit}" if ns else "0s"


def format_size(size: int) -> str:
    """Write bytes in the largest unit that holds them without a fraction."""
    unit = next((u for u in ("TiB", "GiB", "MiB", "KiB") if size and size % _BYTES[u] == 0), "B")
    return f"{size // _BYTES[unit]}{unit}"


def format_rate(rate: float) -> str:
    """Write events per second so that ``parse_rate`` gives the same float back."""
    return f"{Decimal(repr(rate)):f}".removesuffix(".0") + "/s"
