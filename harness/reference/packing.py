"""Packing of a validated plan: where every selected row lands, and which request-local attention it needs (seed 0x04, F12-F19).

The executor may derive a packed iteration from a plan; it may not change the intervals while packing. Row-wise operations run over the
packed axis (F15, F16), attention runs request by request (F19). Numpy only: a check of the contract, not a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.errors import Problem
from harness.reference.contract import PHASE, Authorized
from harness.reference.table import GENERATION, HANDLE, RESIDENT, Bools, Int64
from harness.reference.validate import refusal

Floats = npt.NDArray[np.float64]

PACKING_CODES: Final = (
    "packed_offsets",
    "packed_route",
    "packed_positions",
    "packed_phase",
    "duplicate_cache_handle",
    "future_row",
    "cross_request",
)
"""Every reason for which a packed iteration is refused."""


class PackedIteration(NamedTuple):
    """Execution metadata of one plan. Rows are packed in plan order; segment i owns rows [offsets[i], offsets[i + 1]) (F14).

    ``offsets`` (n + 1,); ``request`` and ``generation`` (Q,) route each row; ``segment`` (Q,) says whose it is; ``position`` (Q,) counts
    within the request; ``phase`` (Q,); ``history`` (n,) rows of the request's cache before its segment; ``cache`` (n,) logical handles.
    """

    decision_id: int
    input_state_version: int
    offsets: Int64
    segment: Int64
    request: Int64
    generation: Int64
    position: Int64
    phase: Int64
    history: Int64
    cache: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Packed rows in all, Q_tot (F13)."""
        return int(self.offsets[-1])


def pack(authorized: Authorized) -> PackedIteration:
    """Derive the packed iteration of a plan."""
    plan = authorized.plan
    work = plan.work.cells
    widths = plan.work.widths
    offsets = np.zeros(len(widths) + 1, np.int64)
    np.cumsum(widths, out=offsets[1:])
    segment = np.repeat(np.arange(len(widths)), widths)
    position = np.arange(int(offsets[-1])) - offsets[:-1].take(segment) + work[RESIDENT].take(segment)
    cache = tuple(f"logical-kv:{h}:{g}:v{s}" for h, g, s in work[:3].T.tolist())
    return PackedIteration(
        plan.decision_id, plan.input_state_version, offsets, segment, work[HANDLE].take(segment), work[GENERATION].take(segment),
        position, work[PHASE].take(segment), work[RESIDENT].copy(), cache,
    )  # fmt: skip


def validate_packing(authorized: Authorized, packed: PackedIteration) -> list[Problem]:
    """Hold a packed iteration against its plan; empty when execution may use it."""
    return list(_differences(pack(authorized), packed))


def _differences(right: PackedIteration, packed: PackedIteration) -> Iterator[Problem]:
    if not np.array_equal(packed.offsets, right.offsets):
        yield refusal("packed_offsets", f"offsets={packed.offsets.tolist()}: the widths of the plan give {right.offsets.tolist()}")
    routes = [(packed.segment, right.segment), (packed.request, right.request), (packed.generation, right.generation)]
    if not all(np.array_equal(one, other) for one, other in routes):
        yield refusal("packed_route", "request, generation or segment of a row: not that of the interval it was packed from")
    if not np.array_equal(packed.position, right.position) or not np.array_equal(packed.history, right.history):
        yield refusal("packed_positions", f"position={packed.position.tolist()}: the intervals give {right.position.tolist()}")
    if not np.array_equal(packed.phase, right.phase):
        yield refusal("packed_phase", "phase of a row: not that of its interval")
    if len(set(packed.cache)) != len(packed.cache):
        yield refusal("duplicate_cache_handle", f"cache={packed.cache}: two segments would write to one cache")


def visible(packed: PackedIteration, segment: int) -> Bools:
    """Which keys each query row of a segment may see (q, history + q): its own request's rows up to its own position (F17).

    Keys are the request's cached rows followed by the segment's own; no other request's rows are among them.
    """
    begin, end = int(packed.offsets[segment]), int(packed.offsets[segment + 1])
    keys = np.arange(int(packed.history[segment]) + end - begin)
    seen: Bools = keys[None, :] <= packed.position[begin:end, None]
    return seen


def global_visibility(packed: PackedIteration, key_segment: Int64, key_position: Int64) -> Bools:
    """F17 over any set of keys (K,): (Q, K), true where query r and key s are of one request and s lies at or before r."""
    same = packed.segment[:, None] == key_segment[None, :]
    seen: Bools = same & (key_position[None, :] <= packed.position[:, None])
    return seen


def validate_visibility(packed: PackedIteration, key_segment: Int64, key_position: Int64, allowed: Bools) -> list[Problem]:
    """Hold a mask (Q, K) that an executor wants to use against F17."""
    wrong = allowed & ~global_visibility(packed, key_segment, key_position)
    problems = []
    if (wrong & (packed.segment[:, None] != key_segment[None, :])).any():
        problems.append(refusal("cross_request", "mask: a row sees keys of another request"))
    if (wrong & (packed.segment[:, None] == key_segment[None, :])).any():
        problems.append(refusal("future_row", "mask: a row sees keys behind its own position"))
    return problems


def mask_of(allowed: Bools) -> Floats:
    """Additive attention mask: 0 where visible, -inf elsewhere (F18)."""
    return np.where(allowed, 0.0, -np.inf)


def attend(query: Floats, key: Floats, value: Floats, mask: Floats) -> Floats:
    """softmax(Q K^T / sqrt(d) + M) V over one segment (F19): (q, d), (k, d), (k, d), (q, k) -> (q, d). Every row must see a key."""
    scores = query @ key.T / np.sqrt(query.shape[1]) + mask
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    out: Floats = (weights / weights.sum(axis=1, keepdims=True)) @ value
    return out


class Layer(NamedTuple):
    """One attention layer of ``heads`` heads over width d: fused projection (d, 3 d) and output projection (d, d)."""

    fused: Floats
    output: Floats
    heads: int


Cache = Mapping[int, tuple[Floats, Floats]]
"""Keys and values (history, d) of each request by number: what its logical handle stands for."""


def run_packed(layer: Layer, packed: PackedIteration, hidden: Floats, cache: Cache) -> Floats:
    """One layer over the packed rows (Q, d): a projection for all, attention by segment, merged in packed order, an output projection."""
    query, key, value = np.split(hidden @ layer.fused, 3, axis=1)
    merged = np.empty_like(hidden)
    for segment in range(len(packed.history)):
        rows = slice(int(packed.offsets[segment]), int(packed.offsets[segment + 1]))
        before = cache[int(packed.request[rows.start])]
        keys, values = np.concatenate((before[0], key[rows])), np.concatenate((before[1], value[rows]))
        merged[rows] = _heads(layer.heads, query[rows], keys, values, mask_of(visible(packed, segment)))
    out: Floats = merged @ layer.output
    return out


def _heads(heads: int, query: Floats, key: Floats, value: Floats, mask: Floats) -> Floats:
    parts = [attend(q, k, v, mask) for q, k, v in zip(*(np.split(x, heads, axis=1) for x in (query, key, value)), strict=True)]
    return np.concatenate(parts, axis=1)


def run_apart(layer: Layer, hidden: Floats, cached: tuple[Floats, Floats]) -> Floats:
    """The reference: one request by itself, its rows (q, d) after its cached ones, each row attending in turn to just what precedes it."""
    width, history = hidden.shape[1], len(cached[0])
    query, key, value = (hidden @ layer.fused[:, i * width : (i + 1) * width] for i in range(3))
    keys, values = np.concatenate((cached[0], key)), np.concatenate((cached[1], value))
    rows = []
    for row in range(len(hidden)):
        seen = history + row + 1
        nothing_hidden = np.zeros((1, seen))
        rows.append(_heads(layer.heads, query[row : row + 1], keys[:seen], values[:seen], nothing_hidden))
    out: Floats = np.concatenate(rows) @ layer.output
    return out


RowWise = Callable[[Floats], Floats]


def is_row_wise(function: RowWise, parts: list[Floats]) -> bool:
    """F15: whether ``function`` of the packed rows equals the packed results of ``function`` on each request's rows."""
    return bool(np.allclose(function(np.concatenate(parts)), np.concatenate([function(part) for part in parts]), rtol=0, atol=1e-12))
