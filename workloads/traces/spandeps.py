"""What each model call waits for: links, answers quoted in its prompt, or, lacking both, the order of times."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Request:
    """A model call: session, own id, times in ns, causes by id, digests of the messages of its prompt and answer, tokens in all and in."""

    session: str
    identity: tuple[str, str]
    start_ns: int
    end_ns: int
    causes: tuple[tuple[str, str], ...]
    prompt: tuple[bytes, ...]
    answer: tuple[bytes, ...]
    tokens_all: int
    tokens_in: int

    @property
    def begins(self) -> int:
        """Start in half nanoseconds."""
        return 2 * self.start_ns

    @property
    def ends(self) -> int:
        """End in half nanoseconds, after the start also where the stamps are equal: so `a.ends <= b.begins` is an order without cycles."""
        return max(2 * self.end_ns, 2 * self.start_ns + 1)


Waits = list[tuple[list[int], int]]
"""By row: (rows it waits for, ascending; row whose prompt and answer begin its prompt, or -1)."""


def waits_of(requests: list[Request]) -> tuple[Waits, int]:
    """Dependencies of every request, and how many were guessed from times alone. All of them point to requests that ended before."""
    place = {request.identity: row for row, request in enumerate(requests)}
    sessions: dict[str, list[int]] = {}
    for row in sorted(range(len(requests)), key=lambda r: (requests[r].start_ns, r)):
        sessions.setdefault(requests[row].session, []).append(row)
    waits: Waits = [([], -1) for _ in requests]
    guessed = 0
    for rows in sessions.values():
        direct = {row: _linked(requests, row, place) | quoted for row, quoted in _quoted(requests, rows).items()}
        if not any(direct.values()) and not any(requests[row].prompt for row in rows):
            direct = _by_time(requests, rows)
            guessed += sum(map(bool, direct.values()))
        reduced = _reduced(rows, direct)
        for row in rows:
            waits[row] = reduced[row], _extended(requests, row, direct[row])
    return waits, guessed


def _linked(requests: list[Request], row: int, place: dict[tuple[str, str], int]) -> set[int]:
    """Parents and links that ended before the request began; one still running encloses it and is no reason to wait."""
    causes = (place.get(cause, -1) for cause in requests[row].causes)
    return {other for other in causes if other >= 0 and requests[other].ends <= requests[row].begins}


def _quoted(requests: list[Request], rows: list[int]) -> dict[int, set[int]]:
    """Requests of the session whose answer stands in each prompt; of equal answers the last one that had ended."""
    spoken: dict[bytes, list[int]] = {}
    for row in sorted(rows, key=lambda r: requests[r].ends):
        for message in requests[row].answer:
            spoken.setdefault(message, []).append(row)
    quoted: dict[int, set[int]] = {}
    for row in rows:
        quoted[row] = set()
        for message in requests[row].prompt:
            speakers = spoken.get(message, [])
            ended = bisect_right(speakers, requests[row].begins, key=lambda r: requests[r].ends)
            quoted[row].update(speakers[max(0, ended - 1) : ended])
    return quoted


def _by_time(requests: list[Request], rows: list[int]) -> dict[int, set[int]]:
    """The interval order's covering relation: A before B, and nothing of the session both after A and before B."""
    ended = sorted(rows, key=lambda r: (requests[r].ends, r))
    ends = [requests[row].ends for row in ended]
    latest = list(accumulate((requests[row].begins for row in ended), max))
    direct: dict[int, set[int]] = {}
    for row in rows:
        last = bisect_right(ends, requests[row].begins)
        first = bisect_right(ends, latest[last - 1], hi=last) if last else 0
        direct[row] = set(ended[first:last])
    return direct


def _extended(requests: list[Request], row: int, direct: set[int]) -> int:
    """The direct cause with the longest prompt that, with its answer, begins this prompt; -1 when there is none."""
    here, best = requests[row], -1
    for other in sorted(direct):
        before = requests[other]
        told = before.prompt + before.answer
        begins = bool(before.prompt) and here.prompt[: len(told)] == told and here.tokens_in >= before.tokens_all
        if begins and (best < 0 or len(before.prompt) > len(requests[best].prompt)):
            best = other
    return best


def _reduced(rows: list[int], direct: dict[int, set[int]]) -> dict[int, list[int]]:
    """Drop what another dependency waits for already, within the session; ``rows`` are in order of start, causes before effects.

    Ancestors are bit sets over the session's rows, needed only when some request has two dependencies.
    """
    if all(len(causes) < 2 for causes in direct.values()):
        return {row: sorted(causes) for row, causes in direct.items()}
    bit = {row: 1 << i for i, row in enumerate(rows)}
    ancestors: dict[int, int] = {}
    reduced: dict[int, list[int]] = {}
    for row in rows:
        implied = own = 0
        for other in direct[row]:
            implied |= ancestors.get(other, 0)
            own |= bit.get(other, 0)
        ancestors[row] = implied | own
        reduced[row] = sorted(other for other in direct[row] if not implied & bit.get(other, 0))
    return reduced
