"""One replicate measured: clocks, outcomes, figures and plot series. Pure: the same record gives the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.backlog import Overload, overload
from analysis.bins import TimeBins, time_bins
from analysis.clocks import Clocks, derive_clocks
from analysis.dialect_model import Said
from analysis.dialects import other_words
from analysis.fairness_run import RunFairness, measure_fairness
from analysis.gaps import Pool
from analysis.latency import latency_figures, samples
from analysis.loops import labelled, loop_name
from analysis.model import Figure, Outcomes, Sent
from analysis.outcomes import OutcomeArray, classify, count_outcomes
from analysis.proof import prove
from analysis.rates import completed, could_still_be_valid, rate_figures
from analysis.series import Series, plot_series
from analysis.stream import stream_figures
from analysis.tails import Ordered
from harness.record.reader import RunRecord


@dataclass(frozen=True, slots=True, eq=False)
class RunMeasures:
    """What one attempt says. ``outcome``: (n,) one ``Outcome`` a row of ``clocks``; ``outcomes``: its counts over the offered cohort.

    ``figures`` by metric: the names of ``harness.record.spec.Metric`` and beside them offered_rate, token_goodput, attainment_completed,
    ttft_*_offered and e2e_*_offered, ttft_send_*, event_gap_*, slip_*, shared_stamp_share, tokens_per_event_mean, events_per_read_mean.
    Units: s, req/s, tok/s, ratio. In a loop that is not open every population says so. ``sent``: proof of what reached the server.
    ``samples``: the raw values behind the percentiles, by name.
    ``dialects``: the same run in other tools' words. ``bins``: its counts over the window.
    ``fairness``: who got how much, None where there is nobody to compare; its figures are among ``figures``.
    """

    clocks: Clocks
    outcome: OutcomeArray
    outcomes: Outcomes
    figures: Mapping[str, Figure]
    series: Mapping[str, Series]
    load: Overload
    sent: Sent
    samples: Mapping[str, Ordered]
    fairness: RunFairness | None = None
    dialects: tuple[Said, ...] = ()
    bins: TimeBins | None = None


def measure_run(record: RunRecord) -> RunMeasures:
    """Measure one attempt. Raises UsageError when the record's event lists do not belong together."""
    clocks = derive_clocks(record)
    outcome = classify(record, clocks)
    outcomes = count_outcomes(record, clocks, outcome)
    load = overload(record, clocks)
    taken = samples(record, clocks, outcome, outcomes)
    figures = rate_figures(record, clocks, outcome, outcomes) | latency_figures(record, clocks, outcome, taken, load)
    figures |= stream_figures(clocks)
    fairness = measure_fairness(record, clocks, outcome, figures)
    figures |= fairness.figures if fairness else {}
    figures = labelled(figures, loop_name(record.spec.workload))
    series, sent = plot_series(record, clocks, taken, load), prove(record, clocks)
    said = _dialects(record, clocks, outcome, taken, load)
    bins = time_bins(record, clocks, outcome, could_still_be_valid(record, clocks, outcome))
    return RunMeasures(clocks, outcome, outcomes, figures, series, load, sent, taken, fairness, said, bins)


def _dialects(record: RunRecord, clocks: Clocks, outcome: OutcomeArray, taken: Mapping[str, Ordered], load: Overload) -> tuple[Said, ...]:
    gaps = taken["event_gap"]
    own = (clocks.in_cohort & completed(outcome), gaps) if isinstance(gaps, Pool) else None
    return other_words(record, clocks, int(clocks.in_cohort.sum()), load, own)
