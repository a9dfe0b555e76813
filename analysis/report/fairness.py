"""Who got how much, as tables: what is declared, cells side by side, each identity, and neighbours with and without each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from analysis.fairness_model import CellFairness, Inversions, Neighbour, Share
from analysis.fairness_words import identity_words
from analysis.model import CampaignAnalysis, CellAnalysis, Figure, Outcome
from analysis.report.table import Table
from analysis.report.words import Unit, clean, decimals_for, number, percent

SIDE_BY_SIDE = "Fairness side by side"
NEIGHBOURS = "Neighbours: with and without"

_METRICS = (
    ("jain_service", "Jain, service"),
    ("jain_attainment", "Jain, attainment"),
    ("attainment_least", "Least attainment"),
    ("service_gap", "Widest service gap"),
    ("windowed_gap_mean", "Windowed gap, mean (per s)"),
    ("windowed_gap_max", "Windowed gap, max (per s)"),
    ("windowed_gap_variance", "Windowed gap, variance"),
    ("service_spread", "Accumulated spread"),
)

GLANCE_SHARES = 6
"""Identities of a cell that a terminal shows."""

FOLDED = 30
"""Rows beyond which who got what is shown on demand."""

Found = Sequence[tuple[CellAnalysis, CellFairness]]


def fairness_tables(c: CampaignAnalysis, unit: Unit) -> tuple[Table, ...]:
    """Every table of the section, empty where there was nobody to compare; ``unit``: the report's unit of latencies."""
    found = _found(c)
    near = (_neighbours(c.neighbours, unit),) if c.neighbours else ()
    if not found:
        return near
    return (_side_by_side(found), *near, _shares(found, None), _declared(found), _gaps(found))


def fairness_glance(c: CampaignAnalysis, unit: Unit) -> tuple[Table, ...]:
    """What of it a terminal shows: cells side by side, neighbours, who got what, and the declarations."""
    found = _found(c)
    near = (_neighbours(c.neighbours, unit),) if c.neighbours else ()
    return (_side_by_side(found), *near, _shares(found, GLANCE_SHARES), _declared(found)) if found else near


def _found(c: CampaignAnalysis) -> Found:
    """Cells with two identities or more, or where somebody declared how fairness is to be measured."""
    found = [(cell, cell.fairness) for cell in c.cells if cell.fairness is not None]
    some = any(sum(s.members for s in f.shares) > 1 or not f.by_default for _, f in found)
    return found if some else []


def _side_by_side(found: Found) -> Table:
    metrics = [(m, title) for m, title in _METRICS if any(m in cell.figures for cell, _ in found)]
    places = {m: decimals_for(cell.figures[m].value for cell, _ in found if m in cell.figures) for m, _ in metrics}
    rows = []
    for cell, f in found:
        numbers = (_value(cell.figures.get(m), places[m]) for m, _ in metrics)
        bound = f.bound.verdict.value if f.bound.value is not None else "none claimed" if f.bound.charge is None else "no bound"
        rows.append((clean(cell.cell), *numbers, _starved(f), *_inverted(f.inversions), bound))
    header = ("Cell", *(title for _, title in metrics), "Starved", "Inversions", "under aging", "VTC bound")
    why = [
        f"{clean(x.metric)} {x.status}: {clean(x.reason)}"
        for cell, _ in found
        for m, _ in metrics
        for x in [cell.figures.get(m)]
        if x and x.reason
    ]
    notes = [
        "Service in weighted tokens; means over replicates, intervals with every figure.",
        "Jain's index of service knows no demand: a client that asks for little lowers it.",
        "Starved: replicates in which an identity was, of all. Inversions: first tokens while a better priority waited, an upper bound.",
        *(f"{text}." for text in dict.fromkeys(why)),
        *dict.fromkeys(f"Inversions: {clean(f.inversions.reason)}." for _, f in found if f.inversions.reason),
        *dict.fromkeys(f"Bound in {clean(cell.cell)}: {clean(f.bound.reason)}." for cell, f in found if f.bound.charge is not None),
    ]
    return _tidy(Table(SIDE_BY_SIDE, header, tuple(rows), frozenset(range(1, len(header) - 1)), " ".join(notes)))


def _tidy(table: Table) -> Table:
    """Leave out columns at the end that no cell has anything in."""
    for column in range(len(table.header) - 1, 0, -1):
        if all(row[column] in ("", "none claimed") for row in table.rows):
            header, rows = _less(table.header, column), tuple(_less(row, column) for row in table.rows)
            numeric = frozenset(i - (i > column) for i in table.numeric if i != column)
            table = Table(table.title, header, rows, numeric, table.note, table.folded)
    return table


def _less(cells: tuple[str, ...], column: int) -> tuple[str, ...]:
    return (*cells[:column], *cells[column + 1 :])


def _value(figure: Figure | None, places: int) -> str:
    if figure is None:
        return ""
    return figure.status if figure.value is None else number(figure.value, places)


def _starved(f: CellFairness) -> str:
    counts = [s.starved for s in f.shares]
    if any(n is None for n in counts):
        return "unknown"
    who = [f"{clean(s.name)} ({s.starved})" for s in f.shares if s.starved]
    return ", ".join(who[:3]) + (f" and {len(who) - 3} more" if len(who) > 3 else "") if who else "none"


def _inverted(i: Inversions) -> tuple[str, str]:
    def _part(n: int | None) -> str:
        return "" if n is None else f"{n} of {i.first_tokens}"

    return _part(i.static), _part(i.aged)


def _shares(found: Found, most: int | None) -> Table:
    shown = [(cell, f, share) for cell, f in found for share in f.shares[:most]]
    header = (
        *("Cell", identity_words(found[0][1].identity).capitalize(), "Weight", "Asked for", "Got", "Share"),
        *("Attainment", "Offered", *(o.value.capitalize() for o in Outcome if any(s.outcomes.counts[o] for *_, s in shown))),
        *("Longest without (s)", "Starved in"),
    )
    rows = tuple(_share(cell, share, [o for o in Outcome if o.value.capitalize() in header]) for cell, _, share in shown)
    hidden = sum(len(f.shares) for _, f in found) - len(shown)
    notes = [
        "Weighted tokens of the measured window, mean of the replicates; outcomes of the cohort, all replicates together.",
        "Longest without: eligible, and nothing of it completed.",
        *dict.fromkeys(clean(note) for _, f in found for note in f.notes),
        *([f"{hidden} more in the report."] if hidden else []),
    ]
    folded = len(rows) > FOLDED
    table = Table("Service by " + header[1].lower(), header, rows, frozenset(range(2, len(header))), " ".join(notes), folded)
    return table.without_shared(2, "Weight of each:")


def _share(cell: CellAnalysis, s: Share, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    name = f"({s.members} others)" if s.members > 1 else clean(s.name)
    return (
        *(clean(cell.cell), name, "" if s.members > 1 else number(s.weight), _whole(s.requested), _whole(s.service)),
        "unknown" if s.share is None else percent(s.share),
        "undefined" if s.attainment is None else percent(s.attainment),
        *(str(s.outcomes.offered), *(str(s.outcomes.counts[o]) for o in outcomes)),
        "unknown" if s.drought_s is None else number(s.drought_s),
        "unknown" if s.starved is None else str(s.starved),
    )


def _whole(value: float | None) -> str:
    return "unknown" if value is None else number(value, 0)


def _declared(found: Found) -> Table:
    """The five declarations and what they rest on; what differs between cells is told for each."""
    places: dict[tuple[str, str], list[str]] = {}
    for cell, f in found:
        for what, how in f.declarations:
            places.setdefault((what, how), []).append(clean(cell.cell))
    order = [what for what, _ in found[0][1].declarations]
    rows = [(what, clean(how), "every cell" if len(where) == len(found) else ", ".join(where)) for (what, how), where in places.items()]
    rows.sort(key=lambda row: order.index(row[0]))
    by_default = all(f.by_default for _, f in found)
    note = "Nothing was declared: these are the defaults. Declare `fairness` in the manifest to choose." if by_default else "As declared."
    table = Table("What is called fair here", ("Declaration", "How", "Where"), tuple(rows), note=note)
    return (
        table.without_shared(2, "Holds in")
        if len(found) > 1
        else Table(table.title, table.header[:2], tuple(r[:2] for r in rows), note=note)
    )


def _gaps(found: Found) -> Table:
    rows = tuple((clean(cell.cell), clean(f.gap) or "none: no two were eligible at the same time", *_claim(f)) for cell, f in found)
    note = "The widest difference of service over any interval in which both were eligible (F60), and what bounds it, if anything."
    return Table("Widest gaps", ("Cell", "Gap", "Bound", "Held against it"), rows, note=note, folded=True)


def _claim(f: CellFairness) -> Iterable[str]:
    yield "none" if f.bound.value is None else f"2U = {number(f.bound.value)}"
    yield f"{f.bound.verdict.value}: {clean(f.bound.reason)}"


def _neighbours(found: Sequence[Neighbour], unit: Unit) -> Table:
    header = (
        *("Client", "Crowded", "Alone", "Offered", "Attainment"),
        *(f"TTFT p50 ({clean(unit.name)})", f"TTFT p99 ({clean(unit.name)})", "Attainment lost", "Interval"),
    )
    rows = tuple(_neighbour(n, unit) for n in found)
    level = ", ".join(sorted({percent(n.level) for n in found}))
    why = [f"{clean(n.client)}: {clean(n.reason)}." for n in found if n.reason]
    note = (
        "With → without. Lost: attainment without minus with, mean over replicates paired by index, with the same requests of this "
        f"client; {level} t interval. A diagnostic between different loads, declared as such: it is never ranked."
    )
    return Table(NEIGHBOURS, header, rows, frozenset(range(3, len(header))), " ".join([note, *dict.fromkeys(why)]))


def _neighbour(n: Neighbour, unit: Unit) -> tuple[str, ...]:
    without = ", ".join(clean(name) for name in n.without)
    lost = "unknown" if n.difference is None else number(n.difference, 3)
    interval = "" if n.low is None or n.high is None else f"[{number(n.low, 3)}, {number(n.high, 3)}]"
    return (
        *(clean(n.client), clean(n.crowded), f"{clean(n.alone)} (without {without})", f"{n.offered[0]} → {n.offered[1]}"),
        _steps(n.attainment, percent),
        *(_steps(times, lambda s: number(s * unit.factor)) for times in (n.ttft_p50_s, n.ttft_p99_s)),
        *(lost, interval),
    )


def _steps(values: tuple[float | None, float | None], text: Callable[[float], str]) -> str:
    return " → ".join("unknown" if v is None else text(v) for v in values)
