"""Trace transforms: pure, in the order given, each logged with the rows before and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from harness.errors import UsageError
from workloads import seeds
from workloads.plan import ScaleLengths, Thin, TimeCompress, Transform, WindowTransform
from workloads.schedule import Int64, Trace, frozen
from workloads.traces.problems import TOKEN_LIMIT

NS_PER_S = 1_000_000_000
LATEST_NS = 1 << 60
"""No instant of a plan lies beyond this (36 years): float64 products stay far from the end of int64."""


@dataclass(frozen=True, slots=True, eq=False)
class Transformed:
    """A trace after its chain. ``extent_ns``: how much time it covers, silence included; ``log``: one dict a step, {name, parameters...,
    rows_before, rows_after}."""

    trace: Trace
    extent_ns: int
    log: tuple[dict[str, object], ...]


def apply(chain: Sequence[Transform], trace: Trace, seed: int) -> Transformed:
    """Apply ``chain`` in order; the input is left as it is.

    Thinning draws from the seed's dimension ``thin``; two thinnings of one chain share the stream and so stay independent. Raises
    UsageError: window outside what the trace covers, parameters that are not finite, or lengths beyond any served model.
    """
    state = Transformed(trace, extent(trace), ())
    rng = seeds.generator(seed, "thin")
    for step in chain:
        before = len(state.trace)
        state = _step(step, state, rng)
        parameters = step.model_dump(mode="json", exclude={"transform"})
        entry: dict[str, object] = {"name": step.transform, **parameters, "rows_before": before, "rows_after": len(state.trace)}
        state = replace(state, log=(*state.log, entry))
    return state


def extent(trace: Trace) -> int:
    """Time a raw trace covers, ns: its last arrival rounded up to a whole second, because windows are written in seconds."""
    return -(-(int(trace.arrival_ns[-1]) + 1) // NS_PER_S) * NS_PER_S if len(trace) else 0


def to_ns(seconds: float) -> int:
    """Nearest nanosecond. Raises UsageError beyond ``LATEST_NS`` and for what is not a number."""
    if not abs(seconds) <= LATEST_NS / NS_PER_S:  # written so that NaN is refused too
        raise UsageError.single("workload.time", f"seconds={seconds}: not a time within {LATEST_NS / NS_PER_S:.0f} s", "give a finite time")
    return round(seconds * NS_PER_S)


def select(trace: Trace, keep: npt.NDArray[np.bool_] | slice) -> Trace:
    """Rows of ``trace`` under a mask or slice, all columns alike, read-only."""
    return trace.take(np.arange(len(trace), dtype=np.int64)[keep])


def _step(step: Transform, state: Transformed, rng: np.random.Generator) -> Transformed:
    match step:
        case WindowTransform():
            return _window(step, state)
        case TimeCompress():
            return _compress(step, state)
        case Thin():
            return replace(state, trace=select(state.trace, rng.random(len(state.trace)) < step.keep))
        case ScaleLengths():
            return replace(state, trace=_scale(step, state.trace))
        case _:
            raise UsageError.single("workload.not_yet", f"transform={step.transform}: has no engine yet", "leave it out")


def _window(step: WindowTransform, state: Transformed) -> Transformed:
    start, stop = to_ns(step.start_s), to_ns(step.stop_s)
    if start >= stop or stop > state.extent_ns:
        span = f"{state.extent_ns / NS_PER_S:.9g} s"
        why = "holds no time" if start >= stop else f"reaches outside the trace, which covers [0 s, {span}) at this step"
        what = f"window=[{step.start_s:.9g} s, {step.stop_s:.9g} s): {why} ({len(state.trace)} rows of {state.trace.name})"
        raise UsageError.single("workload.window", what, f"choose 0 s <= start < stop <= {span}")
    arrival = state.trace.arrival_ns
    kept = select(state.trace, slice(int(np.searchsorted(arrival, start)), int(np.searchsorted(arrival, stop))))
    return replace(state, trace=replace(kept, arrival_ns=frozen(kept.arrival_ns - start)), extent_ns=stop - start)


def _compress(step: TimeCompress, state: Transformed) -> Transformed:
    longest = state.extent_ns / step.factor
    if not (math.isfinite(step.factor) and longest <= LATEST_NS):
        what = f"factor={step.factor}: {state.extent_ns / NS_PER_S:.9g} s of trace would become {longest / NS_PER_S:.3g} s"
        raise UsageError.single("workload.time_compress", what, "choose a factor near the load wanted (2 doubles the request rate)")
    # Float division is exact to half a nanosecond: arrivals of 100 days stay below 2**53 ns.
    arrival = np.rint(state.trace.arrival_ns / step.factor).astype(np.int64)
    return replace(state, trace=replace(state.trace, arrival_ns=frozen(arrival)), extent_ns=round(longest))


def _scale(step: ScaleLengths, trace: Trace) -> Trace:
    tokens_in = _scaled("input", trace.input_tokens, step.input_factor, step.input_minimum, step.input_maximum)
    tokens_out = _scaled("output", trace.output_tokens, step.output_factor, step.output_minimum, step.output_maximum)
    return replace(trace, input_tokens=tokens_in, output_tokens=tokens_out)


def _scaled(side: str, lengths: Int64, factor: float, minimum: int, maximum: int | None) -> Int64:
    """Round half to even, then clip to [minimum, maximum]."""
    most = TOKEN_LIMIT if maximum is None else maximum
    if minimum > most:
        what = f"{side}_minimum={minimum}: above {side}_maximum={most}"
        raise UsageError.single("workload.scale_lengths", what, "swap the two, or drop one")
    scaled = np.rint(lengths * factor)
    if maximum is None and len(scaled) and not scaled.max() <= TOKEN_LIMIT:
        what = f"{side}_factor={factor}: the longest row becomes {scaled.max():.3g} tokens, above the limit of {TOKEN_LIMIT}"
        raise UsageError.single("workload.scale_lengths", what, f"lower the factor, or set {side}_maximum")
    return frozen(np.clip(scaled, minimum, most).astype(np.int64))
