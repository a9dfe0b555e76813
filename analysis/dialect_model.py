"""One number as another tool would have said it. Data only."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.model import Figure


@dataclass(frozen=True, slots=True)
class Said:
    """``figure`` is what ``tool`` computes of this run by ``rule``, in words: a diagnostic, never ranked nor a ground for a verdict."""

    tool: str
    rule: str
    figure: Figure
