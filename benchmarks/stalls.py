"""When a bound was missed: was it the engine, or did the machine stall? A rule, so that nobody has to want an answer.

A value beyond its limit is laid to the host when, while that value came about, (1) the truth server wrote a token later than the limit, for
which neither its own work accounts, nor ours on its core, or (2) a probe of the worker's loop was late by at least half of the excess while
the worker waited for a core for at least the excess, what our other processes ran on that core not counted, or (3) the hypervisor kept at
least the excess from this host. A pause of the engine itself is none of these: it waits for no core, and makes nobody else late.

Evidence may also lie beside a fault of ours by chance. How often is seen where nothing was late: a share q of the values within the limit
has such evidence too, so the faults of ours are taken to be 1 / (1 - q) times what remains without. A bound whose p99 is missed is
``host stalled`` only if those are at most the hundredth part that a p99 allows; otherwise it is ``not met``. Where q is over a half, and
what remains is within that part, nothing can be told: ``not measured``.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.calibrate.measure import nearest_rank
from harness.calibrate.rig import Place, Trial
from harness.calibrate.watch import Numbers
from harness.clock import NS_PER_MS, NS_PER_S

Bools = npt.NDArray[np.bool_]

MET, NOT_MET, STALLED, UNMEASURED = "met", "not met", "host stalled", "not measured"

PROBE_NS = 10 * NS_PER_MS
"""The worker probes its own loop every 10 ms, so the probe beside an instant is at most that far away."""


MOST_CHANCE = 0.5
"""Where most of what was in time has stalls beside it, a stall beside what was late says nothing of why."""

SAMPLED = 5_000
"""Values looked at for that share: its standard error is then at most 0.7%."""

LONGEST_NS = 2 * NS_PER_S
"""Probes due earlier than this before a span are not looked at: a stall of two seconds spoils a run in any case."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bound: what was found, what is allowed, and the answer with its reason in figures."""

    name: str
    value: float | None
    limit: float
    unit: str
    verdict: str
    words: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Values (n,) ns with the time over which each came about (n,), monotonic ns."""

    values: Numbers
    start: Numbers
    end: Numbers

    def at(self, places: Numbers) -> Spans:
        """Those of the given places."""
        return Spans(self.values[places], self.start[places], self.end[places])


def within(name: str, value: float | None, limit: float, unit: str, words: str = "") -> Verdict:
    """A bound that no stall excuses: a share, a cost in CPU time, a size."""
    answer = UNMEASURED if value is None else MET if value <= limit else NOT_MET
    return Verdict(name, value, limit, unit, answer, words)


def at_least(name: str, value: float | None, limit: float, unit: str, words: str = "") -> Verdict:
    """A bound from below that no stall excuses."""
    answer = UNMEASURED if value is None else MET if value >= limit else NOT_MET
    return Verdict(name, value, limit, unit, answer, words)


def growth_within(name: str, early: float | None, late: float | None, limit: float, backlog: int, *, starved: bool) -> Verdict:
    """Resident bytes at the end over those near the start. What waits for a spooler that the host ``starved`` (see there) is laid to
    the host; what remains is held to the same limit."""
    if early is None or late is None:
        return Verdict(name, None, limit, "x", UNMEASURED)
    words = f"{early / 1e6:.1f} MB after a tenth of the time, {late / 1e6:.1f} MB at its end"
    words += f"; at most {backlog / 1e6:.1f} MB waited for the spooler" if backlog else ""
    if late <= limit * early:
        return Verdict(name, late / early, limit, "x", MET, words)
    excused = starved and late - backlog <= limit * early
    return Verdict(name, late / early, limit, "x", STALLED if excused else NOT_MET, words + (", which lacked a core" if starved else ""))


def p99_within(name: str, spans: Spans, limit_ns: int, trial: Trial) -> Verdict:
    """The p99 (nearest rank) of lateness against its limit, by the rule above. Figures in ms."""
    p99 = nearest_rank(spans.values, 0.99)
    if p99 is None:
        return Verdict(name, None, limit_ns / NS_PER_MS, "ms", UNMEASURED, "no request got so far")
    limit = limit_ns / NS_PER_MS
    if p99 <= limit_ns:
        return Verdict(name, p99 / NS_PER_MS, limit, "ms", MET)
    beyond = np.flatnonzero(spans.values > limit_ns)
    excess = spans.values[beyond] - limit_ns
    excused = int(_stalled(trial, spans.at(beyond), excess, limit_ns).sum())
    left, allowed = len(beyond) - excused, len(spans.values) // 100
    words = f"{excused} of {len(beyond)} beyond the limit lie in stalls, {left} do not (allowed {allowed} of {len(spans.values)})"
    if left > allowed:
        return Verdict(name, p99 / NS_PER_MS, limit, "ms", NOT_MET, words)
    chance = _by_chance(trial, spans, int(np.median(excess)), limit_ns)
    words += f"; stalls lie beside {100 * chance:.3g}% of what was in time"
    answer = UNMEASURED if chance > MOST_CHANCE else STALLED if left <= allowed * (1 - chance) else NOT_MET
    return Verdict(name, p99 / NS_PER_MS, limit, "ms", answer, words)


def _stalled(trial: Trial, spans: Spans, excess: Numbers, limit_ns: int) -> Bools:
    """For each span (n,) with its excess over the limit whether one of the three kinds of evidence lies beside it."""
    start, end = spans.start, spans.end
    waited = np.max([_waited(trial, role, start, end) for role in trial.watch.tracks if role.startswith("client")], axis=0)
    late_loop = np.zeros(len(start), dtype=bool)
    for i in np.flatnonzero(waited >= excess).tolist():
        late_loop[i] = _lag(trial, int(start[i]), int(end[i])) >= excess[i] / 2
    steal = trial.watch.steal
    return _within_late_writes(trial, start, end, limit_ns) | late_loop | (_rise(steal.at_ns, steal.delay_ns, start, end) >= excess)


def _by_chance(trial: Trial, spans: Spans, excess_ns: int, limit_ns: int) -> float:
    """Share of the values within the limit that have evidence beside them for an excess that they have not; 1 when none is within."""
    calm = np.flatnonzero(spans.values <= limit_ns)
    calm = calm[:: len(calm) // SAMPLED + 1]
    if not len(calm):
        return 1.0
    return float(_stalled(trial, spans.at(calm), np.full(len(calm), excess_ns, dtype=np.int64), limit_ns).mean())


def _within_late_writes(trial: Trial, start: Numbers, end: Numbers, limit_ns: int) -> Bools:
    """Which spans touch a time between a token's due instant and its write, of tokens that the truth server wrote later than the limit
    through no work of its own or of ours."""
    due, lateness = trial.due_at[trial.late >= limit_ns], trial.late[trial.late >= limit_ns]
    stalled = lateness - _own_work(trial, due, due + lateness) - _ours(trial, "server", due, due + lateness) >= limit_ns
    due, written = due[stalled], np.maximum.accumulate((due + lateness)[stalled])
    before = np.searchsorted(due, end, side="right")  # those due by the end of the span: the last written of them decides
    return (before > 0) & (np.concatenate(([-1], written))[before] >= start)


def _own_work(trial: Trial, due: Numbers, written: Numbers) -> Numbers:
    """How late (n,) the truth server can have made a token itself: by the others that it wrote meanwhile, at twice what one cost it on
    average, for receiving comes in bursts. All the time there is, when its CPU time is not known."""
    track = trial.watch.tracks.get("server")
    if track is None or len(track.cpu_ns) < 2:
        return written - due
    cost_ns = (track.cpu_ns[-1] - track.cpu_ns[0]) / max(1, len(trial.late))
    every = np.sort(trial.due_at + trial.late)
    others = np.searchsorted(every, written, side="right") - np.searchsorted(every, due, side="right") - 1
    work: Numbers = np.ceil(2 * cost_ns * np.maximum(others, 0)).astype(np.int64)
    return work


def _waited(trial: Trial, role: str, start: Numbers, end: Numbers) -> Numbers:
    """How long (n,) a process waited for a core while none of our others that may use it ran; never below 0."""
    track = trial.watch.tracks[role]
    foreign: Numbers = np.maximum(_rise(track.at_ns, track.delay_ns, start, end) - _ours(trial, role, start, end), 0)
    return foreign


def _ours(trial: Trial, role: str, start: Numbers, end: Numbers) -> Numbers:
    """How long (n,) our other processes ran that may have been on the cores of ``role``."""
    others = [track for name, track in trial.watch.tracks.items() if name != role and _share(trial.place, role, name)]
    return sum((_rise(track.at_ns, track.ran_ns, start, end) for track in others), np.zeros(len(start), dtype=np.int64))


def _share(place: Place, *roles: str) -> bool:
    """Whether two processes may run on one core; none reserved is any core."""
    one, other = (set(getattr(place, role.partition("/")[0])) for role in roles)
    return not one or not other or bool(one & other)


def starved(trial: Trial, role: str, start_ns: int, end_ns: int) -> bool:
    """Whether a process waited for a core that none of our others used longer than it had one; not, when it was not seen to the end."""
    if trial.watch.tracks[role].cpu_between(start_ns, end_ns) is None:
        return False
    span = np.array([start_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64)
    track = trial.watch.tracks[role]
    return bool(_waited(trial, role, *span)[0] > _rise(track.at_ns, track.ran_ns, *span)[0])


def _lag(trial: Trial, start_ns: int, end_ns: int) -> int:
    """Greatest lag of a probe that was due, and not yet run, within a probe's distance of the span."""
    at, lag = trial.lags
    first, last = np.searchsorted(at, (start_ns - LONGEST_NS, end_ns + PROBE_NS))
    return int(lag[first:last][at[first:last] + lag[first:last] >= start_ns - PROBE_NS].max(initial=0))


def _rise(at_ns: array[int], values: array[int], start: Numbers, end: Numbers) -> Numbers:
    """By how much (n,) a reading rose over each span, between the readings around it; 0 where there were none."""
    at, value = np.array(at_ns, dtype=np.int64), np.array(values, dtype=np.int64)
    if not len(at) or not len(value):
        return np.zeros(len(start), dtype=np.int64)
    first = np.maximum(np.searchsorted(at, start, side="right") - 1, 0)
    last = np.minimum(np.searchsorted(at, end, side="left"), len(at) - 1)
    rise: Numbers = np.maximum(value[last] - value[first], 0)
    return rise


def slips(trial: Trial, chosen: Numbers) -> Spans:
    """Slip of the chosen requests that were sent, from arrival to send."""
    sent = [(e.slip_ns, e.arrival_ns) for i in chosen.tolist() if (e := trial.exchanges[i]) is not None and e.slip_ns is not None]
    values, arrivals = np.array(sent, dtype=np.int64).reshape(-1, 2).T
    start = arrivals + trial.epoch_ns
    return Spans(values, start, start + values)


def ttft_errors(trial: Trial, chosen: Numbers) -> Spans:
    """Client stamp minus logged write of the first token, of the chosen requests that were delivered."""
    firsts = [(e.truth[0], e.client[0]) for i in chosen.tolist() if (e := trial.exchanges[i]) is not None and e.delivered]
    truth, client = np.array(firsts, dtype=np.int64).reshape(-1, 2).T
    return Spans(client - truth, truth + trial.epoch_ns, client + trial.epoch_ns)


def tbt_errors(trial: Trial, chosen: Numbers) -> Spans:
    """Absolute difference of each gap as stamped and as written, of the chosen requests that were delivered."""
    whole = [e for i in chosen.tolist() if (e := trial.exchanges[i]) is not None and e.delivered and len(e.client) > 1]
    if not whole:
        return Spans(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
    values = np.concatenate([np.abs(np.diff(e.client) - np.diff(e.truth)) for e in whole])
    start, end = np.concatenate([e.truth[:-1] for e in whole]), np.concatenate([e.client[1:] for e in whole])
    return Spans(values, start + trial.epoch_ns, end + trial.epoch_ns)


def peak_open(trial: Trial) -> int:
    """Most streams that were open at once as both sides saw it: from the first token written to the last token stamped."""
    whole = [e for e in trial.exchanges if e is not None and len(e.client) and len(e.truth)]
    opened = np.sort(np.array([e.truth[0] for e in whole], dtype=np.int64))
    closed = np.sort(np.array([e.client[-1] for e in whole], dtype=np.int64))
    open_then = np.arange(1, len(opened) + 1) - np.searchsorted(closed, opened, side="right")
    return int(open_then.max(initial=0))
