"""What a prompt is made of: segments, each the beginning of one token stream. Two prompts share what their first segments share."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from workloads.prompts.streams import Keys
from workloads.schedule import Blocks, Bools, Int64, UInt64
from workloads.seeds import derive

Segments = tuple[UInt64, Int64]
"""(keys, counts), both (m,): the prompt is the first counts[j] tokens of stream keys[j], joined."""


class Layout(Protocol):
    """From a request to its segments; ``notes`` say what a user must know of all of them, one sentence each."""

    notes: tuple[str, ...]

    def segments(self, request_id: int) -> Segments:
        """Return the segments of one request; counts add up to its length."""
        ...


class OwnLayout:
    """Every prompt is a stream of its own."""

    __slots__ = ("_lengths", "_own", "notes")

    def __init__(self, lengths: Int64, seed: int) -> None:
        self._lengths, self._own = lengths, Keys(seed, "own")
        self.notes: tuple[str, ...] = ()

    def segments(self, request_id: int) -> Segments:
        """Return the one segment."""
        return self._own(np.array([request_id], np.uint64)), self._lengths[request_id : request_id + 1]


class BlockLayout:
    """One stream per prefix id, concatenated; what is longer than the blocks is the request's own.

    Ids are unique within one trace (``trace``: what tells it from others), so id 7 of two traces are two blocks: a server that met one of
    them must not seem to know the other. A prompt shorter than its blocks cuts them: a block that one row fills and another does not is
    the same block, cut (rounding ceil); under floor, every prompt is at least as long as its blocks unless the plan shortened it.
    """

    __slots__ = ("_blocks", "_lengths", "_own", "_shared", "notes")

    def __init__(self, lengths: Int64, blocks: Blocks, seed: int, trace: str) -> None:
        self._lengths, self._blocks = lengths, blocks
        self._own, self._shared = Keys(seed, "own"), Keys(derive(seed, "trace", trace), "block")
        self.notes = _block_notes(lengths, blocks)

    def segments(self, request_id: int) -> Segments:
        """Return the blocks, the last one cut to what is left, and the tail."""
        length, size = int(self._lengths[request_id]), self._blocks.size
        ids = self._blocks.ids.row(request_id)
        covered = min(length, len(ids) * size)
        used = -(-covered // size)
        counts = np.full(used + (covered < length), size, dtype=np.int64)
        keys = self._shared(ids[:used].astype(np.uint64))
        if used:
            counts[used - 1] = covered - (used - 1) * size
        if covered < length:
            counts[used] = length - covered
            keys = np.concatenate((keys, self._own(np.array([request_id], np.uint64))))
        return keys, counts


def _block_notes(lengths: Int64, blocks: Blocks) -> tuple[str, ...]:
    reach = np.diff(blocks.ids.offsets) * blocks.size
    # Under ceil the last block may be partial; a whole block beyond the prompt, or tokens beyond the blocks, the trace never had.
    beyond = int((lengths <= reach - blocks.size).sum()) if blocks.rounding == "ceil" else int((lengths < reach).sum())
    short = int((lengths > reach).sum()) if blocks.rounding == "ceil" else int((lengths - reach >= blocks.size).sum())
    notes = []
    if beyond:
        notes.append(f"{beyond} prompts are shorter than the blocks their prefix ids name: these are cut, and less is shared than traced.")
    if short:
        notes.append(f"{short} prompts are longer than the blocks their prefix ids name: the rest is each request's own.")
    return tuple(notes)


class HistoryLayout:
    """A turn begins with the prompt of the row it extends and that row's answer, ``answers`` (n,) tokens long; the rest is its own.

    The answer is a stream of exactly the planned length that stands in for what the server will generate, which nobody knows
    beforehand: the earlier *prompt* can be reused from the server's cache, the answer cannot, and ``workloads.reuse`` counts it so. A turn
    too short for the answer holds the beginning of it (services drop reasoning from a history); one too short even for the prompt begins
    anew, since a history cut or rewritten in front shares no beginning.
    """

    __slots__ = ("_answer", "_answers", "_lengths", "_own", "_parent", "notes")

    def __init__(self, lengths: Int64, answers: Int64, extends: Int64, seed: int) -> None:
        self._lengths, self._answers = lengths, answers
        self._own, self._answer = Keys(seed, "own"), Keys(seed, "answer")
        fits = _extends_truly(lengths, extends)
        self._parent = np.where(fits, extends, -1)
        cut = fits & (lengths - lengths[extends] < answers[extends])
        self.notes = tuple(
            note
            for count, note in (
                (int(((extends >= 0) & ~fits).sum()), "turns are shorter than the prompt they extend: they begin anew and share nothing."),
                (int(cut.sum()), "turns are shorter than the prompt and answer they extend: the answer is cut."),
            )
            if count
            for note in (f"{count} {note}",)
        )

    def segments(self, request_id: int) -> Segments:
        """Return own part and planned answer by turns, from the first turn on; takes as many steps as there are earlier turns."""
        path = [request_id]
        while (parent := int(self._parent[path[-1]])) >= 0:
            path.append(parent)
        rows = np.array(path[::-1], dtype=np.int64)
        lengths = self._lengths[rows]
        grown = np.diff(lengths, prepend=0)
        answers = np.zeros(len(rows), dtype=np.int64)  # in front of each turn's own part; none before the first
        answers[1:] = np.minimum(self._answers[rows[:-1]], grown[1:])
        keys = np.empty(2 * len(rows), dtype=np.uint64)
        counts = np.empty(2 * len(rows), dtype=np.int64)
        keys[0], keys[2::2] = 0, self._answer(rows[:-1].astype(np.uint64))
        keys[1::2] = self._own(rows.astype(np.uint64))
        counts[0::2], counts[1::2] = answers, grown - answers
        return keys, counts


def _extends_truly(lengths: Int64, extends: Int64) -> Bools:
    """Whether each row can hold the prompt it extends. Equal lengths (a prompt sent again) need a later row, so no chain is a circle."""
    rows = np.arange(len(lengths))
    grown = lengths - lengths[extends]
    fits: Bools = (extends >= 0) & ((grown > 0) | ((grown == 0) & (extends < rows)))
    return fits
