"""What was made once and is asked for again: texts and their ids, up to a bound."""

from __future__ import annotations

import sys
from collections.abc import Callable

from workloads.tokens import Ids

ROOM = 256 * 2**20
"""Bytes kept, 256 MiB: 20,000 prompts of 1,000 tokens, a large run, need 210 MB with their ids, and a schedule is read three
times (digest, reuse, bodies). Beyond it, prompts are made again: first come stays, since every reading goes from the first to the last and
a cache of the latest would hold nothing when the next reading starts."""

Made = tuple[str, Ids]


class Kept:
    """Texts and ids by request id. Left behind when a schedule travels to another process, which makes its own."""

    __slots__ = ("_items", "_room")

    def __init__(self, room: int = ROOM) -> None:
        self._items: dict[int, Made] = {}
        self._room = room

    def get(self, request_id: int, make: Callable[[int], Made]) -> Made:
        """Return what was made for one request, making it if need be; ``make`` must be pure."""
        found = self._items.get(request_id)
        if found is None:
            found = make(request_id)
            size = _size(*found)
            if size <= self._room:
                self._room -= size
                self._items[request_id] = found
        return found

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()


def _size(text: str, ids: Ids) -> int:
    """Bytes in memory; a text beyond ASCII lies there twice, for it holds on to the UTF-8 that encoding a body makes of it."""
    return sys.getsizeof(text) + (0 if text.isascii() else len(text.encode())) + ids.nbytes
