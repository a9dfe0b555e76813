"""How much of each prompt a cache that forgets nothing could have kept from the prompts before it."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from itertools import pairwise

import numpy as np

from workloads.schedule import Int64, Schedule, frozen

STRIDE = 128
"""Tokens per step of a prompt's hash chain: every step costs one digest and an entry of some 130 bytes, every prompt keeps one step of
tokens (512 bytes) for the exact answer. 128 makes both small: 150 million tokens take 150 MB at most."""

_ID_BYTES = 4
_STEP = STRIDE * _ID_BYTES
_ROOT = b""


def reusable_tokens(schedule: Schedule) -> Int64:
    """Tokens (n,) of the longest beginning that each prompt shares with any prompt before it in order of arrival.

    Exact for every kind of prompt, since it reads the ids as sent (for chat, the content's; what a template puts before it comes on top),
    and takes time linear in them. Only prompts count: what the server generated is no prompt, and a session's planned answer stands in for
    it but is not what the server keeps (``workloads.prompts.layouts.HistoryLayout``). That an earlier prompt may still be under way when a
    later one arrives is left out: this is what is possible, not what a server does.
    """
    tree = _Tree()
    for request_id in range(len(schedule)):
        tree.add(_spelled(schedule, request_id))
    for maker, nodes in tree.makers().items():
        raw = _spelled(schedule, maker)
        for node, depth in nodes:
            tree.go_on(node, depth, maker, raw)
    return frozen(tree.shared())


def possible(reusable: Int64, input_tokens: Int64, block_size: int) -> Int64:
    """Tokens (n,) that a server which keeps whole blocks of ``block_size`` tokens could reuse, as multiples of it.

    The last token of a prompt is always computed, since its result is the first output: a prompt seen before in full counts up to
    ``input_tokens - 1``. ValueError for a block of less than one token.
    """
    if block_size < 1:
        raise ValueError(f"block_size={block_size}: at least 1")
    return frozen(np.minimum(reusable, np.maximum(input_tokens - 1, 0)) // block_size * block_size)


def _spelled(schedule: Schedule, request_id: int) -> bytes:
    """Ids as big-endian bytes, whose order and common beginnings are those of the ids."""
    return schedule.prompts.ids(request_id).astype(">u4").tobytes()


_Piece = tuple[int, bytes]
"""(request, its tokens behind some node, one step at most)"""


class _Tree:
    """Prompts as a tree whose edges are steps of ``STRIDE`` tokens, nodes named by the digest of all tokens down to them.

    A prompt leaves the tree at one node: it shares all steps above, and below it only part of one step, with those that left there before
    or with the prompt that made the node and went on. So each prompt has one piece to compare, and its maker one more at each node.
    """

    def __init__(self) -> None:
        self._maker: dict[bytes, int] = {}
        self._left_at: dict[bytes, list[_Piece]] = defaultdict(list)
        self._went_on: dict[bytes, _Piece] = {}
        self._depths: list[int] = []

    def add(self, raw: bytes) -> None:
        """Follow one prompt down the tree and grow the rest of it."""
        request_id, node, depth = len(self._depths), _ROOT, 0
        left: bytes | None = None
        for number in range(len(raw) // _STEP):
            below = hashlib.blake2b(node + _piece(raw, number), digest_size=16).digest()
            if left is None and below not in self._maker:
                left, depth = node, number
            if left is not None:
                self._maker[below] = request_id
            node = below
        if left is None:
            left, depth = node, len(raw) // _STEP
        self._left_at[left].append((request_id, _piece(raw, depth)))
        self._depths.append(depth)

    def makers(self) -> dict[int, list[tuple[bytes, int]]]:
        """Nodes where a prompt left, with their depth, by the earlier prompt that made them."""
        found: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
        for node, pieces in self._left_at.items():
            if node != _ROOT:
                found[self._maker[node]].append((node, self._depths[pieces[0][0]]))
        return found

    def go_on(self, node: bytes, depth: int, maker: int, raw: bytes) -> None:
        """Tell how the maker of ``node`` went on; ``raw`` is all of its prompt."""
        self._went_on[node] = (maker, _piece(raw, depth))

    def shared(self) -> Int64:
        """Tokens (n,) that each prompt shares with one before it."""
        found = np.array(self._depths, dtype=np.int64) * STRIDE
        for node, pieces in self._left_at.items():
            first = [self._went_on[node]] if node in self._went_on else []
            for (request_id, _), tokens in list(zip(first + pieces, _longest_before(first + pieces), strict=True))[len(first) :]:
                found[request_id] += tokens
        return found


def _piece(raw: bytes, number: int) -> bytes:
    return raw[number * _STEP : (number + 1) * _STEP]


def _longest_before(pieces: list[_Piece]) -> list[int]:
    """Tokens that each piece shares with any before it in the list.

    In order of their bytes, the best match of a piece among those before it is one of its two neighbours once all later ones are gone; so
    later ones are taken out one by one, and what two new neighbours share is the least of what lay between them.
    """
    size = len(pieces)
    order = sorted(range(size), key=lambda k: pieces[k][1])
    before, behind = [-1] * (size + 1), [-1] * (size + 1)  # one more place, so that -1 (none) may be written to
    common = [0] * (size + 1)
    for a, b in pairwise(order):
        before[b], behind[a] = a, b
        common[b] = _common(pieces[a][1], pieces[b][1])
    best = [0] * size
    for k in reversed(range(size)):
        above, below = before[k], behind[k]
        left, right = common[k], common[below]
        best[k] = max(left, right)
        behind[above], before[below], common[below] = below, above, min(left, right)
        common[-1] = 0
    return best


def _common(a: bytes, b: bytes) -> int:
    """Tokens that two pieces begin with alike."""
    size = min(len(a), len(b))
    differing = int.from_bytes(a[:size], "big") ^ int.from_bytes(b[:size], "big")
    return (size - (differing.bit_length() + 7) // 8) // _ID_BYTES
