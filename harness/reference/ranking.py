"""Plans made from one ranking of all live requests: the best ranked run, whatever queue they stand in; the worst ranked give way."""

from __future__ import annotations

import numpy as np

from harness.reference.contract import NO_MOVES, IterationPlan, SchedulerState, WorkloadManifest, moves
from harness.reference.keys import order_keys
from harness.reference.passes import positions, seal, serve_in_order
from harness.reference.policy import Policy
from harness.reference.table import READY, RESIDENT, Int64, Table, join


def ranked_plan(policy: Policy, workload: WorkloadManifest, state: SchedulerState, *, newcomers_evict: bool = False) -> IterationPlan:
    """Serve the best ranked of all ready requests within token and sequence budget (F05, F06).

    The ranking is the policy's declared tie-break over running, suspended and waiting members together. Members of the running queue that
    are not among the best keep their place and their KV rows. When the cache is short, the worst ranked member of the running queue that
    is not served gives way (recompute), never one ranked better than the member it makes room for. A newcomer comes in only when all the
    rows it is sure to need fit; the first that does not holds back those behind it.

    ``newcomers_evict``: newcomers may take room from worse ranked members too. Only for rankings that do not change with time: under a
    changing one, two requests could rebuild in turns for ever and neither emit a token.
    """
    live = join((state.running, state.suspended, state.waiting))
    ranking = _ranking(policy, workload, state, live)
    served = ranking[: workload.budgets.sequences]
    widths = serve_in_order((live.limit - live.cells[RESIDENT]).take(served), workload.budgets.tokens)
    some = widths > 0
    served, widths = served.compress(some), widths.compress(some)
    if state.held_rows + int(_needed(live, served, widths, len(state.running)).sum()) > workload.budgets.kv_capacity:
        served, widths, gone = _make_room(workload, state, live, ranking, newcomers_evict=newcomers_evict)
    else:
        gone = []
    return _compose(policy, workload, state, served, widths, gone)


def _ranking(policy: Policy, workload: WorkloadManifest, state: SchedulerState, live: Table) -> Int64:
    ready: Int64 = live.cells[READY].nonzero()[0]
    own = policy.fields(workload, state, live)
    keys = order_keys(policy.tie_break, live, len(state.running), ready, own)
    return ready.take(np.lexsort(keys[::-1]))


def _needed(live: Table, served: Int64, widths: Int64, running: int) -> Int64:
    """Rows that must be free: the interval of a running member, the whole prompt (credit included) or rebuild of a newcomer."""
    return np.where(served < running, widths, live.limit.take(served))


def _make_room(
    workload: WorkloadManifest, state: SchedulerState, live: Table, ranking: Int64, *, newcomers_evict: bool
) -> tuple[Int64, Int64, list[int]]:
    """Serve one after the other because the cache is short: positions served, their widths, positions that give way."""
    budgets, running = workload.budgets, len(state.running)
    room = _Room(live, ranking, running, budgets.kv_capacity - state.held_rows)
    tokens, door = budgets.tokens, True
    served: dict[int, int] = {}
    for place, at in enumerate(ranking.tolist()):
        if tokens == 0 or len(served) == budgets.sequences or (not door and place > room.last_resident):
            break
        newcomer = at >= running
        if at in room.gone or (newcomer and not door):
            continue
        width = min(int(live.limit[at] - live.resident[at]), tokens)
        need = int(live.limit[at]) if newcomer else width
        if not room.find(need, place, evict=newcomers_evict or not newcomer):
            door = door and not newcomer
            continue
        room.free -= width + (int(live.resident[at]) if newcomer else 0)
        served[at], tokens = width, tokens - width
    return positions(served), positions(served.values()), list(room.gone)


class _Room:
    """Free rows, and the members of the running queue that may have to give theirs, the worst ranked last."""

    def __init__(self, live: Table, ranking: Int64, running: int, free: int) -> None:
        places = (ranking < running).nonzero()[0]
        self.free = free
        self.gone: dict[int, None] = {}
        self.last_resident = int(places[-1]) if len(places) else -1
        rows = live.resident.take(ranking.take(places))
        self._stack = [r for r in zip(places.tolist(), ranking.take(places).tolist(), rows.tolist(), strict=True) if r[2] > 0]

    def find(self, need: int, place: int, *, evict: bool) -> bool:
        """Make ``need`` rows free, taking the fewest members from the worst ranked up that rank below ``place``; False changes nothing."""
        taken = []
        missing = need - self.free
        while missing > 0 and evict and self._stack and self._stack[-1][0] > place:
            taken.append(self._stack.pop())
            missing -= taken[-1][2]
        if missing > 0:
            self._stack += reversed(taken)
            return False
        self.gone.update((at, None) for _, at, _ in taken)
        self.free += sum(rows for _, _, rows in taken)
        return True


def _compose(
    policy: Policy, workload: WorkloadManifest, state: SchedulerState, served: Int64, widths: Int64, gone: list[int]
) -> IterationPlan:
    running, suspended = len(state.running), len(state.suspended)
    new = served >= running
    if not (gone or np.count_nonzero(new)):
        return seal(policy, workload, state, state.running, served, widths)
    preempt = moves(state.running, positions(gone))
    outside = served.compress(new) - running
    resumed = np.sort(outside.compress(outside < suspended))
    admitted = np.sort(outside.compress(outside >= suspended)) - suspended
    members = join((state.running.without(preempt.at), state.suspended.take(resumed), state.waiting.take(admitted)))
    place = np.full(running + suspended + len(state.waiting), -1, np.int64)
    kept = np.setdiff1d(np.arange(running), preempt.at)
    place[np.concatenate((kept, resumed + running, admitted + running + suspended))] = np.arange(len(members))
    resume = moves(state.suspended, resumed) if len(resumed) else NO_MOVES
    admit = moves(state.waiting, admitted) if len(admitted) else NO_MOVES
    return seal(policy, workload, state, members, place.take(served), widths, preempt, resume, admit)
