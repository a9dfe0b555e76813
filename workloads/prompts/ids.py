"""Prompts of token ids: the segments of a layout spelled in the ids that a model has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workloads.prompts.layouts import Layout, OwnLayout
from workloads.prompts.streams import Numbering, draw
from workloads.schedule import Int64
from workloads.tokens import Ids


@dataclass(frozen=True, slots=True, eq=False)
class IdPrompts:
    """Prompts of int32 ids out of ``alphabet`` (k,); they have no text. ``numbering`` spells each prompt's first tokens, None: no such."""

    alphabet: Ids
    layout: Layout
    numbering: Numbering | None
    notes: tuple[str, ...] = ()

    def ids(self, request_id: int) -> Ids:
        """Ids of one request's prompt."""
        keys, counts = self.layout.segments(request_id)
        symbols = draw(keys, counts, len(self.alphabet))
        if self.numbering is not None:
            head = self.numbering.symbols(request_id)[: len(symbols)]
            symbols[: len(head)] = head
        return self.alphabet[symbols]

    def text(self, request_id: int) -> None:
        """None: no text is sent."""


def unshared_ids(alphabet: Ids, lengths: Int64, seed: int) -> IdPrompts:
    """Prompts of which no two agree in more tokens than it takes to number them, whatever the vocabulary (cache-busting)."""
    numbering = Numbering.of(len(lengths), len(alphabet), seed)
    short = int((lengths < numbering.width).sum())
    return IdPrompts(alphabet, OwnLayout(lengths, seed), numbering, short_notes(short, len(lengths), len(alphabet)))


def short_notes(short: int, count: int, symbols: int) -> tuple[str, ...]:
    """Say that ``short`` prompts have too few tokens for a number of their own."""
    if not short:
        return ()
    return (f"{short} of {count} prompts are too short to be told apart by {symbols} symbols: some may be equal.",)


def shared_ids(alphabet: Ids, layout: Layout) -> IdPrompts:
    """Prompts that begin alike as the layout says, and otherwise only by chance (one token in ``len(alphabet)``)."""
    return IdPrompts(alphabet, layout, None, layout.notes)


def counting(size: int) -> Ids:
    """Alphabet of the numbers 0 .. size - 1, for prompts that are spelled in something other than ids."""
    return np.arange(size, dtype=np.int32)
