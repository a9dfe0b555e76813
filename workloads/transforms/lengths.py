"""Transforms of how long prompts and answers are, and what that does to the ids of shared prefixes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from harness.errors import Problem, UsageError
from workloads.plan import ClipLengths, ScaleLengths
from workloads.schedule import Blocks, Bools, Int64, Ragged, Trace, frozen
from workloads.traces.problems import TOKEN_LIMIT
from workloads.transforms.contract import State, cut_references, select

WHOLE = 1e-9
"""How far block size x factor may be from a whole number: what a factor such as 0.1 loses in binary."""


def scale_lengths(step: ScaleLengths, state: State) -> State:
    """Lengths times a factor, rounded half to even, then held to their bounds.

    Prefix ids keep their meaning because blocks shrink or grow alike: at factor 1/8 an id of 512 tokens is one of 64. A factor that makes
    no whole block is refused. See ``fit_blocks`` for what bounds do to ids.
    """
    trace = state.trace
    tokens_in = _scaled("input", trace.input_tokens, step.input_factor, step.input_minimum, step.input_maximum)
    tokens_out = _scaled("output", trace.output_tokens, step.output_factor, step.output_minimum, step.output_maximum)
    said: dict[str, object] = {}
    blocks = trace.blocks
    if blocks is not None:
        size = _scaled_block(blocks.size, step.input_factor)
        blocks, said["prefix_ids_dropped"] = fit_blocks(replace(blocks, size=size), tokens_in)
        said["block_size"] = size
    return State(replace(trace, input_tokens=tokens_in, output_tokens=tokens_out, blocks=blocks), state.extent_ns, said)


def _scaled(side: str, lengths: Int64, factor: float, minimum: int, maximum: int | None) -> Int64:
    """Scale one column; the same array when that changes nothing."""
    most = TOKEN_LIMIT if maximum is None else maximum
    if minimum > most:
        what = f"{side}_minimum={minimum}: above {side}_maximum={most}"
        raise UsageError.single("workload.scale_lengths", what, "swap the two, or drop one")
    if not math.isfinite(factor):
        what = f"{side}_factor={factor}: not a finite number"
        raise UsageError.single("workload.scale_lengths", what, f"give a factor, or hold lengths with {side}_minimum and {side}_maximum")
    if factor == 1 and (not len(lengths) or (lengths.min() >= minimum and lengths.max() <= most)):
        return lengths
    scaled = lengths * factor
    np.rint(scaled, out=scaled)
    if maximum is None and len(scaled) and not scaled.max() <= TOKEN_LIMIT:
        what = f"{side}_factor={factor}: the longest row becomes {scaled.max():.3g} tokens, above the limit of {TOKEN_LIMIT}"
        raise UsageError.single("workload.scale_lengths", what, f"lower the factor, or set {side}_maximum")
    return frozen(np.clip(scaled, minimum, most, out=scaled).astype(np.int64))


def _scaled_block(size: int, factor: float) -> int:
    exact = size * factor
    if exact > TOKEN_LIMIT:
        what = f"input_factor={factor}: a prefix id names {size} tokens, and {size} x {factor} is above the limit of {TOKEN_LIMIT}"
        raise UsageError.single("workload.blocks", what, "lower the factor")
    whole = max(1, round(exact))
    if abs(exact - whole) > WHOLE * whole:
        what = f"input_factor={factor}: a prefix id names {size} tokens, and {size} x {factor} = {exact:.9g} is no whole block"
        remedy = f"use {whole}/{size} = {whole / size:.17g}, or cut lengths with clip_lengths, which leaves blocks as they are"
        raise UsageError.single("workload.blocks", what, remedy)
    return whole


def fit_blocks(blocks: Blocks, input_tokens: Int64) -> tuple[Blocks, int]:
    """Drop ids that a prompt is too short for, and count them.

    Rounding ceil keeps an id that the prompt fills partly, floor only full ones. A prompt longer than its ids has a tail of its own.
    """
    room = input_tokens // blocks.size if blocks.rounding == "floor" else -(-input_tokens // blocks.size)
    counts = np.diff(blocks.ids.offsets)
    surplus = int(np.maximum(counts - room, 0).sum())
    if not surplus:
        return blocks, 0
    place = np.arange(len(blocks.ids.values), dtype=np.int64) - np.repeat(blocks.ids.offsets[:-1], counts)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.minimum(counts, room))))
    kept = blocks.ids.values[place < np.repeat(room, counts)]
    return replace(blocks, ids=Ragged(frozen(offsets), frozen(kept))), surplus


def clip_lengths(step: ClipLengths, state: State) -> State:
    """Hold lengths to maxima, or leave out the rows that exceed one.

    Of a session, only the row itself is left out; a turn that waited for it arrives by the clock.
    """
    trace, limits = state.trace, (step.input_maximum, step.output_maximum)
    if limits == (None, None):
        what = "transform=clip_lengths: neither input_maximum nor output_maximum is given, so it would do nothing"
        raise UsageError(Problem("workload.clip_lengths", what, "give one of the two, or leave the step out"))
    over_in, over_out = (_over(c, m) for c, m in zip((trace.input_tokens, trace.output_tokens), limits, strict=True))
    said: dict[str, object] = {"input_over": int(over_in.sum()), "output_over": int(over_out.sum())}
    if step.on_excess == "drop":
        keep = ~(over_in | over_out)
        kept = select(trace, keep)
        return State(kept, state.extent_ns, said | cut_references(trace, keep, kept))
    return State(_clipped(trace, step, said), state.extent_ns, said)


def _over(lengths: Int64, maximum: int | None) -> Bools:
    return np.zeros(len(lengths), np.bool_) if maximum is None else lengths > maximum


def _clipped(trace: Trace, step: ClipLengths, said: dict[str, object]) -> Trace:
    changes: dict[str, Int64] = {}
    if step.input_maximum is not None and said["input_over"]:
        changes["input_tokens"] = frozen(np.minimum(trace.input_tokens, step.input_maximum))
    if step.output_maximum is not None and said["output_over"]:
        changes["output_tokens"] = frozen(np.minimum(trace.output_tokens, step.output_maximum))
    trace = replace(trace, **changes)  # type: ignore[arg-type]  # the two names above are columns of lengths
    if trace.blocks is not None:
        blocks, said["prefix_ids_dropped"] = fit_blocks(trace.blocks, trace.input_tokens)
        trace = replace(trace, blocks=blocks)
    return trace
