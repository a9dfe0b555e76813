"""Client rows and logged writes side by side, by request (DESIGN 10): columns in, one small object a request out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.calibrate.watch import Numbers
from harness.clock import NS_PER_S
from harness.vocabulary import EndKind, EventKind

ENDED_WELL = frozenset({EndKind.COMPLETE, EndKind.CLIENT_STOP})
NOTHING: Numbers = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """One request as both sides saw it, ns on one scale. ``client``/``truth``: stamps of the tokens, in order."""

    slip_ns: int | None
    client: Numbers
    truth: Numbers
    whole: bool
    arrival_ns: int = 0

    @property
    def delivered(self) -> bool:
        """Every token that was written was stamped, and the exchange ended as it should."""
        return self.whole and len(self.client) == len(self.truth) > 0


class Lags(NamedTuple):
    """Probes of the workers' loops in the order of time: when each was due (monotonic ns) and how late it ran (ns)."""

    at: Numbers
    lag: Numbers


def join(tables: Sequence[pa.Table], truth: pa.Table, tokens: Numbers, epoch_ns: int) -> list[Exchange | None]:
    """One entry a request, by its id; ``truth`` names requests ``c<id>``. ``tokens`` (n,): how many each had asked for."""
    written: list[Numbers] = [NOTHING] * len(tokens)
    for name, stamps in zip(truth["request"].to_pylist(), _lists(truth["actual_ns"]), strict=True):
        written[int(name[1:])] = stamps - epoch_ns
    out: list[Exchange | None] = [None] * len(tokens)
    for table in tables:
        columns = (table[name].to_pylist() for name in ("request_id", "arrival_ns", "send_ns", "end_kind"))
        for request, arrival, send, end, client in zip(*columns, token_stamps(table), strict=True):
            whole = end in ENDED_WELL and len(written[request]) == tokens[request]
            slip = None if send is None or arrival is None else send - arrival
            out[request] = Exchange(slip, client, written[request], whole, arrival or 0)
    return out


def token_stamps(table: pa.Table) -> list[Numbers]:
    """For each row of REQUESTS the stamp of every token; tokens that share an event share its stamp."""
    if not len(table):
        return []
    events = {name: table[f"event_{name}"].combine_chunks() for name in ("ns", "tokens", "kind")}
    ns, tokens, kind = (column.values.to_numpy(zero_copy_only=False) for column in events.values())
    counts = np.where((kind == int(EventKind.TOKEN)) & (tokens > 0), tokens, 0)
    before = np.concatenate(([0], np.cumsum(counts)))
    bounds = before[events["ns"].offsets.to_numpy()]
    stamps = np.repeat(ns, counts).astype(np.int64)
    return [stamps[start:stop] for start, stop in pairwise(bounds.tolist())]


def _lists(column: pa.ChunkedArray) -> list[Numbers]:
    whole = column.combine_chunks()
    if not len(whole):
        return []
    values, bounds = whole.values.to_numpy(), whole.offsets.to_numpy().tolist()
    return [values[start:stop] for start, stop in pairwise(bounds)]


def backlog_of(tables: Sequence[pa.Table]) -> int:
    """Most bytes that waited for the spooler of any one worker."""
    return max((int(table["value"].to_numpy()[_of(table, "spool_backlog_bytes")].max(initial=0)) for table in tables), default=0)


def _of(table: pa.Table, metric: str) -> npt.NDArray[np.bool_]:
    return np.array([name == metric for name in table["metric"].to_pylist()], dtype=bool)


def lags_of(tables: Sequence[pa.Table], epoch_ns: int) -> Lags:
    """The lag probes of all workers, from their own samples."""
    at, lag = [NOTHING], [NOTHING]
    for table in tables:
        probes = _of(table, "loop_lag_s")
        at.append(table["t_ns"].to_numpy()[probes] + epoch_ns)
        lag.append((table["value"].to_numpy()[probes] * NS_PER_S).astype(np.int64))
    instants, lags = np.concatenate(at), np.concatenate(lag)
    order = np.argsort(instants, kind="stable")
    return Lags(instants[order], lags[order])


def lateness_by_time(truth: pa.Table) -> tuple[Numbers, Numbers]:
    """When each token of the truth server's log was due (monotonic ns, ascending) and how much later it was written (ns)."""
    planned, actual = (truth[name].combine_chunks().values.to_numpy() for name in ("scheduled_ns", "actual_ns"))
    order = np.argsort(planned, kind="stable")
    return planned[order], (actual - planned)[order]
