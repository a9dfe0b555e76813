"""Conversations on their way into a schedule: history, pauses, who waits for whom, and users that send one request after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.burstiness import NS_PER_S
from harness.errors import UsageError
from workloads.plan import SessionPlan, WorkloadPlan
from workloads.schedule import Int64, Ragged, Trace, Turns, frozen
from workloads.transforms.contract import LATEST_NS, numbered, select, sessions_of, starts_of, to_ns

Said = dict[str, object]
"""What a stage says of itself, for its entry in the log."""


def failed_pause_ns(plan: WorkloadPlan) -> int | None:
    """Least pause after a request without a complete answer, for users who go on all the same; None: nothing follows such a request."""
    return FAILED_PAUSE_NS if plan.loop == "closed" else None


def limit_turns(rows: Trace, turns: Turns, most: int) -> Trace:
    """Keep the first ``most`` turns of every session, counted among those that are there: a window may have cut earlier ones."""
    session = numbered(turns.session)
    order = np.lexsort((turns.turn, session))
    begins = np.diff(session[order], prepend=-1) > 0
    place = np.cumsum(begins | (np.diff(turns.turn[order], prepend=-1) != 0))  # turns of one number are one place: siblings of a tree
    keep = np.zeros(len(rows), dtype=np.bool_)
    keep[order] = place - place[begins][session[order]] < most
    return select(rows, keep)


def planned_answers(plan: WorkloadPlan, output_tokens: Int64, turns: Turns | None) -> Int64:
    """Tokens (n,) of each answer as a later turn's prompt holds it: as traced where the trace's prompts do (``turns`` as they were read),
    else no more than the server is told to produce."""
    if plan.output.max_tokens is None or turns is None or turns.history == "included":
        return output_tokens
    return np.minimum(output_tokens, plan.output.max_tokens)


def with_history(rows: Trace, turns: Turns, plan: SessionPlan, answers: Int64) -> tuple[Trace, Said]:
    """Make ``input_tokens`` what the server will count when history is carried as ``plan`` says.

    ``answers`` (n,): planned tokens of each answer. A trace that counts only the new part gets earlier prompt + earlier answer + new part;
    one that counts the history already is left as it is (adding it again is how other tools came to send two thirds more tokens), and a
    turn shorter than the prompt it extends starts afresh: the conversation was compacted or edited there.
    """
    if plan.history == "none":
        return replace(rows, turns=replace(turns, extends=frozen(np.full_like(turns.extends, -1)))), {}
    extends, has = turns.extends, turns.extends >= 0
    if turns.history == "excluded":
        parent = Ragged(frozen(np.concatenate((np.zeros(1, np.int64), np.cumsum(has)))), frozen(extends[has]))
        whole = accumulate(rows.input_tokens, parent, rows.input_tokens + np.where(has, answers[extends], 0))
        said: Said = {
            "history_tokens_added": int(whole.sum() - rows.input_tokens.sum()),
            "later_turns_without_history": int((~has & (turns.turn > 0)).sum()),
        }
        return replace(rows, input_tokens=frozen(whole), turns=replace(turns, history="included")), said
    shorter = has & (rows.input_tokens < rows.input_tokens[extends])
    kept = frozen(np.where(shorter, -1, extends))
    return replace(rows, turns=replace(turns, extends=kept)), {"turns_shorter_than_history": int(shorter.sum())}


def start_sessions(rows: Trace, starts_ns: Int64) -> Trace:
    """Move the k-th session to the k-th start; its turns keep their distance from its first one, and later sessions are left out.

    Sessions count in order of their first row. There are at least as many as starts.
    """
    session = sessions_of(rows)
    offset = rows.arrival_ns - starts_of(rows.arrival_ns, session)[session]
    keep = session < len(starts_ns)
    arrival = starts_ns[np.minimum(session, len(starts_ns) - 1)] + offset if len(starts_ns) else rows.arrival_ns
    return select(replace(rows, arrival_ns=frozen(arrival)), keep)


def by_the_clock(rows: Trace, turns: Turns) -> Trace:
    """Open loop: every turn at its recorded time, whatever became of the one before it."""
    nobody = Ragged(frozen(np.zeros(len(rows) + 1, np.int64)), frozen(np.empty(0, np.int64)))
    return replace(rows, turns=replace(turns, after=nobody, think_ns=frozen(np.full(len(rows), -1, np.int64))))


def waiting(rows: Trace, turns: Turns, plan: SessionPlan) -> tuple[Trace, Said]:
    """Partly open: a turn arrives its think time after the end of what it waits for.

    Its ``arrival_ns`` becomes the planned one, were every answer to take no time. Raises UsageError for pauses that nobody knows.
    """
    waits = np.diff(turns.after.offsets) > 0
    think = turns.think_ns if plan.think_s is None else np.where(waits, to_ns(plan.think_s), -1)
    unsaid = waits & (think < 0)
    unknown = int(unsaid.sum())
    if unknown and plan.think_unknown_s is None:
        what = f"turns={unknown} of {int(waits.sum())}: {rows.name} does not say how long they pause after the answer they wait for"
        remedy = "set sessions.think_unknown_s (think-unknown) for these, or think_s (think-time), which replaces every pause"
        raise UsageError.single("workload.think_unknown", what, remedy)
    said: Said = {"waiting_turns": int(waits.sum()), "pauses_unknown": unknown}
    if plan.think_unknown_s is not None:
        think = np.where(unsaid, to_ns(plan.think_unknown_s), think)
    if plan.think_limit_s is not None:
        limit = to_ns(plan.think_limit_s)
        over = waits & (think > limit)
        said |= {"pauses_capped": int(over.sum()), "capped_by_s": float((think[over] - limit).sum(dtype=np.float64)) / NS_PER_S}
        think = np.where(over, limit, think)
    arrival = accumulate(rows.arrival_ns, turns.after, np.where(waits, think, 0))
    return replace(rows, arrival_ns=frozen(arrival), turns=replace(turns, think_ns=frozen(np.where(waits, think, -1)))), said


FAILED_PAUSE_NS = NS_PER_S
"""Least pause of a closed loop's user after a request without a complete answer, 1 s: about what client libraries wait before they try
again. Without it, users of a server that refuses them would spend all rows within milliseconds, and nobody would be left when it
answers again."""

USER_SPREAD_NS = NS_PER_S
"""Users of a closed loop start evenly over this time, or over one think time where that is longer: together they would be one burst that
no later moment of the loop repeats."""


def closed(rows: Trace, users: int, think_ns: int) -> tuple[Trace, Said]:
    """Deal rows, or whole sessions, to ``users`` in turn; each sends its next request ``think_ns`` after the end of the one before.

    Where the trace has no sessions, a user's requests are one; a session that forks becomes a line, in order of its turns. A chain ends
    with its rows: how long they last is known after the run.
    Raises UsageError with fewer rows than users.
    """
    unit = sessions_of(rows)
    units = int(unit.max()) + 1 if len(unit) else 0
    if units < users:
        what = f"users={users}: there are {units} rows or sessions to share, so some users would have nothing to send"
        raise UsageError.single("workload.users", what, "lower users, or keep more of the trace")
    turn = rows.turns.turn if rows.turns is not None else np.zeros_like(unit)
    order = np.lexsort((turn, unit, unit % users))
    rows, user = rows.take(order), (unit % users)[order]
    first = np.concatenate((np.zeros(1, np.int64), np.flatnonzero(np.diff(user)) + 1))
    place = np.arange(len(user)) - first[user]
    waits = place > 0
    after = Ragged(frozen(np.concatenate((np.zeros(1, np.int64), np.cumsum(waits)))), frozen(np.flatnonzero(waits) - 1))
    turns = rows.turns or _one_session_each(user, place)
    turns = replace(turns, after=after, think_ns=frozen(np.where(waits, think_ns, -1)))
    per_user = np.bincount(user)
    if max(users, int(per_user.max())) * think_ns > 2 * LATEST_NS:
        what = f"think_s={think_ns / NS_PER_S:.9g}: {users} users of up to {int(per_user.max())} requests would be planned over decades"
        raise UsageError.single("workload.time", what, "lower sessions.think_s (think-time)")
    start = user * max(USER_SPREAD_NS, think_ns) // users
    said: Said = {"requests_per_user_least": int(per_user.min()), "requests_per_user_most": int(per_user.max())}
    return replace(rows, arrival_ns=frozen(start + place * think_ns), turns=turns), said


def _one_session_each(user: Int64, place: Int64) -> Turns:
    alone = frozen(np.full(len(user), -1, np.int64))
    nobody = Ragged(frozen(np.zeros(len(user) + 1, np.int64)), frozen(np.empty(0, np.int64)))
    return Turns(frozen(user), frozen(place), nobody, alone, alone, "included")


def in_send_order(rows: Trace, horizon_ns: int) -> tuple[Trace, Said]:
    """Rows that are planned to arrive before the horizon, by arrival; of one instant, what others wait for comes first.

    Whoever waits is planned no earlier than what it waits for, so what lies behind a turn that is left out is left out with it.
    """
    turns = rows.turns
    if turns is None:
        raise AssertionError("rows without sessions are cut where they are")
    inside = rows.arrival_ns < horizon_ns
    order = np.lexsort((_depth(turns.after), rows.arrival_ns))
    session = numbered(turns.session)
    begun = np.zeros(int(session.max()) + 1 if len(session) else 0, np.bool_)
    begun[session[inside]] = True
    said: Said = {"turns_left_out": int((~inside & begun[session]).sum())}
    return rows.take(order[inside[order]]), said


def _depth(after: Ragged) -> Int64:
    """How many rows lie before each in the way to it; all 0 where every reference points back, so that row order does as well."""
    none = np.zeros(len(after), dtype=np.int64)
    owner = np.repeat(np.arange(len(after), dtype=np.int64), np.diff(after.offsets))
    return none if (after.values.astype(np.int64) < owner).all() else accumulate(none, after, none + 1)


def accumulate(base: Int64, after: Ragged, step: Int64) -> Int64:
    """value[i] = base[i] for a row that waits for none, else step[i] + the largest value of those it waits for.

    Linear in rows and references, whatever the depth. Raises UsageError for rows that wait for each other, and for values beyond
    ``LATEST_NS``.
    """
    counts = np.diff(after.offsets)
    owner = np.repeat(np.arange(len(base), dtype=np.int64), counts)
    awaited = after.values.astype(np.int64)
    order = np.argsort(awaited, kind="stable")
    offsets = np.searchsorted(awaited[order], np.arange(len(base) + 1))
    followers = Ragged(offsets.astype(np.int64), owner[order])
    value = np.where(counts > 0, np.iinfo(np.int64).min, base)
    missing, ready = counts.copy(), np.flatnonzero(counts == 0)
    done = len(ready)
    while len(ready):
        reached = followers.take(ready)
        next_rows = reached.values.astype(np.int64)
        np.maximum.at(value, next_rows, np.repeat(value[ready], np.diff(reached.offsets)))
        np.subtract.at(missing, next_rows, 1)
        ready = np.unique(next_rows[missing[next_rows] == 0])
        _check_span(value[ready], step[ready])
        value[ready] += step[ready]
        done += len(ready)
    if done < len(base):
        what = f"rows={len(base) - done}: turns wait for each other in a circle, so none of them could ever be sent"
        raise UsageError.single("workload.circle", what, "mend the trace's references from turn to turn")
    return value


def _check_span(before: Int64, step: Int64) -> None:
    """Refuse sums that would come near the end of int64, where they turn negative."""
    over = before > LATEST_NS - step
    if over.any():
        what = f"rows={int(over.sum())}: arrival and pauses of their session add up to more than 36 years"
        raise UsageError.single("workload.time", what, "set sessions.think_limit_s (think-limit), or check the unit of the trace's pauses")
