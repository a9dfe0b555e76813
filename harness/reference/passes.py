"""Plans made in two passes: the running queue is served in an order, then others are let in, in an order (F05, F06, F28, F29)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np

from harness.reference.admission import NO_RESERVATIONS, reservations
from harness.reference.contract import (
    END,
    NO_MOVES,
    IterationPlan,
    Ledger,
    Moves,
    SchedulerState,
    WorkloadManifest,
    credit_rows,
    make_work,
    moves,
)
from harness.reference.keys import first_descent, order_keys
from harness.reference.policy import Policy
from harness.reference.room import Room, held_after, holds_room
from harness.reference.table import (
    COMPUTED,
    MAXIMUM,
    ORDER,
    PRIORITY,
    PROMPT,
    READY,
    RESIDENT,
    Int64,
    Table,
    all_ones,
    in_blocks,
    join,
    one_in_blocks,
    ones,
    positions_of,
)

Victim = Callable[[Table, list[int]], int]
"""Chooses the position that gives way among running positions (in running order)."""

Candidate = tuple[int, int]
"""Queue (SUSPENDED or WAITING) and position in it."""

SUSPENDED, WAITING = 0, 1
_NONE = np.zeros(0, np.int64)


def tail(_running: Table, left: list[int]) -> int:
    """First come first served: the last of the running queue gives way."""
    return left[-1]


def least_favoured(running: Table, left: list[int]) -> int:
    """Priority: the greatest (priority, arrival order) gives way."""
    return max(left, key=lambda at: (int(running.priority[at]), int(running.order[at])))


def positions(values: Iterable[int]) -> Int64:
    """Array of positions."""
    return np.fromiter(values, np.int64)


def serve_in_order(wants: Int64, tokens: int) -> Int64:
    """Give each member in order what it wants while tokens last; the last one served may get a part."""
    before = wants.cumsum() - wants
    return np.minimum(np.maximum(tokens - before, 0), wants)


class Draft:
    """One plan in the making. ``held``: KV rows resident if the plan completes; ``tokens_left``: rows the budget still allows."""

    def __init__(self, policy: Policy, workload: WorkloadManifest, state: SchedulerState) -> None:
        self.policy = policy
        self.workload = workload
        self.state = state
        self.tokens_left = workload.budgets.tokens
        self.sequences_left = workload.budgets.sequences
        self.held = state.held_rows
        self.preempted: list[int] = []
        self.resumed: list[int] = []
        self.admitted: list[int] = []
        self._served = _NONE
        self._widths = _NONE
        self._let_in: list[tuple[Candidate, int]] = []
        self.called: list[int] = []
        self.room = Room(workload, state) if workload.counted else None
        if self.room is not None:
            self.held = self.room.held

    def serve_running(self, order: Int64 | None = None, *, cap: int = 0, victim: Victim | None = tail) -> None:
        """Give running members their next interval, in ``order`` (default: queue order), ``cap`` rows at most each (0: no cap).

        When the cache cannot take an interval, ``victim`` gives way until it can; a member that must give way itself ends the pass.
        ``victim`` None: an interval that does not fit is left out (for policies that reserve ahead and never preempt).
        """
        running = self.state.running
        if order is None:
            order = positions_of(running)
        if self.room is None and running.decoding and self._room_for(len(order)) and all_ones(running.cells[READY]):
            self._give(order, ones(len(order)), len(order), len(order))
            return
        wants = running.limit - running.cells[RESIDENT]
        if cap:
            wants = np.minimum(wants, cap)
        wants = (wants * running.cells[READY]).take(order)
        total = int(np.add.reduce(wants))
        if total > self.tokens_left:
            wants = serve_in_order(wants, self.tokens_left)
            total = int(np.add.reduce(wants))
        chosen = wants.nonzero()[0][: self.sequences_left]
        if len(chosen) < len(order):
            order, wants = order.take(chosen), wants.take(chosen)
            total = int(np.add.reduce(wants))
        grown = wants if self.room is None else self.room.growth(order, wants)
        more = total if self.room is None else int(grown.sum())
        if self.held + more > self.workload.budgets.kv_capacity:
            self._serve_short(order, wants, grown, victim)
            return
        self._give(order, wants, total, more)

    def _room_for(self, rows: int) -> bool:
        """Whether so many decode rows fit within every budget."""
        return rows <= min(self.tokens_left, self.sequences_left, self.workload.budgets.kv_capacity - self.held)

    def _give(self, order: Int64, widths: Int64, total: int, more: int) -> None:
        self._served, self._widths = order, widths
        self.tokens_left -= total
        self.sequences_left -= len(order)
        self.held += more

    def _serve_short(self, order: Int64, widths: Int64, grown: Int64, victim: Victim | None) -> None:
        """Serve one after the other because the cache is short; ``grown``: rows that each interval takes of it.

        Rows that are on their way out count for the question who else has to give way, and serve nobody before they are free.
        """
        running, capacity = self.state.running, self.workload.budgets.kv_capacity
        left, coming = list(range(len(running))), 0 if self.room is None else self.room.coming
        given: dict[int, tuple[int, int]] = {}
        for at, width, more in zip(order.tolist(), widths.tolist(), grown.tolist(), strict=True):
            if at not in left:
                continue
            while self.held - coming + more > capacity and victim is not None:
                gone = victim(running, left)
                left.remove(gone)
                self.preempted.append(gone)
                now, later = (int(running.resident[gone]), 0) if self.room is None else self.room.given_up(gone)
                self.held -= now + given.pop(gone, (0, 0))[1]
                coming += later
                if gone == at:
                    break
            if at not in left:
                break
            if self.held + more <= capacity:
                given[at] = width, more
                self.held += more
        self.tokens_left -= sum(width for width, _ in given.values())
        self.sequences_left -= len(given)
        self._served, self._widths = positions(given), positions(width for width, _ in given.values())

    def queue(self) -> Iterable[Candidate]:
        """Candidates first come first served: who was preempted goes before who has not run, as the pinned source prepends them."""
        yield from ((SUSPENDED, at) for at in range(len(self.state.suspended)))
        yield from ((WAITING, at) for at in range(len(self.state.waiting)))

    def table(self, candidate: Candidate) -> Table:
        """Queue of a candidate."""
        return self.state.waiting if candidate[0] == WAITING else self.state.suspended

    def demand(self, candidate: Candidate) -> int:
        """Rows of the candidate's next interval were there no budget."""
        return self.whole(candidate) - self.credit(candidate)

    def whole(self, candidate: Candidate) -> int:
        """Rows that the candidate holds once its next interval is done: its prompt, or what it rebuilds."""
        return int(self.table(candidate).limit[candidate[1]])

    def credit(self, candidate: Candidate) -> int:
        """Rows of it that need not be computed; they take room when it is let in."""
        return int(self.table(candidate).resident[candidate[1]])

    def is_ready(self, candidate: Candidate) -> bool:
        """Whether every dependency of the candidate is ready."""
        return bool(self.table(candidate).ready[candidate[1]])

    def let_in(self, candidate: Candidate, width: int, taken: int | None = None) -> None:
        """Admit or resume a candidate with an interval of ``width`` rows (0: it takes its place and runs from the next iteration).

        One whose rows a second tier holds is called back from there instead. ``taken``: rows of the cache, where a row is not simply one.
        """
        if taken is not None and candidate[0] == SUSPENDED and self.state.suspended.preserved[candidate[1]]:
            self.called.append(candidate[1])
            self.held += taken
            return
        (self.admitted if candidate[0] == WAITING else self.resumed).append(candidate[1])
        self._let_in.append((candidate, width))
        self.tokens_left -= width
        self.sequences_left -= width > 0
        self.held += width + self.credit(candidate) if taken is None else taken

    def promised(self) -> int:
        """KV rows that members of the running queue hold or are sure to need for their prompt or rebuild."""
        running = self.state.running
        known = np.maximum(np.maximum(running.cells[PROMPT], running.cells[COMPUTED]), running.limit)
        return int(known.sum() - known.take(self.preempted).sum())

    def reserved(self) -> int:
        """KV rows reserved by declared maxima for the running queue (the conservative counter of ORCA's Algorithm 1)."""
        running = self.state.running
        return int(in_blocks(running.cells[PROMPT] + running.cells[MAXIMUM], self.workload.budgets.kv_block).sum())

    @property
    def running_after(self) -> int:
        """Members of the running queue under this plan."""
        return len(self.state.running) - len(self.preempted) + len(self._let_in)

    @property
    def others(self) -> bool:
        """Whether anybody stands outside the running queue."""
        return len(self.state.waiting) > 0 or len(self.state.suspended) > 0

    def finish(self, notes: tuple[tuple[str, int], ...] = ()) -> IterationPlan:
        """Freeze the draft; intervals are listed in the declared order."""
        state = self.state
        promote = moves(state.suspended, positions(self.called)) if self.called else NO_MOVES
        if not (self.preempted or self._let_in):
            return seal(self.policy, self.workload, state, state.running, self._served, self._widths, notes=notes, promote=promote)
        preempt = moves(state.running, positions(self.preempted))
        resume, admit = moves(state.suspended, positions(self.resumed)), moves(state.waiting, positions(self.admitted))
        members = join((state.running.without(preempt.at), state.suspended.take(resume.at), state.waiting.take(admit.at)))
        kept = len(state.running) - len(self.preempted)
        at, widths = self._positions(kept)
        return seal(self.policy, self.workload, state, members, at, widths, preempt, resume, admit, notes, promote)

    def _positions(self, kept: int) -> tuple[Int64, Int64]:
        served = self._served
        if self.preempted:
            place = np.ones(len(self.state.running), np.int64)
            place[self.preempted] = 0
            served = (place.cumsum() - 1).take(served)
        places = {c: kept + i for i, c in enumerate([(SUSPENDED, a) for a in self.resumed] + [(WAITING, a) for a in self.admitted])}
        new = [(places[candidate], width) for candidate, width in self._let_in if width > 0]
        at = np.concatenate((served, positions([p for p, _ in new])))
        return at, np.concatenate((self._widths, positions([w for _, w in new])))


def by_priority(draft: Draft) -> Iterator[Candidate]:
    """Suspended and waiting requests by (priority, arrival order); sorts only when the first one is asked for."""
    outside, suspended = join((draft.state.suspended, draft.state.waiting)), len(draft.state.suspended)
    for at in np.lexsort((outside.cells[ORDER], outside.cells[PRIORITY])).tolist():
        yield (SUSPENDED, at) if at < suspended else (WAITING, at - suspended)


def admit_known(draft: Draft, candidates: Iterable[Candidate], *, cap: int = 0) -> None:
    """Let candidates in while all rows they are sure to need fit beside those of the running queue (F28, F29); stop at the first misfit.

    Unready candidates are passed over, as requests that wait for remote KV are. With nothing running the watermark protects nobody, and
    holding on to it could block one long prompt for ever. ``cap``: greatest interval of a candidate (0: no cap).
    """
    budgets = draft.workload.budgets
    if draft.tokens_left == 0 or draft.running_after >= budgets.sequences or not draft.others:
        return  # the common case: do not sort a long queue for nothing
    if draft.room is not None:
        _admit_counted(draft, draft.room, candidates, cap)
        return
    promised = draft.promised()
    for candidate in candidates:
        if draft.tokens_left == 0 or draft.running_after >= budgets.sequences:
            return
        if not draft.is_ready(candidate):
            continue
        need, whole = draft.demand(candidate), draft.whole(candidate)
        ceiling = budgets.kv_capacity - (budgets.kv_watermark if draft.running_after else 0)
        if promised + whole > ceiling:
            return
        promised += whole
        draft.let_in(candidate, min(need, draft.tokens_left, cap or need))


def _admit_counted(draft: Draft, room: Room, candidates: Iterable[Candidate], cap: int) -> None:
    """``admit_known`` where rows are promised ahead, given in blocks, or called back from a second tier.

    Who is back on the device holds its room already and goes on, whoever misfits before it: each would wait for the other's room for ever.
    """
    budgets, suspended, fits = draft.workload.budgets, draft.state.suspended, True
    promised = room.promised(draft.held, draft.preempted)
    back = set(((suspended.resident > 0) & (suspended.ready == 1)).nonzero()[0].tolist())
    company = holds_room(suspended)
    for candidate in candidates:
        if not fits and not back:
            return
        if candidate[0] == SUSPENDED and candidate[1] in back:
            back.remove(candidate[1])
        elif not fits:
            continue
        inside = draft.running_after + len(draft.called)
        if draft.tokens_left == 0 or inside >= budgets.sequences:
            return
        if not draft.is_ready(candidate):
            continue
        need = draft.demand(candidate)
        width = min(need, draft.tokens_left, cap or need)
        extra, taken = room.asks(draft.table(candidate), candidate[1], width, suspended=candidate[0] == SUSPENDED)
        ceiling = budgets.kv_capacity - (budgets.kv_watermark if inside or company else 0)
        if (extra and promised + extra > ceiling) or draft.held + taken > budgets.kv_capacity:
            fits = False
            continue
        promised += extra
        draft.let_in(candidate, width, taken)


def admit_reserving(
    draft: Draft, candidates: Iterable[Candidate], *, slots: int, cap: int = 0, limit: int = 0, seats: bool = False
) -> None:
    """Let candidates in while their declared maxima fit (prompt plus greatest output); stop at the first misfit.

    Nobody is ever preempted under this rule: every row that could be needed is reserved before the first one is computed. A prompt runs in
    pieces of what the token budget leaves. ``slots``: greatest running queue; ``cap``: greatest piece (0: none); ``limit``: newcomers of
    one iteration (0: any); ``seats``: newcomers take their place also when no row is left for them, and run from the next iteration on.
    """
    if draft.running_after >= slots or not draft.others:
        return
    reserved, block = draft.reserved(), draft.workload.budgets.kv_block
    for candidate in islice(candidates, limit or None):
        if draft.running_after >= slots or not draft.is_ready(candidate) or not (draft.tokens_left or seats):
            return
        maximum = one_in_blocks(draft.whole(candidate) + int(draft.table(candidate).maximum[candidate[1]]), block)
        if reserved + maximum > draft.workload.budgets.kv_capacity:
            return
        reserved += maximum
        need = draft.demand(candidate)
        width = min(need, cap or need, draft.tokens_left)
        draft.let_in(candidate, width, None if draft.room is None else one_in_blocks(width + draft.credit(candidate), block))


def seal(
    policy: Policy, workload: WorkloadManifest, state: SchedulerState, members: Table, at: Int64, widths: Int64,
    preempt: Moves | None = None, resume: Moves | None = None, admit: Moves | None = None, notes: tuple[tuple[str, int], ...] = (),
    promote: Moves = NO_MOVES,
) -> IterationPlan:  # fmt: skip
    """Make the plan that runs ``widths`` rows of the ``members`` at positions ``at``, listed by the declared tie-break, with its ledger."""
    preempt, resume, admit = preempt or NO_MOVES, resume or NO_MOVES, admit or NO_MOVES
    kept = len(state.running) - len(preempt.at)
    tie_break, own = policy.tie_break, policy.fields(workload, state, members)
    order = order_keys(tie_break, members, kept, at, own)
    if first_descent(order) >= 0:
        sort = np.lexsort(order[::-1])
        at, widths = at.take(sort), widths.take(sort)
        order = order.take(sort, axis=1)
        order.flags.writeable = False
    tokens = len(at) if all_ones(widths) else int(np.add.reduce(widths))
    work, reserve = make_work(members, at, widths), NO_RESERVATIONS
    if workload.counted:
        ends, called = work.cells[END], state.suspended.take(promote.at)
        held = held_after(workload, state, members, at, ends, preempt, admit, promote)
        reserve = reservations(workload.admission, state.learned, members, at, ends, workload.budgets.kv_block, called)
    else:
        freed = int(state.running.resident.take(preempt.at).sum()) if len(preempt.at) else 0
        held = state.held_rows - freed + credit_rows(state, admit) + tokens
    return IterationPlan(
        state.decision_id, state.state_version, policy.policy_id, policy.policy_version, work, order, Ledger(tokens, len(at), held),
        preempt, resume, admit, notes, reserve=reserve, promote=promote,
    )  # fmt: skip
