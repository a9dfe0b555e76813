"""What an engine's owner counted, by the names under which it is sampled and served on /metrics."""

from __future__ import annotations

from typing import Final

import numpy as np

from harness.reference.contract import SchedulerState
from harness.reference.owner import Owner
from harness.reference.table import RESERVED

GAUGES: Final = (
    ("kv_idle_rows", "Rows of held blocks in which nothing is stored"),
    ("kv_promised_rows", "Rows set aside for running requests"),
)
COUNTERS: Final = (
    ("preemptions_recompute_total", "Preemptions whose rows were released to be computed again"),
    ("preemptions_preserve_total", "Preemptions whose rows went to the second tier"),
    ("preemptions_abort_total", "Preemptions that ended the request for want of room in the second tier"),
    ("preservation_failures_total", "Preservations that the second tier had no room for"),
    ("preserved_rows_total", "Rows copied to the second tier"),
    ("promoted_rows_total", "Rows copied back from it"),
    ("resume_tickets_total", "Resumptions that a ticket permitted"),
    ("stale_receipts_total", "Receipts about suspensions that were over when they came"),
    ("reservations_total", "Requests that ended by themselves and had been promised rows"),
    ("reserved_rows_total", "Rows first promised to them"),
    ("used_rows_total", "Rows they held in the end"),
    ("unused_rows_total", "Rows promised beyond what they came to"),
    ("under_rows_total", "Rows they came to beyond what was promised"),
    ("breach_rows_total", "Rows by which the next step of all passed the capacity when somebody had to give way"),
    ("extensions_total", "Promises that were extended"),
    ("extension_rows_total", "Rows that they were extended by"),
    ("withdrawn_reservations_total", "Promises to requests that were cut off"),
)

NAMES: Final = tuple(name for name, _ in (*GAUGES, *COUNTERS))
PLAIN: Final[tuple[str, ...]] = (
    "preemptions_recompute_total", "preemptions_preserve_total", "preemptions_abort_total", "preserved_rows_total", "promoted_rows_total",
)  # fmt: skip
"""What an engine without an owner knows of itself too: all its preemptions recompute, and nothing is kept anywhere."""


def plain_values(preemptions: int) -> tuple[float, ...]:
    """Values under ``PLAIN`` of an engine without an owner."""
    return (preemptions, 0, 0, 0, 0)


def account_values(state: SchedulerState, owner: Owner) -> tuple[float, ...]:
    """Values under ``NAMES``, now."""
    usage, ledger = owner.usage, owner.ledger
    stored = int(np.add.reduce(state.running.resident)) + int(np.add.reduce(state.suspended.resident))
    return (
        state.held_rows - stored, int(np.add.reduce(state.running.cells[RESERVED])),
        usage.recompute, usage.preserve, usage.abort, usage.failed, usage.preserved_rows, usage.promoted_rows, usage.tickets,
        usage.stale_receipts, ledger.settled, ledger.reserved, ledger.used, ledger.unused, ledger.under, ledger.breach, ledger.extensions,
        ledger.extension_rows, ledger.withdrawn,
    )  # fmt: skip
