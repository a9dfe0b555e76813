"""Token counts: the client's, the server's and the plan's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.clocks import Int64
from analysis.gates.registry import CellContext, Finding, RunContext, combine, failed, gate, judge, number, passed
from analysis.gates.tables import SERVED, Bools, in_order, integers, is_any, need, planned, texts
from analysis.model import CheckResult, Claim, Verdict
from analysis.outcomes import expected_tokens
from harness.record.schema import EndKind

OVERSHOOT = 0.02
"""Work done past ``stop_after`` and never counted, as a share of the planned output. 2% is the usual ranking margin: beyond it the
uncounted work alone could decide a ranking."""

MEAN_TOLERANCE = 0.10
"""Mean output length across arms: +-10%, the tolerance of MLPerf Inference's TEST09 for mean output tokens."""


@gate(
    "tokens_agree",
    protects=(Claim.INTEGRITY,),
    threshold="No tolerance: tokens are counted one by one, so client and server agree exactly on every completed request or one is wrong.",
    remedy="Ask for token ids or continuous usage; check that client and server use one tokenizer and that no proxy rewrites the stream.",
)
def tokens_agree(context: RunContext) -> Finding:
    """Client count = server usage on every served request, prompt usage = scheduled input, client_stop reached its length."""
    record, table = context.record, in_order(context.record)
    kind = texts(table, "end_kind")
    served = is_any(kind, *SERVED)
    need(bool(served.any()), "no request was served")
    ids = integers(table, "request_id")
    counted, usage = integers(table, "client_tokens"), integers(table, "usage_completion_tokens")
    asked, prompt = planned(record.schedule, "input_tokens", ids), integers(table, "usage_prompt_tokens")
    stopped = is_any(kind, EndKind.CLIENT_STOP)
    parts = [_equal("output", served, counted, usage), _equal("prompt", served, asked, prompt)]
    if stopped.any():
        parts.append(_reached(stopped, counted, planned(record.truth, "stop_after", ids)))
    return combine(parts)


def _equal(name: str, served: Bools, client: Int64, server: Int64) -> Finding:
    blank = served & ((client < 0) | (server < 0))
    wrong = served & ~blank & (client != server)
    measured = {f"{name}_disagree": number(int(wrong.sum()), 0, "requests"), f"{name}_uncounted": number(int(blank.sum()), 0, "requests")}
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        return failed(
            f"{name} tokens differ on {int(wrong.sum())} of {int(served.sum())} (first: client {client[i]}, server {server[i]})", **measured
        )
    need(not blank.any(), f"{name} tokens of {int(blank.sum())} served requests are not counted on both sides")
    return passed(f"{name} tokens agree on {int(served.sum())} requests", **measured)


def _reached(stopped: Bools, counted: Int64, stop_after: Int64) -> Finding:
    need(bool((stop_after[stopped] >= 0).all()), "a request was stopped by the client without a planned stop_after")
    short = int((counted[stopped] < stop_after[stopped]).sum())
    return judge(short == 0, f"{short} requests were stopped before stop_after", stopped_short=number(short, 0, "requests"))


@gate(
    "output_length",
    protects=(Claim.LATENCY, Claim.GOODPUT, Claim.CAPACITY, Claim.COMPARISON),
    threshold="forced: exact. client_stop: none short, overshoot <= 2% of the planned tokens (uncounted work within the usual ranking "
    "margin). capped: none over the declared maximum. natural: the server's choice, described; arms are held to one mean "
    "(+-10%, MLPerf TEST09).",
    remedy="forced: set ignore_eos and max_tokens; client_stop: stop closer to the wire (token ids, one token an event); else change the "
    "control.",
)
def output_length(context: RunContext) -> Finding:
    """Served requests have the length that the output-length control promises."""
    record, spec = context.record, context.record.spec
    table = in_order(record)
    served = is_any(texts(table, "end_kind"), *SERVED)
    need(bool(served.any()), "no request was served")
    real = context.clocks.tokens[served]
    need(bool((real >= 0).all()), f"{int((real < 0).sum())} served requests have no token count")
    goal = expected_tokens(record, context.clocks)[served]
    need(bool((goal >= 0).all()), f"{int((goal < 0).sum())} served requests have no planned length")
    return {"forced": _forced, "client_stop": _client_stop}.get(spec.workload.output_length, _described)(context, real, goal)


def _forced(_context: RunContext, real: Int64, goal: Int64) -> Finding:
    wrong = int((real != goal).sum())
    return judge(wrong == 0, f"forced: {wrong} of {len(real)} lengths differ from the plan", differ=number(wrong, 0, "requests"))


def _client_stop(_context: RunContext, real: Int64, goal: Int64) -> Finding:
    short = int((real < goal).sum())
    over = float(np.maximum(real - goal, 0).sum() / max(1, int(goal.sum())))
    return judge(
        short == 0 and over <= OVERSHOOT,
        f"client_stop: {short} of {len(real)} short, overshoot {100 * over:.3g}% of the planned tokens (limit {100 * OVERSHOOT:g}%)",
        short=number(short, 0, "requests"),
        overshoot=number(over, OVERSHOOT, "ratio"),
    )


def _described(context: RunContext, real: Int64, _goal: Int64) -> Finding:
    control = context.record.spec.workload.output_length
    cap = context.record.spec.workload.max_tokens if control == "capped" else None
    over = int((real > cap).sum()) if cap is not None else 0
    return judge(
        over == 0,
        f"{control}: lengths are the server's choice, mean {real.mean():.4g}, max {real.max()}, n {len(real)}; {over} over the "
        f"declared maximum",
        mean=number(float(real.mean()), None, "tokens"),
        over_maximum=number(over, 0, "requests"),
    )


def output_length_agree(cells: Sequence[CellContext], tolerance: float = MEAN_TOLERANCE) -> CheckResult:
    """Hold the mean realised length of several cells to one value: each within ``tolerance`` (relative) of the first cell's.

    Scope is the comparison, so it is called by whoever compares and is not in the registry. UNKNOWN with fewer than two cells or without
    counted tokens.
    """
    means = [(c.spec.cell, _mean_length(c)) for c in cells]
    known = [m for _, m in means if m is not None]
    listed = ", ".join(f"{name} {'not counted' if m is None else format(m, '.4g')}" for name, m in means)
    verdict, worst = Verdict.UNKNOWN, None
    if len(known) == len(means) >= 2 and known[0] > 0:
        worst = max(abs(m / known[0] - 1) for m in known)
        verdict = Verdict.PASS if worst <= tolerance else Verdict.FAIL
    return CheckResult(
        "output_length_agree",
        verdict,
        f"mean output tokens: {listed or 'no cells'}"
        + ("" if worst is None else f"; largest difference {100 * worst:.3g}%, limit {100 * tolerance:g}%"),
        (Claim.COMPARISON,),
        "Compare under `forced` or `client_stop`, where the plan fixes every length, or declare output length as the treatment.",
        {"difference": number(worst, tolerance, "ratio")},
        "comparison",
    )


def _mean_length(cell: CellContext) -> float | None:
    found = [r.clocks.tokens[is_any(r.clocks.end_kind, *SERVED)] for r in cell.runs]
    tokens = np.concatenate(found) if found else np.empty(0)
    return float(tokens.mean()) if len(tokens) and (tokens >= 0).all() else None
