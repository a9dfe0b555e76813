"""What a search for capacity asks for and what a run answers: data, and the way from a measured run to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.capacity_declared import Search
from analysis.gates import GATES
from analysis.model import CheckResult, Claim, Figure, Outcome, Outcomes, Sent, Verdict
from analysis.planned import MISSING, in_window, integers, without_arrival
from analysis.run import RunMeasures
from harness.errors import Problem, UsageError
from harness.record.reader import RunRecord
from harness.record.schema import EndKind
from harness.record.spec import RunSpec

Phase = Literal["locate", "grid"]
Key = tuple[Phase, float, int]

EXPLAINED_BY_OVERLOAD = frozenset({"steady_state", "window_length"})
"""Gates that a growing backlog breaks by itself: the drift and the long lives they see are the overload, which is named. An overloaded run
remains evidence that the rate fails."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One run to make: the load, and which draw of it (trace window or seed) by number.

    A replicate of the grid has the same draw at every rate, in every arm. Locating draws have numbers of their own, each used once.
    """

    phase: Phase
    rate: float
    replicate: int


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """What one run at one rate says. ``valid`` of ``offered``: counts of the cohort and of ``lost_turns`` beside it; requests that were
    unsent, cut off or lost are offered and not valid.

    ``overloaded``: the backlog grew; None: not known. ``blocked``: what stands against a capacity claim from this run, gate codes or words;
    ``alarms``: failed gates that are tests with a published rate of false alarms, which a search must expect over its many runs.
    ``seed``: root seed of its draws. ``offered_rate`` in req/s and ``watts`` (mean power over the window) where they were measured.
    """

    phase: Phase
    rate: float
    replicate: int
    server_start: int
    seed: int
    valid: int
    offered: int
    overloaded: bool | None
    blocked: tuple[str, ...] = ()
    sent_share: float | None = None
    offered_rate: float | None = None
    watts: float | None = None
    alarms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (0 <= self.valid <= self.offered and 0 < self.rate < math.inf):
            what = f"valid={self.valid}, offered={self.offered}, rate={self.rate}: 0 <= valid <= offered and 0 < rate are needed"
            raise UsageError(Problem("bad_probe_run", what, "pass the counts of the offered cohort and the load it was sent at"))

    @property
    def key(self) -> Key:
        """Which probe it answers."""
        return self.phase, self.rate, self.replicate

    @property
    def alarmed(self) -> tuple[str, ...]:
        """Alarms that overload does not explain."""
        return () if self.overloaded else self.alarms

    @property
    def objections(self) -> tuple[str, ...]:
        """Why the run is no evidence; empty when it is. Overload explains some gates away, and not knowing about it is an objection."""
        excused = EXPLAINED_BY_OVERLOAD if self.overloaded else frozenset[str]()
        lacking = (("offered=0",) if not self.offered else ()) + (("overload unknown",) if self.overloaded is None else ())
        return (*(code for code in self.blocked if code not in excused), *lacking)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a search needs of a measured run. ``overloaded``: whether its backlog grew, None when that is not known."""

    outcomes: Outcomes
    figures: Mapping[str, Figure]
    overloaded: bool | None
    sent: Sent


def probe_run(
    phase: Phase, record: RunRecord, measures: RunMeasures, standing: Sequence[CheckResult], watts: float | None = None
) -> ProbeRun:
    """Reduce a measured run to what a search needs. ``standing``: answers that stand against Claim.CAPACITY (``standing_against``)."""
    run = Measured(measures.outcomes, measures.figures, measures.load.flag, measures.sent)
    return reduce_run(phase, record.spec, run, standing, lost_turns(record), watts)


def lost_turns(record: RunRecord) -> int:
    """Count turns that never came due because one before them failed, and that the plan has in the window or knows no time of.

    They have no arrival and are in no cohort. A capacity counts them all the same: a server that turned the first turns of half of all
    sessions away would otherwise be asked for half of the load and meet the target at any.
    """
    planned = integers(record.schedule, "arrival_ns")
    lost = without_arrival(record) == EndKind.NEVER_DUE.value
    return int((lost & (in_window(planned, record.spec.window) | (planned == MISSING))).sum())


def reduce_run(
    phase: Phase, spec: RunSpec, run: Measured, standing: Sequence[CheckResult], lost: int = 0, watts: float | None = None
) -> ProbeRun:
    """Reduce what is known of a run to counts, ``lost`` turns among the offered ones; see ``probe_run``."""
    alarms = tuple(check.code for check in standing if is_alarm(check))
    counted, attainment = run.outcomes, run.figures["attainment"]
    unknown = () if attainment.status == "ok" else (f"attainment {attainment.status}: {attainment.reason}",)
    due = sum(arrivals.due for arrivals in run.sent.arrivals)
    return ProbeRun(
        phase=phase,
        rate=spec.load.value,
        replicate=spec.replicate,
        server_start=spec.server_start,
        seed=spec.workload.seed,
        valid=min(counted.counts[Outcome.VALID], counted.offered),  # more valid than offered: the partition is open, and blocked says so
        offered=counted.offered + lost,
        overloaded=run.overloaded,
        blocked=(*(check.code for check in standing if check.code not in alarms), *unknown),
        sent_share=sum(arrivals.sent for arrivals in run.sent.arrivals) / due if due else None,
        offered_rate=run.figures["offered_rate"].value,
        watts=watts,
        alarms=alarms,
    )


def is_alarm(check: CheckResult) -> bool:
    """Whether a gate failed that is a statistical test and protects no integrity: it fires on healthy runs too, at a published rate."""
    rates = GATES[check.code].rates if check.code in GATES else None
    return check.verdict is Verdict.FAIL and rates is not None and Claim.INTEGRITY not in check.protects


@dataclass(frozen=True, slots=True)
class History:
    """A search and the runs made for it, in any order. UsageError when two runs answer one probe: picking one would choose the data."""

    search: Search
    runs: tuple[ProbeRun, ...] = ()

    def __post_init__(self) -> None:
        keys = [run.key for run in self.runs]
        twice = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
        if twice:
            remedy = "give the accepted attempt of each run only"
            raise UsageError(*(Problem("probe_answered_twice", f"phase={p}, rate={r}, replicate={i}", remedy) for p, r, i in twice))
