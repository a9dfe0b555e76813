"""Texts that share beginnings token by token: built of pieces that are one token each wherever they stand, and checked as a whole.

A text's tokens are exact only as a whole, so a block of text has no tokens of its own in general. It has when every piece is one token and
no merge crosses from one piece to the next; then a text can be cut and joined at any piece. Which pieces are so is asked of the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.errors import Problem, UsageError
from workloads.prompts.ids import IdPrompts, counting, shared_ids
from workloads.prompts.layouts import Layout
from workloads.prompts.text import corpus_words
from workloads.tokens import Ids, TokenSource

LEAST_ATOMS = 8
"""Pieces below which texts that should differ would share too much by chance: at 8, one text in 64 shares two tokens and one in 10**14 a
block of 16."""

_BEFORE = "a"
"""A text to measure behind; one token under every tokenizer that knows Latin letters."""

_PROBES = 4
"""Random orders of all pieces that must encode piece by piece before they are used; merges across pieces show at once or hardly ever, and
every prompt is checked as well."""

MOST_PROBLEMS = 20
"""A screenful; a tokenizer that fails this often fails for one reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Atoms:
    """Pieces of text: as they stand first in a text (``first``) and behind another (``joined``), and their ids in both places, all (k,)."""

    first: tuple[str, ...]
    joined: tuple[str, ...]
    first_ids: Ids
    joined_ids: Ids

    def text(self, symbols: Sequence[int]) -> str:
        """Join pieces by number."""
        return self.first[symbols[0]] + "".join([self.joined[k] for k in symbols[1:]])

    def ids(self, symbols: Ids) -> Ids:
        """Ids of the pieces joined."""
        return np.concatenate((self.first_ids[symbols[:1]], self.joined_ids[symbols[1:]]))


@dataclass(frozen=True, slots=True, eq=False)
class AtomPrompts:
    """Texts of atoms as ``inner`` numbers them; ``left`` and ``right`` are the special tokens that the server puts around a text."""

    atoms: Atoms
    inner: IdPrompts
    left: Ids
    right: Ids
    notes: tuple[str, ...] = field(default=())

    def ids(self, request_id: int) -> Ids:
        """Ids of one request's text, with the special tokens around it."""
        return np.concatenate((self.left, self.atoms.ids(self.inner.ids(request_id)), self.right))

    def text(self, request_id: int) -> str:
        """One request's text."""
        return self.atoms.text(self.inner.ids(request_id).tolist())


def shared_texts(tokens: TokenSource, layout: Layout, count: int, *, bos: bool) -> AtomPrompts:
    """Texts that begin alike as ``layout`` (of ``count`` prompts, special tokens not counted) says; each is encoded once to prove it.

    Raises UsageError: ``prompt.no_stable_text`` when the tokenizer has no such pieces, ``prompt.unstable`` naming the requests whose text
    does not encode piece by piece.
    """
    atoms = find_atoms(tokens)
    left, right = _frame(tokens, bos=bos)
    prompts = AtomPrompts(atoms, shared_ids(counting(len(atoms.first)), layout), left, right, layout.notes)
    problems: list[Problem] = []
    for request_id in range(count):
        if not np.array_equal(tokens.encode(prompts.text(request_id), add_special=bos), prompts.ids(request_id)):
            what = f"request={request_id}: the text of its prefix blocks does not encode block by block under this tokenizer"
            problems.append(Problem("prompt.unstable", what, _REMEDY))
            if len(problems) == MOST_PROBLEMS:
                break
    if problems:
        raise UsageError(*problems)
    return prompts


def find_atoms(tokens: TokenSource) -> Atoms:
    """Return the pieces to use: words of our own where they are single tokens, else single letters and digits, else digits.

    Raises UsageError ``prompt.no_stable_text`` when none will do.
    """
    words = corpus_words()
    letters = "abcdefghijklmnopqrstuvwxyz"
    # Letters before digits: real vocabularies merge digits, tiny ones have none to merge.
    for candidates in ([(w, f" {w}") for w in words], [(c, c) for c in letters + "0123456789"], [(c, c) for c in "0123456789"]):
        atoms = _single(tokens, candidates)
        if len(atoms.first) >= LEAST_ATOMS and _stable(tokens, atoms):
            return atoms
    what = f"prompts.sharing=as_trace with prompts.source=text: fewer than {LEAST_ATOMS} words or letters are one token each in every place"
    raise UsageError.single("prompt.no_stable_text", what, _REMEDY)


_REMEDY = "use prompts of random-ids, which share exactly, or sharing: none"


def _single(tokens: TokenSource, candidates: list[tuple[str, str]]) -> Atoms:
    """Candidates that are one sendable token at the start of a text and one behind another."""
    before, safe = tokens.encode(_BEFORE).tolist(), set(tokens.safe_ids.tolist())
    found: list[tuple[str, str, int, int]] = []
    taken: set[int] = set()
    for first, joined in candidates:
        start, behind = tokens.encode(first).tolist(), tokens.encode(_BEFORE + joined).tolist()
        single = len(start) == 1 and len(behind) == len(before) + 1 and behind[:-1] == before
        if single and {start[0], behind[-1]} <= safe and behind[-1] not in taken:
            taken.add(behind[-1])
            found.append((first, joined, start[0], behind[-1]))
    columns = list(zip(*found, strict=True)) or [(), (), (), ()]
    return Atoms(columns[0], columns[1], np.array(columns[2], np.int32), np.array(columns[3], np.int32))


def _stable(tokens: TokenSource, atoms: Atoms) -> bool:
    """Whether all pieces, in some orders, encode one by one."""
    size = len(atoms.first)
    orders = (np.random.Generator(np.random.PCG64(probe)).permutation(size).astype(np.int32) for probe in range(_PROBES))
    return all(np.array_equal(tokens.encode(atoms.text(order.tolist())), atoms.ids(order)) for order in orders)


def _frame(tokens: TokenSource, *, bos: bool) -> tuple[Ids, Ids]:
    """Special tokens before and after a text, found by encoding one with and without them."""
    plain = tokens.encode(_BEFORE)
    full = tokens.encode(_BEFORE, add_special=bos)
    for start in range(len(full) - len(plain) + 1):
        if np.array_equal(full[start : start + len(plain)], plain):
            return full[:start], full[start + len(plain) :]
    what = "tokenizer: its own rule changes a text's tokens beside adding special ones, so no text prompt can be built from parts"
    raise UsageError.single("prompt.no_stable_text", what, _REMEDY)
