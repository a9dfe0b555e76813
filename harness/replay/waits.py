"""Who waits for whom: requests that come due at the end of others, or never. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from workloads.schedule import Ragged


class Waits:
    """Requests whose arrival hangs on the ends of others. Each leaves exactly once: due, lost, or as one of the ``rest``.

    ``after`` names for each request those it waits for (none: it is not ours), which must form no circle; ``think_ns`` is the pause from
    the last of their ends to its arrival.
    """

    __slots__ = ("_followers", "_free_ns", "_left", "_think_ns")

    def __init__(self, after: Ragged | None, think_ns: Sequence[int]) -> None:
        self._think_ns = think_ns
        self._left: dict[int, int] = {}  # waiting request -> predecessors that have not ended
        self._free_ns: dict[int, int] = {}  # its earliest arrival, as far as ends are known
        self._followers: dict[int, list[int]] = {}
        for request in range(0 if after is None else len(after)):
            before = set(after.row(request).tolist()) if after is not None else ()
            if before:
                self._left[request] = len(before)
            for one in before:
                self._followers.setdefault(one, []).append(request)

    def __contains__(self, request: int) -> bool:
        """Whether it still waits."""
        return request in self._left

    def followed(self, request: int) -> bool:
        """Whether some other request waits for its end."""
        return request in self._followers

    def ended(self, request: int, end_ns: int, pause_ns: int = 0) -> list[tuple[int, int]]:
        """Take the (arrival, id) of each request that waited for this end last: the latest end it waited for plus its think time.

        ``pause_ns``: none of them arrives sooner than this after ``end_ns``, however short its think time.
        """
        due = []
        for follower in self._followers.pop(request, ()):
            if follower not in self._left:
                continue  # lost with another of its predecessors
            free_ns = end_ns + max(self._think_ns[follower], pause_ns)
            self._free_ns[follower] = max(free_ns, self._free_ns.get(follower, free_ns))
            self._left[follower] -= 1
            if self._left[follower] == 0:
                del self._left[follower]
                due.append((self._free_ns.pop(follower), follower))
        return due

    def lost(self, request: int) -> list[int]:
        """Take every request that waited for this one, or for one that did, and so on: none of them comes due any more."""
        lost, open_ = [], [request]
        while open_:
            for follower in self._followers.pop(open_.pop(), ()):
                if self._left.pop(follower, None) is not None:
                    lost.append(follower)
                    open_.append(follower)
        return lost

    def rest(self) -> list[int]:
        """Take every request that still waits, in order."""
        rest = sorted(self._left)
        self._left.clear()
        return rest
