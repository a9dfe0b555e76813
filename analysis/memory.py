"""What the engine's cache cost: rows promised against rows used (F27), preemptions by what became of the rows, blocks partly idle.

Read from the counters that an engine samples about itself. A counter that was never sampled is absent here, and no 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from analysis.clocks import Clocks
from analysis.samples import AbsentError, counter_delta, summed
from harness.record.reader import RunRecord

COUNTERS: Final = (
    "preemptions_total", "recomputed_rows_total", "preemptions_recompute_total", "preemptions_preserve_total", "preemptions_abort_total",
    "preserved_rows_total", "promoted_rows_total", "reservations_total", "reserved_rows_total", "used_rows_total", "unused_rows_total",
    "under_rows_total", "breach_rows_total", "extensions_total", "extension_rows_total",
)  # fmt: skip
"""Counters of the whole run, as engines under the reference scheduler name them; real engines have the first."""

IDLE: Final = "kv_idle_rows"
"""Gauge: rows of held blocks in which nothing is stored; its mean over the samples is kept."""

LEDGER: Final = ("reserved_rows_total", "unused_rows_total", "under_rows_total", "used_rows_total")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Growth of each counter over one run, those that were sampled; ``idle_rows``: mean of the gauge, None without blocks.

    ``closes``: whether promises less what was not used, and what was missing, are what was used, None when nothing was promised.
    """

    counts: Mapping[str, int]
    idle_rows: float | None = None

    @property
    def closes(self) -> bool | None:
        """The ledger's own check: reserved - unused + under = used."""
        known = [self.counts.get(name) for name in LEDGER]
        if None in known:
            return None
        reserved, unused, under, used = (n or 0 for n in known)
        return reserved - unused + under == used

    @property
    def happened(self) -> bool:
        """Whether there is anything to tell: a preemption, a promise, an idle row."""
        return any(self.counts.values()) or bool(self.idle_rows)


def memory_use(record: RunRecord, clocks: Clocks) -> MemoryUse:
    """Read the counters of one run."""
    end, counts = int(clocks.end_ns.max(initial=0)), {}
    for name in COUNTERS:
        try:
            counts[name] = round(counter_delta(record, name, end))
        except AbsentError:
            continue
    try:
        _, idle = summed(record.server_metrics, "server", IDLE)
    except AbsentError:
        return MemoryUse(counts)
    return MemoryUse(counts, float(np.mean(idle)))


def add_memory(uses: Sequence[MemoryUse]) -> MemoryUse:
    """Several runs as one: counts add up where every run has them, idle rows are averaged."""
    names = [name for name in COUNTERS if all(name in use.counts for use in uses)]
    idle = [use.idle_rows for use in uses if use.idle_rows is not None]
    return MemoryUse({n: sum(use.counts[n] for use in uses) for n in names}, sum(idle) / len(idle) if idle else None)
