"""From a sealed run to the answer it gives to a search: measured, held against every gate that protects a capacity, reduced to counts."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.capacity_runs import Measured, ProbeRun, lost_turns, reduce_run
from analysis.devices import power, serving
from analysis.gates import RunContext, run_checks, standing_against
from analysis.model import CheckResult, Claim
from analysis.run import measure_run
from analysis.samples import AbsentError
from harness.errors import UsageError
from harness.record.reader import RunRecord


def answer_of(record: RunRecord) -> ProbeRun:
    """Measure a run and say what it answers. Raises UsageError ``not_a_probe`` for a run of no search."""
    measures = measure_run(record)
    context = RunContext(record, measures.clocks, measures.outcome, measures.outcomes, measures.figures, measures.fairness)
    run = Measured(measures.outcomes, measures.figures, measures.load.flag, measures.sent)
    return answer_from(record, run, run_checks(context))


def answer_from(record: RunRecord, run: Measured, checks: Sequence[CheckResult]) -> ProbeRun:
    """The same for a run that was measured and checked already."""
    spec = record.spec
    if spec.probe is None:
        what = f"{spec.cell}/{spec.replicate}: the run answers no probe of a search"
        raise UsageError.single("not_a_probe", what, "give runs of a campaign with load: {capacity: ...}")
    # What locates proves nothing, so only what makes its counts those of another load or server spoils it: integrity.
    claims: set[Claim] = set() if spec.probe.discarded else {Claim.CAPACITY}
    standing = standing_against(claims, checks, "run", f"{spec.cell}/{spec.replicate}/{spec.attempt}")
    return reduce_run(spec.probe.phase, spec, run, standing, lost_turns(record), mean_watts(record))


def mean_watts(record: RunRecord) -> float | None:
    """Mean power over the measured window, W, of all serving devices together.

    None unless each was sampled over half of it, or where there are several and which of them serve is not known: others' power is no cost.
    """
    devices, known = serving(record)
    if not known and len(devices) > 1:
        return None
    try:
        return power(record)[0]
    except AbsentError:
        return None
