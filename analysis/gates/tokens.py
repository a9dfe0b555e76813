"""Token counts: the client's, the server's and the plan's."""

from __future__ import annotations

import numpy as np

from analysis.gates.registry import CellContext, Finding, PairContext, RunContext, combine, failed, gate, judge, number, passed
from analysis.gates.tables import in_order
from analysis.model import Claim
from analysis.outcomes import expected_tokens
from analysis.planned import SERVED, Bools, Int64, integers, is_any, planned, texts
from analysis.samples import need
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


@gate(
    "output_length_agree",
    protects=(Claim.COMPARISON,),
    scope="pair",
    threshold="forced and client_stop: nothing to hold, every length is the plan's (gate output_length). natural and capped: the mean "
    "output of the second cell within 10% of the first's, the tolerance of MLPerf Inference's TEST09, over the requests that both "
    "served: what an overloaded arm failed to serve must not pass for shorter answers.",
    remedy="Compare under `forced` or `client_stop`, where the plan fixes every length, or declare output length as the treatment.",
)
def output_length_agree(context: PairContext) -> Finding:
    """Two cells answered the same requests at the same mean length."""
    controls = {c.spec.workload.output_length for c in (context.a, context.b)}
    if controls <= {"forced", "client_stop"}:
        need(all(len(_lengths(c)) for c in (context.a, context.b)), "a cell served no request")
        return passed(f"{' and '.join(sorted(controls))}: every length is the plan's", difference=number(0, MEAN_TOLERANCE, "ratio"))
    one, two = _lengths(context.a), _lengths(context.b)
    shared = sorted(one.keys() & two.keys())
    need(bool(shared), "no request was served by both cells")
    a, b = (np.array([side[key] for key in shared], dtype=np.int64) for side in (one, two))
    need(bool((a >= 0).all() and (b >= 0).all()), "a request that both served has no token count")
    # Of whole sums, so that a difference of exactly the limit is inside it.
    difference = abs(int(b.sum()) - int(a.sum())) / max(int(a.sum()), 1)
    return judge(
        difference <= MEAN_TOLERANCE,
        f"mean output tokens {a.mean():.4g} and {b.mean():.4g} over {len(shared)} requests that both served, difference "
        f"{100 * difference:.3g}% (limit {100 * MEAN_TOLERANCE:g}%)",
        difference=number(difference, MEAN_TOLERANCE, "ratio"),
    )


def _lengths(cell: CellContext) -> dict[tuple[int, str, int], int]:
    """Output tokens of every served request by what makes it the same request in another cell: replicate, schedule, id."""
    found: dict[tuple[int, str, int], int] = {}
    for run in cell.runs:
        spec, served = run.record.spec, is_any(run.clocks.end_kind, *SERVED)
        pairs = zip(run.clocks.request_id[served].tolist(), run.clocks.tokens[served].tolist(), strict=True)
        found |= {(spec.replicate, spec.workload.digest, i): n for i, n in pairs}
    return found
