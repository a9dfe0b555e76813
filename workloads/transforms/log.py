"""What a chain did to the load: burstiness and lengths before and after every step, each column described once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.burstiness import dispersion, gap_cv, in_order, mean_rate_rps, nearest_rank
from workloads.schedule import Int64, Trace
from workloads.transforms.contract import has_arrivals

Values = dict[str, object]


@dataclass(frozen=True, slots=True, eq=False)
class Described:
    """Rows in numbers, and the columns that they are of: a step that leaves a column alone costs nothing for it."""

    rows: int
    columns: tuple[Int64, Int64, Int64]
    parts: tuple[Values, Values, Values]

    def values(self) -> Values:
        """Plain values for a log entry; what is undefined is None."""
        arrivals, tokens_in, tokens_out = self.parts
        return {**arrivals, "input_tokens": tokens_in, "output_tokens": tokens_out}


def describe(trace: Trace, known: Described | None = None, *, planned: bool = False) -> Described:
    """Describe ``trace``; columns that are ``known``'s own are taken from there.

    ``planned``: arrivals of rows that wait for others are decided by the run, so only those by the clock are described.
    """
    arrival = trace.arrival_ns if has_arrivals(trace) else trace.arrival_ns[:0]
    if planned and trace.turns is not None:
        arrival = arrival[np.diff(trace.turns.after.offsets) == 0]
    columns = (arrival, trace.input_tokens, trace.output_tokens)
    old = known.columns if known else (None, None, None)
    arrivals = known.parts[0] if known and columns[0] is old[0] else _arrivals(columns[0])
    tokens_in = known.parts[1] if known and columns[1] is old[1] else _lengths(columns[1])
    tokens_out = known.parts[2] if known and columns[2] is old[2] else _lengths(columns[2])
    return Described(len(trace), columns, (arrivals, tokens_in, tokens_out))


def entry(name: str, parameters: Mapping[str, object], before: Described, after: Described, said: Mapping[str, object]) -> Values:
    """One entry of the log. What depends on the rows rather than on the plan lies under ``effect`` and in the two counts of rows."""
    effect = {"before": before.values(), "after": after.values(), **said}
    return {"name": name, **parameters, "rows_before": before.rows, "rows_after": after.rows, "effect": effect}


def _arrivals(arrival_ns: Int64) -> Values:
    ascending = in_order(arrival_ns)
    return {
        "arrivals": len(ascending),
        "mean_rate_rps": mean_rate_rps(ascending),
        "cv_interarrival": gap_cv(ascending),
        **{f"index_of_dispersion_{width}s": value for width, value in dispersion(ascending).items()},
    }


def _lengths(tokens: Int64) -> Values:
    return {"mean": float(tokens.mean()) if len(tokens) else None, "p99": nearest_rank(tokens, 0.99)}


class Ledger:
    """The log of one schedule, from the chain on: each entry says what changed since the one before, the last one all of it."""

    __slots__ = ("_entries", "_now", "_read")

    def __init__(self, read: Described, now: Described, log: tuple[Values, ...]) -> None:
        self._read, self._now, self._entries = read, now, list(log)

    def add(self, name: str, parameters: Mapping[str, object], rows: Trace, said: Mapping[str, object], *, planned: bool = False) -> None:
        """Enter a stage that left ``rows``; ``planned`` as in ``describe``."""
        before, self._now = self._now, describe(rows, self._now, planned=planned)
        self._entries.append(entry(name, parameters, before, self._now, said))

    def close(self) -> tuple[Values, ...]:
        """Every entry, and one more from the trace as it was read to what is sent."""
        return (*self._entries, entry("trace_to_sent", {}, self._read, self._now, {}))
