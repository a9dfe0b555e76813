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
    ("contended_share", "Contended"),
    ("jain_service", "Jain, service"),
    ("jain_attainment", "Jain, attained"),
    ("attainment_least", "Least attained"),
    ("service_gap", "Widest gap"),
    ("windowed_gap_mean", "Windowed gap"),
    ("windowed_gap_max", "its max"),
    ("windowed_gap_variance", "its variance"),
    ("service_spread", "Spread"),
)

_GLANCE = frozenset(metric for metric, _ in _METRICS[:6])
"""What a terminal has room for."""

GLANCE_ROWS = 24
"""Rows of a terminal beyond which who got what is left to the report; outcomes by client stand above it anyway."""

FOLDED = 30
"""Rows beyond which who got what is shown on demand."""

Found = Sequence[tuple[CellAnalysis, CellFairness]]


def fairness_tables(c: CampaignAnalysis, unit: Unit) -> tuple[Table, ...]:
    """Every table of the section, empty where there was nobody to compare; ``unit``: the report's unit of latencies."""
    found = _found(c)
    near = (_neighbours(c.neighbours, unit),) if c.neighbours else ()
    if not found:
        return near
    return (_side_by_side(found, None), *near, _shares(found), _declared(found), _gaps(found))


def fairness_glance(c: CampaignAnalysis, unit: Unit) -> tuple[Table, ...]:
    """What of it a terminal shows: cells side by side, neighbours, who got what, and the declarations."""
    found = _found(c)
    near = (_brief(_neighbours(c.neighbours, unit)),) if c.neighbours else ()
    if not found:
        return near
    shares = _shares(found)
    if found[0][1].identity != "priority":  # whose outcomes stand nowhere else
        shares = _brief(shares)
    return (_side_by_side(found, _GLANCE), *near, *([shares] if len(shares.rows) <= GLANCE_ROWS else []), _declared(found))


def _found(c: CampaignAnalysis) -> Found:
    """Cells with two identities or more, or where somebody declared how fairness is to be measured."""
    found = [(cell, cell.fairness) for cell in c.cells if cell.fairness is not None]
    some = any(sum(s.members for s in f.shares) > 1 or not f.by_default for _, f in found)
    return found if some else []


def _side_by_side(found: Found, only: frozenset[str] | None) -> Table:
    metrics = [(m, title) for m, title in _METRICS if (only is None or m in only) and any(m in cell.figures for cell, _ in found)]
    places = {m: decimals_for(cell.figures[m].value for cell, _ in found if m in cell.figures) for m, _ in metrics}
    rows = []
    for cell, f in found:
        numbers = (_value(cell.figures.get(m), places[m]) for m, _ in metrics)
        bound = f.bound.verdict.value if f.bound.value is not None else "none claimed" if f.bound.charge is None else "no bound"
        rows.append((clean(cell.cell), *numbers, _starved(f), *_inverted(f.inversions), bound))
    header = ("Cell", *(title for _, title in metrics), "Starved", "Inversions", "aged", "VTC bound")
    notes = [
        "Means over replicates, intervals with every figure. Gaps and spread in weighted tokens, windowed gaps per second.",
        "Contended: share of the window in which two or more were eligible; where it is small, nothing here tells of a scheduler.",
        "Jain's index of service knows no demand: a client that asks for little lowers it. Starved: in how many replicates.",
        *(["Inversions: share of first tokens given while a better priority waited, an upper bound."] if any(r[-3] for r in rows) else []),
        *_absences(found, [m for m, _ in metrics]),
        *_uncounted(found),
        *dict.fromkeys(f"Bound in {clean(cell.cell)}: {clean(f.bound.reason)}." for cell, f in found if f.bound.charge is not None),
    ]
    return _tidy(Table(SIDE_BY_SIDE, header, tuple(rows), frozenset(range(1, len(header) - 1)), " ".join(notes)))


def _uncounted(found: Found) -> Iterable[str]:
    """Why inversions have no number, each reason once."""
    why: dict[str, list[str]] = {}
    for cell, f in found:
        if f.inversions.reason:
            why.setdefault(clean(f.inversions.reason), []).append(clean(cell.cell))
    for reason, cells in why.items():
        yield f"Inversions{'' if len(cells) == len(found) else ' in ' + ', '.join(cells)}: {reason}."


def _absences(found: Found, metrics: Sequence[str]) -> Iterable[str]:
    """Why figures have no value, each reason once with the metrics and cells it takes."""
    why: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for cell, _ in found:
        for figure in (cell.figures[m] for m in metrics if m in cell.figures):
            if figure.status != "ok":
                names, cells = why.setdefault((figure.status, clean(figure.reason)), ({}, {}))
                names[clean(figure.metric)], cells[clean(cell.cell)] = None, None
    for (status, reason), (names, cells) in why.items():
        yield f"{', '.join(names)} {status} in {', '.join(cells)}: {reason}."


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
        return "" if n is None or not i.first_tokens else percent(n / i.first_tokens)

    return _part(i.static), _part(i.aged)


def _shares(found: Found) -> Table:
    shown = [(cell, share) for cell, f in found for share in f.shares]
    outcomes = [o for o in Outcome if any(s.outcomes.counts[o] for _, s in shown)]
    header = (
        *("Cell", identity_words(found[0][1].identity).capitalize(), "Weight", "Asked for", "Got", "Share", "Attainment", "Offered"),
        *(o.value.capitalize() for o in outcomes),
        *("Eligible (s)", "Longest without (s)", "Starved in"),
    )
    rows = tuple(_share(cell, share, outcomes) for cell, share in shown)
    notes = [
        "Weighted tokens of the measured window, mean of the replicates; outcomes of the cohort, all replicates together.",
        "Eligible: in the declared sense, mean of the replicates. Longest without: eligible, and nothing of it completed.",
        *dict.fromkeys(clean(note) for _, f in found for note in f.notes),
    ]
    table = Table("Service by " + header[1].lower(), header, rows, frozenset(range(2, len(header))), " ".join(notes), len(rows) > FOLDED)
    return table.without_shared(2, "Weight of each:")


def _brief(table: Table) -> Table:
    """The same without what stands above it on a terminal: outcomes by client, and names of cells."""
    kept = [i for i, name in enumerate(table.header) if name not in _LEFT_OUT]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    header = tuple(table.header[i] for i in kept)
    return Table(table.title, header, rows, frozenset(range(2, len(header))), table.note)


_LEFT_OUT = frozenset({"Offered", "In cell", *(o.value.capitalize() for o in Outcome)})


def _share(cell: CellAnalysis, s: Share, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    name = f"({s.members} others)" if s.members > 1 else clean(s.name)
    return (
        *(clean(cell.cell), name, "" if s.members > 1 else number(s.weight), _whole(s.requested), _whole(s.service)),
        "unknown" if s.share is None else percent(s.share),
        "undefined" if s.attainment is None else percent(s.attainment),
        *(str(s.outcomes.offered), *(str(s.outcomes.counts[o]) for o in outcomes)),
        "" if s.eligible_s is None else number(s.eligible_s),
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
    order = [what for what, _ in max((f.declarations for _, f in found), key=len)]  # premises stand where a guarantee is claimed
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
        *("Client", "Cell", "Without", "In cell", "Offered", "Attainment"),
        *(f"TTFT p50 ({clean(unit.name)})", f"TTFT p99 ({clean(unit.name)})", "Lost", "Interval"),
    )
    rows = tuple(_neighbour(n, unit) for n in found)
    level = ", ".join(sorted({percent(n.level) for n in found}))
    why = [f"{clean(n.client)}: {clean(n.reason)}." for n in found if n.reason]
    note = (
        "With → without. Lost: attainment without minus with, mean over replicates paired by index, with the same requests of this "
        f"client; {level} t interval, in which pairs that share a server start count as one. A diagnostic between "
        "different loads, declared as such: it is never ranked."
    )
    return Table(NEIGHBOURS, header, rows, frozenset(range(4, len(header))), " ".join([note, *dict.fromkeys(why)]))


def _neighbour(n: Neighbour, unit: Unit) -> tuple[str, ...]:
    without = ", ".join(clean(name) for name in n.without)
    lost = "unknown" if n.difference is None else number(n.difference, 3)
    interval = "" if n.low is None or n.high is None else f"[{number(n.low, 3)}, {number(n.high, 3)}]"
    return (
        *(clean(n.client), clean(n.crowded), without, clean(n.alone), f"{n.offered[0]} → {n.offered[1]}"),
        _steps(n.attainment, percent),
        *(_steps(times, lambda s: number(s * unit.factor)) for times in (n.ttft_p50, n.ttft_p99)),
        *(lost, interval),
    )


def _steps(figures: tuple[Figure, Figure], text: Callable[[float], str]) -> str:
    return " → ".join(f.status if f.value is None else text(f.value) for f in figures)
