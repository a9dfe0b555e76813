"""A store of prompt beginnings beside the KV cache: hashed blocks, least recently used first out, a beginning never without its own.

Only prompts are kept, from the moment they are completely computed; what was generated is not. Rows that a request takes from here are
copied into its KV room when it is admitted: room is not shared between requests, as it would be with blocks that are counted by reference.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import OrderedDict
from typing import Final

import numpy as np

from harness.reference.table import Int64, Table

Chain = tuple[bytes, ...]
"""Digests of the beginnings of one prompt: entry i stands for its first i + 1 blocks, so equal entries mean equal ids from the first on."""

_DIGEST_BYTES: Final = 16
LOOKED_AT: Final = 256
"""Waiting requests that are looked up, from the head of the queue: more are not let in at one cut, and a deep queue must not make each cut
slower. Who stands behind them has no credit yet, which only a policy that lets favoured latecomers overtake that many could notice."""


def chain_of(ids: bytes, block: int) -> Chain:
    """Digest each whole block's beginning of a prompt of one-byte ids; a block at the end that is not whole has none."""
    running = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    chain = []
    for end in range(block, len(ids) + 1, block):
        running.update(ids[end - block : end])
        chain.append(running.digest())
    return tuple(chain)


class PrefixStore:
    """At most ``capacity`` tokens in blocks of ``block`` tokens. ``version`` changes whenever a look-up could answer otherwise.
    ``remote``: it lies on another host, and rows have to be fetched from there.

    Prefix-closed: with a block the store holds all that come before it in its chain. A use touches a chain from its end to its beginning,
    so a block is always older than the one before it, and the oldest of all is one that nothing in the store follows.
    """

    def __init__(self, block: int, capacity: int, *, remote: bool = False) -> None:
        if block < 1 or capacity < block:
            raise ValueError(f"block={block}, capacity={capacity}: a store holds at least one block of at least one token")
        self.block = block
        self.remote = remote
        self.version = 0
        self._most = capacity // block
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        """Blocks held."""
        return len(self._held)

    def match(self, chain: Chain, most: int | None = None) -> int:
        """Count blocks of ``chain``, of its first ``most``, that the store holds. Bisection finds them, for what is held is a beginning."""
        held = self._held
        return bisect_left(chain, 1, 0, len(chain) if most is None else min(most, len(chain)), key=lambda digest: digest not in held)

    def touch(self, chain: Chain, blocks: int) -> None:
        """Note a use of the first ``blocks`` of ``chain``; those that are not held are left alone."""
        for digest in reversed(chain[:blocks]):
            if digest in self._held:
                self._held.move_to_end(digest)

    def insert(self, chain: Chain) -> None:
        """Keep a chain, or as much of its beginning as there is room for at all; what was used longest ago gives way."""
        held, before = self._held, len(self._held)
        for digest in reversed(chain[: self._most]):
            held[digest] = None
            held.move_to_end(digest)
        if len(held) > before:
            self.version += 1
        while len(held) > self._most:
            held.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()
        self.version += 1


class Reuse:
    """What the store gives to live requests: chains of those whose prompt is not complete, rows taken by those that were let in."""

    def __init__(self, store: PrefixStore) -> None:
        self.store = store
        self._chains: dict[int, Chain] = {}
        self._taken: dict[int, int] = {}
        self._version = 0
        self._looked = -1

    def declare(self, handle: int, chain: Chain) -> None:
        """Keep the chain of a request just numbered."""
        self._chains[handle] = chain

    def forget(self, handle: int) -> None:
        """Drop a request that ended."""
        self._chains.pop(handle, None)
        self._taken.pop(handle, None)

    def credits(self, waiting: Table) -> tuple[Int64, Int64] | None:
        """Handles and rows (2 x (k,)) of waiting requests whose match is no longer what the state says; None when nothing changed.

        The queue grows at its end and handles ascend, so what was looked up before is known by one number, and stays among the first.
        """
        first = min(len(waiting), LOOKED_AT)
        stale = self._version != self.store.version
        if not first or (not stale and int(waiting.handle[first - 1]) <= self._looked):
            return None
        handles = waiting.handle[:first]
        start = 0 if stale else int(np.searchsorted(handles, self._looked, side="right"))
        self._version, self._looked = self.store.version, int(handles[-1])
        now = np.array([self._rows(h, p) for h, p in zip(handles[start:].tolist(), waiting.prompt[start:first].tolist(), strict=True)])
        changed = (now != waiting.resident[start:first]).nonzero()[0]
        return (handles[start:].take(changed), now.take(changed)) if len(changed) else None

    def _rows(self, handle: int, prompt: int) -> int:
        # Never the whole prompt: its last row has to be computed for the first output to come of it.
        block = self.store.block
        return self.store.match(self._chains.get(handle, ()), (prompt - 1) // block) * block

    def take(self, handle: int, rows: int) -> None:
        """Note that a request was let in with ``rows`` rows of the store."""
        self._taken[handle] = rows
        self.store.touch(self._chains[handle], rows // self.store.block)

    def keep(self, handle: int) -> None:
        """Put the prompt of a request into the store: it is completely computed."""
        self.store.insert(self._chains.pop(handle, ()))

    def taken(self, handle: int) -> int:
        """Rows that a request was let in with; 0 when it computed them all."""
        return self._taken.get(handle, 0)
