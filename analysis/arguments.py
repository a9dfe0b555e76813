"""Numbers handed to a ledger, checked all at once: a ledger of impossible rows would be exact and mean nothing."""

from __future__ import annotations

from collections.abc import Sequence

from harness.errors import Problem, UsageError


def at_least(least: float, **values: float) -> list[Problem]:
    """One problem for each named value below ``least``."""
    return [
        Problem(
            "value_too_small",
            f"{name}={value}: below {least}, so nothing that can exist is counted",
            f"give {name} >= {least}",
        )
        for name, value in values.items()
        if not value >= least  # so written that NaN is refused as well
    ]


def at_most(most: float, why: str, **values: float) -> list[Problem]:
    """One problem for each named value above ``most``; ``why`` says what the limit is and what breaking it means."""
    return [
        Problem("value_too_large", f"{name}={value}: above {most}, {why}", f"give {name} <= {most}")
        for name, value in values.items()
        if not value <= most
    ]


def need(*problems: Sequence[Problem]) -> None:
    """Raise UsageError with all ``problems`` at once, if there are any."""
    found = [problem for group in problems for problem in group]
    if found:
        raise UsageError(*found)
