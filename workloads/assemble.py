"""Rows of a schedule: a trace through its chain, or drawn lengths, then history, loop and horizon, with a log of all of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.errors import UsageError
from workloads import arrivals, seeds, sessions, transforms
from workloads.check import PAUSES, check_clock, check_sessions
from workloads.plan import LengthDistribution, SessionPlan, TraceArrivals, WorkloadPlan
from workloads.ramps import ramped
from workloads.schedule import Int64, Trace, frozen
from workloads.transforms.contract import need_order
from workloads.transforms.log import Ledger

COVER_SLACK_NS = 1_000_000
"""How much shorter than the horizon a trace may be, 1 ms: what rounding of factors and windows written in decimals can lose."""

NO_ROW = -1
"""``source_row`` of a request that comes from no trace."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What is sent, in order of arrival: ``trace.arrival_ns`` is planned time, ``trace.input_tokens`` what the server will count,
    ``trace.turns`` who waits for whom. ``ledger``: None for drawn rows of an open loop, to which nothing was done."""

    trace: Trace
    ledger: Ledger | None

    def measured(self, input_tokens: Int64) -> Trace:
        """The rows with the lengths of a data set's texts instead of their own, which is entered in the log."""
        rows = replace(self.trace, input_tokens=input_tokens)
        if self.ledger is not None:
            self.ledger.add("dataset_lengths", {}, rows, {})
        return rows

    def log(self) -> tuple[dict[str, object], ...]:
        """One entry a step and one for all of them, {name, parameters..., rows_before, rows_after, effect}."""
        return self.ledger.close() if self.ledger is not None else ()


def assemble(plan: WorkloadPlan, trace: Trace | None) -> Rows:
    """Rows of a plan that ``check_plan`` lets through; ``trace``: the loaded ``plan.trace``.

    Raises UsageError: the chain, a clock or sessions that the loop cannot be played from, too few rows, a trace shorter than the run.
    """
    horizon_ns = transforms.to_ns(plan.horizon_s)
    if trace is None:
        return _drawn_rows(plan, horizon_ns)
    done = transforms.apply(plan.chain, trace, plan.seed)
    check_sessions(plan, done.trace)
    ledger = Ledger(done.read, done.now, done.log)
    rows = _with_history(plan, done.trace, ledger)
    if plan.loop == "closed":
        return Rows(_closed(plan, rows, horizon_ns, ledger), ledger)
    check_clock(plan, rows)
    if isinstance(plan.arrivals, TraceArrivals):
        need_order(rows, "arrivals.process=trace")
        _check_cover(plan, done.extent_ns, horizon_ns)
        rows = _ramped(plan, rows, horizon_ns, ledger)
        rows = _within(plan, _waiting(plan, rows, ledger), horizon_ns, ledger)
    else:
        rows = _started(plan, rows, _starts(plan, plan.arrivals, horizon_ns), ledger)
        if rows.turns is not None:
            rows = _within(plan, _waiting(plan, rows, ledger), horizon_ns, ledger)
    return Rows(rows, ledger)


def _ramped(plan: WorkloadPlan, rows: Trace, horizon_ns: int, ledger: Ledger) -> Trace:
    if plan.ramp is None:
        return rows
    rows = replace(rows, arrival_ns=frozen(ramped(rows.arrival_ns, plan.ramp, horizon_ns)))
    ledger.add("ramp", plan.ramp.model_dump(), rows, {})
    return rows


def _starts(plan: WorkloadPlan, process: arrivals.Synthetic, horizon_ns: int) -> Int64:
    drawn = arrivals.draw(process, horizon_ns, plan.seed)
    return drawn if plan.ramp is None else ramped(drawn, plan.ramp, horizon_ns)


def _with_history(plan: WorkloadPlan, rows: Trace, ledger: Ledger) -> Trace:
    """Limit turns and decide what each prompt begins with."""
    chosen = plan.sessions or SessionPlan()
    if rows.turns is None:
        return rows
    if chosen.max_turns is not None:
        rows = sessions.limit_turns(rows, rows.turns, chosen.max_turns)
        ledger.add("max_turns", {"max_turns": chosen.max_turns}, rows, {})
    if rows.turns is None:
        raise AssertionError("selecting rows loses no column")
    rows, said = sessions.with_history(rows, rows.turns, chosen, sessions.planned_answers(plan, rows.output_tokens, rows.turns))
    ledger.add("history", {"history": chosen.history}, rows, said)
    return rows


def _waiting(plan: WorkloadPlan, rows: Trace, ledger: Ledger) -> Trace:
    """Say who waits for whom, by the loop."""
    if rows.turns is None:
        return rows
    if plan.loop == "open":
        return sessions.by_the_clock(rows, rows.turns)
    chosen = plan.sessions or SessionPlan()
    rows, said = sessions.waiting(rows, rows.turns, chosen)
    ledger.add("think", {name: getattr(chosen, name) for name in PAUSES}, rows, said, planned=True)
    return rows


def _within(plan: WorkloadPlan, rows: Trace, horizon_ns: int, ledger: Ledger) -> Trace:
    """What is planned to arrive before the horizon, in order of arrival."""
    if rows.turns is None:
        kept = transforms.cut(rows, 0, int(np.searchsorted(rows.arrival_ns, horizon_ns)))
        said: sessions.Said = {}
    else:
        kept, said = sessions.in_send_order(rows, horizon_ns)
    ledger.add("horizon", {"horizon_s": plan.horizon_s}, kept, said, planned=True)
    return kept


def _started(plan: WorkloadPlan, rows: Trace, starts_ns: Int64, ledger: Ledger) -> Trace:
    """Give the k-th row, or session, the k-th start of a process."""
    there = len(rows) if rows.turns is None else len(np.unique(rows.turns.session))
    _check_enough(plan, rows, len(starts_ns), there)
    if rows.turns is None:
        kept = replace(transforms.cut(rows, 0, len(starts_ns)), arrival_ns=frozen(starts_ns), clock="relative")
        ledger.add("lengths_in_order", {}, kept, {})
        return kept
    kept = replace(sessions.start_sessions(rows, starts_ns), clock="relative")
    ledger.add("session_starts", {}, kept, {"sessions": len(starts_ns)})
    return kept


def _check_enough(plan: WorkloadPlan, rows: Trace, wanted: int, there: int) -> None:
    """Refuse to start over: it would repeat lengths in the same order and turn one workload into two that only look alike."""
    if wanted <= there:
        return
    of = "rows of lengths" if rows.turns is None else "sessions"
    want = f"{plan.arrivals.process} arrivals over {plan.horizon_s:g} s need {wanted} {of}"
    what = f"{of.split()[0]}={there}: {want} from {rows.name} after its chain"
    remedy = "widen the window, lower the rate or shorten the run; rows are never reused unless the transform loop says so"
    raise UsageError.single("workload.rows_run_out", what, remedy)


def _check_cover(plan: WorkloadPlan, extent_ns: int, horizon_ns: int) -> None:
    """Refuse a trace shorter than the run: load would stop unannounced and every rate would be of another workload."""
    if extent_ns + COVER_SLACK_NS >= horizon_ns:
        return
    covered = extent_ns / transforms.NS_PER_S
    what = f"horizon_s={plan.horizon_s:.9g}: the trace after its chain covers {covered:.9g} s, so load would stop before the run does"
    raise UsageError.single("workload.horizon_not_covered", what, "widen the window, compress less, or shorten warm-up, measured or drain")


def _closed(plan: WorkloadPlan, rows: Trace, horizon_ns: int, ledger: Ledger) -> Trace:
    """Users in a closed loop over all rows; a constant rate says how many of them are made ready, rate x horizon."""
    if not isinstance(plan.arrivals, TraceArrivals):
        rows = _started(plan, rows, arrivals.draw(plan.arrivals, horizon_ns, plan.seed), ledger)
    think_s = (plan.sessions.think_s if plan.sessions else None) or 0.0
    rows, said = sessions.closed(rows, plan.users or 1, transforms.to_ns(think_s))
    rows = replace(rows, clock="relative")
    ledger.add("closed", {"users": plan.users, "think_s": think_s}, rows, said, planned=True)
    return _within(plan, rows, horizon_ns, ledger)


def _drawn_rows(plan: WorkloadPlan, horizon_ns: int) -> Rows:
    if isinstance(plan.arrivals, TraceArrivals) or plan.lengths is None:
        raise AssertionError("check_plan lets no such plan through")
    arrival = _starts(plan, plan.arrivals, horizon_ns)
    count = len(arrival)
    tokens_in = _lengths(plan.lengths.input, count, plan.seed, "input")
    tokens_out = _lengths(plan.lengths.output, count, plan.seed, "output")
    rows = Trace("", "drawn lengths", frozen(arrival), tokens_in, tokens_out, frozen(np.full(count, NO_ROW, dtype=np.int64)))
    if plan.loop != "closed":
        return Rows(rows, None)
    described = transforms.describe(rows)
    ledger = Ledger(described, described, ())
    return Rows(_closed(plan.model_copy(update={"arrivals": TraceArrivals()}), rows, horizon_ns, ledger), ledger)


def _lengths(distribution: LengthDistribution, count: int, seed: int, side: str) -> Int64:
    if distribution.kind == "constant":
        return frozen(np.full(count, distribution.value, dtype=np.int64))
    rng = seeds.generator(seed, "lengths", side)
    return frozen(rng.integers(distribution.low or 1, distribution.high or 1, size=count, dtype=np.int64, endpoint=True))
