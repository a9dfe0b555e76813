"""Describe a trace before replaying it: load, burstiness, lengths (rigor 2). Arrays in, numbers out; no reader, no files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from analysis.tails import Floats, linear, nearest_rank
from harness.errors import Problem, UsageError
from harness.record.spec import PercentileRule

WIDTHS_S = (1.0, 10.0, 60.0)
"""Time scales of the index of dispersion: an iteration burst, a queue's memory, the minute an autoscaler sees (rigor 2)."""

QUANTILES = {"p50": Fraction(1, 2), "p90": Fraction(9, 10), "p99": Fraction(99, 100)}

Bins = Literal["full", "all"]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts of one side of a trace. ``quantiles`` by name, under the percentile rule of the description."""

    minimum: int
    maximum: int
    mean: float
    total: int
    quantiles: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TraceDescription:
    """What a trace offers. Times in s, rates in 1/s; None: not defined for this few rows or this short a span.

    ``mean_rate`` is (rows - 1)/span, the unbiased count of gaps over their time; ``cv_gaps`` population standard deviation over mean of
    inter-arrival gaps (1 for Poisson); ``dispersion`` Var N(w)/E N(w) by width w (1 for Poisson at every w); ``bins`` says whether the cut
    last bin was used. Sequences are judged after a stable sort by time.
    """

    rows: int
    span_s: float | None
    mean_rate: float | None
    cv_gaps: float | None
    max_gap_s: float | None
    zero_gap_share: float | None
    dispersion: Mapping[str, float | None]
    input_tokens: Lengths | None
    output_tokens: Lengths | None
    percentile_rule: PercentileRule
    bins: Bins

    def as_dict(self) -> dict[str, Any]:
        """Plain nested dict for JSON."""
        return asdict(self)


def describe(
    arrival_s: npt.ArrayLike,
    input_tokens: npt.ArrayLike,
    output_tokens: npt.ArrayLike,
    *,
    percentile_rule: PercentileRule = "nearest_rank",
    bins: Bins = "full",
) -> TraceDescription:
    """Describe rows given as three arrays of one length (n,).

    Defaults are this instrument's own: nearest rank, and only bins that lie wholly inside the span, because a cut last bin adds variance
    that the trace does not have. Published tables often use ``percentile_rule="linear"`` and ``bins="all"``. Raises UsageError when the
    arrays differ in length or times are not finite.
    """
    arrival = np.sort(np.asarray(arrival_s, dtype=np.float64), kind="stable")
    lengths = [np.asarray(x, dtype=np.int64) for x in (input_tokens, output_tokens)]
    _check(arrival, lengths)
    gaps = np.diff(arrival)
    n, span = len(arrival), float(arrival[-1] - arrival[0]) if len(arrival) else None
    mean_gap = float(gaps.mean()) if len(gaps) else 0.0
    return TraceDescription(
        rows=n,
        span_s=span,
        mean_rate=(n - 1) / span if span else None,
        cv_gaps=float(gaps.std()) / mean_gap if mean_gap > 0 else None,
        max_gap_s=float(gaps.max()) if len(gaps) else None,
        zero_gap_share=float((gaps == 0).mean()) if len(gaps) else None,
        dispersion={f"{w:g}s": dispersion(arrival, w, bins=bins) for w in WIDTHS_S},
        input_tokens=_lengths(lengths[0], percentile_rule),
        output_tokens=_lengths(lengths[1], percentile_rule),
        percentile_rule=percentile_rule,
        bins=bins,
    )


def dispersion(ordered_s: Floats, width_s: float, *, bins: Bins = "full") -> float | None:
    """Index of dispersion Var N(w)/E N(w) over bins of ``width_s`` from the first arrival; None with fewer than two bins or no arrival."""
    if not len(ordered_s):
        return None
    offset = ordered_s - ordered_s[0]
    counts = np.bincount(np.floor(offset / width_s).astype(np.int64))
    if bins == "full":
        counts = counts[: int(offset[-1] // width_s)]
    if len(counts) < 2 or not counts.any():
        return None
    return float(counts.var() / counts.mean())


def _check(arrival: Floats, lengths: list[npt.NDArray[np.int64]]) -> None:
    problems = [
        Problem("trace_columns", f"{name}: {len(x)} rows, arrivals have {len(arrival)}", "give one value a row in every column")
        for name, x in zip(("input_tokens", "output_tokens"), lengths, strict=True)
        if len(x) != len(arrival)
    ]
    if not np.isfinite(arrival).all():
        problems.append(Problem("trace_times", "arrival_s: a value is not finite", "drop or repair rows without a time"))
    if problems:
        raise UsageError(*problems)


def _lengths(values: npt.NDArray[np.int64], rule: PercentileRule) -> Lengths | None:
    if not len(values):
        return None
    ordered, pick = np.sort(values).astype(np.float64), linear if rule == "linear" else nearest_rank
    quantiles = {name: pick(ordered, p) for name, p in QUANTILES.items()}
    return Lengths(int(values.min()), int(values.max()), float(values.mean()), int(values.sum()), quantiles)
