"""How many replicates a next study needs, as a table."""

from __future__ import annotations

from analysis.model import Advice, CampaignAnalysis
from analysis.report.table import Table
from analysis.report.words import clean

_NOTE = (
    "Advice from the spread of these replicates: pairs at power 80 % as if what was seen were the truth, intervals by their mean width. Fix"
    " the number before the next study and look once: adding runs until an interval looks narrow enough stops by luck."
)


OPEN = 15
"""Rows of advice that stand open: six arms. More advice than that hides the answer it stands under."""


def advice_tables(c: CampaignAnalysis) -> tuple[Table, ...]:
    """One row for each pair or cell that this campaign left open; no table when there is none."""
    if not c.advice:
        return ()
    header = ("About", "To", "Replicates an arm", "Server starts", "More than now", "Why not known")
    table = Table(
        "What the next study needs", header, tuple(_row(a) for a in c.advice), frozenset({2, 3, 4}), _NOTE, folded=len(c.advice) > OPEN
    )
    return (table if any(a.reason for a in c.advice) else table.without_shared(5, ""),)


def _row(a: Advice) -> tuple[str, ...]:
    counts = ("unknown" if n is None else str(n) for n in (a.replicates, a.server_starts, a.more))
    return (clean(a.subject), clean(a.aim).replace("+-", "± "), *counts, clean(a.reason))
