"""The effects of a ranking as a table, with what qualifies all of them in its note."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.model import Effect, Ranking
from analysis.report.table import Table
from analysis.report.versus import exact, noise_floor
from analysis.report.words import clean, decimals_for, number, percent

_HEADER = ("Pair", "Estimate", "Interval", "Scale", "Margin", "Pairs", "p", "p, Holm", "Verdict")


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
