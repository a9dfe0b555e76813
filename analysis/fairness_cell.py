"""Fairness of one cell over its replicates: the declarations, who got what, and the notes without which the numbers mislead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from analysis.fairness_log import CELLS, EXACT, is_rounded
from analysis.fairness_model import BoundCheck, CellFairness, Inversions, Share
from analysis.fairness_run import PAIRED, RunFairness
from analysis.fairness_words import declarations, guarantee_words, span_words
from analysis.model import Outcome, Outcomes, Verdict
from analysis.outcomes import sum_outcomes
from analysis.planned import MISSING
from analysis.run import RunMeasures
from harness.clock import NS_PER_S
from harness.record.reader import RunRecord

MOST = 50
"""Identities shown apart, those that asked for most; the rest share a row, as in the outcomes by client."""

Replicates = Sequence[tuple[RunRecord, RunMeasures]]
Measured = Sequence[tuple[RunRecord, RunMeasures, RunFairness]]


def fairness_of_cell(runs: Replicates) -> CellFairness | None:
    """Gather the replicates of one cell; None when one of them measured no fairness."""
    measured = [(record, m, m.fairness) for record, m in runs if m.fairness is not None]
    if not measured or len(measured) < len(runs):
        return None
    first = measured[0][2]
    declared = first.declared
    four, rest = declarations(declared)[:4], declarations(declared)[4:]
    return CellFairness(
        identity=declared.identity,
        declarations=(*four, *guarantee_words(declared), *rest),
        by_default=measured[0][0].spec.fairness is None,
        shares=_shares(measured),
        gap=_gap(measured),
        inversions=_inversions([f.inversions for *_, f in measured]),
        bound=_bound([f.bound for *_, f in measured]),
        curves=first.curves,
        notes=tuple(_notes(measured)),
    )


@dataclass(frozen=True, slots=True)
class _Party:
    """One identity in one replicate."""

    service: float
    requested: float
    outcomes: Outcomes
    eligible_ns: int
    drought_ns: int
    starved: bool
    weight: float


def _shares(measured: Measured) -> tuple[Share, ...]:
    parties = [_parties(m, f) for _, m, f in measured]
    names = sorted({name for found in parties for name in found})
    asked = {name: sum(found[name].requested for found in parties if name in found) for name in names}
    ranked = sorted(names, key=lambda name: (-asked[name], name))
    told, folded = (ranked, []) if len(ranked) <= MOST + 1 else (ranked[:MOST], ranked[MOST:])
    known = not any(f.unknown for *_, f in measured)
    everything = sum(party.service for found in parties for party in found.values())
    groups = [(name, [name]) for name in told] + ([("others", folded)] if folded else [])
    return tuple(_share(name, members, parties, known=known, everything=everything) for name, members in groups)


def _share(name: str, members: Sequence[str], parties: Sequence[dict[str, _Party]], *, known: bool, everything: float) -> Share:
    found = [party[member] for party in parties for member in members if member in party]
    service, requested = sum(p.service for p in found), sum(p.requested for p in found)
    outcomes = sum_outcomes([p.outcomes for p in found])
    return Share(
        name=name,
        members=len(members),
        weight=found[0].weight,
        service=service / len(parties) if known else None,
        share=service / everything if known and everything else None,
        requested=requested / len(parties),
        outcomes=outcomes,
        attainment=outcomes.counts[Outcome.VALID] / outcomes.offered if outcomes.offered else None,
        eligible_s=sum(p.eligible_ns for p in found) / NS_PER_S / len(parties) if len(members) == 1 else None,
        drought_s=max(p.drought_ns for p in found) / NS_PER_S if known else None,
        starved=sum(p.starved for p in found) if known else None,
    )


def _parties(measures: RunMeasures, f: RunFairness) -> dict[str, _Party]:
    cohort = measures.clocks.in_cohort & (f.who.row != MISSING)
    by_outcome = {o: np.bincount(f.who.row[cohort & (measures.outcome == o)], minlength=len(f.who.names)) for o in Outcome}
    return {
        name: _Party(
            float(f.service[i]),
            float(f.requested[i]),
            Outcomes(int(f.offered[i]), {o: int(n[i]) for o, n in by_outcome.items()}),
            int(f.eligible_ns[i]),
            int(f.drought_ns[i]),
            bool(f.starved[i]),
            float(f.who.weight[i]),
        )
        for i, name in enumerate(f.who.names)
    }


def _gap(measured: Measured) -> str:
    """Where the widest gap of all replicates arose."""
    found = [(f.gap, record.spec.replicate, f) for record, _, f in measured if f.gap is not None]
    if not found:
        return ""
    gap, replicate, f = max(found, key=lambda one: one[0].value)
    span = span_words(gap.t1, gap.t2, f.start_ns)
    return f"{gap.value:g} between {f.who.names[gap.f]} and {f.who.names[gap.g]} from {span} of replicate {replicate}"


def _inversions(found: Sequence[Inversions]) -> Inversions:
    """Add up; one replicate without a count leaves the cell without one."""
    reason = next((i.reason for i in found if i.reason), "")
    return Inversions(sum(i.first_tokens for i in found), _sum(i.static for i in found), _sum(i.aged for i in found), reason)


def _sum(values: Iterable[int | None]) -> int | None:
    given = list(values)
    return None if None in given else sum(v for v in given if v is not None)


def _bound(found: Sequence[BoundCheck]) -> BoundCheck:
    """The worst answer of the replicates, a FAIL before an UNKNOWN, and of equal ones that with the widest gap."""
    return min(found, key=lambda b: ((Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS).index(b.verdict), -(b.gap or 0.0)))


def _notes(measured: Measured) -> Iterable[str]:
    """What a reader must know, each once."""
    unknown = sorted({f.unknown for *_, f in measured if f.unknown})
    yield from (f"Service is not known: {why}." for why in unknown)
    unnamed = sum(f.who.unnamed for *_, f in measured)
    if unnamed:
        yield f"{unnamed} scheduled requests bear no {measured[0][2].declared.identity.replace('_', ' ')} and are no one's."
    most = max(len(f.who.names) for *_, f in measured)
    if most > PAIRED:
        yield f"Service gaps are taken between the {PAIRED} of {most} that asked for most; a wider one may lie beyond."
    if any(bool((f.who.weight != 1.0).any()) for *_, f in measured):
        yield "Gaps and the index of service compare service per weight."
    if any(is_rounded(m.clocks) for _, m, _ in measured):
        yield f"Stamps are rounded up to {CELLS} parts of the measured window, since a run has more than {EXACT} events."
    cached = sum(int(pc.sum(record.requests.column("usage_cached_tokens")).as_py() or 0) for record, *_ in measured)
    if cached:
        yield f"{cached} prompt tokens came from a prefix cache and are charged in full."
