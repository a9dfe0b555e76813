"""What every number of a report is a number of: said with each table and figure, for each may be read or copied alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from analysis.model import CampaignAnalysis
from analysis.report.svg import Plot
from analysis.report.table import Table
from analysis.report.words import clean

MEANING = {"E1": "this trace on this system", "E2": "this kind of load on this system"}


def estimand_words(c: CampaignAnalysis) -> str:
    """The estimand of a campaign's numbers as a sentence; empty without cells."""
    found = sorted({cell.estimand for cell in c.cells})
    return f"Estimand: {', '.join(f'{clean(e)} ({MEANING[e]})' if e in MEANING else clean(e) for e in found)}." if found else ""


def stated(c: CampaignAnalysis, tables: Iterable[Table]) -> tuple[Table, ...]:
    """The tables, each with the estimand in its note."""
    return tuple(replace(t, note=" ".join(filter(None, [t.note, estimand_words(c)]))) for t in tables)


def captioned(c: CampaignAnalysis, plots: Iterable[Plot]) -> tuple[Plot, ...]:
    """The figures, each with the estimand in its caption."""
    return tuple(replace(p, caption=" ".join(filter(None, [p.caption, estimand_words(c)]))) for p in plots)
