"""Fairness of one replicate: service, gaps, indices, starvation, inversions and the bound, by the declared identity (F52-F63, DESIGN 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc

from analysis.clocks import Clocks
from analysis.fairness import (
    Gap,
    ServiceLog,
    accumulated,
    contended,
    droughts,
    jain,
    largest_gap,
    windowed_gap,
    windowed_service,
)
from analysis.fairness_bound import bound_of
from analysis.fairness_log import (
    Eligibility,
    Parties,
    counted,
    demand_log,
    eligibility,
    left_queue,
    parties,
    per_weight,
    service_log,
    total,
)
from analysis.fairness_model import FAIRNESS_METRICS, BoundCheck, Inversions
from analysis.fairness_words import declared_fairness, identities, identity_words
from analysis.inversions import MOST_LEVELS, Queue, inverted
from analysis.model import Figure, Outcome
from analysis.outcomes import OutcomeArray
from analysis.planned import Bools, Int64, offered_rows, planned
from analysis.rates import rate
from analysis.series import Series
from analysis.tails import Floats
from harness.clock import NS_PER_S
from harness.record.fairness import Fairness
from harness.record.reader import RunRecord

PAIRED = 50
"""Parties whose service is compared in pairs, those that asked for most: pairs grow as the square, and what thousands of small clients
differ by is what their sizes differ by. Every other number is over all of them."""

TOKENS, RATE = "weighted tokens", "weighted tokens/s"
"""Units: of service, and of service in a window."""

DRAWN = 6
"""Curves of a plot: as many as its colours tell apart."""

POINTS = 60
"""Points of a curve of accumulated service."""


@dataclass(frozen=True, slots=True, eq=False)
class RunFairness:
    """One replicate. Columns are by party, shape (n,): ``service`` and ``requested`` in weighted tokens of the measured window,
    ``eligible_ns`` the time eligible in it and ``drought_ns`` the longest of that without service, ``offered`` and ``valid`` requests of
    the cohort.

    ``contended``: share of the measured window in which two or more were eligible.
    ``unknown``: why service is not known, empty when it is; then nothing that rests on it has a value.
    """

    declared: Fairness
    who: Parties
    service: Floats
    requested: Floats
    eligible_ns: Int64
    drought_ns: Int64
    offered: Int64
    valid: Int64
    contended: float
    gap: Gap | None
    inversions: Inversions
    bound: BoundCheck
    figures: Mapping[str, Figure]
    curves: Mapping[str, Series]
    start_ns: int
    unknown: str

    @property
    def starved(self) -> Bools:
        """Parties that were eligible for the declared horizon and got nothing in it (F63), shape (n,)."""
        return np.asarray(self.drought_ns >= self.declared.horizon_ns, dtype=bool)


def wanted(record: RunRecord) -> bool:
    """Say whether some request bears a client, or somebody declared how fairness is measured or a ranking by it."""
    spec = record.spec
    if spec.fairness is not None or (spec.rank is not None and spec.rank.metric in FAIRNESS_METRICS):
        return True
    client = record.schedule.column("client")
    return int(client.null_count) < len(client)


def measure_fairness(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, figures: Mapping[str, Figure]) -> RunFairness | None:
    """Measure the fairness of a replicate; None when no request bears a client and nothing was declared.

    ``figures``: the run's own, for why attainment may not be known. Without a declaration the defaults of ``default_fairness`` hold.
    """
    if not wanted(record):
        return None
    declared = declared_fairness(record.spec)
    who = parties(record, clocks, declared)
    log, unknown = service_log(record, clocks, outcome, who, declared)
    able = eligibility(record, clocks, who, declared)
    asked = demand_log(record, clocks, outcome, who, declared)
    fair, demand = per_weight(log, who), per_weight(asked, who)
    largest = np.lexsort((np.arange(len(who.names)), -total(asked)))
    paired = [] if unknown else largest[:PAIRED].tolist()
    gap = largest_gap(fair, able.stretches, paired) if paired else None
    offered = counted(who.planned, offered_rows(record), len(who.names))
    valid = counted(who.row, clocks.in_cohort & (outcome == Outcome.VALID), len(who.names))
    found = RunFairness(
        declared=declared,
        who=who,
        service=total(log),
        requested=total(asked),
        eligible_ns=np.array([(s[:, 1] - s[:, 0]).sum() for s in able.stretches], dtype=np.int64),
        drought_ns=droughts(log, able.stretches),
        offered=offered,
        valid=valid,
        contended=contended(able.stretches) / record.spec.window.measured_ns,
        gap=gap,
        inversions=_inversions(record, clocks, declared),
        bound=bound_of(record, declared, who, gap, unknown, max(0, len(who.names) - PAIRED)),
        figures={},
        curves=_curves(log, able, who, largest[:DRAWN]) if not unknown else {},
        start_ns=record.spec.window.start_ns,
        unknown=unknown,
    )
    windows = _windows(fair, demand, able, declared) if not unknown else None
    return replace(found, figures=_figures(found, able, windows, total(fair), figures.get("attainment")))


# Figures


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    gap: Floats
    spread: float


def _windows(served: ServiceLog, asked: ServiceLog, able: Eligibility, declared: Fairness) -> _Windows | None:
    """Windowed gap as VTC's artifact takes it, weighted tokens/s: windows of the declared width every half of it, all inside the measured
    window; and the widest spread of accumulated service at their edges. None when no window fits.
    """
    width, step = declared.window_ns, max(1, declared.window_ns // 2)
    starts = np.arange(able.start, able.stop - width + 1, step, dtype=np.int64)
    if not len(starts) or not served.clients:
        return None
    seconds = width / NS_PER_S
    gap = windowed_gap(windowed_service(served, starts, width) / seconds, windowed_service(asked, starts, width) / seconds)
    so_far = accumulated(served, np.append(starts, starts[-1] + width))
    return _Windows(gap, float((so_far.max(axis=1) - so_far.min(axis=1)).max()))


def _figures(found: RunFairness, able: Eligibility, windows: _Windows | None, fair: Floats, attainment: Figure | None) -> dict[str, Figure]:
    """Every scalar of a replicate by metric; what cannot be computed says why."""
    who = identity_words(found.declared.identity)
    present = np.array([len(s) > 0 for s in able.stretches], dtype=bool) | (found.requested > 0) | (found.service > 0)
    n = int(present.sum())
    alone = "" if n > 1 else f"{n} {who} sent anything in the measured window: there is nobody to compare"
    return {f.metric: f for f in (*_of_service(found, windows, fair[present], who, alone), *_of_attainment(found, attainment, who, alone))}


def _of_service(found: RunFairness, windows: _Windows | None, fair: Floats, who: str, alone: str) -> list[Figure]:
    n, many, seconds = len(fair), identities(found.declared.identity), f"windows of {found.declared.window_ns / NS_PER_S:g} s"
    index = jain(fair)
    narrow = alone or ("" if windows or found.unknown else f"{seconds} do not fit the measured window")
    apart = alone or ("" if found.gap or found.unknown else f"no two of the {many} were eligible at the same time")
    stamped = f"every {who}, work completed in the measured window"
    paired = f"pairs of {many} while both are eligible" + (f", the {PAIRED} that asked for most" if len(found.who.names) > PAIRED else "")
    gaps = windows.gap if windows else np.zeros(1)
    nothing = alone or ("" if index is not None or found.unknown else "nobody got any service")
    every = f"measured window, two {many} or more eligible"
    return [
        rate("contended_share", "ratio", found.contended, n, every, "", undefined=alone),
        rate("jain_service", "ratio", index or 0.0, n, stamped, f"{n} {many}", unknown=found.unknown, undefined=nothing),
        rate("service_gap", TOKENS, found.gap.value if found.gap else 0.0, n, paired, "", unknown=found.unknown, undefined=apart),
        rate("windowed_gap_mean", RATE, float(gaps.mean()), n, stamped, seconds, unknown=found.unknown, undefined=narrow),
        rate("windowed_gap_max", RATE, float(gaps.max()), n, stamped, seconds, unknown=found.unknown, undefined=narrow),
        rate("windowed_gap_variance", f"({RATE})^2", float(gaps.var()), n, stamped, seconds, unknown=found.unknown, undefined=narrow),
        rate("service_spread", TOKENS, windows.spread if windows else 0.0, n, stamped, seconds, unknown=found.unknown, undefined=narrow),
    ]


def _of_attainment(found: RunFairness, attainment: Figure | None, who: str, alone: str) -> list[Figure]:
    some = found.offered > 0
    n = int(some.sum())
    shares = found.valid[some] / found.offered[some]
    unknown = "attainment was not computed" if attainment is None else attainment.reason if attainment.status != "ok" else ""
    few = alone or ("" if n > 1 else f"{n} {who} had requests in the offered cohort: there is nobody to compare")
    cohort, per = f"every {who} with requests in the offered cohort", f"{n} {identities(found.declared.identity)}"
    index = jain(shares)
    none = few or ("" if index is not None else "no request of anybody was valid")
    least = float(shares.min()) if n else 0.0
    return [
        rate("jain_attainment", "ratio", index or 0.0, n, cohort, per, unknown=unknown, undefined=none),
        rate("attainment_least", "ratio", least, n, cohort, per, unknown=unknown, undefined=few),
    ]


def _curves(log: ServiceLog, able: Eligibility, who: Parties, shown: Int64) -> dict[str, Series]:
    """Weighted service so far of the parties that asked for most: s into the measured window -> weighted tokens."""
    at = np.linspace(able.start, able.stop, POINTS).astype(np.int64)
    so_far = accumulated(log, at)
    x = tuple(float(v) for v in (at - able.start) / NS_PER_S)
    return {who.names[i]: (x, tuple(float(v) for v in so_far[:, i])) for i in shown.tolist()}


# Priorities


def _inversions(record: RunRecord, clocks: Clocks, declared: Fairness) -> Inversions:
    priority = record.schedule.column("priority")
    start, stop = record.spec.window.start_ns, record.spec.window.stop_ns
    rows = np.flatnonzero((clocks.first_ns >= start) & (clocks.first_ns < stop))
    sent = pc.fill_null(priority, 0)  # an engine takes a request without one as 0
    levels = len(pc.unique(sent))
    if levels < 2:
        why = "no priorities were sent" if priority.null_count == len(priority) else "every request was sent with one priority"
        return Inversions(len(rows), None, None, why)
    if levels > MOST_LEVELS:
        return Inversions(len(rows), None, None, f"{levels} distinct priorities, more than the {MOST_LEVELS} that are looked at")
    table = record.schedule.set_column(record.schedule.schema.get_field_index("priority"), "priority", sent)
    queue = Queue(clocks.arrival_ns, left_queue(record, clocks), planned(table, "priority", clocks.request_id))
    static = int(inverted(queue, rows, None).sum())
    if declared.aging_quantum_ns is None:
        return Inversions(len(rows), static, None, "no aging quantum is declared")
    return Inversions(len(rows), static, int(inverted(queue, rows, declared.aging_quantum_ns).sum()))
