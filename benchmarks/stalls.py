"""When a bound was missed: was it the engine, or did the machine stall? A rule, so that nobody has to want an answer.

A value beyond its limit is laid to the host when, while that value came about, (1) the truth server itself wrote a token later than the
limit, or (2) a probe of the worker's loop was late by at least half of the excess while the worker waited for a core for at least the
excess, or (3) the hypervisor kept at least the excess from this host. A bound whose p99 is missed is ``host stalled`` only if what remains
beyond the limit without such evidence is at most the hundredth part that a p99 allows; otherwise it is ``not met``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.calibrate.measure import nearest_rank
from harness.calibrate.rig import Trial
from harness.calibrate.watch import Numbers, Track
from harness.clock import NS_PER_MS, NS_PER_S

Bools = npt.NDArray[np.bool_]

MET, NOT_MET, STALLED, UNMEASURED = "met", "not met", "host stalled", "not measured"

PROBE_NS = 10 * NS_PER_MS
"""The worker probes its own loop every 10 ms, so the probe beside an instant is at most that far away."""


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


def within(name: str, value: float | None, limit: float, unit: str, words: str = "") -> Verdict:
    """A bound that no stall excuses: a share, a cost in CPU time, a size."""
    answer = UNMEASURED if value is None else MET if value <= limit else NOT_MET
    return Verdict(name, value, limit, unit, answer, words)


def at_least(name: str, value: float | None, limit: float, unit: str, words: str = "") -> Verdict:
    """A bound from below that no stall excuses."""
    answer = UNMEASURED if value is None else MET if value >= limit else NOT_MET
    return Verdict(name, value, limit, unit, answer, words)


def growth_within(name: str, early: float | None, late: float | None, limit: float, backlog: int, *, starved: bool) -> Verdict:
    """Resident bytes at the end over those near the start. What waits for a spooler that the host ``starved`` (it waited for a core longer
    than it ran) is laid to the host; what remains is held to the same limit."""
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
    beyond = np.flatnonzero(spans.values > limit_ns)
    if p99 <= limit_ns:
        return Verdict(name, p99 / NS_PER_MS, limit_ns / NS_PER_MS, "ms", MET)
    excused = int(_stalled(trial, spans.start[beyond], spans.end[beyond], spans.values[beyond] - limit_ns, limit_ns).sum())
    left = len(beyond) - excused
    allowed = len(spans.values) // 100
    words = f"{excused} of {len(beyond)} beyond the limit lie in stalls, {left} do not (allowed {allowed} of {len(spans.values)})"
    return Verdict(name, p99 / NS_PER_MS, limit_ns / NS_PER_MS, "ms", STALLED if left <= allowed else NOT_MET, words)


def _stalled(trial: Trial, start: Numbers, end: Numbers, excess: Numbers, limit_ns: int) -> Bools:
    """For each span (n,) with its excess over the limit whether one of the three kinds of evidence lies beside it."""
    clients = [track for role, track in trial.watch.tracks.items() if role.startswith("client")]
    waited = np.max([_rise(track, start, end) for track in clients], axis=0)
    late_loop = np.zeros(len(start), dtype=bool)
    for i in np.flatnonzero(waited >= excess).tolist():
        late_loop[i] = _lag(trial, int(start[i]), int(end[i])) >= excess[i] / 2
    return _within_late_writes(trial, start, end, limit_ns) | late_loop | (_rise(trial.watch.steal, start, end) >= excess)


def _within_late_writes(trial: Trial, start: Numbers, end: Numbers, limit_ns: int) -> Bools:
    """Which spans touch a time between a token's due instant and its write, of tokens that the truth server wrote later than the limit."""
    late = trial.late >= limit_ns
    due, written = trial.due_at[late], np.maximum.accumulate((trial.due_at + trial.late)[late])
    before = np.searchsorted(due, end, side="right")  # those due by the end of the span: the last written of them decides
    return (before > 0) & (np.concatenate(([-1], written))[before] >= start)


def _lag(trial: Trial, start_ns: int, end_ns: int) -> int:
    """Greatest lag of a probe that was due, and not yet run, within a probe's distance of the span."""
    at, lag = trial.lags
    first, last = np.searchsorted(at, (start_ns - LONGEST_NS, end_ns + PROBE_NS))
    return int(lag[first:last][at[first:last] + lag[first:last] >= start_ns - PROBE_NS].max(initial=0))


def _rise(track: Track, start: Numbers, end: Numbers) -> Numbers:
    """By how much (n,) the time without a core rose over each span, between the readings around it; 0 where there were none."""
    at, delay = np.array(track.at_ns, dtype=np.int64), np.array(track.delay_ns, dtype=np.int64)
    if not len(at):
        return np.zeros(len(start), dtype=np.int64)
    first = np.maximum(np.searchsorted(at, start, side="right") - 1, 0)
    last = np.minimum(np.searchsorted(at, end, side="left"), len(at) - 1)
    rise: Numbers = np.maximum(delay[last] - delay[first], 0)
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
