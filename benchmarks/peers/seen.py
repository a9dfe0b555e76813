"""What a client said about its requests, in one shape for all, and the log of the truth server that it is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as its client reports it. Instants are ns of CLOCK_MONOTONIC; None is what the client does not write down.

    ``name``: first word of the prompt, None when the client does not tell which request this is (then its place in the order of sending
    counts). ``ttft_ns``: as reported, from the client's own start. ``first_ns``: the stamp of the first token. ``slip_ns``: how late it
    says it was itself.
    """

    name: str | None
    done: bool
    tokens: int | None = None
    ttft_ns: int | None = None
    first_ns: int | None = None
    gaps_ns: Int64 | None = None
    slip_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """One request as the truth server logged it."""

    name: str
    received_ns: int
    scheduled_ns: Int64
    actual_ns: Int64


def written(log: pa.Table) -> list[Written]:
    """Rows of a truth log, in the order of receipt."""
    rows = (
        Written(row["request"], row["received_ns"], *(np.asarray(row[name], dtype=np.int64) for name in ("scheduled_ns", "actual_ns")))
        for row in log.to_pylist()
    )
    return sorted(rows, key=lambda row: row.received_ns)


def measured(rows: Sequence[Written], requests: int) -> list[Written]:
    """The rows of the load itself, without warm-ups and probes: of each name the last one received, and of these the last ``requests``.

    A warm-up is sent before the load and repeats its prompts, so the later of two rows of one name is the load's.
    """
    latest = {row.name: row for row in rows}
    return sorted(latest.values(), key=lambda row: row.received_ns)[-requests:]


def pair(seen: Sequence[Seen], load: Sequence[Written]) -> list[tuple[Seen, Written | None]]:
    """Join both sides: by name, and clients that tell no names by order of sending against order of receipt.

    Order can swap two requests that leave within a fraction of a millisecond of each other. As the server treats all alike, that exchanges
    two nearly equal truths and moves an error by no more than the server's own lateness.
    """
    if any(item.name is None for item in seen):
        return [(item, load[i] if i < len(load) else None) for i, item in enumerate(seen)]
    by_name = {row.name: row for row in load}
    return [(item, by_name.get(item.name or "")) for item in seen]
