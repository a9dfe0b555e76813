"""Describe a trace before replaying it: load, burstiness, lengths, clients, sessions, sharing (rigor 2). Columns in, numbers out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from analysis.tails import linear, nearest_rank
from harness import burstiness
from harness.clock import NS_PER_S

Int64 = npt.NDArray[np.int64]

QUANTILES = {"p50": Fraction(1, 2), "p90": Fraction(9, 10), "p99": Fraction(99, 100)}

CONTEXTS = (4096, 8192, 32768, 131072)
"""Context lengths that rows are held against: what models of the last years were served with."""

TOP_CLIENTS = 5


class LabelColumn(Protocol):
    """Names by code: ``codes`` (n,) index into ``names``, -1 for none."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name."""
        ...

    @property
    def codes(self) -> npt.NDArray[np.int32]:
        """Index into the names, (n,), -1 for none."""
        ...


class RaggedColumn(Protocol):
    """Lists of unequal length, joined."""

    @property
    def offsets(self) -> Int64:
        """Where each list starts, (n + 1,)."""
        ...

    @property
    def values(self) -> npt.NDArray[Any]:
        """All lists, one after the other."""
        ...


class BlockColumn(Protocol):
    """Prefix ids of ``size`` tokens each."""

    @property
    def ids(self) -> RaggedColumn:
        """Prefix ids by row."""
        ...

    @property
    def size(self) -> int:
        """Tokens of a block."""
        ...

    @property
    def rounding(self) -> str:
        """ceil or floor: what becomes of a partly filled last block."""
        ...


class TurnColumn(Protocol):
    """Sessions and the pauses inside them."""

    @property
    def session(self) -> Int64:
        """Number of the session, (n,)."""
        ...

    @property
    def think_ns(self) -> Int64:
        """Pause before each turn, (n,) ns, -1 unknown."""
        ...


class TraceColumns(Protocol):
    """What is read of a trace; ``workloads.Trace`` has this shape, and analysis needs no more of it."""

    @property
    def clock(self) -> str:
        """absolute, relative, session or none."""
        ...

    @property
    def arrival_ns(self) -> Int64:
        """Arrivals, (n,) ns."""
        ...

    @property
    def input_tokens(self) -> Int64:
        """Prompt tokens, (n,)."""
        ...

    @property
    def output_tokens(self) -> Int64:
        """Output tokens, (n,)."""
        ...

    @property
    def client(self) -> LabelColumn | None:
        """Tenants, None where the format has none."""
        ...

    @property
    def blocks(self) -> BlockColumn | None:
        """Prefix ids, None where the format has none."""
        ...

    @property
    def turns(self) -> TurnColumn | None:
        """Sessions, None where the format has none."""
        ...

    @property
    def failed(self) -> npt.NDArray[np.bool_] | None:
        """Requests that the traced service failed, (n,), None where the format does not say."""
        ...


@dataclass(frozen=True, slots=True)
class Numbers:
    """One column in short. Percentiles twice: linear interpolation as published tables have it, and nearest rank, which this instrument's
    own claims use; never mixed.
    """

    min: float
    max: float
    mean: float
    sum: float
    p50: float
    p90: float
    p99: float
    nearest_rank: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PrefixFacts:
    """What an infinite cache could reuse, rows in file order. ``ideal_prefix_hit_blocks``: share of blocks that some earlier row also had,
    counted from the start of each prompt up to the first new one; ``..._tokens``: the same in tokens of all prompts.
    """

    block_size: int
    total_blocks: int
    unique_blocks: int
    max_hash_id: int | None
    max_blocks_in_row: int
    rows_empty_hash_ids: int
    rows_with_repeated_id: int
    rows_with_partial_last_block: int
    ideal_prefix_hit_blocks: float | None
    ideal_prefix_hit_tokens: float | None


def describe(trace: TraceColumns) -> dict[str, Any]:
    """Return a nested dict of everything the columns say; a part that the format does not have is left out, never 0."""
    total = trace.input_tokens + trace.output_tokens
    rows = len(total)
    found: dict[str, Any] = {"rows": rows}
    if trace.clock in {"absolute", "relative"} and rows:
        found["arrivals"] = arrivals(trace.arrival_ns)
    else:
        found["no_arrivals"] = True
    for side, column in (("input_tokens", trace.input_tokens), ("output_tokens", trace.output_tokens)):
        if rows:
            found[side] = asdict(numbers(column))
    found |= {
        "zero_input_rows": int((trace.input_tokens == 0).sum()),
        "zero_output_rows": int((trace.output_tokens == 0).sum()),
        "share_zero_output": float((trace.output_tokens == 0).mean()) if rows else None,
        "total_tokens_max": int(total.max()) if rows else None,
        **{f"rows_total_over_{limit}": int((total > limit).sum()) for limit in CONTEXTS},
    }
    if trace.failed is not None:
        found["failed_rows"] = int(trace.failed.sum())
    if trace.turns is not None:
        found |= sessions(trace.turns)
    if trace.client is not None:
        found |= clients(trace.client)
    if trace.blocks is not None:
        found["prefix"] = asdict(prefix(trace.blocks, trace.input_tokens))
    return found


def numbers(column: npt.NDArray[Any]) -> Numbers:
    """Describe one column (n,), n >= 1."""
    ordered = np.sort(column).astype(np.float64)
    straight = {name: linear(ordered, p) for name, p in QUANTILES.items()}
    ranked = {name: nearest_rank(ordered, p) for name, p in QUANTILES.items()}
    return Numbers(
        min=float(ordered[0]), max=float(ordered[-1]), mean=float(ordered.mean()), sum=float(ordered.sum()), **straight, nearest_rank=ranked
    )


def arrivals(arrival_ns: Int64) -> dict[str, Any]:
    """Describe arrival times (n,), n >= 1, in any order; conventions and names as in ``harness.burstiness.arrival_facts``."""
    ends = {"first_s": float(arrival_ns.min()) / NS_PER_S, "last_s": float(arrival_ns.max()) / NS_PER_S}
    return ends | burstiness.arrival_facts(arrival_ns)


def sessions(turns: TurnColumn) -> dict[str, Any]:
    """Count sessions and their turns; known pauses in s."""
    _, sizes = np.unique(turns.session, return_counts=True)
    found: dict[str, Any] = {
        "sessions": len(sizes),
        "max_turns_in_session": int(sizes.max(initial=0)),
        "sessions_with_2plus": int((sizes > 1).sum()),
        "requests_per_session": asdict(numbers(sizes)) if len(sizes) else None,
    }
    known = turns.think_ns[turns.think_ns >= 0]
    if len(known):
        found["think_s"] = asdict(numbers(known / NS_PER_S))
    return found


def clients(client: LabelColumn) -> dict[str, Any]:
    """Count clients and say how uneven they are."""
    counts = np.bincount(client.codes[client.codes >= 0], minlength=len(client.names))
    counts = np.sort(counts[counts > 0])[::-1]
    shares = counts / max(1, int(counts.sum()))
    return {
        "clients": len(counts),
        "top_client_share": [float(share) for share in shares[:TOP_CLIENTS]],
        "min_client_requests": int(counts[-1]) if len(counts) else 0,
    }


def prefix(blocks: BlockColumn, input_tokens: Int64) -> PrefixFacts:
    """Describe prefix ids against prompt lengths (n,), rows in order of arrival in the file."""
    offsets, ids = blocks.ids.offsets, blocks.ids.values
    counts = np.diff(offsets)
    hits = leading_hits(offsets, ids)
    repeated = sum(len(np.unique(row)) < len(row) for row in np.split(ids, offsets[1:-1]) if len(row) > 1)
    partial = (input_tokens % blocks.size != 0) if blocks.rounding == "ceil" else np.zeros(len(counts), dtype=bool)
    # The last block of a prompt may be cut: it brings only the tokens that are there.
    tokens = np.minimum(hits * blocks.size, input_tokens)
    return PrefixFacts(
        block_size=blocks.size,
        total_blocks=len(ids),
        unique_blocks=len(np.unique(ids)),
        max_hash_id=int(ids.max()) if len(ids) else None,
        max_blocks_in_row=int(counts.max(initial=0)),
        rows_empty_hash_ids=int((counts == 0).sum()),
        rows_with_repeated_id=repeated,
        rows_with_partial_last_block=int(partial.sum()),
        ideal_prefix_hit_blocks=float(hits.sum() / len(ids)) if len(ids) else None,
        ideal_prefix_hit_tokens=float(tokens.sum() / input_tokens.sum()) if input_tokens.sum() else None,
    )


def leading_hits(offsets: Int64, ids: npt.NDArray[Any]) -> Int64:
    """Return per row (n,) how many ids from its start on had occurred in an earlier row."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    new = row[first][inverse] == row  # the id's first occurrence lies in this very row
    hits = np.diff(offsets).copy()
    # From the back, so that the first new id of a row is the one that stays.
    at = np.flatnonzero(new)[::-1]
    hits[row[at]] = at - offsets[row[at]]
    return hits
