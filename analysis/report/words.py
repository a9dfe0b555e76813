"""Numbers and names as text. Every string that comes from a file passes ``clean`` before it reaches a page or a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.model import CheckResult, Figure, Interval
from harness.record.canonical import canonical_json

SHORT = 160
"""Longest value printed in full in a table, in characters: about two lines of a wide cell."""


def clean(text: object) -> str:
    """One line of printable text: white space becomes a space, control and direction characters become U+FFFD."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in str(text))


def number(value: float | None, decimals: int | None = None) -> str:
    """A number to be read: by default four significant digits without idle zeros; with ``decimals`` so many places, for columns."""
    if value is None or math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    places = decimals_for([value]) if decimals is None else decimals
    # In a column a small neighbour may lose digits but never vanish; alone, below a thousandth, six places would hold too few.
    if value and abs(value) < (1e-3 if decimals is None else 10**-places / 2):
        return f"{value:.3g}"
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if decimals is None and "." in text else text


def decimals_for(values: Iterable[float | None]) -> int:
    """Decimal places that give the largest of the values four significant digits, between none and six."""
    sizes = [abs(v) for v in values if v is not None and math.isfinite(v) and v]
    return min(6, max(0, 3 - math.floor(math.log10(max(sizes))))) if sizes else 0


def percent(share: float) -> str:
    """A share as per cent with at most one decimal."""
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


@dataclass(frozen=True, slots=True)
class Unit:
    """How one family of figures is printed: values are multiplied by ``factor`` and shown in ``name``."""

    name: str
    factor: float = 1.0

    def decimals(self, figures: Iterable[Figure]) -> int:
        """Places that the values and intervals of one metric share, so that they stand under each other."""
        ends = [(f.value, *((f.interval.low, f.interval.high) if f.interval else ())) for f in figures]
        return decimals_for(None if v is None else v * self.factor for group in ends for v in group)

    def value(self, figure: Figure, decimals: int) -> str:
        """The figure's value, or the word for its absence."""
        return figure.status if figure.status != "ok" or figure.value is None else number(figure.value * self.factor, decimals)

    def interval(self, interval: Interval | None, decimals: int) -> str:
        """[low, high], or nothing."""
        if interval is None:
            return ""
        return f"[{number(interval.low * self.factor, decimals)}, {number(interval.high * self.factor, decimals)}]"


def latency_unit(figures: Sequence[Figure]) -> Unit:
    """One unit for every time of a report: ms unless something finite takes longer than ten seconds."""
    seconds = [f.value for f in figures if f.unit == "s" and f.value is not None and math.isfinite(f.value)]
    return Unit("s") if any(v > 10 for v in seconds) else Unit("ms", 1000.0)


def basis(interval: Interval | None) -> str:
    """What an interval rests on: level, method, unit of inference and its n."""
    if interval is None:
        return ""
    return clean(f"{percent(interval.level)}, {interval.method}, n={interval.n} ({interval.unit_of_inference})")


def compact(value: object) -> str:
    """Any value on one line: text as it is, the rest as canonical JSON."""
    if isinstance(value, str):
        return clean(value)
    try:
        return clean(canonical_json(value).decode())
    except (TypeError, ValueError):
        return clean(repr(value))


def shorten(text: str, limit: int = SHORT) -> str:
    """Cut what no table can hold; the whole value stays in the JSON output and in the record."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def coordinate(value: Any) -> str:
    """A record coordinate, or a value already shown by analysis, as text."""
    state = getattr(value, "state", None)
    if state is None:
        return compact(value)
    return compact(value.value) if state == "value" else clean(f"{state}: {value.reason}")


def source(value: Any) -> str:
    """Who vouches for a coordinate."""
    return clean(getattr(value, "source", ""))


def measured(check: CheckResult) -> str:
    """The numbers a verdict was taken from."""
    return ", ".join(f"{clean(k)}={_brief(v)}" for k, v in check.measured.items())


def _brief(value: object) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping) and value.keys() == {"value", "limit", "unit"}:
        return f"{_brief(value['value'])} (limit {_brief(value['limit'])} {clean(value['unit'])})"
    if isinstance(value, Mapping | list | tuple):
        return shorten(compact(value))
    return clean(value)
