"""Integrity: the record says what happened, and what happened is what was planned."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from analysis.gates.registry import Finding, RunContext, failed, gate, judge, number, passed, unknown
from analysis.gates.tables import in_order
from analysis.model import Claim, Outcome
from analysis.planned import MISSING, Int64, due_ns, gone_users, integers, is_any, offered_rows, planned, texts, waits
from analysis.samples import need
from harness.record.reader import RunRecord
from harness.record.schema import EndKind

INTEGRITY = (Claim.INTEGRITY,)

OURS = (400, 401, 403, 404, 405, 413, 415, 422)
"""Statuses that blame the sender. 400, 404 and 422 are DESIGN 6; the others say the same (key, method, size or type of what we sent)."""

EARLY_NS = 1_000_000
"""A send up to 1 ms before its arrival is clock rounding (the floor of ``client_slip``); earlier, load was moved in time."""


@gate(
    "pins_match",
    protects=INTEGRITY,
    threshold="No tolerance: a pin is held against a fact, equal or not. What cannot be seen of an endpoint its user may attest, and the "
    "reason counts such pins. A pin nobody could check is UNKNOWN, and so is a run without pins.",
    remedy="Start the arm with the pinned model, dtype, hardware and parallelism, or change the pin in the manifest on purpose.",
)
def pins_match(context: RunContext) -> Finding:
    """Every pin was matched by an observed fact, or by the word of an endpoint's user where nobody could see."""
    pins = context.record.facts.pins
    need(bool(pins), "no pin was held against a fact")
    wrong = [f"{p.pin}: expected {p.expected!r}, observed {p.observed!r}" for p in pins if p.result == "mismatched"]
    open_ = [f"{p.pin}: {p.reason or 'not observed'}" for p in pins if p.result == "unknown"]
    measured = {"mismatched": number(len(wrong), 0, "pins"), "unknown": number(len(open_), 0, "pins")}
    if wrong:
        return failed("; ".join(wrong + open_), **measured)
    if open_:
        return unknown("; ".join(open_), **measured)
    vouched = sum(p.source == "attested" for p in pins)
    return passed(f"{len(pins)} pins matched" + (f", {vouched} of them by attestation" if vouched else ""), **measured)


@gate(
    "flags_known",
    protects=INTEGRITY,
    threshold="No tolerance: a flag the server does not know may be ignored in silence, and then the arm is not the declared one.",
    remedy="Correct the flag's name for the installed version (the runtime's check names the nearest), or remove it from the arm.",
)
def flags_known(context: RunContext) -> Finding:
    """Every flag of the command line is one the installed version knows."""
    facts, arm = context.record.facts, context.record.spec.arm
    if facts.flags_unknown:
        return failed(f"unknown flags: {', '.join(facts.flags_unknown)}", unknown=number(len(facts.flags_unknown), 0, "flags"))
    if arm.runtime == "endpoint" and not facts.argv:
        need(not arm.args, "flags are declared for an attached endpoint whose command line is not ours to see")
        return passed("no flags declared")
    need(bool(facts.argv), "the command line was not recorded")
    need(facts.flags_checked is True, "the command line was not held against the installed version's own parser")
    return passed(f"{len(facts.argv)} words of the command line checked", unknown=number(0, 0, "flags"))


@gate(
    "partition_closes",
    protects=INTEGRITY,
    threshold="No tolerance (F35): every request offered in the window is in exactly one class, counted from the schedule and from the "
    "rows. A request that waits for others arrives when the run decides, so its recorded arrival counts; one whose row is missing counts "
    "as offered. A turn that never came due is in no cohort and counted apart.",
    remedy="The record is incomplete or counted twice: discard this attempt and run the replicate again; if it repeats, report it as a "
    "defect.",
)
def partition_closes(context: RunContext) -> Finding:
    """The outcome classes add up to the offered cohort, and both to the schedule."""
    record, counts = context.record, context.outcomes
    scheduled = int(offered_rows(record).sum())
    need(scheduled > 0, "no request was offered in the measured window")
    cohort = context.outcome[context.clocks.in_cohort]
    by_row = {o: int(np.count_nonzero(cohort == o)) for o in Outcome}
    classes = ", ".join(f"{o.value} {counts.counts.get(o, 0)}" for o in Outcome)
    ids = integers(record.requests, "request_id")
    twice = len(ids) - int(np.count_nonzero(np.diff(np.sort(ids), prepend=MISSING)))
    holds = counts.closes() and counts.offered == scheduled == len(cohort) and twice == 0
    holds = holds and all(by_row[o] == counts.counts.get(o, 0) for o in Outcome)
    return judge(
        holds,
        f"offered {counts.offered} = {classes}; scheduled {scheduled}; rows {len(cohort)}, {twice} of all rows twice"
        + (f"; never due {sum(counts.not_due.values())}" if counts.not_due else ""),
        offered=number(counts.offered, scheduled, "requests"),
        classified=number(sum(counts.counts.values()), scheduled, "requests"),
        duplicate_rows=number(twice, 0, "rows"),
    )


@gate(
    "requests_wellformed",
    protects=INTEGRITY,
    threshold="None allowed: a 400, 404 or 422 (or another status that blames the sender) or a fault of the client is our doing, not the "
    "server's.",
    remedy="Fix what was sent (prompt longer than the model, unknown model name, bad parameter: see the error column) and run again.",
)
def requests_wellformed(context: RunContext) -> Finding:
    """No request was refused for what we sent, and the client had no fault."""
    table = context.record.requests
    need(table.num_rows > 0, "no request was recorded")
    status, inner, kind = integers(table, "http_status"), integers(table, "error_status"), texts(table, "end_kind")
    blamed = np.isin(status, OURS) | np.isin(inner, OURS)
    faults = is_any(kind, EndKind.CLIENT_FAULT)
    codes = sorted(set(status[np.isin(status, OURS)].tolist()) | set(inner[np.isin(inner, OURS)].tolist()))
    text = next((e for e, b in zip(table["error"].to_pylist(), blamed | faults, strict=True) if b and e), "")
    return judge(
        not (blamed.any() or faults.any()),
        f"{int(blamed.sum())} requests answered with a status that blames the sender {codes}, {int(faults.sum())} client faults"
        + (f"; first error: {text}" if text else ""),
        blamed=number(int(blamed.sum()), 0, "requests"),
        client_faults=number(int(faults.sum()), 0, "requests"),
    )


@gate(
    "delivered_load",
    protects=INTEGRITY,
    threshold="No tolerance on count (sent = what came due); 1 ms of earliness, the floor of client_slip. A refused connection was an "
    "attempt to send. A request that waits for others came due its think time after the last of their ends, to the same 1 ms, and fails "
    "to come due only because one of them did not end as planned or the run ended first. None is cancelled but by plan and in its time. "
    "In a closed loop every user lasts until the cohort has ended.",
    remedy="Give the client more room (cores, open files, fewer other processes) or lower the load, so that every request is sent when "
    "due. A closed loop whose users leave needs more requests for each of them, or a server that refuses none.",
)
def delivered_load(context: RunContext) -> Finding:
    """Every scheduled request was sent, at its own arrival and not before."""
    record, table = context.record, in_order(context.record)
    ids = integers(record.schedule, "request_id")
    need(len(ids) > 0, "the schedule is empty")
    need(record.spec.evidence_class != "imported", "imported: a log is its own plan, so nobody knows what should have been sent")
    rows = integers(record.requests, "request_id")
    missing = 0 if np.array_equal(ids, rows) else len(np.setxor1d(ids, rows))
    arrival, send, kind = integers(table, "arrival_ns"), integers(table, "send_ns"), texts(table, "end_kind")
    attempted = is_any(kind, EndKind.CONNECT_REFUSED, EndKind.CONNECT_FAILED)
    unsent = int((is_any(kind, EndKind.NEVER_SENT) | ((send < 0) & ~attempted)).sum())
    moved, held_back = _moved(record, ids)
    early, cancelled, gone = _early(send, arrival), _given_up(record, table), _gone(context)
    never = sum(context.outcomes.not_due.values())
    return judge(
        missing == unsent == moved == held_back == early == cancelled == gone == 0,
        f"scheduled {len(ids)}, rows {len(rows)}, never due {never} ({held_back} of them without a cause), never sent {unsent}, without a "
        f"partner {missing}, arrival changed {moved}, sent early {early}, cancelled unplanned or early {cancelled}"
        + (f"; users of the closed loop gone too early {gone}" if gone else ""),
        sent=number(len(table) - unsent, len(ids) - never + held_back, "requests"),
        without_partner=number(missing, 0, "requests"),
        arrival_changed=number(moved, 0, "requests"),
        held_back=number(held_back, 0, "requests"),
        sent_early=number(early, 0, "requests"),
        cancelled_unplanned=number(cancelled, 0, "requests"),
        users_gone=number(gone, 0, "users"),
    )


def _moved(record: RunRecord, ids: Int64) -> tuple[int, int]:
    """Count rows that arrived when they should not have, and rows that should have arrived and did not."""
    due, came = due_ns(record), planned(record.requests, "arrival_ns", ids)
    here = np.isin(ids, integers(record.requests, "request_id"))
    tolerance = np.where(waits(record.schedule), EARLY_NS, 0)
    moved = here & (came != MISSING) & ((due == MISSING) | (np.abs(came - due) > tolerance))
    # One that would have come due in the last tolerance before the end may have lost the race with it.
    held_back = here & (came == MISSING) & (due != MISSING) & (due < record.spec.window.end_ns - tolerance)
    return int(moved.sum()), int(held_back.sum())


def _early(send: Int64, arrival: Int64) -> int:
    return int(((send >= 0) & (send < arrival - EARLY_NS)).sum())


def _gone(context: RunContext) -> int:
    """Count users of a closed loop that left before the window, or the last request of its cohort, had ended: the load died away."""
    record, clocks = context.record, context.clocks
    if not record.spec.workload.loop.startswith("closed"):
        return 0
    last = int(clocks.end_ns[clocks.in_cohort].max(initial=0))
    return gone_users(record, max(record.spec.window.stop_ns, last))


def _given_up(record: RunRecord, table: pa.Table) -> int:
    """Count requests cancelled without a plan to, or before their time."""
    after, arrival = planned(record.schedule, "cancel_after_ns", integers(table, "request_id")), integers(table, "arrival_ns")
    cancelled = is_any(texts(table, "end_kind"), EndKind.CANCELLED)
    return int((cancelled & ((after == MISSING) | (integers(table, "end_ns") < arrival + after - EARLY_NS))).sum())


@gate(
    "server_survived",
    protects=INTEGRITY,
    threshold="No tolerance: numbers from a server that died are numbers about dying. Unknown survival is UNKNOWN.",
    remedy="Read server.log for the cause (memory, a bad request, a signal), fix it and run the replicate again on a fresh server.",
)
def server_survived(context: RunContext) -> Finding:
    """The server was alive when the drain ended."""
    ended = context.record.facts.server_exit
    if ended is None or ended.survived is None:
        return unknown("nobody saw whether the server was alive when the drain ended")
    last = f"; last log line: {ended.log_tail[-1]}" if ended.log_tail and not ended.survived else ""
    state = "alive when the drain ended" if ended.survived else f"dead before the drain ended, exit code {ended.exit_code}"
    return judge(ended.survived, f"server {state}{last}", survived=number(int(ended.survived), 1, "server"))


@gate(
    "seal_intact",
    protects=INTEGRITY,
    threshold="No tolerance: sha256 of every file against the SEAL.",
    remedy="Restore the sealed files from a copy; a changed record cannot be repaired, only measured again.",
)
def seal_intact(context: RunContext) -> Finding:
    """Every sealed file is as it was sealed."""
    seal = context.record.seal
    need(seal.intact is not None, "the attempt has no seal: it was cut before it ended")
    if seal.intact:
        return passed(f"sealed, root {seal.root}", problems=number(0, 0, "files"))
    return failed("; ".join(seal.problems) or "a sealed file changed", problems=number(max(1, len(seal.problems)), 0, "files"))
