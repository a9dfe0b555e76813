"""The offered cohort by client and by request class: who got what (DESIGN 6 and 7). Figures that describe; none of them is ranked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.latency import COMPLETED, without_value
from analysis.loops import labelled, loop_name
from analysis.model import Figure, Group, Outcome, Outcomes, Reuse, Tokens
from analysis.outcomes import sum_outcomes, unjudged
from analysis.planned import MISSING, Bools, Int64, Strings, names, offered_rows, texts, without_arrival
from analysis.proof import TokenColumns, add_reuse, add_tokens
from analysis.rates import COHORT, completed, could_still_be_valid, doubts, rate
from analysis.reuse import Cache, read_cache, reuse_of
from analysis.run import RunMeasures
from analysis.slos import describe_slo, judged_by
from analysis.tails import LEVELS, Floats, Sample, percentile_figure
from harness.clock import NS_PER_S
from harness.record.reader import RunRecord

By = Literal["client", "request_class"]

MOST = 50
"""Names told apart, those with the most scheduled requests; the rest are folded into one group. A report of thousands of clients is not
read, and below a fiftieth of the load a client seldom has the requests a percentile needs."""

Replicates = Sequence[tuple[RunRecord, RunMeasures]]


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One group in one replicate: rows of the schedule, rows of the clocks, and what is counted of them."""

    outcomes: Outcomes
    ttft_s: Floats
    undecided: int
    uncounted: tuple[str, ...]
    seconds: float
    overloaded: str
    tokens: Tokens
    reuse: Reuse


def group_cell(runs: Replicates, by: By) -> tuple[Group, ...]:
    """Split a cell by ``by``; empty when no request of it bears such a name.

    Counts are summed and values pooled over the replicates. Every request is in exactly one group, so the groups add up to the cell.
    """
    heads = _heads(runs, by)
    if not heads:
        return ()
    told_apart = MOST if len(heads) > MOST + 1 else MOST + 1  # one name alone is shown under its own
    wanted: list[str | None] = [*heads[:told_apart]]
    folded = frozenset(heads[told_apart:])
    parts: dict[str | None, list[_Part]] = {}
    rest: list[_Part] = []
    for record, measures in runs:
        view = _View.of(record, measures, by)
        for name in (*wanted, None):
            parts.setdefault(name, []).append(view.part(frozenset({name})))
        rest += [view.part(folded)] if folded else []
    groups = [_group(by, name, 1, runs, found) for name, found in parts.items()]
    if rest:
        groups.append(_group(by, "others", len(folded), runs, rest))
    return tuple(g for g in groups if g.name is not None or g.tokens.input_planned.n or any(g.outcomes.counts.values()))


def _heads(runs: Replicates, by: By) -> list[str]:
    """Names by the number of their scheduled requests, most first; equal numbers by name."""
    counted: Counter[str] = Counter()
    for record, _ in runs:
        counted.update(n for n in record.schedule.column(by).to_pylist() if n is not None)
    return sorted(counted, key=lambda n: (-counted[n], n))


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """One replicate with the name of every row: of the schedule (``planned``) and of the clocks (``came``)."""

    record: RunRecord
    measures: RunMeasures
    planned: dict[str | None, Int64]
    came: dict[str | None, Int64]
    offered: Bools
    undecided: Bools
    uncounted: Mapping[str, Bools]
    cache: Cache
    tokens: TokenColumns
    never: Strings
    """how each row of the schedule that never arrived ended, None for the others"""

    @classmethod
    def of(cls, record: RunRecord, measures: RunMeasures, by: By) -> _View:
        clocks = measures.clocks
        rules: dict[str, Bools] = {}
        for slo, mask in judged_by(record, clocks.request_id):
            rules[slo.tbt_rule] = rules.get(slo.tbt_rule, False) | (mask & unjudged(slo, clocks))
        return cls(
            record=record,
            measures=measures,
            planned=_places(texts(record.schedule, by).tolist()),
            came=_places(names(record.schedule, by, clocks.request_id).tolist()),
            offered=offered_rows(record),
            undecided=could_still_be_valid(record, clocks, measures.outcome),
            uncounted=rules,
            cache=read_cache(record, clocks),
            tokens=TokenColumns.of(record, clocks),
            never=without_arrival(record),
        )

    def part(self, wanted: frozenset[str | None]) -> _Part:
        """Count what bears one of the ``wanted`` names."""
        clocks, outcome, load = self.measures.clocks, self.measures.outcome, self.measures.load
        plan = _mask(self.planned, wanted, self.record.schedule.num_rows)
        rows = _mask(self.came, wanted, len(clocks))
        cohort = rows & clocks.in_cohort
        begun = cohort & completed(outcome) & (clocks.first_ns != MISSING)
        counts = {o: int(np.count_nonzero(outcome[cohort] == o)) for o in Outcome}
        return _Part(
            outcomes=Outcomes(int((plan & self.offered).sum()), counts, dict(Counter(k for k in self.never[plan] if k is not None))),
            ttft_s=(clocks.first_ns - clocks.arrival_ns)[begun] / NS_PER_S,
            undecided=int((rows & self.undecided).sum()),
            uncounted=tuple(sorted(rule for rule, mask in self.uncounted.items() if (mask & rows).any())),
            seconds=self.record.spec.window.measured_ns / NS_PER_S,
            overloaded=load.reason if load.flag else "",
            tokens=self.tokens.tokens(plan, rows),
            reuse=reuse_of(self.cache, rows),
        )


def _places(labels: list[str | None]) -> dict[str | None, Int64]:
    found: dict[str | None, list[int]] = {}
    for i, label in enumerate(labels):
        found.setdefault(label, []).append(i)
    return {label: np.array(rows, dtype=np.int64) for label, rows in found.items()}


def _mask(places: Mapping[str | None, Int64], wanted: frozenset[str | None], n: int) -> Bools:
    mask = np.zeros(n, dtype=bool)
    for name in wanted:
        if name in places:
            mask[places[name]] = True
    return mask


def _group(by: By, name: str | None, members: int, runs: Replicates, parts: Sequence[_Part]) -> Group:
    spec = runs[0][0].spec
    mixed = bool(spec.slo_classes) and (by == "client" or members > 1)
    own = spec.slo if name is None or by == "client" else spec.slo_classes.get(name, spec.slo)
    outcomes = sum_outcomes([p.outcomes for p in parts])
    return Group(
        by=by,
        name=name,
        members=members,
        slo="by class" if mixed else describe_slo(own),
        outcomes=outcomes,
        figures=labelled({f.metric: f for f in (*_rates(outcomes, parts), *_tails(parts))}, loop_name(spec.workload)),
        tokens=add_tokens(p.tokens for p in parts),
        reuse=add_reuse(p.reuse for p in parts),
    )


def _rates(outcomes: Outcomes, parts: Sequence[_Part]) -> list[Figure]:
    seconds, offered, valid = sum(p.seconds for p in parts), outcomes.offered, outcomes.counts[Outcome.VALID]
    why = "; ".join(doubts(outcomes, sum(p.undecided for p in parts), sorted({r for p in parts for r in p.uncounted})))
    none = "" if offered else "no request was offered in the measured window"
    over = f"measured windows = {seconds:g} s over {len(parts)} replicate{'s' * (len(parts) != 1)}"
    share = valid / offered if offered else 0.0
    return [
        rate("goodput", "req/s", valid / seconds, offered, COHORT, over, unknown=why, undefined=none),
        rate("attainment", "ratio", share, offered, COHORT, f"offered requests, N_off = {offered}", unknown=why, undefined=none),
    ]


def _tails(parts: Sequence[_Part]) -> list[Figure]:
    sample = Sample.of(np.concatenate([p.ttft_s for p in parts]), COMPLETED)
    figures = [percentile_figure(f"ttft_{p}", sample, LEVELS[p]) for p in ("p50", "p99")]
    overloaded = next((p.overloaded for p in parts if p.overloaded), "")
    return [without_value(f, "withheld", overloaded) if overloaded else f for f in figures]
