"""Clocks of every request, columnar, derived from raw events (F30-F37, DESIGN 6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.record.reader import RunRecord

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Strings = npt.NDArray[np.object_]

MISSING = -1
"""Stands for "did not happen" in int64 stamp columns; every consumer masks it before arithmetic."""


@dataclass(frozen=True, slots=True, eq=False)
class Clocks:
    """Columns of shape (n,) in ascending (arrival_ns, request_id) order; stamps in ns since the epoch, MISSING (-1) when absent.

    ``first_ns``: first event that carried a token (t1); ``last_ns``: last such event (tn); ``tokens``: output tokens the client counted
    (by ids or continuous usage, else the server's usage when the response was complete, else MISSING).
    ``gap_ns``/``gap_request``: per-token gaps pooled over requests (tokens sharing an event share its stamp, so gaps of 0 occur) and the row
    each belongs to. ``event_gap_ns``/``event_gap_request``: gaps between token-carrying events. ``shared_share``: share of output tokens
    whose stamp is shared with another token of the same request. ``in_cohort``: arrival in the measured window.
    """

    request_id: Int64
    arrival_ns: Int64
    send_ns: Int64
    first_ns: Int64
    last_ns: Int64
    end_ns: Int64
    tokens: Int64
    end_kind: Strings
    http_status: Int64
    error_status: Int64
    in_cohort: Bools
    gap_ns: Int64
    gap_request: Int64
    event_gap_ns: Int64
    event_gap_request: Int64
    shared_share: float


def derive_clocks(record: RunRecord) -> Clocks:
    """Compute every clock of a run."""
    raise NotImplementedError
