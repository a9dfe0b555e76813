"""Admission under output uncertainty: reservation estimates, the soft ceiling, and what the estimates cost in hindsight (F20-F29).

An estimate is a scheduler's forecast of future KV rows; it allocates nothing. Realized lengths enter ``errors_of`` only, which runs after
every decision is frozen. Rows are logical; bytes are rows times the coefficient the cache's owner publishes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from harness.errors import Problem, UsageError


class Family(StrEnum):
    """Which forecast of the total output length is reserved for."""

    MAXIMUM = "maximum"
    POINT = "point"
    QUANTILE = "quantile"
    WATERMARK = "watermark"
    """The quantile's forecast under a ceiling lowered by the watermark (F28)."""


ADMISSION_CODES: Final = ("forecast_order", "forecast_above_maximum", "watermark_range", "emitted_range", "no_forecast")
"""Every reason for which an input is refused."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What admission may know of one request, lengths in tokens. ``uncached_prompt`` U: prompt rows still to compute (0: it has run).

    ``point`` and ``quantile``: predicted totals under ``prediction`` (name and version of the predictor); None: there is none.
    """

    handle: int
    maximum: int
    emitted: int = 0
    uncached_prompt: int = 0
    priority: int = 0
    point: int | None = None
    quantile: int | None = None
    prediction: str = ""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Rows that may be reserved in all, rows reserved already, and rows held outside ordinary admission."""

    hard: int
    reserved: int
    watermark: int = 0

    @property
    def soft(self) -> int:
        """C_soft = C_hard - W (F28)."""
        return self.hard - self.watermark


@dataclass(frozen=True, slots=True)
class Decision:
    """One candidate's answer. ``estimate``: rows it would reserve; ``allocation`` is the allocator's: a scheduler has none to give."""

    handle: int
    admitted: bool
    estimate: int
    family: Family
    prediction: str
    allocation: None = None


def future_rows(candidate: Candidate, total: int) -> int:
    """Rows still to come if ``total`` outputs are emitted: max(G - E, 0) for one that has emitted (F24), U + max(G - 1, 0) else (F25).

    The first output comes with the prompt, and the last is never an input row.
    """
    if candidate.emitted:
        return max(total - candidate.emitted, 0)
    return candidate.uncached_prompt + max(total - 1, 0)


def forecast(candidate: Candidate, family: Family) -> int:
    """Total output length that the family reserves for. Raises UsageError ``no_forecast`` where the predictor gave none."""
    if family is Family.MAXIMUM:
        return candidate.maximum
    value = candidate.point if family is Family.POINT else candidate.quantile
    if value is None:
        what = f"request={candidate.handle}: has no {family} forecast"
        raise UsageError(Problem("no_forecast", what, "give it one with its predictor's version, or reserve by maximum"))
    return value


def decide(family: Family, ceiling: Ceiling, candidates: Sequence[Candidate]) -> tuple[Decision, ...]:
    """Answer candidates first come first served: R + A_hat <= C_soft (F29); the first that does not fit holds back those behind it.

    Only ``watermark`` leaves the watermark free; the other families may reserve up to the hard ceiling. Raises UsageError with every
    problem of the inputs.
    """
    problems = [*_check_ceiling(ceiling), *(problem for candidate in candidates for problem in _check(candidate))]
    if problems:
        raise UsageError(*problems)
    limit = ceiling.soft if family is Family.WATERMARK else ceiling.hard
    reserved, door, decisions = ceiling.reserved, True, []
    for candidate in candidates:
        estimate = future_rows(candidate, forecast(candidate, family))
        door = door and reserved + estimate <= limit
        reserved += estimate if door else 0
        prediction = "" if family is Family.MAXIMUM else candidate.prediction
        decisions.append(Decision(candidate.handle, door, estimate, family, prediction))
    return tuple(decisions)


@dataclass(frozen=True, slots=True)
class Hindsight:
    """What admitted estimates cost (F27). ``unused``: rows over-reserved; ``missing``: rows under-reserved; ``demand``: rows in the end.

    ``breach``: rows above the hard ceiling. ``victims``: whom to preempt for it, least favoured first; an intent, no release.
    """

    unused: int
    missing: int
    demand: int
    breach: int
    extensions: tuple[int, ...]
    victims: tuple[int, ...]


def errors_of(ceiling: Ceiling, candidates: Sequence[Candidate], decisions: Sequence[Decision], realized: Mapping[int, int]) -> Hindsight:
    """Score frozen decisions against realized totals (tokens by handle); never called while deciding."""
    known = {candidate.handle: candidate for candidate in candidates}
    admitted = [known[decision.handle] for decision in decisions if decision.admitted]
    needed = {candidate.handle: future_rows(candidate, realized[candidate.handle]) for candidate in admitted}
    errors = {decision.handle: decision.estimate - needed[decision.handle] for decision in decisions if decision.admitted}
    demand = ceiling.reserved + sum(needed.values())
    breach, victims = max(0, demand - ceiling.hard), []
    left = breach
    for candidate in sorted(admitted, key=lambda one: (-one.priority, -one.handle)):
        if left > 0:
            victims.append(candidate.handle)
            left -= needed[candidate.handle]
    return Hindsight(
        unused=sum(max(error, 0) for error in errors.values()),
        missing=sum(max(-error, 0) for error in errors.values()),
        demand=demand,
        breach=breach,
        extensions=tuple(handle for handle, error in errors.items() if error < 0),
        victims=tuple(victims),
    )


def payload_bytes(rows: int, row_bytes: int) -> int:
    """Logical K/V bytes of rows (F22, F26)."""
    return rows * row_bytes


def _check_ceiling(ceiling: Ceiling) -> list[Problem]:
    if 0 <= ceiling.watermark < ceiling.hard:
        return []
    return [Problem("watermark_range", f"watermark={ceiling.watermark}: must lie within [0, {ceiling.hard})", "lower the watermark")]


def _check(candidate: Candidate) -> list[Problem]:
    where, problems = f"request {candidate.handle}", list[Problem]()
    if not 0 <= candidate.emitted <= candidate.maximum:
        problems.append(
            Problem("emitted_range", f"emitted={candidate.emitted}: must lie within [0, {candidate.maximum}]", "correct it", where)
        )
    forecasts = [value for value in (candidate.point, candidate.quantile) if value is not None]
    if any(value > candidate.maximum for value in forecasts):
        what = f"forecasts={forecasts}: above the declared maximum {candidate.maximum}"
        problems.append(Problem("forecast_above_maximum", what, "cut the prediction at the maximum", where))
    if forecasts != sorted(forecasts):
        what = f"point={candidate.point} quantile={candidate.quantile}: an upper quantile is no less than the point forecast"
        problems.append(Problem("forecast_order", what, "correct the predictor", where))
    return problems
