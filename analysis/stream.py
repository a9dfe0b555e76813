"""How the stream carried its tokens: figures printed beside every TBT (DESIGN 6)."""

from __future__ import annotations

import math

import numpy as np

from analysis.clocks import Clocks
from analysis.model import Figure
from analysis.rates import Status

POPULATION = "token-carrying events of all requests of the run"
UNCOUNTED = "events carried an unknown number of tokens"


def stream_figures(clocks: Clocks) -> dict[str, Figure]:
    """``shared_stamp_share``: share of tokens that share a stamp; ``tokens_per_event_mean``; ``events_per_read_mean`` (a read = one stamp).

    Undefined when no token came, unknown (the first two) when an event did not say how many it carried.
    """
    marks = clocks.marks
    events = int(marks.events.sum())
    known = clocks.gaps_defined
    per_event = int(marks.carried.sum()) / events if events and known else math.nan
    per_read = events / int(marks.reads.sum()) if events else math.nan
    rows = (
        ("shared_stamp_share", clocks.shared_share, "output tokens", known),
        ("tokens_per_event_mean", per_event, f"token-carrying events = {events}", known),
        ("events_per_read_mean", per_read, "reads with a token (distinct stamps of a request)", True),
    )
    requests = int(np.count_nonzero(marks.events))
    return {metric: _figure(metric, value, requests, denominator, known=known) for metric, value, denominator, known in rows}


def _figure(metric: str, value: float, requests: int, denominator: str, *, known: bool) -> Figure:
    status: Status = "undefined" if not requests else "ok" if known else "unknown"
    return Figure(
        metric=metric,
        unit="ratio",
        value=value if status == "ok" else None,
        status=status,
        n=requests,
        population=POPULATION,
        denominator=denominator,
        reason={"undefined": "no token was received", "unknown": UNCOUNTED}.get(status, ""),
    )
