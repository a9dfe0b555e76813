"""A chain of transforms: each a pure function of (step, rows, its own draws), in the order given, each logged with what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workloads import plan, seeds
from workloads.schedule import Trace
from workloads.transforms import clients, lengths, rows, times
from workloads.transforms.contract import State, extent
from workloads.transforms.log import Described, describe, entry


@dataclass(frozen=True, slots=True, eq=False)
class Transformed:
    """A trace after its chain. ``extent_ns``: how much time it covers, silence included.

    ``log``: one dict a step, {name, parameters..., rows_before, rows_after, effect: {before, after, ...}}. ``read`` and ``now`` describe
    the rows as they were read and as they are.
    """

    trace: Trace
    extent_ns: int
    log: tuple[dict[str, object], ...]
    read: Described
    now: Described


def apply(chain: Sequence[plan.Transform], trace: Trace, seed: int) -> Transformed:
    """Apply ``chain`` in order; the input is left as it is.

    A step draws from the seed's dimension (chain, its name, how many of that name came before): two of a kind are independent, and one
    more step elsewhere changes no other step's draw. Raises UsageError: parameters that are not finite, that the rows cannot satisfy, or
    that mean nothing for this trace's clock, clients or prefix ids.
    """
    read = now = describe(trace)
    state, log, seen = State(trace, extent(trace)), [], Counter[str]()
    for step in chain:
        rng = seeds.generator(seed, "chain", step.transform, seen[step.transform])
        seen[step.transform] += 1
        state = _step(step, state, rng)
        before, now = now, describe(state.trace, now)
        log.append(entry(step.transform, step.model_dump(mode="json", exclude={"transform"}), before, now, state.said))
    return Transformed(state.trace, state.extent_ns, tuple(log), read, now)


def _step(step: plan.Transform, state: State, rng: np.random.Generator) -> State:
    match step:
        case plan.Jitter():
            return times.jitter(step, state, rng)
        case plan.Retime():
            return times.retime(step, state, rng)
        case plan.Thin():
            return rows.thin(step, state, rng)
        case plan.Tenants():
            return clients.tenants(step, state, rng)
        case _:
            return _drawless_step(step, state)


_Drawless = (
    plan.WindowTransform | plan.TimeCompress | plan.Sort | plan.Dedupe | plan.DropFailed | plan.Loop | plan.ScaleLengths | plan.ClipLengths
)


def _drawless_step(step: _Drawless, state: State) -> State:
    match step:
        case plan.WindowTransform():
            return times.window(step, state)
        case plan.TimeCompress():
            return times.time_compress(step, state)
        case plan.Sort():
            return times.sort(step, state)
        case plan.Dedupe():
            return rows.dedupe(step, state)
        case plan.DropFailed():
            return rows.drop_failed(step, state)
        case plan.Loop():
            return rows.loop(step, state)
        case plan.ScaleLengths():
            return lengths.scale_lengths(step, state)
        case plan.ClipLengths():
            return lengths.clip_lengths(step, state)
