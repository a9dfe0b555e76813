"""Transforms of which rows there are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from harness.errors import UsageError
from workloads.plan import Dedupe, DropFailed, Loop, Thin
from workloads.schedule import Blocks, Int64, Labels, Ragged, Trace, Turns, UInt64, frozen
from workloads.transforms.contract import LATEST_NS, State, cut_references, has_arrivals, in_order, need_order, select, sessions_of

MAX_ROWS = 50_000_000
"""Most rows that repeating may make, 2 GB of columns; more is a typing error in ``times``."""

MAX_IDS = 200_000_000
"""Most prefix ids that repeating may make, 2 GB as well: a row of a long prompt has hundreds."""


def thin(step: Thin, state: State, rng: np.random.Generator) -> State:
    """Keep each row with the given probability; with sessions, each session: half a conversation is another workload."""
    session = sessions_of(state.trace)
    draws = rng.random(int(session.max()) + 1 if len(session) else 0)
    return State(select(state.trace, (draws < step.keep)[session]), state.extent_ns)


def drop_failed(step: DropFailed, state: State) -> State:  # noqa: ARG001 - the step has no parameters
    """Leave out rows without an answer; a turn that waited for one arrives by the clock."""
    none = state.trace.output_tokens == 0
    failed = none if state.trace.failed is None else none | state.trace.failed
    kept = select(state.trace, ~failed)
    return State(kept, state.extent_ns, cut_references(state.trace, ~failed, kept))


def dedupe(step: Dedupe, state: State) -> State:  # noqa: ARG001 - the step has no parameters
    """Leave out rows that equal an earlier one in every column but their place in the file.

    What waited for a row that is left out waits for the one that stays; turns that waited for two equal rows may then be equal themselves.
    """
    trace, rows = state.trace, np.arange(len(state.trace))
    twin, found = _first_equal(_columns(trace)), 0
    while trace.turns is not None and (count := int((twin != rows).sum())) > found:
        trace, found = replace(trace, turns=_rewired(trace.turns, twin)), count
        twin = _first_equal(_columns(trace))
    return State(select(trace, twin == rows), state.extent_ns)


def _columns(trace: Trace) -> list[Int64]:
    """Every column that two equal rows share, as integers."""
    columns = [trace.arrival_ns, trace.input_tokens, trace.output_tokens]
    columns += [labels.codes.astype(np.int64) for labels in (trace.client, trace.kind) if labels is not None]
    if trace.failed is not None:
        columns.append(trace.failed.astype(np.int64))
    if trace.blocks is not None:
        columns.append(_list_codes(trace.blocks.ids))
    if trace.turns is not None:
        turns = trace.turns
        columns += [turns.session, turns.turn, turns.think_ns, turns.extends, _list_codes(turns.after)]
    return columns


def _list_codes(lists: Ragged) -> Int64:
    """Number equal lists alike: their bytes are compared, so nothing rests on a hash being unique."""
    seen: dict[bytes, int] = {}
    raw, width = lists.values.tobytes(), lists.values.itemsize
    ends = (lists.offsets * width).tolist()
    codes = (seen.setdefault(raw[a:b], len(seen)) for a, b in pairwise(ends))
    return np.fromiter(codes, np.int64, len(lists))


def _first_equal(columns: list[Int64]) -> Int64:
    """Index of the first row that equals each row (n,)."""
    order = np.lexsort(columns)  # stable: of equal rows the first in the file comes first
    fresh = np.ones(len(order), dtype=np.bool_)
    if len(order):
        fresh[1:] = np.any([column[order[1:]] != column[order[:-1]] for column in columns], axis=0)
    first = np.empty(len(order), dtype=np.int64)
    first[order] = order[np.flatnonzero(fresh)][np.cumsum(fresh) - 1]
    return first


def _rewired(turns: Turns, twin: Int64) -> Turns:
    """References to the first of equal rows, each once."""
    rows = len(twin)
    owner = np.repeat(np.arange(rows, dtype=np.int64), np.diff(turns.after.offsets))
    pairs = np.unique(owner * rows + twin[turns.after.values.astype(np.int64)])
    offsets = np.searchsorted(pairs, np.arange(rows + 1, dtype=np.int64) * rows).astype(np.int64)
    extends = np.where(turns.extends >= 0, twin[turns.extends], -1)
    return replace(turns, after=Ragged(frozen(offsets), frozen(pairs % max(rows, 1))), extends=frozen(extends))


def loop(step: Loop, state: State) -> State:
    """Play the rows ``times`` times, each pass later by what they cover; the first pass is as it was.

    Later passes have sessions and prefix ids of their own: a second pass that found the first one's prefixes in the cache would measure
    the cache's size. Clients stay who they are.
    """
    trace, times = state.trace, step.times
    timed = has_arrivals(trace)
    if timed:
        need_order(trace, "transform=loop")
    ids = len(trace.blocks.ids.values) if trace.blocks is not None else 0
    if len(trace) * times > MAX_ROWS or ids * times > MAX_IDS or state.extent_ns * times > LATEST_NS:
        what = f"times={times}: {len(trace)} rows and {ids} prefix ids become more than {MAX_ROWS} or {MAX_IDS}, or cover over 36 years"
        raise UsageError.single("workload.loop", what, "repeat less often")
    passes = np.repeat(np.arange(times, dtype=np.int64), len(trace))
    repeated = replace(
        trace,
        arrival_ns=frozen(np.tile(trace.arrival_ns, times) + passes * (state.extent_ns if timed else 0)),
        input_tokens=frozen(np.tile(trace.input_tokens, times)),
        output_tokens=frozen(np.tile(trace.output_tokens, times)),
        source_row=frozen(np.tile(trace.source_row, times)),
        client=_tiled(trace.client, times),
        kind=_tiled(trace.kind, times),
        failed=None if trace.failed is None else frozen(np.tile(trace.failed, times)),
        blocks=trace.blocks and _more_blocks(trace.blocks, times),
        turns=trace.turns and _more_turns(trace.turns, times),
    )
    # Jitter may have moved rows past the end of what they cover, among those of the next pass.
    return State(in_order(repeated) if timed else repeated, state.extent_ns * times)


def _tiled(labels: Labels | None, times: int) -> Labels | None:
    return labels and Labels(labels.names, frozen(np.tile(labels.codes, times)))


def _more_blocks(blocks: Blocks, times: int) -> Blocks:
    ids = blocks.ids
    distinct, codes = np.unique(ids.values.astype(np.uint64), return_inverse=True)
    fresh = _fresh_ids(distinct, (times - 1) * len(distinct))
    passes = [ids.values.astype(np.uint64), *(fresh[k * len(distinct) :][codes] for k in range(times - 1))]
    return replace(blocks, ids=Ragged(_tiled_offsets(ids, times), frozen(np.concatenate(passes))))


def _fresh_ids(used: UInt64, count: int) -> UInt64:
    """Return ``count`` ids that are not among ``used`` (ascending, distinct): the least there are, so that 64 bits always suffice."""
    candidates = np.arange(count + len(used), dtype=np.uint64)
    free: UInt64 = candidates[~np.isin(candidates, used, assume_unique=True)]
    return free[:count]


def _more_turns(turns: Turns, times: int) -> Turns:
    rows, sessions = len(turns.session), int(turns.session.max()) + 1 if len(turns.session) else 0
    passes = np.repeat(np.arange(times, dtype=np.int64), rows)
    values = turns.after.values.astype(np.int64)
    moved = np.tile(values, times) + np.repeat(np.arange(times, dtype=np.int64), len(values)) * rows
    extends = np.tile(turns.extends, times)
    return Turns(
        session=frozen(np.tile(turns.session, times) + passes * sessions),
        turn=frozen(np.tile(turns.turn, times)),
        after=Ragged(_tiled_offsets(turns.after, times), frozen(moved)),
        think_ns=frozen(np.tile(turns.think_ns, times)),
        extends=frozen(np.where(extends >= 0, extends + passes * rows, -1)),
        history=turns.history,
    )


def _tiled_offsets(lists: Ragged, times: int) -> Int64:
    lengths = np.tile(np.diff(lists.offsets), times)
    return frozen(np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))))
