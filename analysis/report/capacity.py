"""Searches for capacity as tables: the answer of each arm, what stands against it, its load points, and every run that was made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.capacity_campaign import ArmCapacity
from analysis.capacity_rows import RateRow
from analysis.capacity_runs import ProbeRun
from analysis.model import CampaignAnalysis, Figure, Interval, Ranking
from analysis.report.table import Table
from analysis.report.words import Unit, basis, clean, number, percent

FORMS = (("capacity_per_gpu", "per GPU"), ("capacity_per_watt", "req/J"))
"""Forms of a capacity beside its own unit and its request rate: figure and column."""


def capacity_tables(c: CampaignAnalysis) -> tuple[Table, ...]:
    """Return nothing for a campaign without searches."""
    if not c.capacities:
        return ()
    return (_answers(c.capacities), *_reasons(c), _load_points(c.capacities), *_replicates(c.capacities), _runs(c.capacities))


def _forms(found: Sequence[ArmCapacity]) -> tuple[tuple[str, str], ...]:
    """The request rate is a form of its own only where loads are compressions."""
    return FORMS if found[0].unit == "req/s" else (("capacity_rate", "req/s"), *FORMS)


def _answers(found: Sequence[ArmCapacity]) -> Table:
    forms = _forms(found)
    header = (
        "Arm",
        "Status",
        f"Capacity, {clean(found[0].unit)}",
        "Interval",
        "Bracket",
        *(name for _, name in forms),
        "Pooled",
        "Replicates",
    )
    estimands = ", ".join(sorted({one.estimate.estimand for one in found}))
    notes = [
        f"The largest load at which {percent(found[0].estimate.target)} of the offered requests meet the SLO (estimand {estimands}).",
        "Bracket: the largest load certified to pass, and the smallest certified to fail.",
        "Pooled: crossing of the summed counts, diagnostic.",
        *_bases(found),
        *_absent(found, forms),
        *_alarms(found),
    ]
    rows = tuple(_answer(one, forms) for one in found)
    return Table("Capacity by arm", header, rows, frozenset(range(2, len(header))), " ".join(notes))


def _answer(one: ArmCapacity, forms: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    e, own = one.estimate, Unit(clean(one.unit))
    figure = e.figures["capacity"]
    return (
        clean(one.arm),
        e.status.replace("_", " "),
        _value(one, own),
        own.interval(figure.interval, own.decimals([figure])),
        f"[{_bound(e.bracket.low)}, {_bound(e.bracket.high)}]",
        *(_form(e.figures.get(name)) for name, _ in forms),
        _form(e.figures.get("capacity_pooled")),
        str(len(e.by_replicate)),
    )


def _value(one: ArmCapacity, own: Unit) -> str:
    """The capacity, or the bound that is known."""
    e = one.estimate
    if e.at_least is not None:
        return f">= {number(e.at_least)}"
    if e.at_most is not None:
        return f"< {number(e.at_most)}"
    return own.value(e.figures["capacity"], own.decimals([e.figures["capacity"]]))


def _bound(rate: float | None) -> str:
    return "none" if rate is None else number(rate)


def _form(figure: Figure | None) -> str:
    if figure is None or figure.status != "ok":
        return "unknown"
    return number(figure.value)


def _bases(found: Sequence[ArmCapacity]) -> Iterator[str]:
    bases = dict.fromkeys(basis(one.estimate.figures["capacity"].interval) for one in found)
    yield from (f"Intervals: {text}." for text in bases if text)


def _absent(found: Sequence[ArmCapacity], forms: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Why a form of the capacity has no value, where the capacity itself has one."""
    why: dict[str, list[str]] = {}
    for one in found:
        for name, words in forms:
            figure = one.estimate.figures.get(name)
            if figure is not None and figure.status != "ok":
                why.setdefault(f"{words} unknown: {clean(figure.reason)}", []).append(clean(one.arm))
    for text, arms in why.items():
        yield f"{text}." if len(arms) == len(found) else f"{text} ({', '.join(arms)})."


def _alarms(found: Sequence[ArmCapacity]) -> Iterator[str]:
    for one in (x for x in found if x.alarms):
        kept = "; ".join(clean(text) for text in one.alarms)
        yield f"{clean(one.arm)}: a statistical gate fired in {len(one.alarms)} grid runs, chance explains {one.allowed_alarms}: {kept}."


def _reasons(c: CampaignAnalysis) -> tuple[Table, ...]:
    """What stands against each arm, where no claim was declared; otherwise the verdict says it."""
    if isinstance(c.verdict, Ranking) or all(reason.code != "rank_undeclared" for reason in c.verdict.reasons):
        return ()
    rows = [(clean(one.arm), clean(r.code), clean(r.text), clean(r.remedy)) for one in c.capacities for r in one.reasons]
    return (Table("What stands against a capacity", ("Arm", "Code", "Reason", "Remedy"), tuple(rows)),) if rows else ()


def _load_points(found: Sequence[ArmCapacity]) -> Table:
    rows = tuple(_load_point(one, row) for one in found for row in one.estimate.rows)
    load = f"Load, {clean(found[0].unit)}"
    header = ("Arm", load, "Attainment, %", "Interval", "Verdict", "Valid", "Offered", "Runs", "Overloaded", "Sent of due")
    note = "Mean of the replicates' shares. A load passes or fails when the whole interval lies on one side of the target, and"
    note += " fails to pass when most of its runs piled up work."
    if not rows:
        note = "No grid is complete yet, so no load point has a verdict; the runs made so far stand below."
    return Table("Attainment by load", header, rows, frozenset({1, 2, 3, 5, 6, 7, 8, 9}), note)


def _load_point(one: ArmCapacity, row: RateRow) -> tuple[str, ...]:
    return (
        clean(one.arm),
        f"{row.rate:g}",
        f"{100 * row.attainment:.1f}",
        _shares(row.interval),
        row.verdict,
        str(row.valid),
        str(row.offered),
        str(row.replicates),
        str(row.overloaded),
        "unknown" if row.sent_share is None else percent(row.sent_share),
    )


def _shares(interval: Interval | None) -> str:
    return "none" if interval is None else f"[{100 * max(interval.low, 0.0):.1f}, {100 * min(interval.high, 1.0):.1f}]"


def _replicates(found: Sequence[ArmCapacity]) -> tuple[Table, ...]:
    rows = tuple((clean(one.arm), str(r), f"{number(value)} {clean(one.unit)}") for one in found for r, value in one.estimate.by_replicate)
    note = "Replicates of one number play one draw of the load on every arm, and are paired."
    return (
        (Table("Capacity by trace replicate", ("Arm", "Replicate", "Capacity"), rows, frozenset({1, 2}), note, folded=True),)
        if rows
        else ()
    )


def _runs(found: Sequence[ArmCapacity]) -> Table:
    rows = tuple(_run(one, run) for one in found for run in one.runs)
    discarded = sum(one.estimate.discarded for one in found)
    note = f"{discarded} locating runs chose where to look; their data are discarded and enter no number."
    header = ("Arm", "Phase", f"Load, {clean(found[0].unit)}", "Draw", "Valid", "Offered", "Overloaded", "Objections", "Alarms")
    return Table("Runs of the searches", header, rows, frozenset({2, 3, 4, 5}), note, folded=True)


def _run(one: ArmCapacity, run: ProbeRun) -> tuple[str, ...]:
    grew = "unknown" if run.overloaded is None else "yes" if run.overloaded else "no"
    phase = "locate (discarded)" if run.phase == "locate" else "grid"
    objections, alarms = ", ".join(map(clean, run.objections)), ", ".join(map(clean, run.alarmed))
    return (clean(one.arm), phase, f"{run.rate:g}", str(run.replicate), str(run.valid), str(run.offered), grew, objections, alarms)
