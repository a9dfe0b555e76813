"""Admission before output lengths are known (F20-F29): what is set aside for a request, from what was declared and what has ended.

A rule forecasts total outputs and sets aside the K/V rows that they would come to; a reservation is a promise in rows and no allocation.
Under every rule but ``own`` the engine's test replaces the policy's: a candidate comes in while all that is promised, its own forecast
included, stays within the soft ceiling. A request that outgrows its promise asks for an extension, which may use the rows held back; if the
hard ceiling denies it, somebody has to give way. No function here has an argument that could carry a realized length of a live request.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Final, NamedTuple

import numpy as np

from harness.errors import Problem, UsageError
from harness.reference.table import CLIENT, EMITTED, EMPTY, PRIORITY, PROMPT, RESERVED, Int64, Table, in_blocks


class Rule(StrEnum):
    """What is set aside for a request that is let in."""

    OWN = "own"
    """nothing: the policy's own test decides, as it does without this module"""
    MAXIMUM = "maximum"
    """the declared maximum: never short, idle by all that a request ends early"""
    POINT = "point"
    """one forecast value: declared for its class, or the mean of what ended"""
    QUANTILE = "quantile"
    """a declared value, or the nearest-rank quantile (F39) of what ended; p for each is no promise that all fit together with p"""
    WATERMARK = "watermark"
    """as ``quantile``, below a ceiling that holds rows back for those that outgrow it (F28)"""


UNKNOWN: Final = -1
_WINDOW = 256
"""Ended outputs that are looked back on, of each client and over all: a p99 by nearest rank needs 100, and more follow a drift later."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The declared rule. ``percent``: p of the quantile. ``classes``: forecast outputs by priority class, which outrank what was learned.

    ``default``: forecast while nothing is known of a client (0: its declared maximum). ``learn``: whether lengths of requests that ended
    by themselves become forecasts, once ``after`` of them have (with fewer than 16, a p90 is the greatest or second of a handful); what
    ends early ends first, so that under load these lean short.
    """

    rule: Rule = Rule.OWN
    percent: int = 90
    default: int = 0
    learn: bool = True
    after: int = 16
    classes: tuple[tuple[int, int], ...] = ()

    @property
    def reserves(self) -> bool:
        """Whether anything is set aside at all."""
        return self.rule is not Rule.OWN

    @property
    def learns(self) -> bool:
        """Whether the rule looks at what ended."""
        return self.learn and self.rule not in (Rule.OWN, Rule.MAXIMUM)


_WHOLE: Final = {"percent": (1, 100), "default": (1, 2**31), "learn": (0, 1), "after": (1, _WINDOW)}


def make_admission(rule: str, parameters: Mapping[str, int]) -> Admission:
    """Read the rule as it is declared: ``percent``, ``default``, ``learn``, ``after``, and ``class.K`` for outputs of priority class K.

    Raises UsageError ``admission_rule`` or ``admission_parameter`` with all problems.
    """
    known = [r.value for r in Rule]
    if rule not in known:
        raise UsageError.single("admission_rule", f"admission={rule!r}: no such rule", f"use one of: {', '.join(known)}")
    problems = [p for name, value in parameters.items() for p in _wrong(rule, name, value)]
    if problems:
        raise UsageError(*problems)
    classes = tuple(sorted((int(n.removeprefix("class.")), v) for n, v in parameters.items() if n.startswith("class.")))
    given = {name: value for name, value in parameters.items() if name in _WHOLE}
    return Admission(
        Rule(rule), given.get("percent", 90), given.get("default", 0), bool(given.get("learn", 1)), given.get("after", 16), classes,
    )  # fmt: skip


def _wrong(rule: str, name: str, value: int) -> Iterator[Problem]:
    if rule in (Rule.OWN, Rule.MAXIMUM):
        what = f"{name}={value}: admission {rule} forecasts nothing, so the parameter would be without effect"
        yield Problem("admission_parameter", what, "leave it out, or declare point, quantile or watermark")
        return
    number = name.removeprefix("class.")
    is_class = name.startswith("class.") and re.fullmatch(r"-?[0-9]{1,10}", number) is not None
    low, high = _WHOLE.get(name, (1, 2**31))
    if not is_class and name not in _WHOLE:
        yield Problem("admission_parameter", f"{name}: admission has no such parameter", f"use one of: {', '.join(_WHOLE)}, class.K")
    elif not low <= value <= high:
        yield Problem("admission_parameter", f"{name}={value}: must lie within {low} and {high}", "correct the value")


class Learned(NamedTuple):
    """What ended says of what comes: forecast outputs over all, and by client (clients,); UNKNOWN where too few ended."""

    overall: int
    clients: Int64


NOTHING_LEARNED: Final = Learned(UNKNOWN, np.zeros(0, np.int64))


def forecast(rule: Admission, learned: Learned | None, members: Table) -> Int64:
    """Total outputs that the rule expects of members (n,), at most what they declared.

    First of: the declared value of the class, what ended of the client, what ended at all, the declared default, the declared maximum.
    """
    maximum = members.maximum
    if rule.rule is Rule.MAXIMUM:
        return maximum
    expected = np.full(len(members), rule.default or UNKNOWN, np.int64)
    if learned is not None:
        if learned.overall != UNKNOWN:
            expected[:] = learned.overall
        client = members.cells[CLIENT]
        within = client < len(learned.clients)
        mine = np.full(len(members), UNKNOWN, np.int64)
        mine[within] = learned.clients[client[within]]
        expected = np.where(mine == UNKNOWN, expected, mine)
    for priority, declared in rule.classes:
        expected[members.cells[PRIORITY] == priority] = declared
    outputs: Int64 = np.where(expected == UNKNOWN, maximum, np.minimum(expected, maximum))
    return outputs


def estimate_rows(rule: Admission, learned: Learned | None, members: Table, block: int = 1) -> Int64:
    """Rows that each member (n,) will hold by its forecast, in whole blocks: those before its next output and those to come (F24, F25).

    New: prompt + max(G - 1, 0). Resumed: prompt + E - 1 rows to rebuild or promote, and max(G - E, 0). Both are prompt + max(G, E, 1) - 1,
    for the last output of a request is never an input row.
    """
    outputs = np.maximum(np.maximum(forecast(rule, learned, members), members.cells[EMITTED]), 1)
    return in_blocks(members.cells[PROMPT] + outputs - 1, block)


def recalled_rows(rule: Admission, learned: Learned | None, called: Table, block: int) -> Int64:
    """``estimate_rows`` of members that are called back from a second tier (n,), and at least the rows of their next step.

    That step is no forecast but certain: without its row, two that are back could wait for each other's room for ever.
    """
    certain = in_blocks(np.maximum(called.prompt, called.computed + 1), block)
    rows: Int64 = np.maximum(estimate_rows(rule, learned, called, block), certain)
    return rows


NO_RESERVATIONS: Final = np.zeros((3, 0), np.int64)


def reservations(
    rule: Admission, learned: Learned | None, members: Table, at: Int64, ends: Int64, block: int, called: Table = EMPTY
) -> Int64:
    """Handle, generation and total rows (3, k) of every promise that a plan makes: extensions, newcomers, then those called back.

    A member that has a promise and whose interval (at ``at``, up to ``ends``) outgrows it asks for an extension up to its end. One that has
    none, or is ``called`` back from the second tier, is promised what the rule expects. A policy has no say in the amounts, only in who.
    """
    if not rule.reserves:
        return NO_RESERVATIONS
    has = members.cells[RESERVED]
    needed = np.zeros(len(members), np.int64)
    needed[at] = in_blocks(ends, block)
    longer, new = ((needed > has) & (has > 0)).nonzero()[0], (has == 0).nonzero()[0]
    if not (len(longer) or len(new) or len(called)):
        return NO_RESERVATIONS
    if not (len(new) or len(called)):  # extensions alone, as in most iterations in which anything is promised
        return np.concatenate((members.cells[:2].take(longer, axis=1), needed.take(longer)[None]))
    came = members.take(new)
    who = np.concatenate((members.cells[:2].take(longer, axis=1), came.cells[:2], called.cells[:2]), axis=1)
    rows = (needed.take(longer), estimate_rows(rule, learned, came, block), recalled_rows(rule, learned, called, block))
    return np.concatenate((who, np.concatenate(rows)[None]))


@dataclass(slots=True)
class Forecaster:
    """Outputs of requests that ended by themselves, newest ``_WINDOW`` of each client and over all; ``published`` makes the forecast."""

    rule: Admission
    _all: deque[int] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _by_client: dict[int, deque[int]] = field(default_factory=dict)
    _learned: Learned = NOTHING_LEARNED

    def note(self, client: int, outputs: int) -> None:
        """Take note of one request that ended by itself with ``outputs`` outputs."""
        mine = self._by_client.setdefault(client, deque(maxlen=_WINDOW))
        mine.append(outputs)
        self._all.append(outputs)
        clients = self._learned.clients
        if client >= len(clients):
            clients = np.concatenate((clients, np.full(client + 1 - len(clients), UNKNOWN, np.int64)))
        else:
            clients = clients.copy()
        clients[client] = self._value(mine)
        clients.flags.writeable = False
        self._learned = Learned(self._value(self._all), clients)

    def published(self) -> Learned:
        """What has been learned so far; the same object until another request ends."""
        return self._learned

    def _value(self, ended: deque[int]) -> int:
        if len(ended) < self.rule.after:
            return UNKNOWN
        if self.rule.rule is Rule.POINT:
            return ceil(Fraction(sum(ended), len(ended)))
        return sorted(ended)[ceil(Fraction(self.rule.percent, 100) * len(ended)) - 1]


@dataclass(slots=True)
class ReservationLedger:
    """Promises against what came true, rows, of requests that ended by themselves (F27): sums of both parts of the error, never netted.

    ``reserved``: first promise; ``used``: rows held at the end; ``unused``, ``under``: positive and negative part of their difference.
    ``breach``: by how much the next step of all who were let in passed the hard ceiling when somebody had to give way. ``withdrawn``:
    promises to requests that were cut off, of which nobody knows what they would have come to. ``extensions``: intents that were granted.
    """

    reserved: int = 0
    used: int = 0
    unused: int = 0
    under: int = 0
    breach: int = 0
    extensions: int = 0
    extension_rows: int = 0
    settled: int = 0
    withdrawn: int = 0
    _promised: dict[int, int] = field(default_factory=dict)

    def promise(self, number: int, rows: int) -> None:
        """Note what a request is let in with; a request that comes back is still held to its first promise."""
        self._promised.setdefault(number, rows)

    def extend(self, count: int, rows: int) -> None:
        """Note ``count`` extensions by ``rows`` rows in all."""
        self.extensions += count
        self.extension_rows += rows

    def settle(self, number: int, rows: int) -> None:
        """Hold a request that ended with ``rows`` rows to its promise."""
        promised = self._promised.pop(number, None)
        if promised is None:
            return
        self.settled += 1
        self.reserved += promised
        self.used += rows
        self.unused += max(promised - rows, 0)
        self.under += max(rows - promised, 0)

    def withdraw(self, number: int) -> None:
        """Forget the promise to a request that was cut off."""
        self.withdrawn += self._promised.pop(number, None) is not None
