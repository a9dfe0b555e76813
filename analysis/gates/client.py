"""The client: that it sent in time, stamped in time, and had room to spare."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from analysis.gates.certified import certified
from analysis.gates.registry import Finding, RunContext, attempt, combine, gate, judge, number, passed
from analysis.gates.tables import by_label, nearest_rank, shares
from analysis.model import Claim
from analysis.planned import waits
from analysis.samples import AbsentError, need
from analysis.slos import tightest
from analysis.virtual import WORDS, in_virtual_time
from harness.record.coordinates import Known
from harness.record.facts import Fact

TIMED = (Claim.LATENCY, Claim.GOODPUT, Claim.CAPACITY)

MS = 1_000_000

SLIP_SHARE = 0.01
SLIP_MAX_SHARE = 0.10
"""p99 of slip within 1% of the tightest limit and none over 10% of it (DESIGN 8): a late send is charged to the server's TTFT."""

LAG_SHARE = 0.02
"""p99 of receive lag within 2% of the TBT limit: a gap has two ends, each late by at most that, so it is off by at most 4% of the limit."""

UNSTAMPED_SHARE = 0.01
"""Reads lose their stamp by the instant, when somebody sets the clock, and not by what they hold: so few cannot reach a p99."""

FLOOR_NS = 1 * MS
"""1 ms is what timers and wake-ups of a general-purpose kernel hold at p99 on an idle core; a tighter limit would test the kernel."""

CPU_SHARE = 0.5
"""Half a core for the single-threaded client: the factor of a certificate's headroom. In an M/D/1 queue the mean wait is
rho / (2 (1 - rho)) services, half a service at 0.5 and growing without bound after it."""

DELAY_SHARE = 0.05
"""At most 5% of the time runnable without a core: that is the chance that a stamp had to wait at all; how long is receive_lag's matter."""


@gate(
    "client_slip",
    protects=TIMED,
    threshold="p99 <= max(1 ms, 1% of the tightest TTFT/E2E limit), max <= 10% of that limit (10 ms when no limit is set): slip is "
    "counted in TTFT, so a share of the limit bounds its effect on attainment; 1 ms is the kernel's own floor. p99 needs n >= "
    "100. Virtual time: no send may differ from its arrival at all, so no sample is needed.",
    remedy="Reserve a core for the client (placement), stop other work on its host, or lower the load.",
)
def client_slip(context: RunContext) -> Finding:
    """Requests of the cohort were sent when they were due."""
    clocks = context.clocks
    sent = clocks.in_cohort & (clocks.send_ns >= 0)
    slip = (clocks.send_ns - clocks.arrival_ns)[sent]
    if in_virtual_time(context.record):
        need(len(slip) > 0, "no request of the cohort was sent")
        worst = int(abs(slip).max())
        return judge(worst == 0, f"{WORDS} slip of all {len(slip)} requests at most {worst} ns", slip_max=number(worst, 0, "ns"))
    limit = tightest(context.record.spec, "ttft_ns", "e2e_ns")
    p99_limit = _slip_limit(context)
    max_limit = SLIP_MAX_SHARE * limit if limit is not None else 10 * FLOOR_NS
    p99, most = nearest_rank(slip, 0.99), float(slip.max())
    return judge(
        p99 <= p99_limit and most <= max_limit,
        f"slip p99 {p99 / MS:.4g} ms (limit {p99_limit / MS:g} ms), max {most / MS:.4g} ms (limit {max_limit / MS:g} ms), n {len(slip)}",
        slip_p99=number(p99 / MS, p99_limit / MS, "ms"),
        slip_max=number(most / MS, max_limit / MS, "ms"),
    )


def _slip_limit(context: RunContext) -> float:
    """How late a send may be, ns: what p99 of slip is held to."""
    limit = tightest(context.record.spec, "ttft_ns", "e2e_ns")
    return FLOOR_NS if limit is None else max(FLOOR_NS, SLIP_SHARE * limit)


@gate(
    "receive_lag",
    protects=TIMED,
    threshold="Lag of the loop p99 <= max(1 ms, 2% of the TBT limit) in every worker: both ends of a gap may be late by the lag, so a "
    "gap is off by at most 4% of its limit; stamps of the kernel do not wait for the loop, but tokens that come meanwhile share one. p99 "
    "needs n >= 100 probes of each worker in the window. Where the kernel is said to stamp, it stamped >= 99% of the reads of every "
    "worker. "
    "Virtual time: nothing is received, so there is no lag.",
    remedy="Reserve a core for the client (placement), spread the streams over more worker processes, or lower the load.",
)
def receive_lag(context: RunContext) -> Finding:
    """The client's loop, of each worker, was ready when bytes came, and they were stamped as the record says."""
    if in_virtual_time(context.record):
        return passed(f"{WORDS} stamps are the engine's own, nothing was received")
    stamps = context.record.coordinates.coordinates["client.stamps"]
    by_kernel = isinstance(stamps, Known) and stamps.value == "kernel"
    return combine(attempt(part, context) for part in ((_lag, _unstamped) if by_kernel else (_lag,)))


def _lag(context: RunContext) -> Finding:
    lags = by_label(context.record, "client", "loop_lag_s")
    _of_all_workers(context, lags, "loop_lag_s")
    tbt = tightest(context.record.spec, "tbt_ns")
    limit = max(FLOOR_NS, LAG_SHARE * tbt if tbt is not None else 0) / MS
    # Streams of one worker wait for its own loop: a pool would let an idle worker excuse a busy one.
    p99, worker = max((nearest_rank(lag * 1e3, 0.99), label) for label, lag in lags.items())
    of = f", the worst of {len(lags)} workers ({worker})" if len(lags) > 1 else ""
    words = f"loop lag p99 {p99:.4g} ms (limit {limit:g} ms), n {len(lags[worker])} probes{of}"
    return judge(p99 <= limit, words, lag_p99=number(p99, limit, "ms"))


def _unstamped(context: RunContext) -> Finding:
    """The wall clock, which the kernel stamps by, may have been set meanwhile; then the instant of the read stands in."""
    reads, unstamped = (shares(context.record, "client", metric) for metric in ("reads_total", "unstamped_reads_total"))
    _of_all_workers(context, reads, "reads_total")
    _of_all_workers(context, unstamped, "unstamped_reads_total")
    share = max(unstamped[label] / reads[label] if reads[label] > 0 else 0.0 for label in reads)
    words = f"{100 * share:.3g}% of the reads not stamped by the kernel (limit {100 * UNSTAMPED_SHARE:g}%)"
    return judge(share <= UNSTAMPED_SHARE, words, unstamped=number(share, UNSTAMPED_SHARE, "ratio"))


@gate(
    "client_headroom",
    protects=TIMED,
    threshold="Calibrated ceilings > 2 x the realised request and event rates and mean open streams (bursts of twice the mean are "
    "ordinary), of a certificate made under this protocol, on this host and boot, at most 30 days before, with as many workers; where "
    "events were decoded as they came (client_stop, turns, users), the ceiling of that. A certificate that does not apply, or did not "
    "measure one of these, is UNKNOWN. The client's own CPU <= 0.5 of a core a process (M/D/1 wait: half a service at 0.5, unbounded "
    "after); run-queue delay <= 5% of the time (the chance that a stamp waited at all); both of every worker. Host CPU is not looked "
    "at: the server may share the host. "
    "Virtual time: there is no client to be short of anything.",
    remedy="Run `trigpoint calibrate` on this host and boot, reserve a core for the client, add workers, or lower the load.",
)
def client_headroom(context: RunContext) -> Finding:
    """The client could have done at least twice as much."""
    if in_virtual_time(context.record):
        return passed(f"{WORDS} no client ran")
    return combine(attempt(part, context) for part in (certified, _own_cpu, _run_queue))


@gate(
    "clock_sync",
    protects=(*TIMED, Claim.FAIRNESS),
    threshold="Each worker's clock stood, before and after the load, within max(1 ms, 1% of the tightest TTFT/E2E limit) of the epoch it "
    "was told: |offset - what the epoch was shifted by| + half of the quickest round trip, which bounds the error however the delay was "
    "shared. An arrival is off by that against other workers, the server's times and the cohort's edges, as it is by slip, so the "
    "limit is slip's; what is counted from one request's own stamps is not touched. Workers of one host share its clock.",
    remedy="Use hosts that are nearer or whose clocks are disciplined (PTP), shorten the run, or put all workers on one host.",
)
def clock_sync(context: RunContext) -> Finding:
    """Clocks of a fleet's hosts stood together from the first arrival to the last end."""
    if in_virtual_time(context.record):
        return passed(f"{WORDS} there is one clock")
    clocks = context.clocks
    need(bool((clocks.in_cohort & (clocks.send_ns >= 0)).any()), "no request of the cohort was sent")
    if context.record.spec.fleet == "processes":
        return passed("all workers ran on one host and read its clock")
    facts = context.record.facts
    workers = sorted(name.split(".")[1] for name in facts.before if name.startswith("fleet.") and name.endswith(".clock"))
    need(bool(workers), "the clocks of the fleet's hosts were not compared")
    need(len(workers) >= _workers(context), f"the clocks of {len(workers)} of {_workers(context)} workers were compared")
    return combine(attempt(partial(_clock_of, worker=worker), context) for worker in workers)


def _clock_of(context: RunContext, *, worker: str) -> Finding:
    facts, limit = context.record.facts, _slip_limit(context)
    shift = _fleet(facts.before, worker, "shift_ns")
    offsets = [(_fleet(when, worker, "offset_ns"), _fleet(when, worker, "uncertainty_ns")) for when in (facts.before, facts.after)]
    if _fleet(facts.before, worker, "clock") == "shared":
        apart = [abs(offset) - uncertainty for offset, uncertainty in offsets]
        return judge(
            max(apart) <= 0,
            f"{worker} shares its clock with the driver, and what was measured {'agrees' if max(apart) <= 0 else 'contradicts it'}",
            **{f"clock_{worker}": number(max(0.0, max(apart)) / MS, 0, "ms")},
        )
    worst = max(abs(offset - shift) + uncertainty for offset, uncertainty in offsets)
    words = f"clock of {worker} within {worst / MS:.4g} ms of the epoch it was told (limit {limit / MS:g} ms)"
    return judge(worst <= limit, words, **{f"clock_{worker}": number(worst / MS, limit / MS, "ms")})


def _fleet(facts: Mapping[str, Fact], worker: str, name: str) -> Any:
    fact = facts.get(f"fleet.{worker}.{name}")
    if fact is None or fact.value is None:
        raise AbsentError(f"fleet.{worker}.{name} is not known" + (f": {fact.reason}" if fact is not None and fact.reason else ""))
    return fact.value


def _of_all_workers(context: RunContext, found: Collection[str], metric: str) -> None:
    """A worker that was not seen may be the one that was late. Raises AbsentError."""
    workers = _workers(context)
    need(bool(found), f"client.{metric} was never sampled")
    need(len(found) >= workers, f"client.{metric} was sampled of {len(found)} of {workers} workers")


def _workers(context: RunContext) -> int:
    """How many had a share: what waits for another request's end is replayed by that one's worker, and a worker without any is left out."""
    begun = int((~waits(context.record.schedule)).sum())
    return min(context.record.spec.workers, max(begun, 1))


def _busiest(context: RunContext, metric: str) -> float:
    found = shares(context.record, "client", metric)
    _of_all_workers(context, found, metric)
    return max(found.values())


def _own_cpu(context: RunContext) -> Finding:
    used = _busiest(context, "cpu_s_total")
    return judge(used <= CPU_SHARE, f"client CPU {used:.3g} of a core (limit {CPU_SHARE:g})", client_cpu=number(used, CPU_SHARE, "cores"))


def _run_queue(context: RunContext) -> Finding:
    waited = _busiest(context, "run_delay_s_total")
    return judge(
        waited <= DELAY_SHARE,
        f"client waited for a core in {100 * waited:.3g}% of the time (limit {100 * DELAY_SHARE:g}%)",
        client_run_delay=number(waited, DELAY_SHARE, "ratio"),
    )
