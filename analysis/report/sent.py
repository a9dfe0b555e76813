"""What was sent, and who got what: arrivals, tokens, reuse and transforms as tables, then the cohort by request class and by client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analysis.model import Arrivals, CampaignAnalysis, CellAnalysis, Figure, Group, Outcome, Reuse, RunAnalysis, Sent, Tally, Tokens
from analysis.proof import add_reuse, add_tallies, add_tokens
from analysis.report.table import Table
from analysis.report.words import Unit, clean, compact, number, percent, shorten
from analysis.tails import LEVELS, minimum_requests

OUTCOME_ORDER = (Outcome.VALID, Outcome.MISS, Outcome.REJECTED, Outcome.FAILED, Outcome.CANCELLED, Outcome.OPEN)

NEVER = {
    "never_due": "a request they wait for did not end as planned",
    "never_sent": "the run ended before they came due",
}

REUSE = "Prefix reuse: possible against realised"

KINDS = {"client": "client", "request_class": "request class"}


def run_name(run: RunAnalysis) -> str:
    """How a run is called in every table."""
    return f"{clean(run.cell)} / replicate {run.replicate}"


def sent_tables(c: CampaignAnalysis, unit: Unit) -> tuple[Table, ...]:
    """Arrivals by run, tokens and reuse by cell, and the transform chains; empty where no run has its proof."""
    runs = [(run, run.sent) for cell in c.cells for run in cell.runs if run.sent is not None]
    if not runs:
        return ()
    cells = [(cell, [run.sent for run in cell.runs if run.sent is not None]) for cell in c.cells]
    return (_arrivals(runs, unit), _tokens([x for x in cells if x[1]]), _reuse([x for x in cells if x[1]]), *_chains(runs))


def _arrivals(runs: Sequence[tuple[RunAnalysis, Sent]], unit: Unit) -> Table:
    widths = list(dict.fromkeys(w for _, sent in runs for a in sent.arrivals for w in a.planned_stream.dispersion))
    header = (
        *("Run", "Arrive", "Scheduled", "Came due", "Sent", "Never due"),
        *(f"Slip p50, p99, max ({clean(unit.name)})", "Rate (req/s)", "CV of gaps"),
        *(f"IoD {clean(width)}" for width in widths),
    )
    rows = tuple(_arrival_row(run, a, unit, widths) for run, sent in runs for a in sent.arrivals)
    note = (
        "Whole run, but slip, which is the cohort's. Rate, coefficient of variation of gaps and index of dispersion (both 1 for Poisson; "
        "n/a: too few, or a run too short for two bins): of the planned arrivals → of their sends; of requests after others, whose "
        "arrival only the run decides, when they came due → when they were sent."
    )
    numeric, folded = frozenset(range(2, len(header))), len(rows) > FOLDED
    return Table("Arrivals: planned against sent", header, rows, numeric, f"{note}{_never(runs)}", folded)


def _never(runs: Sequence[tuple[RunAnalysis, Sent]]) -> str:
    counted: Counter[str] = sum((Counter(a.not_due) for _, sent in runs for a in sent.arrivals), Counter())
    return "".join(f" Never due, in no cohort: {n}, {NEVER.get(kind, clean(kind))}." for kind, n in sorted(counted.items()))


def _arrival_row(run: RunAnalysis, arrivals: Arrivals, unit: Unit, widths: Sequence[str]) -> tuple[str, ...]:
    by_clock, streams = arrivals.kind == "clock", (arrivals.planned_stream, arrivals.sent_stream)
    slip = ", ".join(_slip(run.figures.get(f"slip_{level}"), unit) for level in ("p50", "p99", "max"))
    counts = (arrivals.scheduled, arrivals.due, arrivals.sent, sum(arrivals.not_due.values()))
    return (
        run_name(run),
        "by the clock" if by_clock else "after others",
        *(str(n) for n in counts),
        slip if by_clock else "",
        _steps(s.rate for s in streams),
        _steps(s.cv_gaps for s in streams),
        *(_steps(s.dispersion.get(width) for s in streams) for width in widths),
    )


def _slip(figure: Figure | None, unit: Unit) -> str:
    if figure is None or figure.value is None:
        return figure.status if figure else "unknown"
    return number(figure.value * unit.factor)


def _steps(values: Iterable[float | None]) -> str:
    return " → ".join(number(v) for v in values)


Cells = Sequence[tuple[CellAnalysis, Sequence[Sent]]]


def _tokens(cells: Cells) -> Table:
    rows: list[tuple[str, ...]] = []
    why: list[str] = []
    for cell, proofs in cells:
        tokens = add_tokens(p.tokens for p in proofs)
        for side, (plan, client, usage) in _sides(tokens).items():
            counter = add_tallies(p.server[side] for p in proofs)
            rows.append((clean(cell.cell), side, *(_tally(t) for t in (plan, client, usage, counter))))
            why += [f"{side}: {clean(t.reason)}" for t in (plan, client, usage, counter) if t.reason]
    header = ("Cell", "Tokens", "Planned", "Sent, or received", "Server's usage", "Server's counter")
    note = "In brackets: the requests that a count covers. Input is sent as planned; output is what the client counted in the stream."
    return Table("Tokens: planned, sent, counted", header, tuple(rows), frozenset(range(2, 6)), _noted(note, why))


def _sides(tokens: Tokens) -> dict[str, tuple[Tally, Tally, Tally]]:
    return {
        "input": (tokens.input_planned, tokens.input_sent, tokens.input_counted),
        "output": (tokens.output_planned, tokens.output_received, tokens.output_counted),
    }


def _tally(tally: Tally) -> str:
    return "unknown" if tally.value is None else f"{tally.value} ({tally.n})"


def _noted(note: str, why: Iterable[str]) -> str:
    return " ".join([note, *(f"{text}." for text in dict.fromkeys(why))])


def _reuse(cells: Cells) -> Table:
    found = [(cell, add_tokens(p.tokens for p in proofs), add_reuse(p.reuse for p in proofs)) for cell, proofs in cells]
    sizes = _sizes(reuse for _, _, reuse in found)
    rows = tuple(_reuse_row(cell, tokens, reuse, sizes) for cell, tokens, reuse in found)
    header = ("Cell", "Input sent", *(f"Possible, blocks of {size}" for size in sizes), "Realised", "Of the input", "Said by", "Its cache")
    note = "Possible: an infinite cache over the prompts sent, whole blocks, never all of a prompt. Realised: what the server says it took."
    why = [f"{word}: {clean(t.reason)}" for _, _, r in found for word, t in _named(r) if t.reason]
    return Table(REUSE, header, rows, frozenset(range(1, len(header) - 2)), _noted(note, why))


def _named(reuse: Reuse) -> Iterable[tuple[str, Tally]]:
    yield from (("possible", tally) for tally in reuse.possible.values())
    yield "realised", reuse.realised


def reuse_matters(c: CampaignAnalysis) -> bool:
    """Say whether some run could have reused a block of 16 tokens, or says that it reused more than a start token a request."""
    found = [run.sent.reuse for cell in c.cells for run in cell.runs if run.sent is not None]
    return any((r.possible["16"].value or 0) > 0 or (r.realised.value or 0) > r.realised.n for r in found)


def _sizes(found: Iterable[Reuse]) -> list[str]:
    return sorted({size for reuse in found for size in reuse.possible}, key=int)


def _reuse_row(cell: CellAnalysis, tokens: Tokens, reuse: Reuse, sizes: Sequence[str]) -> tuple[str, ...]:
    share = "unknown"
    if reuse.realised.value is not None and tokens.input_sent.value:
        share = percent(reuse.realised.value / tokens.input_sent.value)
        if reuse.realised.n < tokens.input_sent.n:  # what nobody stated of the others could only add to it
            share = f"at least {share}"
    possible = (_tally(reuse.possible[size]) if size in reuse.possible else "" for size in sizes)
    return (clean(cell.cell), _tally(tokens.input_sent), *possible, _tally(reuse.realised), share, clean(reuse.source), clean(reuse.cache))


def _chains(runs: Sequence[tuple[RunAnalysis, Sent]]) -> tuple[Table, ...]:
    """Every step of every chain; runs whose step reads the same share a row."""
    places: dict[tuple[str, ...], list[str]] = {}
    for run, sent in runs:
        for step, entry in enumerate(sent.transforms, 1):
            places.setdefault((str(step), *_step(entry)), []).append(run_name(run))
    if not places:
        return ()
    header = ("Step", "Transform", "Parameters", "Rows", "What it did", "Where")
    rows = tuple((*row, where[0] if len(where) == 1 else f"{len(where)} runs") for row, where in sorted(places.items(), key=_by_step))
    note = "Before → after, where a step changed it; cv and index of dispersion are 1 for Poisson arrivals."
    return (Table("Transform chain", header, rows, frozenset({0, 3}), note, folded=True),)


def _by_step(item: tuple[tuple[str, ...], list[str]]) -> tuple[int, list[str]]:
    return int(item[0][0]), item[1]


def _step(entry: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """One log entry by its own names: a name, two counts of rows, an effect, and everything else is a parameter."""
    parameters = {k: v for k, v in entry.items() if k not in ("name", "rows_before", "rows_after", "effect")}
    said = ", ".join(f"{clean(k)} {compact(v)}" for k, v in parameters.items())
    rows = f"{clean(entry.get('rows_before', 'unknown'))} → {clean(entry.get('rows_after', 'unknown'))}"
    effect = entry.get("effect")
    return clean(entry.get("name", "unknown")), shorten(said), rows, _effect(effect) if isinstance(effect, Mapping) else "not logged"


def _effect(effect: Mapping[str, Any]) -> str:
    sides = [dict(_leaves(effect[side])) if isinstance(effect.get(side), Mapping) else {} for side in ("before", "after")]
    changed = [f"{k} {_value(sides[0].get(k))} → {_value(v)}" for k, v in sides[1].items() if sides[0].get(k) != v]
    said = [f"{clean(k)} {compact(v)}" for k, v in effect.items() if k not in ("before", "after")]
    return "; ".join([*changed, *said]) or "nothing changed"


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{above}{clean(key)}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name} ")
        else:
            yield name, value


def _value(value: object) -> str:
    if value is None:
        return "undefined"
    return number(value) if isinstance(value, float | int) and not isinstance(value, bool) else compact(value)


def group_tables(c: CampaignAnalysis, unit: Unit) -> tuple[Table, ...]:
    """The cohort by request class and by client: outcomes and service, then tokens and reuse."""
    return tuple(table for by, found in _grouped(c) for table in (_outcomes(by, found, unit), _group_tokens(by, found)))


def group_glance(c: CampaignAnalysis, unit: Unit) -> tuple[Table, ...]:
    """The same for a terminal: the largest groups of each cell, and of their outcomes what became valid."""
    tables = []
    for by, found in _grouped(c):
        shown = [(cell, group) for cell in c.cells for group in [g for g in cell.groups if g.by == by][:GLANCE_GROUPS]]
        whole = _outcomes(by, shown, unit)
        kept = [i for i, name in enumerate(whole.header) if name not in _LEFT_OUT]
        rows = tuple(tuple(row[i] for i in kept) for row in whole.rows)
        more = "" if len(shown) == len(found) else f" {len(found) - len(shown)} more in the report."
        header = tuple(whole.header[i] for i in kept)
        tables.append(Table(whole.title, header, rows, frozenset(range(2, len(header))), whole.note + more))
    return tuple(tables)


GLANCE_GROUPS = 6
"""Clients of a cell that a terminal shows."""

_LEFT_OUT = frozenset({"SLO", "Never due", *(o.value.capitalize() for o in OUTCOME_ORDER[1:])})

FOLDED = 20
"""Rows beyond which a table by run or by client is shown on demand."""

Found = Sequence[tuple[CellAnalysis, Group]]


def _grouped(c: CampaignAnalysis) -> Iterable[tuple[str, Found]]:
    for by in ("request_class", "client"):
        found = [(cell, group) for cell in c.cells for group in cell.groups if group.by == by]
        if found:
            yield by, found


def _outcomes(by: str, found: Found, unit: Unit) -> Table:
    header = (
        *("Cell", KINDS[by].capitalize(), "Offered", *(o.value.capitalize() for o in OUTCOME_ORDER), "Never due"),
        *("Attainment", "Goodput (req/s)", f"TTFT p50 ({clean(unit.name)})", f"TTFT p99 ({clean(unit.name)})", "SLO"),
    )
    rows = tuple(_outcome_row(cell, group, unit) for cell, group in found)
    why = [_why(f) for _, g in found for f in g.figures.values() if f.status != "ok"]
    note = "Summed and pooled over replicates, without intervals: it describes and ranks nothing. Attainment is of the offered requests."
    numeric, folded = frozenset(range(2, len(header) - 1)), len(rows) > FOLDED
    table = Table(f"Outcomes by {KINDS[by]}", header, rows, numeric, _noted(note, why), folded)
    return table.without_shared(len(header) - 1, "SLO:")


def _why(figure: Figure) -> str:
    """Why a figure has no value; how many requests each group is short of a percentile stands in the table already."""
    if figure.reason.startswith("insufficient_sample"):
        level = figure.metric.rpartition("_")[2]
        return f"{clean(figure.metric)} withheld: insufficient_sample, fewer than {minimum_requests(LEVELS[level])} completed requests"
    return f"{clean(figure.metric)} {figure.status}: {clean(figure.reason)}"


def _outcome_row(cell: CellAnalysis, group: Group, unit: Unit) -> tuple[str, ...]:
    counts = (str(group.outcomes.counts.get(o, 0)) for o in OUTCOME_ORDER)
    figures = [group.figures[m] for m in ("attainment", "goodput", "ttft_p50", "ttft_p99")]
    attainment = figures[0].status if figures[0].value is None else percent(figures[0].value)
    rest = (_figure(f, unit if f.unit == "s" else Unit(f.unit)) for f in figures[1:])
    never = str(sum(group.outcomes.not_due.values()))
    return (clean(cell.cell), group_name(group), str(group.outcomes.offered), *counts, never, attainment, *rest, clean(group.slo))


def group_name(group: Group) -> str:
    """How a group is called: its name as the trace has it, or what stands for it."""
    if group.members > 1:
        return f"({group.members} others)"
    return "(none)" if group.name is None else clean(group.name)


def _figure(figure: Figure, unit: Unit) -> str:
    return figure.status if figure.value is None else number(figure.value * unit.factor)


def _group_tokens(by: str, found: Found) -> Table:
    sizes = _sizes(g.reuse for _, g in found)
    header = (
        *("Cell", KINDS[by].capitalize(), "Input planned", "Input sent", "Input, server's usage"),
        *("Output planned", "Output received", "Output, server's usage"),
        *(f"Reuse possible, blocks of {size}" for size in sizes),
        "Reuse realised",
    )
    rows = []
    for cell, g in found:
        possible = (g.reuse.possible.get(size, Tally(None, 0)) for size in sizes)
        tallies = (*(t for side in _sides(g.tokens).values() for t in side), *possible, g.reuse.realised)
        rows.append((clean(cell.cell), group_name(g), *(_tally(t) for t in tallies)))
    why = [f"reuse realised: {clean(g.reuse.realised.reason)}" for _, g in found if g.reuse.realised.reason]
    note = "Whole run; in brackets the requests that a count covers."
    return Table(f"Tokens and reuse by {KINDS[by]}", header, tuple(rows), frozenset(range(2, len(header))), _noted(note, why), folded=True)
