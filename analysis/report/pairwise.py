"""The effects of a ranking as a table, with what qualifies all of them in its note."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from analysis.model import Effect, Ranking
from analysis.report.table import Table
from analysis.report.versus import exact, noise_floor
from analysis.report.words import clean, decimals_for, number, percent

_HEADER = ("Pair", "Estimate", "Interval", "Scale", "Margin", "Pairs", "p", "p, Holm", "Verdict")


MANY = 28
"""Pairs beyond which a list is no answer: eight arms."""
_SIGNS = {"better": "+", "worse": "-", "equivalent": "=", "unresolved": "?"}
_TURNED = {"+": "-", "-": "+"}


def effects_tables(ranking: Ranking) -> tuple[Table, ...]:
    """The effects as a list; of many pairs first as a square, with the list folded below."""
    table = effects_table(ranking)
    return (table,) if len(table.rows) <= MANY else (_square(ranking), replace(table, folded=True))


def _square(ranking: Ranking) -> Table:
    """Row against column, in the order of the standings."""
    arms = [s.arm for s in ranking.standings]
    signs = {(e.b, e.a): _SIGNS.get(e.verdict, e.verdict) for e in ranking.effects}
    signs |= {(a, b): _TURNED.get(sign, sign) for (b, a), sign in signs.items()}
    rows = tuple((str(i), clean(a), *(signs.get((a, b), "") for b in arms)) for i, a in enumerate(arms, 1))
    note = "The row against the column, numbered alike: + better, - worse, = equivalent, ? unresolved."
    header = ("No.", "Arm", *(str(i) for i in range(1, len(arms) + 1)))
    return Table("Pairs at a glance", header, rows, frozenset({0}), note)


def effects_table(ranking: Ranking) -> Table:
    """One row a pair; the note says what the intervals rest on, what exact tests can say, and beside what noise all of it stands."""
    rows = tuple(_row(e) for e in ranking.effects)
    note = " ".join(_notes(ranking)) if rows else ""
    return Table("Pairwise effects", _HEADER, rows, frozenset({1, 2, 4, 5, 6, 7}), note)


def _row(e: Effect) -> tuple[str, ...]:
    places = decimals_for([e.estimate, e.low, e.high])
    interval = f"[{number(e.low, places)}, {number(e.high, places)}]"
    tests = (number(e.p), number(e.p_holm))
    return (
        f"{clean(e.b)} against {clean(e.a)}",
        number(e.estimate, places),
        interval,
        e.scale,
        f"± {number(e.margin)}",
        str(e.pairs),
        *tests,
        e.verdict,
    )


def _notes(ranking: Ranking) -> Iterable[str]:
    effects = ranking.effects
    unit = ranking.standings[0].figure.unit if ranking.standings else ""
    level = ", ".join(sorted({percent(e.level) for e in effects}))
    methods = ", ".join(dict.fromkeys(clean(e.method) for e in effects))
    yield f"Paired by trace; simultaneous {level} intervals, {methods}. A verdict needs the whole interval beyond the margin, or inside it."
    yield "p: of no difference, by the t test of the interval; Holm's adjustment over all pairs stands beside the intervals, not for them."
    spoken = dict.fromkeys(exact(e.exact) for e in effects if e.exact is None or not e.exact.speaks)
    heard = [f"{clean(e.b)} against {clean(e.a)} {number(e.exact.p)}" for e in effects if e.exact is not None and e.exact.speaks]
    yield "".join(f"{text[0].upper()}{text[1:]}. " for text in spoken).rstrip() or f"Exact p: {', '.join(heard)}."
    for text in dict.fromkeys(noise_floor(e, unit) for e in effects):
        yield f"Noise floor: {text}."
