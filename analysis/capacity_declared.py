"""A search for capacity as the load coordinate of its result (F38, DESIGN 7)."""

from __future__ import annotations

from dataclasses import fields

from harness.record.canonical import canonical_json
from harness.record.search import Search, Stages

__all__ = ["Search", "Stages", "coordinate"]


def coordinate(search: Search) -> str:
    """Return the search as one canonical line: two capacities compare only when these lines are equal (DESIGN 7).

    The seed of the order is provenance. The level is part of it: certificates and a second stage depend on it.
    """
    told = {f.name: getattr(search, f.name) for f in fields(search) if f.name != "order_seed"}
    return f"capacity={canonical_json(told).decode()}"
