"""From a measurement that may be missing to a figure that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from analysis.model import Figure
from analysis.samples import AbsentError

Measure = Callable[[], tuple[float, int]]
"""Value and how many observations it rests on; raises AbsentError for what is not known, NoneSuchError for what does not exist."""


class NoneSuchError(Exception):
    """The quantity does not exist here; the text is the reason of an ``undefined`` figure."""


class Quantity(NamedTuple):
    """Something to be measured: name, unit, what it is taken over, how."""

    metric: str
    unit: str
    population: str
    measure: Measure


def figure_of(quantity: Quantity) -> Figure:
    """Measure, or say why there is no value."""
    metric, unit, population, measure = quantity
    try:
        value, n = measure()
    except AbsentError as absent:
        return Figure(metric, unit, None, "unknown", 0, population, reason=str(absent))
    except NoneSuchError as none:
        return Figure(metric, unit, None, "undefined", 0, population, reason=str(none))
    return Figure(metric, unit, value, "ok", n, population)
