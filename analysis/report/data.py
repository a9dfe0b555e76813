"""The analysis as one JSON document, for other programs."""

from __future__ import annotations

from typing import Any

from analysis.model import CampaignAnalysis, Ranking
from harness.record.canonical import plain

SCHEMA = 1
"""Raised when a field changes its meaning or goes away; added fields do not raise it."""


def to_json(c: CampaignAnalysis) -> dict[str, Any]:
    """Everything of the analysis in JSON types; infinite bounds are the strings "inf" and "-inf", missing numbers null."""
    document: dict[str, Any] = plain(c, digits=None)
    document["verdict"]["kind"] = "ranking" if isinstance(c.verdict, Ranking) else "refusal"
    return {"trigpoint_analysis": SCHEMA, **document}
